//! Who may talk to a door without authorization: only this machine, and no web page of another site in its browser. Pure.

use std::net::{IpAddr, SocketAddr};

use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{HOST, ORIGIN},
    uri::Authority,
};

use crate::mcp::Refusal;

/// Refuses any address that other machines can reach.
///
/// # Errors
///
/// The reason, for the person who chose the address.
pub(super) fn check_bind(bind: SocketAddr) -> Result<(), String> {
    if is_loopback(bind.ip()) {
        return Ok(());
    }
    Err(format!(
        "refusing to serve MCP on {bind}: whoever reaches it could run commands here, and a public address needs OAuth, \
         which this door does not have; use 127.0.0.1:{port} or [::1]:{port}",
        port = bind.port()
    ))
}

/// Checks where a request came from: a `Host` of another name means DNS rebinding, a foreign `Origin` a web page.
///
/// # Errors
///
/// A refusal with 403.
pub(super) fn check_request(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let forbidden = |message: String| Refusal::request(StatusCode::FORBIDDEN, message);
    let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
    let host = match (hosts.as_slice(), uri.authority()) {
        ([host], _) => host.to_str().ok().and_then(|text| text.parse::<Authority>().ok()),
        ([], authority) => authority.cloned(),
        _ => None,
    };
    if !host.as_ref().is_some_and(|host| !host.as_str().contains('@') && names_loopback(host.host())) {
        let found = hosts.first().map_or_else(|| "none".to_owned(), |host| format!("{host:?}"));
        return Err(forbidden(format!("Host must be 127.0.0.1, [::1] or localhost, got {found}")));
    }
    for origin in headers.get_all(ORIGIN) {
        if !is_local_origin(origin) {
            return Err(forbidden(format!("Origin must be absent or http:// on this machine, got {origin:?}")));
        }
    }
    Ok(())
}

fn is_local_origin(origin: &HeaderValue) -> bool {
    let Ok(uri) = origin.to_str().unwrap_or_default().parse::<Uri>() else {
        return false;
    };
    let plain = uri.path_and_query().is_none_or(|rest| rest == "/");
    let local = uri.authority().is_some_and(|host| !host.as_str().contains('@') && names_loopback(host.host()));
    plain && local && uri.scheme_str() == Some("http")
}

fn names_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host == "127.0.0.1" || host == "[::1]"
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &[&str], origin: Option<&str>) -> Result<(), u16> {
        let mut headers = HeaderMap::new();
        for host in host {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        check_request(&Uri::from_static("/mcp"), &headers).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn loopback_names_with_any_port_pass() {
        for host in ["127.0.0.1", "127.0.0.1:24276", "localhost", "LocalHost:1", "[::1]", "[::1]:65535"] {
            assert_eq!(check(&[host], None), Ok(()), "{host}");
        }
    }

    #[test]
    fn other_hosts_are_forbidden() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:24276",
            "localhost@evil.example",
            "evil.example@localhost",
            "0.0.0.0",
            "192.168.1.2",
            "",
            "127.0.0.1:notaport/",
        ] {
            assert_eq!(check(&[host], None), Err(403), "{host}");
        }
        assert_eq!(check(&[], None), Err(403));
        assert_eq!(check(&["localhost", "evil.example"], None), Err(403));
    }

    #[test]
    fn an_absolute_target_stands_in_for_a_missing_host() {
        let uri = Uri::from_static("http://localhost:5/mcp");
        assert!(check_request(&uri, &HeaderMap::new()).is_ok());
        let uri = Uri::from_static("http://evil.example/mcp");
        assert_eq!(check_request(&uri, &HeaderMap::new()).unwrap_err().status, 403);
    }

    #[test]
    fn only_plain_http_origins_of_this_machine_pass() {
        for origin in ["http://localhost", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:9"] {
            assert_eq!(check(&["localhost"], Some(origin)), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "",
            "https://chatgpt.com",
            "http://evil.example",
            "http://localhost.evil.example",
            "https://localhost",
            "localhost",
            "http://evil@localhost",
            "http://localhost/path",
            "file://",
        ] {
            assert_eq!(check(&["localhost"], Some(origin)), Err(403), "{origin}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_served_and_the_error_names_what_is_missing() {
        for good in ["127.0.0.1:0", "127.1.2.3:5", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            assert_eq!(check_bind(good.parse().unwrap()), Ok(()), "{good}");
        }
        for bad in ["0.0.0.0:24276", "192.168.1.2:24276", "[::]:0", "[2001:db8::1]:443", "[::ffff:10.0.0.1]:0"] {
            let error = check_bind(bad.parse().unwrap()).unwrap_err();
            assert!(error.contains("OAuth") && error.contains("127.0.0.1"), "{error}");
        }
    }
}
