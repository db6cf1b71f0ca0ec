//! The first message of each side of a connection between members: who speaks, which versions, which mesh, which run.
//! Pure.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    CloseCode, CodecError, codec,
    limits::{self, Ext, Limited},
};
use crate::identity::{Incarnation, MeshId};

/// The protocol that this program speaks.
pub const PROTOCOL: u16 = 1;
/// The oldest protocol that it still speaks.
pub const PROTOCOL_MIN: u16 = 1;
/// Bytes that a hello with every field at its limit can have, rounded up: the limit to read one with.
pub const HELLO_BYTES_MAX: usize = 20 * 1024;

/// What a device says of itself first. Append-only: a new field is an entry of `ext`. The two versions stand first and
/// always will, so that a hello of any later program can be refused by its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Hello {
    /// The newest protocol it speaks.
    pub protocol: u16,
    /// The oldest protocol it speaks.
    pub protocol_min: u16,
    /// What it can do beyond the protocol: one bit each, no bit given out yet.
    pub features: u64,
    /// Its build, for people; at most 64 bytes.
    pub build: String,
    /// Its name; at most 128 bytes.
    pub name: String,
    /// The mesh it belongs to.
    pub mesh: MeshId,
    /// The epoch of its roster.
    pub epoch: u64,
    /// The version of its roster.
    pub roster_version: u64,
    /// Which run of the device this is.
    pub incarnation: Incarnation,
    /// Where it can be dialled, at most 32. The scope of a link-local IPv6 address is not sent: it is the number of an
    /// interface of the sender and means another one, or none, elsewhere.
    pub addresses: Vec<SocketAddr>,
    /// What a later version says besides: at most 16 entries of at most 1 KiB.
    pub ext: Ext,
}

impl Hello {
    /// The hello of `bytes`, which says what is wrong with them better than serde can.
    ///
    /// # Errors
    /// [`CodecError::Version`] for a hello of another protocol whatever follows, [`CodecError::Limit`] for a field
    /// beyond its limit, else as [`codec::decode_canonical`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        struct Unchecked(Hello);
        impl<'de> Deserialize<'de> for Unchecked {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Hello::deserialize(deserializer).map(Self)
            }
        }
        impl Serialize for Unchecked {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Hello::serialize(&self.0, serializer)
            }
        }
        if let Ok(((protocol, protocol_min), _)) = postcard::take_from_bytes::<(u16, u16)>(bytes) {
            common_protocol((PROTOCOL, PROTOCOL_MIN), (protocol, protocol_min)).map_err(CodecError::Version)?;
        }
        let Unchecked(hello) = codec::decode_canonical(bytes)?;
        hello.check()?;
        Ok(hello)
    }
}

impl Limited for Hello {
    fn check(&self) -> Result<(), CodecError> {
        limits::build(&self.build)?;
        limits::name(&self.name)?;
        limits::addresses(&self.addresses)?;
        limits::ext(&self.ext)
    }
}

impl Serialize for Hello {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Hello {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hello = Self::deserialize(deserializer)?;
        hello.check().map_err(serde::de::Error::custom)?;
        Ok(hello)
    }
}

/// What two devices agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The protocol that both speak.
    pub protocol: u16,
    /// The features that both have.
    pub features: u64,
}

/// Whether two devices of the roster can work together, from their first words.
///
/// # Errors
/// The code to close the connection with, and the reason in words that both sides' owners can act on.
pub fn meet(ours: &Hello, theirs: &Hello) -> Result<Met, (CloseCode, String)> {
    let protocol = common_protocol((ours.protocol, ours.protocol_min), (theirs.protocol, theirs.protocol_min))
        .map_err(|reason| {
            let builds = format!("{reason} (builds: {:?} here, {:?} there)", ours.build, theirs.build);
            (CloseCode::Version, builds)
        })?;
    if ours.mesh != theirs.mesh {
        let reason = format!("mesh {} here and mesh {} there: they are not one mesh", ours.mesh, theirs.mesh);
        return Err((CloseCode::OtherMesh, reason));
    }
    Ok(Met { protocol, features: ours.features & theirs.features })
}

/// The newest protocol that both speak; each pair is (newest, oldest).
pub(super) fn common_protocol(ours: (u16, u16), theirs: (u16, u16)) -> Result<u16, String> {
    let newest = ours.0.min(theirs.0);
    if newest >= ours.1.max(theirs.1) {
        return Ok(newest);
    }
    let older = if theirs.0 < ours.1 { "the other device" } else { "this device" };
    Err(format!("this device speaks {} and the other {}: update {older}", versions(ours), versions(theirs)))
}

fn versions((newest, oldest): (u16, u16)) -> String {
    if newest == oldest { format!("protocol {newest}") } else { format!("protocols {oldest} to {newest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Hello {
        Hello {
            protocol: 1,
            protocol_min: 1,
            features: 0x81,
            build: "0.1".into(),
            name: "büro".into(),
            mesh: [7; 16].into(),
            epoch: 1,
            roster_version: 300,
            incarnation: Incarnation::first([9; 16]),
            addresses: vec!["10.0.0.5:7373".parse().unwrap(), "[fd00::5]:7373".parse().unwrap()],
            ext: vec![(5, vec![1, 2])],
        }
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let mut bytes = vec![1, 1, 0x81, 1];
        bytes.extend_from_slice(b"\x030.1\x05b\xc3\xbcro");
        bytes.extend_from_slice(&[7; 16]);
        bytes.extend_from_slice(&[1, 0xac, 2, 1]);
        bytes.extend_from_slice(&[9; 16]);
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(&[2, 0, 10, 0, 0, 5, 0xcd, 0x39]);
        bytes.extend_from_slice(&[1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0xcd, 0x39]);
        bytes.extend_from_slice(&[1, 5, 2, 1, 2]);
        assert_eq!(codec::encode(&sample()).unwrap(), bytes);
        assert_eq!(Hello::decode(&bytes), Ok(sample()));
        assert_eq!(codec::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn a_hello_at_every_limit_fits_and_one_beyond_is_refused_by_field() {
        let full = Hello {
            protocol: u16::MAX,
            features: u64::MAX,
            build: "b".repeat(64),
            name: "n".repeat(128),
            epoch: u64::MAX,
            roster_version: u64::MAX,
            incarnation: Incarnation { generation: u64::MAX, ..sample().incarnation },
            addresses: vec!["[fd00::5]:65535".parse().unwrap(); 32],
            ext: vec![(u16::MAX, vec![0xff; 1024]); 16],
            ..sample()
        };
        let bytes = codec::encode(&full).unwrap();
        assert!(bytes.len() <= HELLO_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Hello::decode(&bytes), Ok(full.clone()));
        let beyond = [
            (Hello { build: "b".repeat(65), ..full.clone() }, "a build"),
            (Hello { name: "n".repeat(129), ..full.clone() }, "name"),
            (Hello { name: "a\u{7}".into(), ..full.clone() }, "control character"),
            (Hello { addresses: vec![full.addresses[0]; 33], ..full.clone() }, "33 addresses"),
            (Hello { ext: vec![(1, vec![]); 17], ..full.clone() }, "17 further entries"),
            (Hello { ext: vec![(1, vec![0; 1025])], ..full }, "1025 bytes"),
        ];
        for (hello, expected) in beyond {
            let bytes = codec::encode(&hello).unwrap();
            let error = Hello::decode(&bytes).unwrap_err();
            assert!(matches!(&error, CodecError::Limit(text) if text.contains(expected)), "{expected}: {error}");
            assert!(codec::decode::<Hello>(&bytes).is_err(), "the plain decoder keeps the limits too");
        }
    }

    #[test]
    fn a_hello_in_another_form_than_ours_is_refused() {
        let mut bytes = codec::encode(&sample()).unwrap();
        assert_eq!(bytes[1], 1, "the oldest protocol");
        bytes.splice(1..2, [0x81, 0x00]);
        assert_eq!(Hello::decode(&bytes), Err(CodecError::NotCanonical));
    }

    #[test]
    fn a_hello_of_a_newer_protocol_is_refused_by_number_whatever_follows() {
        let error = Hello::decode(&[9, 8, 0xff, 0xff]).unwrap_err();
        let CodecError::Version(reason) = &error else { panic!("{error}") };
        assert_eq!(reason, "this device speaks protocol 1 and the other protocols 8 to 9: update this device");
    }

    #[test]
    fn devices_agree_on_the_newest_protocol_and_the_features_that_both_have() {
        let newer = Hello { protocol: 3, protocol_min: 1, features: 0x0f, ..sample() };
        let range = Hello { protocol: 5, protocol_min: 2, features: 0x03, ..sample() };
        assert_eq!(meet(&sample(), &newer), Ok(Met { protocol: 1, features: 1 }));
        assert_eq!(meet(&newer, &range), Ok(Met { protocol: 3, features: 3 }));
        assert_eq!(meet(&range, &newer), Ok(Met { protocol: 3, features: 3 }));
    }

    #[test]
    fn no_common_protocol_names_both_and_who_must_update() {
        let newer = Hello { protocol: 4, protocol_min: 2, ..sample() };
        let (code, reason) = meet(&sample(), &newer).unwrap_err();
        assert_eq!(code, CloseCode::Version);
        assert!(reason.contains("protocol 1 and the other protocols 2 to 4: update this device"), "{reason}");
        let (_, reason) = meet(&newer, &sample()).unwrap_err();
        assert!(reason.contains("protocols 2 to 4 and the other protocol 1: update the other device"), "{reason}");
        let nonsense = Hello { protocol: 1, protocol_min: 5, ..sample() };
        assert_eq!(meet(&sample(), &nonsense).unwrap_err().0, CloseCode::Version);
    }

    #[test]
    fn another_mesh_is_refused_and_another_roster_version_is_not() {
        let other = Hello { mesh: [8; 16].into(), ..sample() };
        let (code, reason) = meet(&sample(), &other).unwrap_err();
        assert_eq!(code, CloseCode::OtherMesh);
        assert!(reason.contains(&other.mesh.to_string()) && reason.contains(&sample().mesh.to_string()), "{reason}");
        assert!(meet(&sample(), &Hello { roster_version: 1, epoch: 2, ..sample() }).is_ok());
    }
}
