//! Addresses of the engines that can hold a shared log: the one place where they are interpreted.
//!
//! Invariant: what is shown of an address, also by `Debug` and in errors, has no password in it. Deliberately absent:
//! opening what an address names; see [`crate::open_shared_log`].

use std::fmt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use vellum_types::ErrorKind;
use zeroize::Zeroizing;

use crate::error::SharedLogError;

/// What need not be encoded in names of users and databases.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// What need not be encoded in paths.
const PATH: &AsciiSet = &NAME.remove(b'/');

/// A kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEngine {
    /// The object store of the volume.
    Store,
    /// Redis, or what speaks its protocol: Valkey.
    Redis,
    /// PostgreSQL.
    Postgres,
    /// etcd.
    Etcd,
}

/// A server of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHost {
    /// Its name or address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// Where a shared log is.
#[derive(Clone, PartialEq, Eq)]
pub struct LogAddress {
    /// The kind of engine.
    pub engine: LogEngine,
    /// Its servers, one at least; none for the object store.
    pub hosts: Vec<LogHost>,
    /// The user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Zeroizing<String>>,
    /// The database; of Redis a number.
    pub database: Option<String>,
    /// Whether the connection is encrypted and the server proves who it is.
    pub has_tls: bool,
    /// A file of certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
}

/// An address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {address} for the shared log: {reason}")]
pub struct LogAddressError {
    /// The address, as far as it holds no secret.
    address: String,
    /// Why not, and what would do.
    reason: String,
    kind: ErrorKind,
}

impl LogAddressError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// A scheme, and what it stands for.
struct LogScheme {
    name: &'static str,
    engine: LogEngine,
    has_tls: bool,
    default_port: u16,
}

/// The schemes with servers.
const SCHEMES: [LogScheme; 6] = [
    LogScheme { name: "redis", engine: LogEngine::Redis, has_tls: false, default_port: 6379 },
    LogScheme { name: "rediss", engine: LogEngine::Redis, has_tls: true, default_port: 6379 },
    LogScheme { name: "postgres", engine: LogEngine::Postgres, has_tls: false, default_port: 5432 },
    LogScheme { name: "postgresql", engine: LogEngine::Postgres, has_tls: false, default_port: 5432 },
    LogScheme { name: "etcd", engine: LogEngine::Etcd, has_tls: false, default_port: 2379 },
    LogScheme { name: "etcds", engine: LogEngine::Etcd, has_tls: true, default_port: 2379 },
];

/// What is supported, for messages.
const SUPPORTED: &str =
    "store: (the volume's own store), redis://, rediss://, postgres://, etcd:// and etcds://";

impl LogAddress {
    /// The object store of the volume.
    pub const STORE: Self = Self {
        engine: LogEngine::Store,
        hosts: Vec::new(),
        user: None,
        password: None,
        database: None,
        has_tls: false,
        ca: None,
    };

    /// Parses what a user wrote. No error repeats anything that may be a secret.
    pub fn parse(text: &str) -> Result<Self, LogAddressError> {
        // An error is one line, and what is shown of an address must be what was typed.
        if text.chars().any(char::is_control) {
            return Err(wrong_address("that address", "it contains control characters"));
        }
        if text == "store:" {
            return Ok(Self::STORE);
        }
        let Some((name, rest)) = text.split_once("://") else {
            let reason = format!("an address begins with one of {SUPPORTED}");
            return Err(wrong_address("that address", &reason));
        };
        let scheme = SCHEMES.iter().find(|scheme| scheme.name == name).ok_or_else(|| LogAddressError {
            address: format!("{name}://…"),
            reason: format!("'{name}' is not supported; these are: {SUPPORTED}"),
            kind: ErrorKind::Unsupported,
        })?;
        // Nothing behind the scheme is shown: a password may stand anywhere in it.
        scheme.parse_rest(rest).map_err(|reason| wrong_address(&format!("{name}://…"), &reason))
    }

    /// Sets the password, which then need not be part of the text that was parsed.
    pub fn set_password(&mut self, password: &str) {
        self.password = Some(Zeroizing::new(password.to_owned()));
    }

    /// The servers as one text, for messages.
    pub(crate) fn describe_hosts(&self) -> String {
        self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl LogScheme {
    /// Parses what stands behind `://`. An error is the reason.
    fn parse_rest(&self, rest: &str) -> Result<LogAddress, String> {
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The last one, since an unencoded password may have one in it.
        let (user_info, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        let (user, password) = match user_info {
            None => (None, None),
            Some(info) => match info.split_once(':') {
                None => (Some(decode_name(info)?), None),
                Some((user, password)) => {
                    (Some(decode_name(user)?), Some(Zeroizing::new(decode_name(password)?)))
                }
            },
        };
        let mut address = LogAddress {
            engine: self.engine,
            hosts: hosts.split(',').map(|host| self.parse_host(host)).collect::<Result<_, _>>()?,
            // Redis has passwords without a user: `redis://:PASSWORD@HOST`.
            user: user.filter(|user| !user.is_empty()),
            password,
            database: Some(decode_name(path)?).filter(|name| !name.is_empty()),
            has_tls: self.has_tls,
            ca: None,
        };
        for option in query.into_iter().flat_map(|query| query.split('&')) {
            self.parse_option(option, &mut address)?;
        }
        self.check_parts(&address)?;
        Ok(address)
    }

    fn parse_host(&self, text: &str) -> Result<LogHost, String> {
        // An IPv6 address has colons of its own, and so has to stand in brackets.
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => {
                (host, Some(port.strip_prefix(':').ok_or("a host has no port behind ':'")?))
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let is_host_byte =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
        if host.is_empty() || !host.bytes().all(is_host_byte) {
            return Err(format!("write {}://HOST:PORT", self.name));
        }
        let port = match port {
            None => self.default_port,
            Some(port) => port.parse().map_err(|_| "the port is not a number up to 65535".to_owned())?,
        };
        Ok(LogHost { host: host.to_owned(), port })
    }

    fn parse_option(&self, option: &str, address: &mut LogAddress) -> Result<(), String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (self.engine, name, value) {
            (_, "ca", path) if path.starts_with('/') => address.ca = Some(decode_name(path)?.into()),
            (_, "ca", _) => return Err("'ca' is the absolute path of a file of certificates".to_owned()),
            (LogEngine::Postgres, "sslmode", "disable") => address.has_tls = false,
            // Both check the certificate and the host's name here.
            (LogEngine::Postgres, "sslmode", "require" | "verify-full") => address.has_tls = true,
            (LogEngine::Postgres, "sslmode", _) => {
                return Err("sslmode may be 'disable', 'require' or 'verify-full'".to_owned());
            }
            (LogEngine::Postgres, _, _) => return Err("its options are 'sslmode' and 'ca'".to_owned()),
            (LogEngine::Store | LogEngine::Redis | LogEngine::Etcd, _, _) => {
                return Err("its only option is 'ca'".to_owned());
            }
        }
        Ok(())
    }

    fn check_parts(&self, address: &LogAddress) -> Result<(), String> {
        // An option without an effect would look like protection.
        if address.ca.is_some() && !address.has_tls {
            let how = match self.engine {
                LogEngine::Redis => "write rediss://",
                LogEngine::Etcd => "write etcds://",
                LogEngine::Postgres | LogEngine::Store => "add 'sslmode=require'",
            };
            return Err(format!("'ca' is for encrypted connections: {how}"));
        }
        match self.engine {
            LogEngine::Store | LogEngine::Postgres => Ok(()),
            LogEngine::Redis if address.hosts.len() > 1 => {
                Err("name one server: clusters and sentinels of Redis are not supported".to_owned())
            }
            LogEngine::Redis => match address.database.as_deref().map(str::parse::<u32>) {
                None | Some(Ok(_)) => Ok(()),
                Some(Err(_)) => Err("a database of Redis is a number".to_owned()),
            },
            LogEngine::Etcd if address.database.is_some() => Err("etcd has no databases".to_owned()),
            LogEngine::Etcd if address.user.is_none() && address.password.is_some() => {
                Err("a password of etcd needs a user: etcd://USER:PASSWORD@HOST".to_owned())
            }
            LogEngine::Etcd => Ok(()),
        }
    }
}

/// The certificates that an address names to trust instead of the system's.
pub(crate) fn read_authorities(
    address: &LogAddress,
    engine: &str,
) -> Result<Option<Vec<u8>>, SharedLogError> {
    let Some(path) = &address.ca else { return Ok(None) };
    let unreadable = |error| SharedLogError::Unfit {
        engine: engine.to_owned(),
        reason: format!("the certificates in {} cannot be read: {error}", path.display()),
    };
    std::fs::read(path).map(Some).map_err(unreadable)
}

fn decode_name(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|name| name.into_owned()).map_err(|_| "a name in it is not UTF-8".to_owned())
}

fn wrong_address(address: &str, reason: &str) -> LogAddressError {
    LogAddressError { address: address.to_owned(), reason: reason.to_owned(), kind: ErrorKind::Usage }
}

impl fmt::Display for LogHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The address without its password, as it can be parsed again.
impl fmt::Display for LogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.engine, self.has_tls) {
            (LogEngine::Store, _) => return f.write_str("store:"),
            (LogEngine::Redis, false) => "redis",
            (LogEngine::Redis, true) => "rediss",
            (LogEngine::Postgres, _) => "postgres",
            (LogEngine::Etcd, false) => "etcd",
            (LogEngine::Etcd, true) => "etcds",
        };
        write!(f, "{scheme}://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", utf8_percent_encode(user, NAME))?;
        }
        f.write_str(&self.describe_hosts())?;
        if let Some(database) = &self.database {
            write!(f, "/{}", utf8_percent_encode(database, NAME))?;
        }
        let mut options = Vec::new();
        if self.engine == LogEngine::Postgres && self.has_tls {
            options.push("sslmode=require".to_owned());
        }
        if let Some(ca) = &self.ca {
            options.push(format!("ca={}", utf8_percent_encode(&ca.to_string_lossy(), PATH)));
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

impl fmt::Debug for LogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = if self.password.is_some() { " with a password" } else { "" };
        write!(f, "LogAddress({self}{hidden})")
    }
}

#[cfg(test)]
mod tests;
