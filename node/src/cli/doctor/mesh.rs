//! What `doctor` looks at around the mesh: the UDP port, multicast, the other devices. It asks the running node and the
//! system; it dials nobody.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    path::Path,
};

use super::{bad, good};
use crate::{
    config::{Config, LISTEN_DEFAULT, LISTEN_DEFAULT_V4},
    control::{Finding, PeerRow, StatusReport},
};

/// Where multicast DNS is spoken (RFC 6762 section 3).
const MDNS_PORT: u16 = 5353;
const MDNS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const MDNS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
/// `who offers _chappie._udp.local?` (RFC 6762 section 5.1: a one-shot query), which disturbs nobody.
const QUESTION: &[u8] = b"\0\0\0\0\0\x01\0\0\0\0\0\0\x08_chappie\x04_udp\x05local\0\0\x0c\0\x01";
/// Interface flags of Linux (netdevice(7)).
const UP: u32 = 0x1;
const LOOPBACK: u32 = 0x8;
const MULTICAST: u32 = 0x1000;

/// Whether the mesh's UDP port can be taken, while no node has it.
pub(super) fn port(config: &Config) -> Finding {
    let bound = match config.listen {
        Some(address) => UdpSocket::bind(address).map_err(|cause| (address, cause)),
        None => match UdpSocket::bind(LISTEN_DEFAULT) {
            Err(cause) if cause.kind() != io::ErrorKind::AddrInUse => {
                UdpSocket::bind(LISTEN_DEFAULT_V4).map_err(|cause| (LISTEN_DEFAULT_V4, cause))
            }
            bound => bound.map_err(|cause| (LISTEN_DEFAULT, cause)),
        },
    };
    match bound {
        Ok(socket) => {
            let address = socket.local_addr().map_or_else(|_| "its address".to_owned(), |address| address.to_string());
            good("mesh port", format!("{address} (UDP) is free"))
        }
        Err((address, cause)) => {
            let advice = "end what holds it, or choose another with `chappie up --listen [::]:PORT`";
            bad("mesh port", format!("{address} (UDP): {cause}"), advice)
        }
    }
}

/// Whether devices on the same network can find this one by themselves.
pub(super) fn multicast(config: &Config) -> Finding {
    if !config.mdns {
        return good(
            "mdns",
            "off by the settings; other devices are found by --connect and from each other".to_owned(),
        );
    }
    let interfaces = multicast_interfaces(Path::new("/sys/class/net"));
    let mut reasons: Vec<String> = Vec::new();
    match ask_v4() {
        Ok(()) => return good("mdns", "multicast can be sent over IPv4".to_owned()),
        Err(cause) => reasons.push(format!("IPv4: {cause}")),
    }
    for (name, index) in interfaces {
        match ask_v6(index) {
            Ok(()) => return good("mdns", format!("multicast can be sent over IPv6 on {name}")),
            Err(cause) => reasons.push(format!("IPv6 on {name}: {cause}")),
        }
    }
    let advice = "devices of this network do not find each other by themselves: name one with `chappie up --connect \
                  HOST:PORT`, and turn this off with --no-mdns";
    bad("mdns", format!("multicast cannot be sent ({})", reasons.join("; ")), advice)
}

fn ask_v4() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.send_to(QUESTION, (MDNS_V4, MDNS_PORT)).map(drop)
}

fn ask_v6(interface: u32) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    socket.send_to(QUESTION, SocketAddr::from(SocketAddrV6::new(MDNS_V6, MDNS_PORT, 0, interface))).map(drop)
}

/// Interfaces that are up and carry multicast, with their numbers; `folder` is what sysfs shows of them.
fn multicast_interfaces(folder: &Path) -> Vec<(String, u32)> {
    let read = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(String, u32)> = entries
        .filter_map(|entry| {
            let flags = read(&entry.path().join("flags"));
            let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
            let useful = flags & UP != 0 && flags & MULTICAST != 0 && flags & LOOPBACK == 0;
            let index = read(&entry.path().join("ifindex")).parse().ok()?;
            useful.then(|| (entry.file_name().to_string_lossy().into_owned(), index))
        })
        .collect();
    found.sort_unstable_by_key(|(_, index)| *index);
    found
}

/// What the running node says of its mesh. `reported`: its own findings, which know what kind of trouble it is.
pub(super) fn standing(status: &StatusReport, reported: &[Finding]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(quic) = &status.quic {
        findings.push(good("mesh port", format!("the node listens on {quic} (UDP)")));
    }
    match &status.trouble {
        None => findings.push(good("identity", format!("this node is {}", status.node))),
        Some(trouble) if reported.iter().any(|row| !row.ok && row.detail == *trouble) => {}
        Some(trouble) => findings.push(bad("mesh", trouble.clone(), "")),
    }
    if status.broker.is_some() || !reported.iter().any(|row| !row.ok && ["broker", "quorum"].contains(&&*row.name)) {
        findings.push(broker(status));
    }
    findings.extend(status.peers.iter().filter_map(|row| peer(row, status.broker.is_some())));
    findings
}

fn broker(status: &StatusReport) -> Finding {
    match (&status.broker, status.quorum.ok) {
        (Some(broker), true) if broker.is_self => good("broker", "this node".to_owned()),
        (Some(broker), true) => good("broker", broker.name.clone()),
        (Some(broker), false) => {
            let advice = "see whether that device runs and is on the network; this one's sessions wait for it";
            bad("broker", format!("{} is not reachable", broker.name), advice)
        }
        (None, _) => {
            let advice =
                "see which device it is with `chappie peers` on another one, that it runs, and that UDP gets through";
            bad("broker", "none is reachable; this device's sessions wait for it".to_owned(), advice)
        }
    }
}

/// `None` for a device that nobody here needs a connection to: only the broker keeps one to everybody.
/// `decided`: whether there is a broker, without which nobody is forgotten.
fn peer(row: &PeerRow, decided: bool) -> Option<Finding> {
    let name = format!("device {}", row.name);
    let reachable = !["waiting", "unknown"].contains(&row.state.as_str());
    if reachable && row.trouble.is_none() {
        return (row.state != "idle").then(|| good(&name, row.state.clone()));
    }
    let why = row.trouble.as_deref().unwrap_or(if reachable { "in trouble" } else { "not reachable" });
    let tried = if row.addresses.is_empty() { "none is known".to_owned() } else { row.addresses.join(" ") };
    let forget = if decided { "; `chappie forget` it if it is gone for good" } else { "" };
    let advice = format!(
        "see that it runs, and that UDP gets through to its port; name its address with --connect if it is on another \
         network{forget}"
    );
    Some(bad(&name, format!("{}: {why}; addresses: {tried}", row.state), &advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Layer,
        control::{BrokerRow, QuorumRow},
    };

    fn config() -> Config {
        Layer::default().complete("/h".into(), "box")
    }

    fn status(broker_is_self: bool, peers: Vec<PeerRow>) -> StatusReport {
        StatusReport {
            node: "N".into(),
            name: "box".into(),
            mesh: Some("M".into()),
            broker: Some(BrokerRow { node: "B".into(), name: "tower".into(), term: 1, is_self: broker_is_self }),
            quorum: QuorumRow { voters: 1, reachable: 1, ok: true },
            peers,
            sessions: Vec::new(),
            version: "1".into(),
            trouble: None,
            quic: Some("[::]:24274".into()),
        }
    }

    fn row(state: &str) -> PeerRow {
        PeerRow {
            node: "P".into(),
            name: "laptop".into(),
            state: state.into(),
            addresses: vec!["10.0.0.2:1".into()],
            voter: false,
            lag: None,
            rtt_ms: None,
            trouble: None,
        }
    }

    fn of<'a>(findings: &'a [Finding], name: &str) -> Option<&'a Finding> {
        findings.iter().find(|finding| finding.name == name)
    }

    #[test]
    fn a_taken_udp_port_is_named() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let config = Config { listen: Some(address), ..config() };
        let found = port(&config);
        assert!(
            !found.ok && found.detail.contains(&address.to_string()) && found.advice.contains("--listen"),
            "{found:?}"
        );
        drop(taken);
        assert!(port(&config).ok);
    }

    #[test]
    fn multicast_that_is_turned_off_is_no_fault() {
        let found = multicast(&Config { mdns: false, ..config() });
        assert!(found.ok && found.detail.contains("off by the settings"), "{found:?}");
    }

    #[test]
    fn interfaces_that_are_down_loopback_or_without_multicast_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        for (name, flags, index) in
            [("lo", "0x9", "1"), ("eth0", "0x1003", "7"), ("tun0", "0x91", "3"), ("down", "0x1002", "4")]
        {
            let interface = folder.path().join(name);
            fs::create_dir(&interface).unwrap();
            fs::write(interface.join("flags"), format!("{flags}\n")).unwrap();
            fs::write(interface.join("ifindex"), format!("{index}\n")).unwrap();
        }
        fs::create_dir(folder.path().join("odd")).unwrap();
        assert_eq!(multicast_interfaces(folder.path()), [("eth0".to_owned(), 7)]);
        assert!(multicast_interfaces(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn the_question_is_one_that_multicast_dns_knows() {
        let counts = [QUESTION[4..6].to_vec(), QUESTION[6..12].to_vec()];
        assert_eq!(counts, [vec![0, 1], vec![0; 6]], "one question and nothing else");
        let (mut at, mut labels) = (12, Vec::new());
        while QUESTION[at] != 0 {
            let end = at + 1 + usize::from(QUESTION[at]);
            labels.push(std::str::from_utf8(&QUESTION[at + 1..end]).unwrap());
            at = end;
        }
        assert_eq!(labels, ["_chappie", "_udp", "local"]);
        assert_eq!(QUESTION[at + 1..], [0, 12, 0, 1], "PTR, class IN");
    }

    #[test]
    fn a_trouble_is_told_once_and_by_the_name_that_the_node_gives_it() {
        let mut report = status(true, Vec::new());
        assert!(standing(&report, &[]).iter().all(|finding| finding.ok), "{report:?}");
        let trouble = "10.0.0.9:1 uses this identity too";
        report.trouble = Some(trouble.into());
        let known = [bad("identity", trouble.to_owned(), "run `chappie reset-identity`")];
        assert!(standing(&report, &known).iter().all(|finding| finding.ok), "the node's own finding tells it");
        let findings = standing(&report, &[]);
        let mesh = of(&findings, "mesh").unwrap();
        assert!(!mesh.ok && mesh.detail == trouble && !mesh.advice.contains("reset-identity"), "{mesh:?}");
    }

    #[test]
    fn a_lack_of_voters_is_no_fault_of_the_identity_and_nobody_is_to_be_forgotten() {
        let trouble = "there is no broker: 1 of 3 devices that elect one can be reached";
        let report =
            StatusReport { broker: None, trouble: Some(trouble.into()), ..status(false, vec![row("waiting")]) };
        let known = [bad("quorum", trouble.to_owned(), "bring them back")];
        let findings = standing(&report, &known);
        let told: Vec<&str> = findings.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!(told, ["mesh port", "device laptop"]);
        assert!(!findings[1].advice.contains("forget"), "{findings:?}");
    }

    #[test]
    fn a_device_that_is_needed_and_not_reached_is_a_fault_and_an_idle_one_is_none() {
        let found = |row: PeerRow| of(&standing(&status(true, vec![row]), &[]), "device laptop").cloned();
        for state in ["waiting", "unknown"] {
            for trouble in [None, Some("it refused".to_owned())] {
                let fault = found(PeerRow { trouble, ..row(state) }).unwrap();
                assert!(!fault.ok && fault.detail.contains(state) && fault.detail.contains("10.0.0.2:1"), "{fault:?}");
                assert!(fault.advice.contains("chappie forget"), "{fault:?}");
            }
        }
        assert!(found(row("connected")).unwrap().ok && found(row("connecting")).unwrap().ok);
        assert!(found(row("idle")).is_none());
        let twice =
            found(PeerRow { trouble: Some("two devices use its identity".into()), ..row("connected") }).unwrap();
        assert!(!twice.ok && twice.detail.contains("two devices"), "{twice:?}");
    }

    #[test]
    fn a_broker_out_of_reach_is_named() {
        let mut report = status(false, Vec::new());
        assert_eq!(of(&standing(&report, &[]), "broker").unwrap().detail, "tower");
        report.quorum.ok = false;
        let findings = standing(&report, &[]);
        let lost = of(&findings, "broker").unwrap();
        assert!(!lost.ok && lost.detail.contains("tower is not reachable"), "{lost:?}");
        report.broker = None;
        assert!(!of(&standing(&report, &[]), "broker").unwrap().ok);
    }
}
