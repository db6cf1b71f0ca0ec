//! The address book: where each device may be reached, best guess first. Pure: the time is an argument, dialling and
//! resolving names are the caller's work. Nothing in it is trusted: whoever answers must still prove the key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    str::FromStr,
    time::Duration,
};

use super::interfaces::{is_link_local, is_unicast};
use crate::identity::NodeId;

/// Who said that a device is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The owner: `--connect`, or an invite.
    Configured,
    /// mDNS, just now and on this link.
    Mdns,
    /// The device itself.
    Hello,
    /// The device's connection came from there.
    Observed,
    /// Another member.
    Roster,
    /// This device, before its restart.
    Remembered,
}

impl Source {
    /// One bit of [`Entry::sources`]; a lower one is better.
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Addresses kept of one device: it has a few networks with two families each; more is noise, or somebody who makes
/// addresses up.
pub const CANDIDATES_MAX: usize = 16;
/// Addresses kept of what mDNS says of one device: anybody on the link can say it, and it must not push out the rest.
const MDNS_MAX: usize = 8;
/// Devices kept: as many as the roster may reasonably have, several times over. mDNS is open to anybody on the link.
pub const NODES_MAX: usize = 1024;
/// How long an address that failed is tried after the others: longer than most back-offs, shorter than a patience.
const FAILED_LAST_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct Entry {
    address: SocketAddr,
    sources: u8,
    succeeded: Option<Duration>,
    failed: Option<Duration>,
}

impl Entry {
    /// Smaller is better: the last success, then what did not just fail, then who said it, then the likelier family.
    fn rank(&self, last_success: Option<Duration>, now: Duration) -> (bool, bool, u32, u8, bool) {
        let best = self.succeeded.is_some() && self.succeeded == last_success && !self.just_failed(now);
        let source = self.sources.trailing_zeros();
        (!best, self.just_failed(now), source, reach(self.address.ip()), self.address.is_ipv6())
    }

    fn just_failed(&self, now: Duration) -> bool {
        self.failed
            .is_some_and(|at| now.saturating_sub(at) < FAILED_LAST_FOR && self.succeeded.is_none_or(|ok| ok < at))
    }
}

/// Loopback first, since it leads nowhere but here and fails at once; then what needs no router.
const fn reach(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() => 0,
        IpAddr::V6(v6) if v6.is_loopback() => 0,
        IpAddr::V4(v4) if v4.is_private() => 1,
        IpAddr::V6(v6) if v6.is_unique_local() => 1,
        IpAddr::V6(v6) if is_link_local(v6) => 2,
        IpAddr::V4(v4) if v4.is_link_local() => 2,
        _ => 3,
    }
}

/// Where devices may be reached. `now` is any clock that only grows, the same in all calls.
#[derive(Clone, Debug, Default)]
pub struct AddressBook {
    nodes: BTreeMap<NodeId, Vec<Entry>>,
    connect: Vec<(HostPort, Option<NodeId>)>,
}

impl AddressBook {
    /// A book that knows the places the owner named; who is there is not known yet.
    #[must_use]
    pub fn new(connect: Vec<HostPort>) -> Self {
        let mut places: Vec<(HostPort, Option<NodeId>)> = Vec::with_capacity(connect.len());
        for place in connect {
            if !places.iter().any(|(known, _)| *known == place) {
                places.push((place, None));
            }
        }
        Self { nodes: BTreeMap::new(), connect: places }
    }

    /// Notes what `source` says of `node`. mDNS, hello and the roster say all that they know each time, so what they
    /// said before and do not repeat is theirs no more. Gives whether there is an address that was not known: a reason
    /// to dial at once. Addresses that no packet can go to are passed over, as are link-local IPv6 addresses without a
    /// scope.
    pub fn learned(&mut self, node: NodeId, source: Source, addresses: &[SocketAddr]) -> bool {
        self.note(node, source, addresses, None)
    }

    /// What [`Self::learned`] and [`Self::succeeded`] share.
    fn note(&mut self, node: NodeId, source: Source, said: &[SocketAddr], succeeded: Option<Duration>) -> bool {
        if !self.nodes.contains_key(&node) && self.nodes.len() >= NODES_MAX {
            return false;
        }
        let entries = self.nodes.entry(node).or_default();
        if matches!(source, Source::Mdns | Source::Hello | Source::Roster) {
            unsay(entries, source);
        }
        let most = if source == Source::Mdns { MDNS_MAX } else { CANDIDATES_MAX };
        let mut fresh = Vec::new();
        for address in said.iter().map(canonical).filter(is_dialable).take(most) {
            let at = entries.iter().position(|entry| entry.address == address).unwrap_or_else(|| {
                fresh.push(address);
                entries.push(Entry { address, sources: 0, succeeded: None, failed: None });
                entries.len() - 1
            });
            entries[at].sources |= source.bit();
            if succeeded.is_some() {
                (entries[at].succeeded, entries[at].failed) = (succeeded, None);
            }
        }
        // Only now, so that an address that is said again keeps its past.
        entries.retain(|entry| entry.sources != 0);
        if entries.len() > CANDIDATES_MAX {
            // What worked stays before what was only said; at no time at all every failure still counts.
            let last = last_success(entries);
            entries.sort_by_key(|entry| (entry.succeeded.is_none(), entry.rank(last, Duration::ZERO)));
            entries.truncate(CANDIDATES_MAX);
        }
        let news = fresh.iter().any(|address| entries.iter().any(|entry| entry.address == *address));
        self.drop_if_empty(&node);
        news
    }

    /// mDNS says that `node` is gone. What worked stays, as remembered: a device whose announcement ran out may still be
    /// there.
    pub fn lost(&mut self, node: &NodeId) {
        if let Some(entries) = self.nodes.get_mut(node) {
            unsay(entries, Source::Mdns);
            entries.retain(|entry| entry.sources != 0);
        }
        self.drop_if_empty(node);
    }

    /// Where to dial `node`, best guess first; at most [`CANDIDATES_MAX`].
    #[must_use]
    pub fn candidates(&self, node: &NodeId, now: Duration) -> Vec<SocketAddr> {
        let Some(entries) = self.nodes.get(node) else { return Vec::new() };
        let last = last_success(entries);
        let mut ranked: Vec<&Entry> = entries.iter().collect();
        ranked.sort_by_key(|entry| entry.rank(last, now));
        ranked.iter().map(|entry| entry.address).collect()
    }

    /// `node` proved its key at `address`.
    pub fn succeeded(&mut self, node: NodeId, address: SocketAddr, now: Duration) {
        self.note(node, Source::Observed, &[address], Some(now));
    }

    /// Nobody, or somebody else, answered at `address`.
    pub fn failed(&mut self, node: &NodeId, address: &SocketAddr, now: Duration) {
        if let Some(entry) = self.entry(node, address) {
            entry.failed = Some(now);
        }
    }

    /// What to keep of `node` over a restart: where it was met, the last success first, else what was said of it.
    /// Link-local IPv6 addresses are left out: their scope is the number of an interface, which a restart may change and
    /// which serde leaves out, and mDNS brings them again.
    #[must_use]
    pub fn worth_remembering(&self, node: &NodeId, now: Duration) -> Vec<SocketAddr> {
        let mut addresses = self.candidates(node, now);
        addresses.retain(|address| !has_scope(address));
        addresses
    }

    /// What to tell another member of every device: as [`Self::worth_remembering`], and without loopback addresses, which
    /// mean another device there, unless that member is on this machine (`beside`).
    #[must_use]
    pub fn worth_telling(&self, now: Duration, beside: bool) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let told = self.nodes.keys().map(|node| {
            let mut addresses = self.worth_remembering(node, now);
            addresses.retain(|address| beside || !address.ip().is_loopback());
            (*node, addresses)
        });
        told.filter(|(_, addresses)| !addresses.is_empty()).collect()
    }

    /// Forgets every device for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&NodeId) -> bool) {
        self.nodes.retain(|node, _| keep(node));
        for (_, met) in &mut self.connect {
            *met = met.filter(|node| keep(node));
        }
    }

    /// The places the owner named that are to be resolved and dialled: those where nobody was met yet, or where the one
    /// who was met is not connected. Their addresses are not kept: a name may lead elsewhere at the next try.
    #[must_use]
    pub fn places(&self, connected: &BTreeSet<NodeId>) -> Vec<HostPort> {
        let open = self.connect.iter().filter(|(_, met)| met.is_none_or(|node| !connected.contains(&node)));
        open.map(|(place, _)| place.clone()).collect()
    }

    /// `node` proved its key at `address`, which `place` led to.
    pub fn met(&mut self, place: &HostPort, node: NodeId, address: SocketAddr, now: Duration) {
        if let Some(found) = self.connect.iter_mut().find(|(known, _)| known == place) {
            found.1 = Some(node);
            self.learned(node, Source::Configured, &[address]);
            self.succeeded(node, address, now);
        }
    }

    fn entry(&mut self, node: &NodeId, address: &SocketAddr) -> Option<&mut Entry> {
        let address = canonical(address);
        self.nodes.get_mut(node)?.iter_mut().find(|entry| entry.address == address)
    }

    fn drop_if_empty(&mut self, node: &NodeId) {
        if self.nodes.get(node).is_some_and(Vec::is_empty) {
            self.nodes.remove(node);
        }
    }
}

/// Takes `source` from all entries; one that worked stays remembered, one that nobody says any more is left with none.
fn unsay(entries: &mut [Entry], source: Source) {
    for entry in entries {
        let said = entry.sources & source.bit() != 0;
        entry.sources &= !source.bit();
        if said && entry.sources == 0 && entry.succeeded.is_some() {
            entry.sources = Source::Remembered.bit();
        }
    }
}

fn last_success(entries: &[Entry]) -> Option<Duration> {
    entries.iter().filter_map(|entry| entry.succeeded).max()
}

/// One form for one place: IPv4 as IPv4, and a scope only where it means something. A socket for both families shows
/// IPv4 inside IPv6.
fn canonical(address: &SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V6(ip), SocketAddr::V6(v6)) if is_link_local(ip) => {
            SocketAddrV6::new(ip, v6.port(), 0, v6.scope_id()).into()
        }
        (ip, _) => SocketAddr::new(ip, address.port()),
    }
}

fn is_dialable(address: &SocketAddr) -> bool {
    let scoped = match address {
        SocketAddr::V6(v6) if is_link_local(*v6.ip()) => v6.scope_id() != 0,
        _ => true,
    };
    address.port() != 0 && is_unicast(address.ip()) && scoped
}

const fn has_scope(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0 || is_link_local(*v6.ip()))
}

/// A place that the owner named: `host:port`, the host a name or an address (an IPv6 one in brackets).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// A name for a resolver, or an address without brackets.
    pub host: String,
    /// The port; never 0.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why a text is no [`HostPort`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST:PORT, as in box.example:7373 or [fd00::5]:7373")]
pub struct HostPortError(String);

/// A host name has at most 253 characters (RFC 1035).
const HOST_CHARACTERS_MAX: usize = 253;

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        // As much of a wrong text as helps to find it.
        let wrong = || HostPortError(text.chars().take(80).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        let is_v6 = |host: &str| host.split_once('%').map_or(host, |(ip, _)| ip).parse::<Ipv6Addr>().is_ok();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let host = match bracketed {
            Some(Some(inner)) if is_v6(inner) => inner,
            None if !host.is_empty() && host.len() <= HOST_CHARACTERS_MAX && host.chars().all(is_name) => host,
            _ => return Err(wrong()),
        };
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or_else(wrong)?;
        Ok(Self { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests;
