//! Who sends a request to a gateway.
//!
//! Browsers keep names and passwords for a site and send them with each request, also with those that other sites cause. So
//! the `Host` has to be a name of this machine, and what a browser tells of where a request comes from must be this server.

use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};

/// A request that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRefusal {
    /// The status.
    pub status: StatusCode,
    /// The reason, for people.
    pub reason: &'static str,
}

/// A refusal.
pub(crate) fn refuse(status: StatusCode, reason: &'static str) -> RequestRefusal {
    RequestRefusal { status, reason }
}

/// The value of a header. Fails if there are several, of which one may be looked at here and another one later.
pub(crate) fn single_value<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h [u8]>, RequestRefusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (first, None) => Ok(first.map(HeaderValue::as_bytes)),
        (_, Some(_)) => Err(refuse(StatusCode::BAD_REQUEST, "a header comes twice")),
    }
}

/// Fails unless the request is meant for this machine, and comes from no page of another site. Returns the host.
pub(crate) fn check_sender(headers: &HeaderMap) -> Result<Vec<u8>, RequestRefusal> {
    let host = single_value(headers, &HOST)?.ok_or(refuse(StatusCode::BAD_REQUEST, "there is no Host"))?;
    let is_own = |name: &&[u8]| {
        host.strip_prefix(*name).is_some_and(|rest| {
            // The port may be another one than this server's, if it is forwarded.
            rest.is_empty() || rest.strip_prefix(b":").is_some_and(|port| port.iter().all(u8::is_ascii_digit))
        })
    };
    // A name of another site that resolves to 127.0.0.1 (DNS rebinding) brings its own Host along.
    if !["127.0.0.1", "[::1]", "localhost"].map(str::as_bytes).iter().any(is_own) {
        return Err(refuse(StatusCode::FORBIDDEN, "the Host is not this machine"));
    }
    let origin = single_value(headers, &ORIGIN)?;
    let is_same = |origin: &[u8]| origin.strip_prefix(b"http://").is_some_and(|name| name == host);
    let site = single_value(headers, &HeaderName::from_static("sec-fetch-site"))?;
    if origin.is_some_and(|origin| !is_same(origin)) || !matches!(site, None | Some(b"same-origin" | b"none"))
    {
        return Err(refuse(StatusCode::FORBIDDEN, "the request comes from another site"));
    }
    Ok(host.to_vec())
}
