//! What is checked of a request before WebDAV sees it, and what of it `dav-server` is not to see.

use std::path::PathBuf;

use dav_server::davpath::DavPath;
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, RANGE};
use hyper::http::request::Parts;
use hyper::{StatusCode, Uri};

use crate::credentials::{GatewayCredentials, UserAccess};
use crate::request_sender::{RequestRefusal, check_sender, refuse, single_value};

/// Most elements of an XML body: `dav-server` descends into them by recursion.
const ELEMENTS_MAX: usize = 512;

/// Whether a method changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MethodEffect {
    Reads,
    Writes,
}

/// Checks requests.
pub struct DavGuard {
    credentials: GatewayCredentials,
    can_write: bool,
}

impl DavGuard {
    /// For a tree that can be written or not.
    #[must_use]
    pub fn new(credentials: GatewayCredentials, can_write: bool) -> Self {
        Self { credentials, can_write }
    }

    /// Fails unless the request may be carried out. Removes what it has and `dav-server` would misunderstand.
    pub fn check_request(&self, head: &mut Parts) -> Result<(), RequestRefusal> {
        let host = check_sender(&head.headers)?;
        let shown = single_value(&head.headers, &AUTHORIZATION)?;
        let access = shown.and_then(|header| self.credentials.check_basic(header));
        let access = access.ok_or(refuse(StatusCode::UNAUTHORIZED, "a name and a password are needed"))?;
        let method = head.method.as_str().to_owned();
        let effect = method_effect(&method)?;
        if effect == MethodEffect::Writes && !(self.can_write && access == UserAccess::Write) {
            return Err(refuse(StatusCode::FORBIDDEN, "this can only be read"));
        }
        let path = relative_path(head.uri.path())?;
        match method.as_str() {
            "PROPFIND" => check_depth(&head.headers)?,
            // Which part it is would have to be put into the file as it is; RFC 9110 has this status for those who do not.
            "PUT" if head.headers.contains_key(CONTENT_RANGE) => {
                return Err(refuse(StatusCode::BAD_REQUEST, "parts of files cannot be written"));
            }
            // The tree would be empty afterwards, since what is in a directory goes before the directory does.
            "DELETE" | "MOVE" if path.as_os_str().is_empty() => {
                return Err(refuse(StatusCode::FORBIDDEN, "the whole tree cannot be removed"));
            }
            _ => {}
        }
        if matches!(method.as_str(), "COPY" | "MOVE") {
            check_destination(&mut head.headers, &host, &path)?;
        }
        // It would let clients list the whole tree at once.
        head.headers.remove("x-litmus");
        simplify_range(&mut head.headers);
        Ok(())
    }
}

fn method_effect(method: &str) -> Result<MethodEffect, RequestRefusal> {
    match method {
        "GET" | "HEAD" | "OPTIONS" | "PROPFIND" => Ok(MethodEffect::Reads),
        "PUT" | "DELETE" | "MKCOL" | "COPY" | "MOVE" | "PROPPATCH" | "LOCK" | "UNLOCK" => {
            Ok(MethodEffect::Writes)
        }
        _ => Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "there is no such method here")),
    }
}

/// The path as the filesystem will get it.
fn relative_path(path: &str) -> Result<PathBuf, RequestRefusal> {
    // Of the whole server, for OPTIONS.
    if path == "*" {
        return Ok(PathBuf::new());
    }
    let path = DavPath::new(path).map_err(|_| refuse(StatusCode::BAD_REQUEST, "the path cannot be used"))?;
    Ok(path.as_rel_ospath().to_path_buf())
}

fn check_depth(headers: &HeaderMap) -> Result<(), RequestRefusal> {
    match single_value(headers, &HeaderName::from_static("depth"))? {
        Some(b"0" | b"1") => Ok(()),
        // Without the header, the whole tree is asked for, too.
        None | Some(_) => {
            Err(refuse(StatusCode::FORBIDDEN, "only one directory is listed at once: Depth 0 or 1"))
        }
    }
}

/// Fails unless the destination is of this server, and neither is within the other. Leaves only its path in the header.
fn check_destination(headers: &mut HeaderMap, host: &[u8], source: &PathBuf) -> Result<(), RequestRefusal> {
    let name = HeaderName::from_static("destination");
    let bad = refuse(StatusCode::BAD_REQUEST, "the Destination cannot be used");
    let uri = Uri::try_from(single_value(headers, &name)?.ok_or(bad.clone())?).map_err(|_| bad.clone())?;
    // A word without a slash counts as an authority, which a destination has only behind its scheme.
    if uri.scheme().is_none() && uri.authority().is_some() {
        return Err(bad);
    }
    // `dav-server` looks at the path only, and would copy to its own path what was meant for another server.
    if uri.authority().is_some_and(|authority| authority.as_str().as_bytes() != host) {
        return Err(refuse(StatusCode::BAD_GATEWAY, "the Destination is another server"));
    }
    let target = relative_path(uri.path())?;
    if target.as_os_str().is_empty() {
        return Err(refuse(StatusCode::FORBIDDEN, "the whole tree cannot be replaced"));
    }
    // The destination is removed first, and the source would be gone with it.
    if target != *source && (source.starts_with(&target) || target.starts_with(source)) {
        return Err(refuse(StatusCode::FORBIDDEN, "the Destination and the source are within each other"));
    }
    let path = HeaderValue::from_str(uri.path()).map_err(|_| bad)?;
    headers.insert(name, path);
    Ok(())
}

/// Keeps a `Range` only if it is a single one with usual numbers. A server may ignore it, and several ranges can ask for more
/// bytes than there are.
fn simplify_range(headers: &mut HeaderMap) {
    let is_simple = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
            return false;
        };
        // Sums with these do not overflow.
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 18;
        is_number(first) && is_number(last) && !(first.is_empty() && last.is_empty())
    };
    let mut values = headers.get_all(RANGE).iter();
    let keep = values.next().is_some_and(is_simple) && values.next().is_none();
    if !keep {
        headers.remove(RANGE);
    }
}

/// Fails if the XML of a request declares entities, or could be nested too deeply.
pub fn check_xml(body: &[u8]) -> Result<(), RequestRefusal> {
    if body.windows(2).any(|two| two == b"<!") {
        return Err(refuse(StatusCode::BAD_REQUEST, "the XML has a declaration, a comment or CDATA"));
    }
    // XML in UTF-16 would hide all of this.
    if body.contains(&0) {
        return Err(refuse(StatusCode::BAD_REQUEST, "the XML is not UTF-8"));
    }
    let tags = body.iter().filter(|byte| **byte == b'<').count();
    if tags > 2 * ELEMENTS_MAX {
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, "the XML has too many elements"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
