//! Addresses of directories on other machines, which are reached over SFTP.
//!
//! Invariant: no part of an address is taken by `ssh` for an option, and none is a password.

use std::fmt;
use std::net::Ipv6Addr;

/// Longest host or user, bytes: names have 255.
const NAME_MAX: usize = 255;
/// Longest path, bytes.
const PATH_MAX: usize = 3072;
/// Before a path that begins in the user's home directory on the server.
const HOME_PREFIX: &str = "/~/";

/// A directory on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SftpAddress {
    /// Who logs in; by default whom the configuration of `ssh` names.
    pub user: Option<String>,
    /// The host, or a name from the configuration of `ssh`. An IPv6 address has no brackets.
    pub host: String,
    /// The port; by default the configuration's.
    pub port: Option<u16>,
    /// The directory as the server takes it: absolute, or relative to the user's home directory.
    pub path: String,
}

impl SftpAddress {
    /// Parses what stands after `sftp://`. Fails with a reason that repeats nothing.
    pub(super) fn parse(rest: &str) -> Result<Self, String> {
        let fail = |reason: &str| Err(reason.to_owned());
        let (place, path) = rest.find('/').and_then(|at| rest.split_at_checked(at)).unwrap_or((rest, ""));
        // The last '@' counts: in `user:p@ss@host` the whole secret stands before it, where the next check finds it.
        let (user, place) = place.rsplit_once('@').map_or((None, place), |(user, place)| (Some(user), place));
        // Before the host is looked at, whose error could be about a part of the password.
        if user.is_some_and(|user| user.contains(':')) {
            return fail("an address holds no secrets: ssh uses its keys and its agent");
        }
        // The reason names no part of the text, which may be a password behind a stray colon.
        let (host, port) = split_port(place).ok_or("what stands after the host is not a port")?;
        let is_host = is_name(host) || host.contains(':') && host.parse::<Ipv6Addr>().is_ok();
        if !is_host {
            return fail("it names no host: write sftp://user@host/path");
        }
        if user.is_some_and(|user| !is_name(user)) {
            return fail("a user has letters, digits, '-', '_' and '.', and does not begin with '-'");
        }
        let path = parse_path(path)?;
        Ok(Self { user: user.map(str::to_owned), host: host.to_owned(), port, path })
    }

    /// User and host as `ssh` takes them.
    #[must_use]
    pub fn destination(&self) -> String {
        self.user.as_ref().map_or(self.host.clone(), |user| format!("{user}@{}", self.host))
    }
}

impl fmt::Display for SftpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, host, port, path } = self;
        f.write_str("sftp://")?;
        user.iter().try_for_each(|user| write!(f, "{user}@"))?;
        // Without brackets, the last group of an IPv6 address reads as a port.
        if host.contains(':') {
            write!(f, "[{host}]")?
        } else {
            f.write_str(host)?
        }
        port.iter().try_for_each(|port| write!(f, ":{port}"))?;
        if path.starts_with('/') { f.write_str(path) } else { write!(f, "{HOME_PREFIX}{path}") }
    }
}

/// The host without brackets, and the port.
fn split_port(place: &str) -> Option<(&str, Option<u16>)> {
    let (host, after) = match place.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => place.find(':').map_or((place, ""), |at| place.split_at(at)),
    };
    if after.is_empty() {
        return Some((host, None));
    }
    let port: u16 = after.strip_prefix(':')?.parse().ok()?;
    // Nothing can be reached at port 0.
    (port > 0).then_some((host, Some(port)))
}

/// The path as the server takes it.
fn parse_path(path: &str) -> Result<String, String> {
    // One spelling of a directory: the address is compared with that of other worktrees.
    let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
    let relative = path.strip_prefix(HOME_PREFIX);
    let parts = relative.or_else(|| path.strip_prefix('/')).unwrap_or_default();
    if parts.is_empty() {
        return Err(
            "it names no directory: write sftp://host/path, or sftp://host/~/path for one in the home \
                    directory"
                .to_owned(),
        );
    }
    if path.len() > PATH_MAX {
        return Err(format!("the path is longer than {PATH_MAX} bytes"));
    }
    // These would mean something in a URL, and users would expect that they do here, too.
    if parts.contains(['?', '#', '%', '\\']) {
        return Err("'?', '#', '%' and '\\' are not allowed in it".to_owned());
    }
    // Two addresses of one directory must not look like two stores; only the first part may be `~`.
    if parts.split('/').any(|part| matches!(part, "" | "." | ".." | "~")) {
        return Err("a path has no empty parts, '.' or '..'".to_owned());
    }
    Ok(relative.unwrap_or(path).to_owned())
}

fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // `ssh` takes a name that begins with `-` for an option, and options can run programs (`-oProxyCommand`).
    (1..=NAME_MAX).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(is_allowed)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_user_host_port_and_path() {
        for (typed, destination, port, path) in [
            ("host/a/b", "host", None, "/a/b"),
            ("ann@host:2222/a", "ann@host", Some(2222), "/a"),
            ("ann@[::1]:22/a/", "ann@::1", Some(22), "/a"),
            ("host/~/a/b", "host", None, "a/b"),
        ] {
            let address = SftpAddress::parse(typed).unwrap();
            assert_eq!(address.destination(), destination);
            assert_eq!((address.port, &*address.path), (port, path));
            assert_eq!(address.to_string(), format!("sftp://{}", typed.trim_end_matches('/')));
        }
    }

    #[test]
    fn what_ssh_would_take_for_an_option_and_passwords_are_refused() {
        for typed in [
            "",
            "/a",
            "host",
            "host/",
            "host/~/",
            "host/~",
            "-oProxyCommand=x/a",
            "-x@host/a",
            "ann:pass@host/a",
            "@host/a",
            "host:0/a",
            "host:pass/a",
            "[::1/a",
            "a b/c",
            "host/a/../b",
            "host/a//b",
            "host/a%2Fb",
            "host/a?token=pass",
        ] {
            let reason = SftpAddress::parse(typed).unwrap_err();
            assert!(
                !reason.contains("token") && (!reason.contains("pass") || reason.contains("passwords")),
                "{typed}: {reason}"
            );
        }
    }
}
