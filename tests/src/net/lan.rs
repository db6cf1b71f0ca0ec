//! A switch with machines on it: a bridge in a namespace of its own, and a cable (a veth pair) to each machine's `eth0`.
//! The switch can lose packets and keep multicast to itself; a cable can be pulled; a machine can change its addresses.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::Namespace;

/// The name of each machine's network card.
const CARD: &str = "eth0";

/// A switch.
#[derive(Debug)]
pub struct Lan {
    switch: Arc<Namespace>,
    ports: AtomicU32,
}

impl Lan {
    /// A switch without machines.
    #[must_use]
    pub fn new() -> Self {
        let switch = Namespace::new("switch");
        // The switch itself speaks no IP.
        switch.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        switch.ip("link add bridge type bridge mcast_snooping 0 stp_state 0");
        switch.ip("link set bridge up");
        switch.sh("nft 'add table bridge faults; \
             add chain bridge faults loss { type filter hook forward priority 0; }; \
             add chain bridge faults mute { type filter hook forward priority 2; }; \
             add chain bridge faults multicast { type filter hook forward priority 1; }'");
        Self { switch, ports: AtomicU32::new(0) }
    }

    /// A machine with these addresses (`10.77.0.1/24`, `fd77::1/64`), and an IPv6 link-local one.
    #[must_use]
    pub fn device(&self, label: &str, addresses: &[&str]) -> Device {
        let namespace = Namespace::new(label);
        let port = format!("port{}", self.ports.fetch_add(1, Ordering::Relaxed));
        self.switch.ip(&format!("link add {port} type veth peer name {CARD} netns {}", namespace.name()));
        self.switch.ip(&format!("link set {port} master bridge"));
        self.switch.ip(&format!("link set {port} up"));
        let device = Device { namespace, switch: Arc::clone(&self.switch), port };
        device.link_up();
        device.add(addresses);
        device
    }

    /// Loses this many packets in a thousand, at random, each way.
    pub fn lose(&self, per_mille: u32) {
        self.switch.sh("nft flush chain bridge faults loss");
        let dice = match per_mille {
            0 => return,
            1..1000 => format!("numgen random mod 1000 < {per_mille}"),
            _ => String::new(),
        };
        self.switch.sh(&format!("nft 'add rule bridge faults loss {dice} drop'"));
    }

    /// Passes no multicast on, as many a wireless network does, but for what IPv6 needs to find a neighbour.
    pub fn block_multicast(&self) {
        self.switch.sh(
            "nft 'add rule bridge faults multicast ip daddr 224.0.0.0/4 drop; \
             add rule bridge faults multicast ip6 daddr ff00::/8 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, \
             nd-router-solicit, mld2-listener-report } accept; \
             add rule bridge faults multicast ip6 daddr ff00::/8 drop'",
        );
    }
}

impl Default for Lan {
    fn default() -> Self {
        Self::new()
    }
}

/// A machine on a [`Lan`].
#[derive(Debug)]
pub struct Device {
    /// Where it lives.
    pub namespace: Arc<Namespace>,
    switch: Arc<Namespace>,
    port: String,
}

impl Device {
    /// Takes its network card down. IPv4 addresses stay, IPv6 addresses are lost, as Linux does it.
    pub fn link_down(&self) {
        self.namespace.ip(&format!("link set {CARD} down"));
    }

    /// Takes its network card up.
    pub fn link_up(&self) {
        self.namespace.ip(&format!("link set {CARD} up"));
    }

    /// Pulls the cable at the switch: the card has no carrier, its addresses stay.
    pub fn unplug(&self) {
        self.switch.ip(&format!("link set {} down", self.port));
    }

    /// Puts the cable back.
    pub fn plug(&self) {
        self.switch.ip(&format!("link set {} up", self.port));
    }

    /// Lets it hear and not be heard: what it sends ends at the switch.
    pub fn mute(&self) {
        self.switch.sh(&format!("nft 'add rule bridge faults mute iifname {} drop'", self.port));
    }

    /// Ends all [`Self::mute`]s of the switch.
    pub fn unmute(&self) {
        self.switch.sh("nft flush chain bridge faults mute");
    }

    /// Takes all its addresses away (`ip addr flush`) and gives it these.
    pub fn readdress(&self, addresses: &[&str]) {
        self.namespace.ip(&format!("addr flush dev {CARD}"));
        self.add(addresses);
    }

    /// The largest packet on its cable, in bytes.
    pub fn mtu(&self, bytes: u32) {
        self.switch.ip(&format!("link set {} mtu {bytes}", self.port));
        self.namespace.ip(&format!("link set {CARD} mtu {bytes}"));
    }

    /// Makes its cable pass only packets up to this size, without telling anybody: what is larger disappears on the way.
    pub fn narrow(&self, bytes: u32) {
        self.switch.ip(&format!("link set {} mtu {bytes}", self.port));
    }

    fn add(&self, addresses: &[&str]) {
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            self.namespace.ip(&format!("addr add {address} dev {CARD} {nodad}"));
        }
    }
}
