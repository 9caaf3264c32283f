//! What is checked of a request before anything else: whose it is.
//!
//! A page of another site can make a browser send requests to this machine, and a name of another site can lead to
//! 127.0.0.1. So the `Host` has to be this server's own, whole, and a browser that tells where a request comes from must
//! name this server. The token is no cookie: browsers send those along by themselves, and to every port.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};

use crate::token::AccessToken;
use crate::web::answer::ApiError;

/// Checks requests to one address.
pub struct RequestGuard {
    hosts: [String; 3],
    token: AccessToken,
}

impl RequestGuard {
    /// For a server that listens at this port of this machine.
    #[must_use]
    pub fn new(port: u16, token: AccessToken) -> Self {
        // All three, whichever the server listens at: users type 'localhost', and forwarded ports of ssh have it, too.
        let hosts = ["127.0.0.1", "[::1]", "localhost"].map(|name| format!("{name}:{port}"));
        Self { hosts, token }
    }

    /// Fails unless the request was meant for this server, and comes from its own page or from no page.
    pub fn check_sender(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = single_value(headers, &HOST)?.ok_or_else(|| bad_request("the request has no Host"))?;
        // A name of another site that resolves to 127.0.0.1 (DNS rebinding) brings its own Host along.
        if !self.hosts.iter().any(|own| own.as_bytes() == host) {
            return Err(refuse("the Host of the request is not this server"));
        }
        // Browsers leave it out of GET requests of the own page, and programs send none.
        let origin = single_value(headers, &ORIGIN)?;
        // With the port: another server of this machine is another site.
        let is_own = |origin: &[u8]| origin.strip_prefix(b"http://").is_some_and(|name| name == host);
        if origin.is_some_and(|origin| !is_own(origin)) {
            return Err(refuse("the request comes from another site"));
        }
        match single_value(headers, &HeaderName::from_static("sec-fetch-site"))? {
            // Browsers set it and pages cannot. `none` is what a user has typed; programs that are no browser send nothing.
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => Err(refuse("the request comes from another site")),
        }
    }

    /// Fails unless the request shows the token.
    pub fn check_token(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let shown = single_value(headers, &AUTHORIZATION)?.and_then(|value| value.strip_prefix(b"Bearer "));
        if shown.is_some_and(|shown| self.token.matches(shown)) {
            return Ok(());
        }
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "denied", "the request does not show the token"))
    }
}

/// The value of a header; fails if there are several.
fn single_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h [u8]>, ApiError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (first, None) => Ok(first.map(|value| value.as_bytes())),
        // Whoever is in front may look at the first one, and this server at the last.
        (_, Some(_)) => Err(bad_request(format!("the request has several values of {name}"))),
    }
}

fn bad_request(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "usage", message)
}

fn refuse(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "denied", message)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
        // Appended, so that a name can come twice.
        let mut map = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            map.append::<HeaderName>(name, value);
        }
        map
    }

    fn status(pairs: &[(&'static str, &str)]) -> Option<u16> {
        let guard = RequestGuard::new(8080, AccessToken::generate().unwrap());
        guard.check_sender(&headers(pairs)).err().map(|error| error.status().as_u16())
    }

    #[test]
    fn only_the_own_hosts_pass() {
        for host in ["127.0.0.1:8080", "[::1]:8080", "localhost:8080"] {
            assert_eq!(status(&[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.com",
            "evil.com:8080",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.0.0.1:808",
            "127.0.0.1:80800",
            "127.0.0.1.evil.com",
            "127.0.0.1.evil.com:8080",
            "127.0.0.1:8080.evil.com",
            "127.1:8080",
            "0:8080",
            "0.0.0.0:8080",
            "2130706433:8080",
            "0x7f000001:8080",
            "[::]:8080",
            "[::1]",
            "::1:8080",
            "[::ffff:127.0.0.1]:8080",
            "localhost",
            "localhost:80",
            "LOCALHOST:8080",
            "localhost.:8080",
            "localhost.evil.com:8080",
            "user@127.0.0.1:8080",
            "127.0.0.1:8080@evil.com",
            "127.0.0.1:8080/",
            " 127.0.0.1:8080x",
            "127.0.0.1:+8080",
            "127.0.0.1:08080",
            "",
        ] {
            assert_eq!(status(&[("host", host)]), Some(403), "{host}");
        }
        assert_eq!(status(&[]), Some(400));
        assert_eq!(status(&[("host", "127.0.0.1:8080"), ("host", "127.0.0.1:8080")]), Some(400));
    }

    #[test]
    fn other_sites_are_refused() {
        let host = ("host", "127.0.0.1:8080");
        assert_eq!(status(&[host, ("origin", "http://127.0.0.1:8080")]), None);
        for origin in [
            "null",
            "http://evil.com",
            "http://127.0.0.1:8081",
            "https://127.0.0.1:8080",
            "http://127.0.0.1",
            "http://localhost:8080",
            "http://127.0.0.1:8080.evil.com",
            "http://127.0.0.1:8080/",
            "",
        ] {
            assert_eq!(status(&[host, ("origin", origin)]), Some(403), "{origin}");
        }
        for (site, expected) in
            [("same-origin", None), ("none", None), ("same-site", Some(403)), ("cross-site", Some(403))]
        {
            assert_eq!(status(&[host, ("sec-fetch-site", site)]), expected, "{site}");
        }
    }

    #[test]
    fn the_token_is_taken_from_its_header_only() {
        let token = AccessToken::generate().unwrap();
        let text = token.as_text().to_owned();
        let guard = RequestGuard::new(8080, token);
        let passes = |value: &str| guard.check_token(&headers(&[("authorization", value)])).is_ok();
        assert!(passes(&format!("Bearer {text}")));
        for wrong in [
            String::new(),
            "Bearer ".into(),
            text.clone(),
            format!("Basic {text}"),
            format!("bearer {text}"),
            format!("Bearer {}", &text[1..]),
            format!("Bearer {text}0"),
            format!("Bearer {}", "0".repeat(64)),
        ] {
            assert!(!passes(&wrong), "{wrong}");
        }
        assert!(guard.check_token(&HeaderMap::new()).is_err());
        let cookie = format!("token={text}");
        assert!(guard.check_token(&headers(&[("cookie", cookie.as_str())])).is_err());
    }
}
