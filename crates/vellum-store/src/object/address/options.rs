//! What stands after `?` in the address of a service.
//!
//! Invariant: no option is a secret, and an unknown one is refused without its value.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::ServiceKind;

/// How requests to S3 name the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressingStyle {
    /// In the path: what most servers other than Amazon's expect.
    Path,
    /// In the host name.
    Virtual,
}

/// Options of a service's address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceOptions {
    /// The server, as `https://host:port`; by default the service's own.
    pub endpoint: Option<String>,
    /// The region of the bucket; by default the environment's.
    pub region: Option<String>,
    /// How requests name the bucket; by default in the path if there is an endpoint.
    pub style: Option<AddressingStyle>,
    /// A file of certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Whether unencrypted connections to other machines are allowed.
    pub allows_http: bool,
    /// Whether one machine writes at a time.
    pub has_single_writer: bool,
}

impl ServiceOptions {
    /// Parses `name=value&…`. Fails with a reason that repeats no value.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "endpoint" => options.endpoint = Some(parse_endpoint(value)?),
                "region" if is_plain_name(value) => options.region = Some(value.to_owned()),
                "style" if value == "path" => options.style = Some(AddressingStyle::Path),
                "style" if value == "virtual" => options.style = Some(AddressingStyle::Virtual),
                "ca" if value.starts_with('/') => options.ca = Some(value.into()),
                "allow-http" if value.is_empty() => options.allows_http = true,
                "single-writer" if value.is_empty() => options.has_single_writer = true,
                // These arms follow the valid ones, so that a known name with a bad value is told apart from an
                // unknown name.
                "region" => {
                    return Err("'region' is letters, digits and '-', such as eu-central-1".to_owned());
                }
                "style" => return Err("'style' is 'path' or 'virtual'".to_owned()),
                "ca" => return Err("'ca' is the absolute path of a file of certificates".to_owned()),
                "allow-http" | "single-writer" => return Err(format!("'{name}' takes no value")),
                // The name is repeated only if it looks like the name of an option: after a stray '&' it may be a
                // part of a secret.
                _ if is_plain_name(name) => {
                    return Err(format!(
                        "'{name}' is not an option of an address; these are: endpoint, region, style, ca, \
                         allow-http, single-writer (secrets belong into --credentials NAME, or the environment)"
                    ));
                }
                _ => return Err("what stands after '?' is not name=value".to_owned()),
            }
        }
        Ok(options)
    }

    /// Refuses options that mean nothing to this kind of service, and unencrypted connections to other machines.
    pub(super) fn check_for(&self, kind: ServiceKind, host: &str) -> Result<(), String> {
        if kind != ServiceKind::S3 && (self.region.is_some() || self.style.is_some()) {
            return Err("'region' and 'style' are options of s3:// only".to_owned());
        }
        if !kind.is_object_service() && self.endpoint.is_some() {
            return Err("the host of a server stands in front of the path, not in 'endpoint'".to_owned());
        }
        if kind.is_read_only() && self.has_single_writer {
            return Err("a web server is only read: leave out 'single-writer'".to_owned());
        }
        if !kind.is_object_service() && self.has_single_writer {
            return Err(
                "over WebDAV, one machine writes at a time anyway: leave out 'single-writer'".to_owned()
            );
        }
        // `webdav://` is WebDAV over http: its host is checked as an endpoint is.
        if matches!(kind, ServiceKind::WebDav | ServiceKind::Http) {
            return self.check_encrypted(&format!("http://{host}"));
        }
        match &self.endpoint {
            Some(endpoint) => self.check_encrypted(endpoint),
            None => Ok(()),
        }
    }

    /// Refuses `http://` unless it stays on this machine or was allowed: credentials and all metadata of requests
    /// would be readable on the way.
    fn check_encrypted(&self, url: &str) -> Result<(), String> {
        match url.strip_prefix("http://") {
            Some(rest) if !self.allows_http && !is_loopback(rest) => Err(
                "http:// to another machine is not encrypted; use https:// (webdavs://), or add 'allow-http' to the address"
                    .to_owned(),
            ),
            Some(_) | None => Ok(()),
        }
    }
}

impl fmt::Display for ServiceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, style, ca, allows_http, has_single_writer } = self;
        let style = style.map(|style| match style {
            AddressingStyle::Path => "path".to_owned(),
            AddressingStyle::Virtual => "virtual".to_owned(),
        });
        let valued = [
            ("endpoint", endpoint.clone()),
            ("region", region.clone()),
            ("style", style),
            ("ca", ca.as_ref().map(|path| path.display().to_string())),
        ];
        // In a fixed order, whatever was typed: stored addresses are compared as text.
        let mut separator = '?';
        for (name, value) in valued {
            if let Some(value) = value {
                write!(f, "{separator}{name}={value}")?;
                separator = '&';
            }
        }
        for (name, is_set) in [("allow-http", allows_http), ("single-writer", has_single_writer)] {
            if *is_set {
                write!(f, "{separator}{name}")?;
                separator = '&';
            }
        }
        Ok(())
    }
}

fn is_plain_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// `https://host:port`, or `http://`; a path behind it is allowed, nothing else is.
fn parse_endpoint(value: &str) -> Result<String, String> {
    let expected = || Err("'endpoint' is http:// or https:// with a host".to_owned());
    let Some(rest) = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://")) else {
        return expected();
    };
    // Addresses are stored and printed. A password in one would be in logs and in the worktree's file.
    if rest.contains('@') {
        return Err("an endpoint holds no user names and secrets: use --credentials NAME".to_owned());
    }
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || rest.contains(['%', '#', '\\']) || rest.contains(char::is_whitespace) {
        return expected();
    }
    Ok(value.trim_end_matches('/').to_owned())
}

/// Whether a host, with or without a port and a path, is this machine.
fn is_loopback(host_and_more: &str) -> bool {
    let host = host_and_more.split('/').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
