//! The address book: order, limits, and what is forgotten when.

use super::*;

fn node(byte: u8) -> NodeId {
    NodeId::from([byte; 32])
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn numbered(from: u8, count: u8) -> Vec<SocketAddr> {
    (from..from + count).map(|n| SocketAddr::from(([10, 0, 0, n], 7373))).collect()
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_last_success_comes_first_then_sources_in_order() {
    let mut book = AddressBook::default();
    let said = [
        (Source::Remembered, "10.0.0.6:1"),
        (Source::Roster, "10.0.0.5:1"),
        (Source::Observed, "10.0.0.4:1"),
        (Source::Hello, "10.0.0.3:1"),
        (Source::Mdns, "10.0.0.2:1"),
        (Source::Configured, "10.0.0.1:1"),
    ];
    for (source, address) in said {
        assert!(book.learned(node(1), source, &[at(address)]));
    }
    let mut expected: Vec<SocketAddr> = said.iter().rev().map(|(_, address)| at(address)).collect();
    assert_eq!(book.candidates(&node(1), s(0)), expected);
    book.succeeded(node(1), at("10.0.0.6:1"), s(5));
    assert_eq!(book.candidates(&node(1), s(5))[0], at("10.0.0.6:1"));
    book.succeeded(node(1), at("10.0.0.5:1"), s(9));
    let order = book.candidates(&node(1), s(9));
    assert_eq!(order[0], at("10.0.0.5:1"), "the later success");
    expected.sort();
    let mut all = order;
    all.sort();
    assert_eq!(all, expected);
}

#[test]
fn within_a_source_near_addresses_come_first_and_ipv4_before_ipv6() {
    let mut book = AddressBook::default();
    let addresses = ["[2001:db8::1]:1", "8.8.8.8:1", "[fe80::1%2]:1", "[fd00::1]:1", "10.0.0.1:1"].map(at);
    book.learned(node(1), Source::Mdns, &addresses);
    let expected = ["10.0.0.1:1", "[fd00::1]:1", "[fe80::1%2]:1", "8.8.8.8:1", "[2001:db8::1]:1"].map(at);
    assert_eq!(book.candidates(&node(1), s(0)), expected);
}

#[test]
fn what_failed_comes_last_for_a_minute() {
    let mut book = AddressBook::default();
    let [first, second] = [at("10.0.0.1:1"), at("10.0.0.2:1")];
    book.learned(node(1), Source::Configured, &[first]);
    book.learned(node(1), Source::Remembered, &[second]);
    book.succeeded(node(1), first, s(1));
    book.failed(&node(1), &first, s(10));
    assert_eq!(book.candidates(&node(1), s(69)), [second, first], "not even the last success");
    assert_eq!(book.candidates(&node(1), s(70)), [first, second]);
    book.failed(&node(1), &first, s(80));
    book.succeeded(node(1), first, s(81));
    assert_eq!(book.candidates(&node(1), s(82)), [first, second], "it works again");
}

#[test]
fn a_source_that_says_all_takes_back_what_it_does_not_repeat() {
    let mut book = AddressBook::default();
    let [old, both, new] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(at);
    book.learned(node(1), Source::Mdns, &[old, both]);
    assert!(!book.learned(node(1), Source::Hello, &[both]), "nothing new");
    assert!(book.learned(node(1), Source::Mdns, &[new]));
    assert_eq!(book.candidates(&node(1), s(0)), [new, both]);
    book.learned(node(1), Source::Observed, &[old]);
    book.learned(node(1), Source::Observed, &[new]);
    assert_eq!(book.candidates(&node(1), s(0)).len(), 3, "what was seen is not taken back");
}

#[test]
fn what_is_said_again_keeps_its_past() {
    let mut book = AddressBook::default();
    let [first, second] = [at("10.0.0.1:1"), at("10.0.0.2:1")];
    book.learned(node(1), Source::Mdns, &[first, second]);
    book.failed(&node(1), &first, s(1));
    assert!(!book.learned(node(1), Source::Mdns, &[first, second]));
    assert_eq!(book.candidates(&node(1), s(2)), [second, first]);
}

#[test]
fn a_lost_announcement_leaves_what_worked() {
    let mut book = AddressBook::default();
    let [worked, said, told] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(at);
    book.learned(node(1), Source::Mdns, &[worked, said]);
    book.learned(node(1), Source::Hello, &[told]);
    book.succeeded(node(1), worked, s(1));
    book.lost(&node(1));
    assert_eq!(book.candidates(&node(1), s(2)), [worked, told]);
    book.learned(node(2), Source::Mdns, &[said]);
    book.lost(&node(2));
    assert_eq!(book.candidates(&node(2), s(2)), []);
    assert!(book.nodes.len() == 1, "nothing is kept of it");
    book.lost(&node(9));
}

#[test]
fn addresses_that_no_packet_can_go_to_are_passed_over() {
    let mut book = AddressBook::default();
    let bad = ["10.0.0.1:0", "0.0.0.0:1", "224.0.0.251:1", "[::]:1", "[ff02::fb]:1", "[fe80::1]:1"].map(at);
    assert!(!book.learned(node(1), Source::Hello, &bad));
    assert_eq!(book.candidates(&node(1), s(0)), []);
    assert!(book.nodes.is_empty());
}

#[test]
fn a_flood_of_addresses_pushes_out_neither_what_worked_nor_what_the_owner_said() {
    let mut book = AddressBook::default();
    let [owner, worked] = [at("192.168.1.1:1"), at("192.168.1.2:1")];
    book.learned(node(1), Source::Configured, &[owner]);
    book.succeeded(node(1), worked, s(1));
    for round in 0..20 {
        book.learned(node(1), Source::Observed, &numbered(round * 10, 10));
        book.learned(node(1), Source::Mdns, &numbered(round * 10, 10));
        assert!(book.candidates(&node(1), s(2)).len() <= CANDIDATES_MAX);
    }
    let kept = book.candidates(&node(1), s(2));
    assert_eq!(kept[..2], [worked, owner]);
    assert_eq!(kept.len(), CANDIDATES_MAX);
    book.learned(node(2), Source::Hello, &numbered(0, 40));
    assert_eq!(book.candidates(&node(2), s(2)).len(), CANDIDATES_MAX);
    book.learned(node(2), Source::Mdns, &numbered(100, 40));
    let by_mdns = book.candidates(&node(2), s(2));
    assert_eq!(by_mdns.iter().filter(|address| numbered(100, 40).contains(address)).count(), MDNS_MAX);
    book.succeeded(node(2), at("10.1.1.1:1"), s(3));
    assert_eq!(book.candidates(&node(2), s(3))[0], at("10.1.1.1:1"), "there is room for what works");
}

#[test]
fn one_place_has_one_form() {
    let mut book = AddressBook::default();
    book.learned(
        node(1),
        Source::Hello,
        &["10.0.0.1:1", "[::ffff:10.0.0.1]:1", "[fd00::1%3]:1", "[fd00::1]:1"].map(at),
    );
    assert_eq!(book.candidates(&node(1), s(0)), ["10.0.0.1:1", "[fd00::1]:1"].map(at));
    book.failed(&node(1), &at("[::ffff:10.0.0.1]:1"), s(1));
    assert_eq!(book.candidates(&node(1), s(2)), ["[fd00::1]:1", "10.0.0.1:1"].map(at));
    book.succeeded(node(1), at("[::ffff:10.0.0.1]:1"), s(3));
    assert_eq!(book.candidates(&node(1), s(3))[0], at("10.0.0.1:1"));
}

#[test]
fn a_flood_of_devices_is_bounded() {
    let mut book = AddressBook::default();
    for n in 0..2000_u16 {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        book.learned(NodeId::from(id), Source::Mdns, &[at("10.0.0.1:1")]);
    }
    assert_eq!(book.nodes.len(), NODES_MAX);
    book.retain(|node| node.as_bytes()[1] == 0);
    assert_eq!(book.nodes.len(), 4);
}

#[test]
fn what_is_kept_or_told_has_no_scope_and_what_is_told_no_loopback() {
    let mut book = AddressBook::default();
    let [lan, link, own] = ["10.0.0.1:1", "[fe80::1%2]:1", "127.0.0.1:1"].map(at);
    book.learned(node(1), Source::Mdns, &[lan, link, own]);
    book.learned(node(2), Source::Mdns, &[link]);
    assert_eq!(book.candidates(&node(1), s(0)), [own, lan, link]);
    assert_eq!(book.worth_remembering(&node(1), s(0)), [own, lan]);
    assert_eq!(book.worth_telling(s(0), false), [(node(1), vec![lan])]);
    let beside = book.worth_telling(s(0), true);
    assert!(beside[0].1.len() > 1 && beside[0].1.contains(&lan), "a member on this machine can use them: {beside:?}");
}

#[test]
fn a_place_is_open_until_the_one_met_there_is_connected() {
    let place: HostPort = "box.example:7373".parse().unwrap();
    let other: HostPort = "[fd00::5]:7373".parse().unwrap();
    let mut book = AddressBook::new(vec![place.clone(), other.clone(), place.clone()]);
    let none = BTreeSet::new();
    assert_eq!(book.places(&none), [place.clone(), other.clone()]);
    book.met(&place, node(1), at("10.0.0.1:7373"), s(1));
    assert_eq!(book.places(&none), [place.clone(), other.clone()], "met, and not connected");
    assert_eq!(book.places(&BTreeSet::from([node(1)])), [other]);
    assert_eq!(book.candidates(&node(1), s(1)), [at("10.0.0.1:7373")]);
    book.retain(|_| false);
    assert_eq!(book.places(&BTreeSet::from([node(1)])).len(), 2);
    book.met(&"elsewhere:1".parse().unwrap(), node(2), at("10.0.0.2:1"), s(1));
    assert_eq!(book.candidates(&node(2), s(1)), []);
}

#[test]
fn a_host_and_port_comes_back_as_it_was_written() {
    for text in ["box.example:7373", "10.0.0.5:1", "[fd00::5]:65535", "[fe80::1%eth0]:7373", "a_b-c:80"] {
        let parsed: HostPort = text.parse().unwrap();
        assert_eq!(parsed.to_string(), text);
    }
    assert_eq!("[fd00::5]:80".parse::<HostPort>().unwrap().host, "fd00::5");
    let long = format!("{}:1", "a".repeat(254));
    for text in [
        "",
        "box",
        "box:",
        ":1",
        "box:0",
        "box:65536",
        "box:+1",
        "fd00::5:80",
        "[box]:1",
        "[::1:1",
        "a b:1",
        "a/b:1",
        &long,
    ] {
        let error = text.parse::<HostPort>().unwrap_err();
        assert!(error.to_string().contains("HOST:PORT") && error.to_string().len() < 200, "{error}");
    }
}
