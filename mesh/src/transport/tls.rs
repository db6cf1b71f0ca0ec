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
    /// Between members, for the consensus engine alone (failure rule F22).
    Raft,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Mesh, Self::Join, Self::Raft];

    /// The name in the handshake.
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Mesh => b"chappie/1",
            Self::Join => b"chappie-join/1",
            Self::Raft => b"chappie-raft/1",
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

    /// Takes any device that proves its key, for each protocol.
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::transport::{Ended, Endpoint};

    fn identity() -> Identity {
        Identity::load_or_create(tempfile::tempdir().unwrap().path()).unwrap()
    }

    fn here() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    /// What becomes of a handshake with `client`, on the server's side.
    async fn knocks(client: rustls::ClientConfig) -> Result<NodeId, Ended> {
        let server = Endpoint::bind(&identity(), here(), true, None).unwrap();
        let quinn = quinn::Endpoint::client(here()).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap()));
        let dialling = quinn.connect_with(config, server.address(), "chappie.invalid").unwrap();
        let taking = async { server.knock().await.unwrap().handshake().await.map(|connection| connection.peer()) };
        let (_dialled, taken) = tokio::join!(dialling, taking);
        taken
    }

    fn client(resolver: Option<Arc<dyn rustls::client::ResolvesClientCert>>, alpn: &[u8]) -> rustls::ClientConfig {
        let credentials = Credentials::new(&identity()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&credentials.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(credentials.verifier(None));
        let mut config = match resolver {
            Some(resolver) => builder.with_client_cert_resolver(resolver),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        config
    }

    fn raw_key(spki: Vec<u8>, key: Arc<dyn rustls::sign::SigningKey>) -> Arc<AlwaysResolvesClientRawPublicKeys> {
        let certified = CertifiedKey::new(vec![CertificateDer::from(spki)], key);
        Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(certified)))
    }

    #[tokio::test]
    async fn a_device_that_proves_its_key_is_known_by_it() {
        let me = identity();
        let credentials = Credentials::new(&me).unwrap();
        let resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&credentials.key)));
        assert_eq!(knocks(client(Some(resolver), b"chappie/1")).await, Ok(me.node_id()));
    }

    #[tokio::test]
    async fn no_key_an_x509_certificate_and_another_kind_of_key_are_refused() {
        assert!(matches!(knocks(client(None, b"chappie/1")).await, Err(Ended::Broken(_))));
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let der = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let signing = ring::sign::any_supported_type(&der).unwrap();
        let p256 = raw_key(key.subject_public_key_info(), signing);
        assert!(matches!(knocks(client(Some(p256), b"chappie/1")).await, Err(Ended::Broken(_))));
        let certificate = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
        let certified =
            CertifiedKey::from_der(vec![certificate.der().clone()], der, &ring::default_provider()).unwrap();
        let x509 = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
        assert!(matches!(knocks(client(Some(x509), b"chappie/1")).await, Err(Ended::Broken(_))));
    }

    #[tokio::test]
    async fn a_key_that_is_shown_and_not_proven_is_refused() {
        let (victim, thief) = (identity(), identity());
        let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(thief.key_pair().serialize_der())).unwrap();
        let stolen = raw_key(victim.public_key_der(), signing);
        let refused = knocks(client(Some(stolen), b"chappie/1")).await;
        assert!(matches!(refused, Err(Ended::Broken(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_protocol_that_is_not_ours_is_refused() {
        let me = Credentials::new(&identity()).unwrap();
        let resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&me.key)));
        assert!(knocks(client(Some(resolver), b"h3")).await.is_err());
    }

    #[tokio::test]
    async fn a_dial_takes_the_expected_device_only() {
        let (here_id, there_id) = (identity(), identity());
        let there = Endpoint::bind(&there_id, here(), true, None).unwrap();
        let caller = Endpoint::bind(&here_id, here(), false, None).unwrap();
        let answering = tokio::spawn({
            let there = there.clone();
            async move {
                let mut held = Vec::new();
                while let Some(knock) = there.knock().await {
                    held.extend(knock.handshake().await);
                }
            }
        });
        let other = identity().node_id();
        let refused = caller.dial(there.address(), Protocol::Mesh, Some(other)).await;
        assert!(matches!(refused, Err(Ended::OtherDevice)), "{refused:?}");
        for expected in [Some(there_id.node_id()), None] {
            let taken = caller.dial(there.address(), Protocol::Join, expected).await.unwrap();
            assert_eq!((taken.peer(), taken.protocol()), (there_id.node_id(), Protocol::Join));
        }
        answering.abort();
    }

    #[tokio::test]
    async fn the_two_ends_of_a_connection_share_a_binding_and_no_two_connections_do() {
        let there = Endpoint::bind(&identity(), here(), true, None).unwrap();
        let caller = Endpoint::bind(&identity(), here(), false, None).unwrap();
        let mut bindings = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let taking = async { there.knock().await.unwrap().handshake().await.unwrap() };
            let (dialled, taken) = tokio::join!(caller.dial(there.address(), Protocol::Join, None), taking);
            let dialled = dialled.unwrap();
            let binding = dialled.binding(b"chappie join", b"context").unwrap();
            assert_eq!(taken.binding(b"chappie join", b"context"), Some(binding));
            assert_ne!(taken.binding(b"chappie join", b"other"), Some(binding));
            bindings.insert(binding);
        }
        assert_eq!(bindings.len(), 3);
    }
}
