//! Parsing of remote hosts and paths, and of the command that reaches a host.
//!
//! Invariant: a command consists of the words that were typed for it, and a host that begins with a letter or a digit.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Longest host with its user, bytes: host names have at most 255.
const HOST_MAX: usize = 512;

/// Why an address or a command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The host is empty, or a program would parse it as something else.
    #[error("'{0}' is not a host name: a host or user begins with a letter or a digit, and has no spaces")]
    Host(String),
    /// There are two colons.
    #[error("'{0}' means an rsync daemon, which is not supported: use one colon for ssh")]
    Daemon(String),
    /// A quote is not closed, or there is no word.
    #[error("the command '{0}' is empty, or has an unclosed quote")]
    Command(String),
}

/// A place on another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The host, with its user if one was typed.
    pub host: String,
    /// The path there.
    pub path: Vec<u8>,
}

impl RemoteAddress {
    /// Parses `host:path`; None if the argument is a path of this host.
    #[must_use]
    pub fn parse(typed: &[u8]) -> Option<Result<Self, AddressError>> {
        // An IPv6 address in brackets contains colons that do not end the host.
        let start = match typed.iter().position(|byte| *byte == b'[') {
            Some(open) if is_user_name(typed.get(..open)?) => {
                open + typed.get(open..)?.iter().position(|b| *b == b']')?
            }
            _ => 0,
        };
        // A slash before the first colon makes it a local path, as in rsync and scp.
        let colon = start + typed.get(start..)?.iter().position(|byte| matches!(byte, b':' | b'/'))?;
        if typed.get(colon) != Some(&b':') || colon == 0 {
            return None;
        }
        let host = typed.get(..colon)?;
        let path = typed.get(colon + 1..)?;
        let shown = String::from_utf8_lossy(typed).escape_debug().to_string();
        if path.first() == Some(&b':') {
            return Some(Err(AddressError::Daemon(shown)));
        }
        Some(match parse_host(host) {
            Some(host) => Ok(Self { host, path: path.to_vec() }),
            None => Err(AddressError::Host(String::from_utf8_lossy(host).escape_debug().to_string())),
        })
    }
}

fn is_user_name(before: &[u8]) -> bool {
    before.is_empty() || before.ends_with(b"@")
}

/// The host as ssh expects it: without the brackets of an IPv6 address.
fn parse_host(typed: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(typed).ok().filter(|text| text.len() <= HOST_MAX)?;
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // ssh takes a host that begins with a dash for an option, and some options run commands
    // (`-oProxyCommand=`).
    let is_fine = |word: &str| {
        let starts =
            word.chars().next().is_some_and(|first| first.is_alphanumeric() || matches!(first, '_' | ':'));
        starts && !word.chars().any(|char| char.is_whitespace() || char.is_control())
    };
    (is_fine(bare) && user.is_none_or(is_fine)).then(|| match user {
        Some(user) => format!("{user}@{bare}"),
        None => bare.to_owned(),
    })
}

/// The command that reaches a host, and the program that it starts there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteShell {
    /// The program with its first arguments.
    pub words: Vec<OsString>,
    /// What the other host's shell runs; `sync --server` is appended.
    pub program: OsString,
}

impl Default for RemoteShell {
    fn default() -> Self {
        Self { words: vec!["ssh".into()], program: "vellum".into() }
    }
}

impl RemoteShell {
    /// Splits a command as typed for `--rsh`: at spaces, except within quotes of both kinds.
    pub fn parse_words(typed: &[u8]) -> Result<Vec<OsString>, AddressError> {
        let wrong = || AddressError::Command(String::from_utf8_lossy(typed).escape_debug().to_string());
        let mut words = Vec::new();
        let mut word = None::<Vec<u8>>;
        let mut quote = None;
        for byte in typed {
            match (quote, byte) {
                (Some(open), byte) if *byte == open => quote = None,
                (None, b'\'' | b'"') => {
                    quote = Some(*byte);
                    word.get_or_insert_default();
                }
                (None, b' ' | b'\t') => words.extend(word.take()),
                (_, byte) => word.get_or_insert_default().push(*byte),
            }
        }
        words.extend(word);
        if quote.is_some() || words.first().is_none_or(Vec::is_empty) {
            return Err(wrong());
        }
        Ok(words.into_iter().map(OsString::from_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(typed: &str) -> Option<Result<RemoteAddress, AddressError>> {
        RemoteAddress::parse(typed.as_bytes())
    }

    #[test]
    fn hosts_end_at_the_first_colon_before_any_slash() {
        let expected =
            |host: &str, path: &str| Some(Ok(RemoteAddress { host: host.into(), path: path.into() }));
        assert_eq!(address("host:path"), expected("host", "path"));
        assert_eq!(address("me@host:/a b:c"), expected("me@host", "/a b:c"));
        assert_eq!(address("host:"), expected("host", ""));
        assert_eq!(address("me@[fe80::1]:x"), expected("me@fe80::1", "x"));
        assert_eq!(address("[::1]:x"), expected("::1", "x"));
        for typed in ["path", "./a:b", "/a:b", "a/b:c", ":x", ""] {
            assert_eq!(address(typed), None, "{typed}");
        }
    }

    /// hostile.md 49.
    #[test]
    fn a_host_that_is_an_option_is_refused() {
        for typed in
            ["-oProxyCommand=id:x", "-x@host:x", "me@-oProxyCommand=id:x", "a b:x", "a\n:x", "me@:x", "@h:x"]
        {
            assert!(matches!(address(typed), Some(Err(AddressError::Host(_)))), "{typed}");
        }
        assert!(matches!(address("host::module"), Some(Err(AddressError::Daemon(_)))));
    }

    #[test]
    fn commands_are_split_like_rsyncs() {
        let words = |typed: &str| RemoteShell::parse_words(typed.as_bytes());
        assert_eq!(words("ssh -p 22").unwrap(), ["ssh", "-p", "22"]);
        assert_eq!(
            words(" ssh  -o 'Proxy Command=a b' \"\" ").unwrap(),
            ["ssh", "-o", "Proxy Command=a b", ""]
        );
        for typed in ["", " ", "ssh 'x", "''"] {
            assert!(words(typed).is_err(), "{typed}");
        }
    }
}
