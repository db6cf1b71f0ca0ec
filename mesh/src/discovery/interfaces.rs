//! Which network interfaces lead to other devices, and which of their addresses others can dial. Pure: the list of
//! interfaces is an argument.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

/// One address of an interface, as the system lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The interface's name.
    pub(crate) name: String,
    /// One of its addresses.
    pub(crate) address: IpAddr,
}

/// What an interface is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// Nothing: this device alone is behind it.
    None,
    /// Dialling and being dialled, as over a VPN, which carries no multicast.
    Dialled,
    /// That, and mDNS.
    Announced,
}

/// Interfaces of containers and virtual machines of this device: others cannot reach what is behind them, and the same
/// addresses are on every device that has them. A bridge that people make for their LAN is none (`br0`, `br-lan`).
const INSIDE: [&str; 17] = [
    "docker",
    "veth",
    "virbr",
    "vnet",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "lxc",
    "lxdbr",
    "incusbr",
    "podman",
    "kube",
    "nodelocaldns",
    "vboxnet",
    "vmnet",
    "ifb",
];
/// Tunnels: they reach other devices and carry no multicast worth the name.
const TUNNELS: [&str; 8] = ["tun", "wg", "tailscale", "utun", "ppp", "ipsec", "nebula", "nordlynx"];
/// Docker names its own networks `br-` and twelve hex digits.
const DOCKER_BRIDGE: &str = "br-";
const DOCKER_BRIDGE_DIGITS: usize = 12;

/// What each interface is good for. When all that is there besides loopback belongs to containers, this device is one
/// itself, or a test, and they are its way out.
pub(crate) fn uses(interfaces: &[Interface]) -> BTreeMap<String, Use> {
    let mut uses: BTreeMap<String, Use> = BTreeMap::new();
    for interface in interfaces.iter().filter(|interface| !interface.address.is_loopback()) {
        uses.insert(interface.name.clone(), usual(&interface.name));
    }
    if uses.values().all(|found| *found == Use::None) {
        uses.values_mut().for_each(|found| *found = Use::Announced);
    }
    uses
}

fn usual(name: &str) -> Use {
    let docker = name
        .strip_prefix(DOCKER_BRIDGE)
        .is_some_and(|rest| rest.len() == DOCKER_BRIDGE_DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if docker || INSIDE.iter().any(|prefix| name.starts_with(prefix)) {
        Use::None
    } else if TUNNELS.iter().any(|prefix| name.starts_with(prefix)) {
        Use::Dialled
    } else {
        Use::Announced
    }
}

/// The addresses that others can dial, the likeliest first: LAN before VPN, IPv4 before IPv6. IPv6 link-local addresses
/// are left out: they mean nothing without the other side's interface, and mDNS brings them with it. Where there is no
/// network at all, other programs on this device are all there is to reach: its loopback addresses.
pub(crate) fn dialable(interfaces: &[Interface]) -> Vec<IpAddr> {
    let uses = uses(interfaces);
    let use_of = |interface: &Interface| uses.get(&interface.name).copied().unwrap_or(Use::None);
    let mut useful: Vec<&Interface> = interfaces
        .iter()
        .filter(|interface| use_of(interface) != Use::None)
        .filter(|interface| !interface.address.is_loopback() && is_unicast(interface.address))
        .filter(|interface| !matches!(interface.address, IpAddr::V6(v6) if is_link_local(v6)))
        .collect();
    if useful.is_empty() {
        useful = interfaces.iter().filter(|interface| interface.address.is_loopback()).collect();
    }
    useful.sort_by_key(|interface| (std::cmp::Reverse(use_of(interface)), interface.address.is_ipv6()));
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(useful.len());
    for interface in useful {
        if !addresses.contains(&interface.address) {
            addresses.push(interface.address);
        }
    }
    addresses
}

/// Whether a packet to this address can go to one device.
pub(crate) const fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_unspecified() && !v4.is_multicast() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast(),
    }
}

/// Whether this address needs the number of an interface beside it.
pub(crate) const fn is_link_local(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(list: &[(&str, &str)]) -> Vec<Interface> {
        list.iter()
            .map(|(name, address)| Interface { name: (*name).to_owned(), address: address.parse().unwrap() })
            .collect()
    }

    fn dialled(list: &[(&str, &str)]) -> Vec<String> {
        dialable(&interfaces(list)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_belongs_to_containers_is_skipped_beside_a_real_network() {
        let list = interfaces(&[
            ("lo", "127.0.0.1"),
            ("eth0", "192.168.1.5"),
            ("wlp3s0", "192.168.2.5"),
            ("br0", "192.168.3.5"),
            ("br-lan", "192.168.4.5"),
            ("docker0", "172.17.0.1"),
            ("br-0123456789ab", "172.18.0.1"),
            ("veth12ab", "169.254.3.4"),
            ("virbr0", "192.168.122.1"),
            ("cni0", "10.244.0.1"),
            ("podman1", "10.89.0.1"),
            ("wg0", "10.8.0.2"),
            ("tailscale0", "100.64.0.7"),
        ]);
        let uses = uses(&list);
        let of = |wanted: Use| -> Vec<&str> {
            uses.iter().filter(|(_, found)| **found == wanted).map(|(name, _)| name.as_str()).collect()
        };
        assert_eq!(of(Use::Announced), ["br-lan", "br0", "eth0", "wlp3s0"]);
        assert_eq!(of(Use::Dialled), ["tailscale0", "wg0"]);
        assert_eq!(of(Use::None), ["br-0123456789ab", "cni0", "docker0", "podman1", "veth12ab", "virbr0"]);
        assert!(!uses.contains_key("lo"));
    }

    #[test]
    fn what_belongs_to_containers_counts_where_nothing_else_is() {
        let inside = interfaces(&[("lo", "127.0.0.1"), ("veth1", "10.0.0.2"), ("veth1", "fd00::2")]);
        assert_eq!(uses(&inside), BTreeMap::from([("veth1".to_owned(), Use::Announced)]));
        assert_eq!(dialled(&[("lo", "::1"), ("veth1", "10.0.0.2"), ("veth1", "fe80::2")]), ["10.0.0.2"]);
        let beside_vpn = interfaces(&[("veth1", "10.0.0.2"), ("wg0", "10.8.0.2")]);
        assert_eq!(uses(&beside_vpn)["veth1"], Use::None);
    }

    #[test]
    fn lan_comes_before_vpn_and_each_address_once() {
        let list = [
            ("wg0", "10.8.0.2"),
            ("eth0", "fd00::5"),
            ("eth0", "fe80::5"),
            ("eth0", "192.168.1.5"),
            ("eth1", "192.168.1.5"),
            ("docker0", "172.17.0.1"),
            ("lo", "127.0.0.1"),
        ];
        assert_eq!(dialled(&list), ["192.168.1.5", "fd00::5", "10.8.0.2"]);
    }

    #[test]
    fn without_any_network_this_device_can_still_dial_itself() {
        assert_eq!(dialled(&[("lo", "::1"), ("lo", "127.0.0.1")]), ["127.0.0.1", "::1"]);
        assert_eq!(dialled(&[]), [""; 0]);
    }

    #[test]
    fn addresses_of_nobody_or_of_many_are_no_unicast() {
        for address in ["0.0.0.0", "255.255.255.255", "224.0.0.251", "::", "ff02::fb"] {
            assert!(!is_unicast(address.parse().unwrap()), "{address}");
        }
        for address in ["10.0.0.1", "169.254.1.1", "fd00::1", "fe80::1", "2001:db8::1"] {
            assert!(is_unicast(address.parse().unwrap()), "{address}");
        }
    }
}
