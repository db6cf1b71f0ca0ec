//! Invites: an id, a secret, and the proof that somebody has the secret. Pure: the random bytes are arguments. What a
//! person copies is the [`crate::InviteCode`].

use std::fmt;

use data_encoding::HEXLOWER;
use ring::hmac;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Names an invite; it is no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InviteId(pub(super) [u8; 8]);

impl From<[u8; 8]> for InviteId {
    fn from(bits: [u8; 8]) -> Self {
        Self(bits)
    }
}

impl fmt::Display for InviteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for InviteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InviteId({self})")
    }
}

/// The secret of an invite. It leaves only inside a [`crate::InviteCode`]'s text.
#[derive(Clone, PartialEq, Eq)]
pub struct InviteSecret(pub(super) [u8; 16]);

impl InviteSecret {
    /// What the mesh keeps of the secret: enough to check a proof, and to make one, and not the code.
    #[must_use]
    pub fn key(&self) -> InviteKey {
        InviteKey(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for InviteSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// SHA-256 of an invite's secret. Whoever has it can prove the invite, so it is not shown either.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteKey([u8; 32]);

impl InviteKey {
    /// The proof for the connection whose TLS exporter gave `binding` (RFC 5705): HMAC-SHA256, so that it is worth
    /// nothing on another connection.
    #[must_use]
    pub fn prove(&self, binding: &[u8; 32]) -> [u8; 32] {
        let tag = hmac::sign(&self.hmac(), binding);
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether `proof` was made with this key for this connection; takes the same time whatever the proof is.
    #[must_use]
    pub fn proves(&self, binding: &[u8; 32], proof: &[u8; 32]) -> bool {
        hmac::verify(&self.hmac(), binding, proof).is_ok()
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for InviteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A new invite out of 24 random bytes.
#[must_use]
pub fn fresh_invite(random: [u8; 24]) -> (InviteId, InviteSecret) {
    let (mut id, mut secret) = ([0; 8], [0; 16]);
    id.copy_from_slice(&random[..8]);
    secret.copy_from_slice(&random[8..]);
    (InviteId(id), InviteSecret(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(from: u8) -> [u8; 24] {
        std::array::from_fn(|at| from + u8::try_from(at).unwrap())
    }

    #[test]
    fn the_proof_is_the_hmac_of_the_binding_under_the_hash_of_the_secret() {
        let (id, secret) = fresh_invite(random(0));
        assert_eq!(id.to_string(), "0001020304050607");
        // Computed with Python: hmac.new(sha256(bytes(range(8, 24))).digest(), bytes(range(32)), sha256).hexdigest()
        let expected = "22d5ff322f7f36d97012b33a032580aeeb83a1fd3b193d66c2e9fb31b4b4be6f";
        let binding: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        assert_eq!(HEXLOWER.encode(&secret.key().prove(&binding)), expected);
    }

    #[test]
    fn a_proof_counts_for_its_key_and_its_connection_only() {
        let key = fresh_invite(random(1)).1.key();
        let other = fresh_invite(random(2)).1.key();
        let (here, there) = ([1; 32], [2; 32]);
        let proof = key.prove(&here);
        assert!(key.proves(&here, &proof));
        assert!(!key.proves(&there, &proof) && !other.proves(&here, &proof));
        for bit in 0..256 {
            let mut bent = proof;
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.proves(&here, &bent), "{bit}");
        }
    }

    #[test]
    fn a_key_survives_where_it_is_kept() {
        let (id, secret) = fresh_invite(random(3));
        let bytes = crate::wire::encode(&(id, secret.key())).unwrap();
        assert_eq!(bytes.len(), 40);
        assert_eq!(crate::wire::decode(&bytes), Ok((id, secret.key())));
    }

    #[test]
    fn secrets_are_not_printed() {
        let (_, secret) = fresh_invite([0xab; 24]);
        for shown in [format!("{secret:?} {:?}", secret.key()), format!("{secret:#?} {:#?}", secret.key())] {
            assert_eq!(shown, "… …");
        }
    }
}
