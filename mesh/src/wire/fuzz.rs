//! Every decoder of bytes or texts from the network against mutations of a hand-picked corpus: the same ones in every
//! run, so that what it finds stays found. Test code only. What stands behind an
//! invite code's checksum is tried beside the code.

use std::{fmt, fs, process::Command, str::FromStr};

use serde::{Serialize, de::DeserializeOwned};

use super::*;
use crate::{
    discovery::{Announcement, HostPort},
    identity::{Incarnation, InviteCode, NodeId, Roster, fresh_invite},
};

/// Rounds for each decoder: all of them take about two seconds in a debug build, with [`memory`].
const ROUNDS: u32 = 5_000;
/// No decoder may ask for memory by the gigabyte: what is announced is not there yet. The allocator alone reserves 128 MiB
/// at a time for a thread.
const ADDRESS_SPACE_MAX: u64 = 512 << 20;
/// Set where nothing else runs in the process, so that its address space says something of the decoders.
const ALONE: &str = "CHAPPIE_FUZZ_ALONE";

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Bytes that decoders of lengths, numbers and texts stumble over.
const DICTIONARY: [&[u8]; 16] = [
    &[0],
    &[1],
    &[0x7f],
    &[0x80],
    &[0xff],
    &[0x80, 0],
    &[0xff, 0xff, 3],
    &[0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    &[0x80; 11],
    b"\xc3\x28",
    b"\x1b[2J",
    "\u{202e}".as_bytes(),
    b"chappie-",
    b":-%[]",
];

/// One to six changes of one of `corpus`.
fn mutated(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(12)).min(bytes.len());
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = u8::try_from(random.below(256)).unwrap(),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => drop(bytes.splice(at..end, random.pick(&DICTIONARY).iter().copied())),
            5 => drop(bytes.splice(at..at, random.pick(&DICTIONARY).iter().copied())),
            6 => {
                let again = bytes[at..end].repeat(1 + random.below(5));
                drop(bytes.splice(at..at, again));
            }
            _ => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

/// Gives `take` each of `corpus` and many mutations of it. Says which bytes broke it. Counts how many it accepted, of which
/// the corpus must be one, else nothing behind the first check was tried.
pub(crate) fn fuzz(what: &str, corpus: &[Vec<u8>], mut take: impl FnMut(&[u8]) -> bool) {
    let mut random = Random(0x00c0_ffee);
    let mut accepted = 0;
    let mutations = (0..ROUNDS).map(|_| mutated(&mut random, corpus)).collect::<Vec<_>>();
    let alone = std::env::var_os(ALONE).is_some();
    let before = address_space();
    let all: Vec<&Vec<u8>> = corpus.iter().chain(&mutations).collect();
    // Asking the system each time would take longer than the decoders do.
    for some in all.chunks(64) {
        for bytes in some {
            let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(bytes)));
            accepted += u32::from(taken.unwrap_or_else(|_| panic!("{what} broke on {bytes:?}")));
        }
        let modest = !alone || address_space() < before + ADDRESS_SPACE_MAX;
        assert!(modest, "{what} took memory for one of {some:?}");
    }
    assert!(accepted > 0, "{what} accepted nothing of {}", corpus.len());
}

/// The most address space that this process had, in bytes: whatever was asked for, used or not.
fn address_space() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// All of these tests once more, in a process of their own that looks at its memory.
#[test]
fn memory() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["wire::fuzz::", "behind_a_right_checksum", "--skip", "memory", "--test-threads", "1"]).env(ALONE, "1");
    let output = alone.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 9 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn hello() -> Hello {
    Hello {
        protocol: 1,
        protocol_min: 1,
        features: 3,
        build: "0.1.0".into(),
        name: "büro".into(),
        mesh: [7; 16].into(),
        epoch: 1,
        roster_version: 300,
        incarnation: Incarnation::first([9; 16]).next([8; 16]),
        addresses: vec!["10.0.0.5:7373".parse().unwrap(), "[fd00::5]:7373".parse().unwrap()],
        ext: vec![(5, vec![1, 2]), (300, vec![])],
    }
}

fn request() -> JoinRequest {
    let Hello { protocol, protocol_min, name, build, addresses, ext, .. } = hello();
    JoinRequest { protocol, protocol_min, invite: [3; 8].into(), proof: [4; 32], name, build, addresses, ext }
}

/// Whatever of `T` is accepted has one form, and both decoders keep the same limits.
fn messages<T>(what: &str, valid: &[T], careful: impl Fn(&[u8]) -> Result<T, CodecError>)
where
    T: Serialize + DeserializeOwned + PartialEq + fmt::Debug,
{
    let mut corpus: Vec<Vec<u8>> = valid.iter().map(|message| encode(message).unwrap()).collect();
    corpus.push(Vec::new());
    corpus.push(vec![0xff; 64]);
    fuzz(what, &corpus, |bytes| match (careful(bytes), decode::<T>(bytes)) {
        (Ok(message), plain) => {
            assert_eq!(encode(&message).unwrap(), bytes);
            assert_eq!(plain, Ok(message));
            true
        }
        (Err(error), plain) => {
            let allowed = matches!(error, CodecError::NotCanonical | CodecError::Version(_));
            assert!(plain.is_err() || allowed, "{error}, and {plain:?}");
            assert!(error.to_string().len() < 500, "{error}");
            false
        }
    });
}

#[test]
fn hellos() {
    let empty = Hello { addresses: vec![], ext: vec![], ..hello() };
    let full = Hello { name: "n".repeat(128), addresses: vec![hello().addresses[1]; 32], ..hello() };
    messages("a hello", &[hello(), empty, full], Hello::decode);
}

#[test]
fn join_requests() {
    let full = JoinRequest { ext: vec![(1, vec![7; 1024]); 16], ..request() };
    messages("a join request", &[request(), full], JoinRequest::decode);
}

#[test]
fn join_replies() {
    let node = NodeId::from([2; 32]);
    let mut roster = Roster::alone([7; 16].into(), node, "box".into());
    roster.removed.insert(NodeId::from([3; 32]));
    roster.removed.insert(NodeId::from([4; 32]));
    let welcome = JoinReply::Welcome { roster, addresses: vec![(node, hello().addresses), (node, vec![])] };
    messages("a join reply", &[welcome, JoinReply::Refused("spent".into())], JoinReply::decode);
}

#[test]
fn frames() {
    let frames: [&[u8]; 4] = [b"", b"one", &[0xff; 200], b"\0\0\0\x01"];
    let mut corpus: Vec<Vec<u8>> = frames.iter().map(|body| encode_frame(body).unwrap()).collect();
    corpus.push(corpus.concat());
    corpus.push(vec![0xff; 9]);
    let mut random = Random(1);
    fuzz("a frame", &corpus, |bytes| {
        let limit = [0, 3, 200, usize::MAX][random.below(4)];
        let mut decoder = FrameDecoder::default();
        let (mut taken, mut found) = (0, Vec::new());
        let mut broken = false;
        while taken < bytes.len() && !broken {
            let step = (1 + random.below(20)).min(bytes.len() - taken);
            decoder.feed(&bytes[taken..taken + step]);
            taken += step;
            loop {
                match decoder.next(limit) {
                    Ok(Some(body)) => found.push(body),
                    Ok(None) => break,
                    Err(error) => {
                        let FrameError::TooLong { found, .. } = error else { panic!("{error}") };
                        assert!(found > limit);
                        broken = true;
                        break;
                    }
                }
            }
        }
        let again = found.iter().flat_map(|body| encode_frame(body).unwrap()).collect::<Vec<u8>>();
        assert_eq!(again, bytes[..again.len()], "what came out is what went in");
        assert_eq!(again.len() + decoder.buffered(), taken, "and the rest is there");
        assert!(found.iter().all(|body| body.len() <= limit));
        assert_eq!(decoder.finish().is_ok(), decoder.buffered() == 0);
        !broken && !found.is_empty()
    });
}

/// Whatever text is accepted is shown in one form, which is accepted as the same.
fn texts<T>(what: &str, valid: &[String], same: impl Fn(&str, &str) -> bool)
where
    T: FromStr<Err: fmt::Display> + fmt::Display + PartialEq + fmt::Debug,
{
    let mut corpus: Vec<Vec<u8>> = valid.iter().map(|text| text.clone().into_bytes()).collect();
    corpus.push(valid[0].to_uppercase().into_bytes());
    corpus.push(format!(" {}\n", valid[0]).into_bytes());
    corpus.push("ä".repeat(2000).into_bytes());
    fuzz(what, &corpus, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match text.parse::<T>() {
            Ok(value) => {
                let shown = value.to_string();
                assert!(same(&text, &shown), "{text} is shown as {shown}");
                assert_eq!(shown.parse::<T>().ok(), Some(value));
                true
            }
            Err(error) => {
                assert!(error.to_string().len() < 500, "{error}");
                false
            }
        }
    });
}

#[test]
fn invite_codes() {
    let (id, secret) = fresh_invite([5; 24]);
    let addresses = ["10.0.0.5:7373", "[fd00::5]:7373", "box.example:7373"].map(str::to_owned).to_vec();
    let code = InviteCode { mesh: [7; 16].into(), inviter: NodeId::from([9; 32]), addresses, id, secret };
    let bare = InviteCode { addresses: vec![], ..code.clone() };
    texts::<InviteCode>("an invite code", &[code.to_string(), bare.to_string()], |text, shown| {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        plain.to_ascii_lowercase() == shown
    });
}

#[test]
fn node_ids() {
    let valid = [[0; 32], [0xff; 32], [0x5a; 32]].map(|bytes| NodeId::from(bytes).to_string());
    texts::<NodeId>("a node id", &valid, |text, shown| {
        let plain = |text: &str| text.replace(|c: char| c == '-' || c.is_whitespace(), "").to_ascii_uppercase();
        plain(text).replace('0', "O").replace('1', "I").replace('8', "B") == plain(shown)
    });
}

#[test]
fn hosts_and_ports() {
    let valid = ["box.example:7373", "10.0.0.5:1", "[fd00::5]:65535", "[fe80::1%eth0]:7373"].map(str::to_owned);
    texts::<HostPort>("a host and port", &valid, |text, shown| {
        let port = |text: &str| text.rsplit_once(':').map(|(_, port)| port.trim_start_matches('0').to_owned());
        text.rsplit_once(':').map(|(host, _)| host) == shown.rsplit_once(':').map(|(host, _)| host)
            && port(text) == port(shown)
    });
}

#[test]
fn mdns_records() {
    let record = Announcement { node: NodeId::from([9; 32]), tag: "0123abcd".into() };
    let line = |announcement: &Announcement| {
        announcement.txt().map(|(key, value)| format!("{key}={value}")).join("\n").into_bytes()
    };
    fuzz("an mDNS record", &[line(&record), b"v=1\nmesh=\nnode=".to_vec(), Vec::new()], |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let Some(announcement) = Announcement::read(value) else { return false };
        let again = line(&announcement);
        let again = String::from_utf8_lossy(&again);
        let value = |key: &str| again.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        assert_eq!(Announcement::read(value), Some(announcement));
        true
    });
}
