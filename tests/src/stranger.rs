//! A hand-made QUIC client that says what no program of ours says: with no key, a key of its own, or the stolen key of a
//! device. It knows the handshake and the first bytes of the mesh's protocol, and keeps none of its rules.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use chappie_mesh::{Hello, Incarnation, MeshId};
use quinn::{Connection, ConnectionError, Endpoint, crypto::rustls::QuicClientConfig};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData};
use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    sign::CertifiedKey,
};

/// The protocol between members (ALPN).
pub const MEMBERS: &[u8] = b"chappie/1";
/// The protocol of a device that shows an invite (ALPN).
pub const JOIN: &[u8] = b"chappie-join/1";
/// The first byte of the first stream between members: the hello comes behind it.
pub const HELLO_STREAM: u8 = 0;

/// A closed connection is noticed at once; what the other side has to time out takes some seconds.
const CLOSED: Duration = Duration::from_secs(20);

/// A client with a UDP port of its own.
#[derive(Debug)]
pub struct Stranger {
    endpoint: Endpoint,
    key: Option<KeyPair>,
}

impl Stranger {
    /// One with a key that nobody knows.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Some(KeyPair::generate_for(&PKCS_ED25519).expect("random bytes are there")))
    }

    /// One that proves no key.
    #[must_use]
    pub fn keyless() -> Self {
        Self::with(None)
    }

    /// One with the key of the device whose state folder this is.
    ///
    /// # Panics
    /// When there is no key.
    #[must_use]
    pub fn as_device(state: &Path) -> Self {
        let pem = std::fs::read_to_string(state.join("key.pem")).expect("a device has a key");
        Self::with(Some(KeyPair::from_pem(&pem).expect("written by the device")))
    }

    fn with(key: Option<KeyPair>) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { endpoint: Endpoint::client(any).expect("loopback has a free port"), key }
    }

    /// Where its packets come from, as the other side's log shows it.
    ///
    /// # Panics
    /// Never: the socket is bound.
    #[must_use]
    pub fn address(&self) -> String {
        self.endpoint.local_addr().expect("bound above").to_string()
    }

    /// Goes through the handshake for a protocol.
    ///
    /// # Errors
    /// When the other side ends it.
    ///
    /// # Panics
    /// When `to` is no address.
    pub async fn dial(&self, to: &str, alpn: &[u8]) -> Result<Connection, ConnectionError> {
        let provider = Arc::new(ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring knows TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyKey));
        let mut config = match &self.key {
            None => builder.with_no_client_auth(),
            Some(key) => {
                let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(key.serialize_der()));
                let public = CertificateDer::from(key.subject_public_key_info());
                let certified = CertifiedKey::new(vec![public], signing.expect("an Ed25519 key"));
                builder.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified.into())))
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        config.enable_sni = false;
        let quic = QuicClientConfig::try_from(config).expect("TLS 1.3 with AES-128 is there");
        let config = quinn::ClientConfig::new(Arc::new(quic));
        let to = to.parse().expect("an address of a ready line");
        self.endpoint.connect_with(config, to, "chappie.invalid").expect("the endpoint is open").await
    }

    /// Opens a stream, writes `bytes` on it and leaves it open. An error is none of the caller's business: the other
    /// side may have had enough.
    pub async fn say(connection: &Connection, bytes: &[u8]) -> Option<(quinn::SendStream, quinn::RecvStream)> {
        let (mut send, recv) = connection.open_bi().await.ok()?;
        send.write_all(bytes).await.ok()?;
        Some((send, recv))
    }
}

impl Default for Stranger {
    fn default() -> Self {
        Self::new()
    }
}

/// The code and the words with which the other side closed a connection.
///
/// # Panics
/// When it does not close it.
pub async fn closed(connection: &Connection) -> (u64, String) {
    let error = tokio::time::timeout(CLOSED, connection.closed()).await.expect("the other side closes the connection");
    match error {
        ConnectionError::ApplicationClosed(close) => {
            (close.error_code.into_inner(), String::from_utf8_lossy(&close.reason).into_owned())
        }
        other => panic!("closed without a code: {other}"),
    }
}

/// A message with its length before it.
///
/// # Panics
/// When it is longer than a length can say.
#[must_use]
pub fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len()).expect("a test's message is short").to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// The first bytes of a member: the stream's kind and its hello.
///
/// # Panics
/// When `hello` cannot be written.
#[must_use]
pub fn first_words(hello: &Hello) -> Vec<u8> {
    let mut bytes = vec![HELLO_STREAM];
    bytes.extend(framed(&chappie_mesh::encode(hello).expect("a hello has a wire form")));
    bytes
}

/// A hello as a member of this mesh says it, of a run that nobody has seen.
#[must_use]
pub fn hello(mesh: MeshId) -> Hello {
    Hello {
        protocol: chappie_mesh::PROTOCOL,
        protocol_min: chappie_mesh::PROTOCOL_MIN,
        features: 0,
        build: "stranger".to_owned(),
        name: "stranger".to_owned(),
        mesh,
        epoch: 0,
        roster_version: 0,
        incarnation: Incarnation { generation: 1_000_000, nonce: [7; 16], previous: [8; 16] },
        addresses: Vec::new(),
        ext: Vec::new(),
    }
}

/// Takes whatever key the other side has.
#[derive(Debug)]
struct AnyKey;

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
