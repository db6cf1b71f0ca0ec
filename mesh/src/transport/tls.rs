//! TLS 1.3 between devices: each side proves that it has an Ed25519 key (RFC 7250 raw public keys, no certificates and
//! so no dates), and the key's hash is the device's id. Who may come in is decided elsewhere: here a client may pin
//! whom it expects, and a server takes any proven key.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::PublicKeyData as _;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use super::SetupError;
use crate::identity::{Identity, NodeId};

/// What stands before the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo (RFC 8410).
const ED25519_SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// What a connection is for, as TLS says it (ALPN, RFC 7301). A breaking change of the protocol is a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Between members.
    Mesh,
    /// A device that shows an invite, and nothing else.
    Join,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Mesh, Self::Join];

    /// The name in the handshake.
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Mesh => b"chappie/1",
            Self::Join => b"chappie-join/1",
        }
    }

    pub(super) fn from_alpn(alpn: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.alpn() == alpn)
    }
}

/// The key of this device in the form that TLS takes, and what it makes of it.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    key: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
}

impl Credentials {
    pub(super) fn new(identity: &Identity) -> Result<Self, SetupError> {
        let key = identity.key_pair();
        let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(key.serialize_der()))
            .map_err(|cause| SetupError::Key(cause.to_string()))?;
        let public = CertificateDer::from(key.subject_public_key_info());
        let provider = Arc::new(ring::default_provider());
        Ok(Self { key: Arc::new(CertifiedKey::new(vec![public], signing)), provider })
    }

    /// Takes any device that proves its key, for either protocol.
    pub(super) fn server(&self) -> Result<Arc<QuicServerConfig>, SetupError> {
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls)?
            .with_client_cert_verifier(self.verifier(None))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.key))));
        config.alpn_protocols = Protocol::ALL.map(|protocol| protocol.alpn().to_vec()).to_vec();
        // A resumed session would prove no key, and early data could be sent again by anybody.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        QuicServerConfig::try_from(config).map(Arc::new).map_err(|cause| SetupError::Tls(cause.to_string()))
    }

    /// Dials for one protocol; `expected` is the only device that is taken, `None` takes any that proves its key.
    pub(super) fn client(
        &self,
        protocol: Protocol,
        expected: Option<NodeId>,
    ) -> Result<Arc<QuicClientConfig>, SetupError> {
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls)?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(expected))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.key))));
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        // No name is sent: a device is its key, and its name is nobody's business on the way.
        config.enable_sni = false;
        QuicClientConfig::try_from(config).map(Arc::new).map_err(|cause| SetupError::Tls(cause.to_string()))
    }

    fn verifier(&self, expected: Option<NodeId>) -> Arc<ProvenKey> {
        Arc::new(ProvenKey { expected, provider: Arc::clone(&self.provider) })
    }
}

fn tls(cause: Error) -> SetupError {
    SetupError::Tls(cause.to_string())
}

/// The id of the key that a peer proved; `None` for anything but one Ed25519 key.
pub(super) fn node_id(keys: &[CertificateDer<'_>]) -> Option<NodeId> {
    let [key] = keys else { return None };
    is_ed25519(key).then(|| NodeId::of_spki(key))
}

fn is_ed25519(spki: &[u8]) -> bool {
    spki.len() == ED25519_SPKI.len() + 32 && spki.starts_with(&ED25519_SPKI)
}

/// Checks that the other side has the private half of its key, and that the key is the expected one.
#[derive(Debug)]
struct ProvenKey {
    expected: Option<NodeId>,
    provider: Arc<CryptoProvider>,
}

impl ProvenKey {
    fn check(&self, spki: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        if !others.is_empty() || !is_ed25519(spki) {
            return Err(CertificateError::BadEncoding.into());
        }
        match self.expected {
            Some(expected) if expected != NodeId::of_spki(spki) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(()),
        }
    }

    fn signature(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(spki.as_ref()),
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }
}

impl ServerCertVerifier for ProvenKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for ProvenKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
