//! The two messages of a join (ALPN `chappie-join/1`): a device shows an invite, and is welcomed or refused. Pure.

use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    CodecError, PROTOCOL, PROTOCOL_MIN, codec,
    hello::common_protocol,
    limits::{self, Ext, Limited},
};
use crate::identity::{InviteId, NodeId, Roster};

/// Bytes that a request with every field at its limit can have, rounded up: the limit to read one with.
pub const JOIN_REQUEST_BYTES_MAX: usize = 20 * 1024;
/// Bytes of a reply: a roster of 1,000 devices with long names and many addresses has less.
pub const JOIN_REPLY_BYTES_MAX: usize = 1024 * 1024;

/// What a device says to be let in. The two versions stand first and always will.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct JoinRequest {
    /// The newest protocol it speaks.
    pub protocol: u16,
    /// The oldest protocol it speaks.
    pub protocol_min: u16,
    /// Which invite it shows.
    pub invite: InviteId,
    /// That it has the invite's secret: [`crate::InviteKey::prove`] over this connection.
    pub proof: [u8; 32],
    /// What it wants to be called; at most 128 bytes.
    pub name: String,
    /// Its build, for people; at most 64 bytes.
    pub build: String,
    /// Where it can be dialled, at most 32; scopes are not sent, as in [`crate::Hello`].
    pub addresses: Vec<SocketAddr>,
    /// What a later version says besides: at most 16 entries of at most 1 KiB.
    pub ext: Ext,
}

impl JoinRequest {
    /// The request of `bytes`, which says what is wrong with them better than serde can.
    ///
    /// # Errors
    /// As [`crate::Hello::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        struct Unchecked(JoinRequest);
        impl<'de> Deserialize<'de> for Unchecked {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                JoinRequest::deserialize(deserializer).map(Self)
            }
        }
        impl Serialize for Unchecked {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                JoinRequest::serialize(&self.0, serializer)
            }
        }
        if let Ok(((protocol, protocol_min), _)) = postcard::take_from_bytes::<(u16, u16)>(bytes) {
            common_protocol((PROTOCOL, PROTOCOL_MIN), (protocol, protocol_min)).map_err(CodecError::Version)?;
        }
        let Unchecked(request) = codec::decode_canonical(bytes)?;
        request.check()?;
        Ok(request)
    }
}

/// The proof is good for one connection only, and still nothing to print.
impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest")
            .field("invite", &self.invite)
            .field("name", &self.name)
            .field("build", &self.build)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Limited for JoinRequest {
    fn check(&self) -> Result<(), CodecError> {
        limits::name(&self.name)?;
        limits::build(&self.build)?;
        limits::addresses(&self.addresses)?;
        limits::ext(&self.ext)
    }
}

impl Serialize for JoinRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for JoinRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let request = Self::deserialize(deserializer)?;
        request.check().map_err(serde::de::Error::custom)?;
        Ok(request)
    }
}

/// The answer. Append-only: a number keeps its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum JoinReply {
    /// The device is a member.
    Welcome {
        /// Of the mesh, the new member among its members.
        roster: Roster,
        /// Where members can be dialled, at most 32 addresses each.
        addresses: Vec<(NodeId, Vec<SocketAddr>)>,
    },
    /// It is not, and why: at most 1 KiB for a person.
    Refused(String),
}

impl JoinReply {
    /// The reply of `bytes`, which says what is wrong with them better than serde can.
    ///
    /// # Errors
    /// [`CodecError::Limit`] for a field beyond its limit, else as [`codec::decode_canonical`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        struct Unchecked(JoinReply);
        impl<'de> Deserialize<'de> for Unchecked {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                JoinReply::deserialize(deserializer).map(Self)
            }
        }
        impl Serialize for Unchecked {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                JoinReply::serialize(&self.0, serializer)
            }
        }
        let Unchecked(reply) = codec::decode_canonical(bytes)?;
        reply.check()?;
        Ok(reply)
    }
}

impl Limited for JoinReply {
    fn check(&self) -> Result<(), CodecError> {
        match self {
            Self::Welcome { roster, addresses } => {
                roster.members.values().try_for_each(|member| limits::name(&member.name))?;
                addresses.iter().try_for_each(|(_, addresses)| limits::addresses(addresses))
            }
            Self::Refused(reason) => limits::reason(reason),
        }
    }
}

impl Serialize for JoinReply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for JoinReply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let reply = Self::deserialize(deserializer)?;
        reply.check().map_err(serde::de::Error::custom)?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> JoinRequest {
        JoinRequest {
            protocol: 1,
            protocol_min: 1,
            invite: [3; 8].into(),
            proof: [0x5a; 32],
            name: "box".into(),
            build: "0.1".into(),
            addresses: vec!["10.0.0.5:7373".parse().unwrap()],
            ext: vec![],
        }
    }

    #[test]
    fn the_bytes_of_a_request_are_these() {
        let mut bytes = vec![1, 1];
        bytes.extend_from_slice(&[3; 8]);
        bytes.extend_from_slice(&[0x5a; 32]);
        bytes.extend_from_slice(b"\x03box\x030.1\x01\x00\x0a\x00\x00\x05\xcd\x39\x00");
        assert_eq!(codec::encode(&request()).unwrap(), bytes);
        assert_eq!(JoinRequest::decode(&bytes), Ok(request()));
        assert_eq!(codec::decode(&bytes), Ok(request()));
    }

    #[test]
    fn the_bytes_of_the_replies_are_these() {
        let node = NodeId::from([2; 32]);
        let roster = Roster::alone([7; 16].into(), node, "box".into());
        let addresses = vec![(node, vec!["10.0.0.5:7373".parse().unwrap()])];
        let welcome = JoinReply::Welcome { roster, addresses };
        let mut bytes = vec![0];
        bytes.extend_from_slice(&[7; 16]);
        bytes.extend_from_slice(&[1, 1]);
        bytes.extend_from_slice(&[2; 32]);
        bytes.push(1);
        bytes.extend_from_slice(&[2; 32]);
        bytes.extend_from_slice(b"\x03box\x00\x01");
        bytes.extend_from_slice(&[2; 32]);
        bytes.extend_from_slice(&[0; 16]);
        bytes.push(1);
        bytes.extend_from_slice(&[2; 32]);
        bytes.extend_from_slice(&[1, 0, 10, 0, 0, 5, 0xcd, 0x39]);
        assert_eq!(codec::encode(&welcome).unwrap(), bytes);
        assert_eq!(JoinReply::decode(&bytes), Ok(welcome));
        let refused = JoinReply::Refused("spent".into());
        assert_eq!(codec::encode(&refused).unwrap(), b"\x01\x05spent");
        assert_eq!(JoinReply::decode(b"\x01\x05spent"), Ok(refused));
    }

    #[test]
    fn the_largest_welcome_fits() {
        let nodes: Vec<NodeId> = (0..1000_u16).map(|n| NodeId::of_spki(&n.to_be_bytes())).collect();
        let mut roster = Roster::alone([7; 16].into(), nodes[0], "n".repeat(128));
        roster.members = nodes.iter().map(|node| (*node, roster.members[&nodes[0]].clone())).collect();
        roster.removed =
            (0..1024_u16).map(|n| NodeId::of_spki(&[1, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]])).collect();
        let addresses = vec!["[fd00::5]:65535".parse().unwrap(); limits::ADDRESSES_MAX];
        let welcome = JoinReply::Welcome { roster, addresses: nodes.iter().map(|n| (*n, addresses.clone())).collect() };
        let bytes = codec::encode(&welcome).unwrap();
        assert!(bytes.len() <= JOIN_REPLY_BYTES_MAX, "{}", bytes.len());
        assert_eq!(JoinReply::decode(&bytes), Ok(welcome));
    }

    #[test]
    fn a_roster_that_names_a_member_twice_is_refused() {
        let node = NodeId::from([2; 32]);
        let roster = Roster::alone([7; 16].into(), node, "box".into());
        let mut bytes = codec::encode(&JoinReply::Welcome { roster, addresses: vec![] }).unwrap();
        let members = 1 + 16 + 2 + 32;
        assert_eq!(bytes[members], 1, "one member");
        let member = bytes[members + 1..members + 1 + 36].to_vec();
        bytes[members] = 2;
        bytes.splice(members + 1..members + 1, member);
        assert!(codec::decode::<JoinReply>(&bytes).is_ok(), "postcard keeps one of them");
        assert_eq!(JoinReply::decode(&bytes), Err(CodecError::NotCanonical));
    }

    #[test]
    fn fields_beyond_their_limits_are_refused_by_name() {
        let requests = [
            (JoinRequest { name: String::new(), ..request() }, "must not be empty"),
            (JoinRequest { build: "x".repeat(65), ..request() }, "a build"),
            (JoinRequest { addresses: vec![request().addresses[0]; 33], ..request() }, "33 addresses"),
            (JoinRequest { ext: vec![(1, vec![0; 1025])], ..request() }, "1025 bytes"),
        ];
        for (request, expected) in requests {
            let bytes = codec::encode(&request).unwrap();
            let error = JoinRequest::decode(&bytes).unwrap_err();
            assert!(matches!(&error, CodecError::Limit(text) if text.contains(expected)), "{expected}: {error}");
            assert!(codec::decode::<JoinRequest>(&bytes).is_err());
        }
        let node = NodeId::from([2; 32]);
        let welcome = |name: &str, addresses| JoinReply::Welcome {
            roster: Roster::alone([7; 16].into(), node, name.into()),
            addresses: vec![(node, addresses)],
        };
        let replies = [
            (welcome("a\u{1b}[2J", vec![]), "control character"),
            (welcome("box", vec![request().addresses[0]; 33]), "33 addresses"),
            (JoinReply::Refused("x".repeat(1025)), "a reason"),
        ];
        for (reply, expected) in replies {
            let bytes = codec::encode(&reply).unwrap();
            let error = JoinReply::decode(&bytes).unwrap_err();
            assert!(matches!(&error, CodecError::Limit(text) if text.contains(expected)), "{expected}: {error}");
            assert!(codec::decode::<JoinReply>(&bytes).is_err());
        }
    }

    #[test]
    fn a_request_of_another_protocol_is_refused_by_number() {
        let error = JoinRequest::decode(&[3, 2, 0]).unwrap_err();
        assert!(matches!(&error, CodecError::Version(text) if text.contains("protocols 2 to 3")), "{error}");
    }

    #[test]
    fn a_proof_is_not_printed() {
        let shown = format!("{:?}", request());
        assert!(!shown.contains("90") && !shown.contains("5a"), "{shown}");
        assert!(shown.contains("box"), "{shown}");
    }
}
