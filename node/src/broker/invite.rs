//! Stand-in for the mesh's invite types until they land: same shape, same bytes. Pure.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Names an invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InviteId([u8; 8]);

impl From<[u8; 8]> for InviteId {
    fn from(bits: [u8; 8]) -> Self {
        Self(bits)
    }
}

/// SHA-256 of an invite's secret.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteKey([u8; 32]);

impl std::fmt::Debug for InviteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InviteKey(…)")
    }
}

impl From<[u8; 32]> for InviteKey {
    fn from(bits: [u8; 32]) -> Self {
        Self(bits)
    }
}

impl InviteKey {
    /// HMAC-SHA256 of the binding.
    #[must_use]
    pub fn prove(&self, binding: &[u8; 32]) -> [u8; 32] {
        let padded = |with: u8| {
            let mut block = [with; 64];
            block.iter_mut().zip(self.0).for_each(|(pad, key)| *pad ^= key);
            block
        };
        let inner = Sha256::new().chain_update(padded(0x36)).chain_update(binding).finalize();
        Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
    }

    /// Whether `proof` is that.
    #[must_use]
    pub fn proves(&self, binding: &[u8; 32], proof: &[u8; 32]) -> bool {
        Sha256::digest(self.prove(binding)) == Sha256::digest(proof)
    }
}
