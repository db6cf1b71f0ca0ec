//! The addresses of this device, from the system. What they are good for is decided in `interfaces`.

use std::net::SocketAddr;

use super::interfaces::{Interface, dialable};
use crate::wire::ADDRESSES_MAX;

/// The addresses at which other devices can dial `port` here, the likeliest first; at most [`ADDRESSES_MAX`], for a
/// hello or an invite. None when the system does not say.
#[must_use]
pub fn local_addresses(port: u16) -> Vec<SocketAddr> {
    let addresses = dialable(&interfaces());
    addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).take(ADDRESSES_MAX).collect()
}

/// The addresses of all interfaces that are up.
pub(super) fn interfaces() -> Vec<Interface> {
    let all = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "the system does not say which addresses this device has");
        Vec::new()
    });
    let up = all.into_iter().filter(if_addrs::Interface::is_oper_up);
    up.map(|interface| Interface { address: interface.ip(), name: interface.name }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_are_of_this_device_and_have_the_port() {
        let own: Vec<_> = interfaces().into_iter().map(|interface| interface.address).collect();
        let addresses = local_addresses(7373);
        assert!(!addresses.is_empty() && addresses.len() <= ADDRESSES_MAX, "{addresses:?}");
        for address in addresses {
            assert!(own.contains(&address.ip()) && address.port() == 7373, "{address}");
            assert!(std::net::UdpSocket::bind((address.ip(), 0)).is_ok(), "{address}");
        }
    }
}
