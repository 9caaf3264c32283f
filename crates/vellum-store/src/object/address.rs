//! Addresses of stores: the one place where they are interpreted.
//!
//! Invariant: an address holds no secrets. One that seems to is refused, and no error repeats what was typed in the place
//! of a secret. Deliberately absent: opening what an address names; see [`super::open`].

mod options;
mod sftp;

use std::fmt;
use std::path::{Component, Path, PathBuf};

use vellum_types::ErrorKind;

pub use self::options::{AddressingStyle, ServiceOptions};
pub use self::sftp::SftpAddress;
use crate::error::StoreError;

/// Longest folder in a service, bytes: services allow keys of 1,024, and Vellum's own need up to 200.
const FOLDER_MAX: usize = 512;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// A directory of this machine.
    Directory(PathBuf),
    /// The memory of this process, by name.
    Memory(String),
    /// A folder in a service.
    Service(ServiceAddress),
    /// A directory of another machine.
    Sftp(SftpAddress),
}

/// A kind of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    /// Amazon S3, and the many services with its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A WebDAV server, encrypted on the way.
    WebDavs,
    /// A WebDAV server, not encrypted on the way.
    WebDav,
    /// A web server, which is only read, encrypted on the way.
    Https,
    /// A web server, which is only read, not encrypted on the way.
    Http,
}

/// A folder in a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAddress {
    /// The kind of service.
    pub kind: ServiceKind,
    /// The bucket or the container; of WebDAV and web servers, the host with its port.
    pub bucket: String,
    /// The folder, without slashes at its ends; empty for all of the bucket.
    pub folder: String,
    /// What stands after `?`.
    pub options: ServiceOptions,
}

impl ServiceKind {
    /// All kinds, in the order in which help lists them.
    pub const ALL: [Self; 7] =
        [Self::S3, Self::Gcs, Self::Azure, Self::WebDavs, Self::WebDav, Self::Https, Self::Http];

    /// The scheme of its addresses.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
            Self::WebDavs => "webdavs",
            Self::WebDav => "webdav",
            Self::Https => "https",
            Self::Http => "http",
        }
    }

    /// What the service calls a bucket.
    fn bucket_word(self) -> &'static str {
        match self {
            Self::S3 | Self::Gcs => "bucket",
            Self::Azure => "container",
            Self::WebDavs | Self::WebDav | Self::Https | Self::Http => "host",
        }
    }

    /// Whether it stores objects with metadata in buckets, and not files.
    #[must_use]
    pub fn is_object_service(self) -> bool {
        match self {
            Self::S3 | Self::Gcs | Self::Azure => true,
            Self::WebDavs | Self::WebDav | Self::Https | Self::Http => false,
        }
    }

    /// Whether it is a web server, of which stores are only read.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        match self {
            Self::S3 | Self::Gcs | Self::Azure | Self::WebDavs | Self::WebDav => false,
            Self::Https | Self::Http => true,
        }
    }

    /// Whether a text can name a bucket, a container or a host of it.
    fn is_bucket_name(self, text: &str) -> bool {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if self.is_object_service() {
            // S3 and Azure allow 3 to 63 characters, Google Cloud Storage up to 222 if there are dots. Within that,
            // the service itself refuses what is wrong.
            return (3..=222).contains(&text.len()) && text.bytes().all(is_name_byte);
        }
        let host = match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => host,
            Some(_) | None => text,
        };
        // An IPv6 address needs brackets. Without them, its last group would be taken for a port.
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.len() <= 253 && host.bytes().all(is_name_byte),
        }
    }
}

impl ServiceAddress {
    /// Whether one machine writes at a time, since the service takes no conditions.
    #[must_use]
    pub fn has_single_writer(&self) -> bool {
        self.options.has_single_writer || !(self.kind.is_object_service() || self.kind.is_read_only())
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.kind.scheme(), self.bucket)?;
        if !self.folder.is_empty() {
            write!(f, "/{}", self.folder)?;
        }
        self.options.fmt(f)
    }
}

impl StoreAddress {
    /// Parses what a user wrote: a path, or an address with a scheme.
    ///
    /// Fails with [`StoreError::Address`], without repeating anything that may be a secret.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        // Before anything else: an error must be one line, and what is stored must be what was seen.
        if text.chars().any(char::is_control) {
            return Err(address_error("that address", "it contains control characters"));
        }
        // Only `://` makes an address. `parse_dir` refuses a text with a single colon that other programs would take
        // for a place elsewhere.
        let Some((scheme, rest)) = text.split_once("://") else {
            return parse_dir(text);
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Directory(rest.into())),
            "file" => Err(address_error(text, "a file address needs an absolute path: file:///path")),
            "memory" => Ok(Self::Memory(rest.to_owned())),
            "sftp" => SftpAddress::parse(rest)
                .map(Self::Sftp)
                .map_err(|reason| address_error(&strip_secrets(scheme, rest), &reason)),
            _ => match ServiceKind::ALL.into_iter().find(|kind| kind.scheme() == scheme) {
                Some(kind) => parse_service(kind, rest).map(Self::Service),
                None => Err(StoreError::Address {
                    url: strip_secrets(scheme, rest),
                    reason: format!("'{scheme}' is not a kind of store; these are: {}", known_schemes()),
                    kind: ErrorKind::Unsupported,
                }),
            },
        }
    }

    /// The address as it can be kept: a relative path is joined to `base` and loses its `..`, so that it stays right when
    /// `base` is moved.
    #[must_use]
    pub fn resolve_against(self, base: &Path) -> String {
        match self {
            Self::Directory(path) => remove_dot_components(&base.join(path)).display().to_string(),
            Self::Memory(name) => format!("memory://{name}"),
            Self::Service(service) => service.to_string(),
            Self::Sftp(sftp) => sftp.to_string(),
        }
    }
}

/// The schemes of services, for messages.
fn known_schemes() -> String {
    let schemes: Vec<_> = ServiceKind::ALL.iter().map(|kind| format!("{}://", kind.scheme())).collect();
    format!("a path, file://, sftp://, {}", schemes.join(", "))
}

fn parse_service(kind: ServiceKind, rest: &str) -> Result<ServiceAddress, StoreError> {
    let shown = strip_secrets(kind.scheme(), rest);
    let fail = |reason: &str| Err(address_error(&shown, reason));
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    // A password could stand before `@`. A user name alone is refused, too, since no service here takes one in its
    // address.
    if place.contains('@') {
        return fail(
            "an address holds no user names and secrets: use --credentials NAME, or the environment",
        );
    }
    // Addresses are not percent-decoded: one that was copied from a browser would name another folder than it shows.
    if place.contains(['#', '%', '\\']) || place.contains(char::is_whitespace) {
        return fail("'#', '%', '\\' and spaces are not allowed in it");
    }
    let (bucket, folder) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return fail(&format!("it names no {}", kind.bucket_word()));
    }
    if !kind.is_bucket_name(bucket) {
        return fail(&format!("'{bucket}' is not the name of a {}", kind.bucket_word()));
    }
    let folder = folder.strip_suffix('/').unwrap_or(folder);
    if folder.len() > FOLDER_MAX {
        return fail(&format!("the folder is longer than {FOLDER_MAX} bytes"));
    }
    // Such parts would give one folder two names. A WebDAV server may resolve them, and leave the folder.
    if !folder.is_empty() && folder.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return fail("a folder has no empty parts, '.' or '..'");
    }
    let options =
        ServiceOptions::parse(query.unwrap_or_default()).map_err(|reason| address_error(&shown, &reason))?;
    options.check_for(kind, bucket).map_err(|reason| address_error(&shown, &reason))?;
    Ok(ServiceAddress { kind, bucket: bucket.to_owned(), folder: folder.to_owned(), options })
}

/// The same path without `.` and `..`. Where `..` follows a symlink, that is resolved first.
fn remove_dot_components(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                // A path that does not exist yet has no symlink at its end, so its last component can be cut off.
                plain = plain.canonicalize().unwrap_or(plain);
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(component),
        }
    }
    plain
}

/// A path. One that other programs would take for a place elsewhere is refused, so that no directory of that name comes to
/// be: a directory of that name is written with './'.
fn parse_dir(url: &str) -> Result<StoreAddress, StoreError> {
    let path = url.strip_prefix("file:").unwrap_or(url);
    if path.is_empty() {
        return Err(address_error(url, "it is not a path"));
    }
    if path.starts_with('~') {
        let reason = format!(
            "the shell replaces '~' only where it begins an unquoted word: write \"$HOME{}\", or './{path}' for a \
             directory of that name",
            path.strip_prefix('~').filter(|rest| rest.starts_with('/')).unwrap_or("/…")
        );
        return Err(address_error(url, &reason));
    }
    // As in `scp` and rsync, a colon counts only before the first slash.
    let first = path.split('/').next().unwrap_or_default();
    match first.split_once(':') {
        None => Ok(StoreAddress::Directory(path.into())),
        Some(("memory", name)) => {
            let reason =
                format!("a store in memory is written 'memory://{name}', and a directory './{path}'");
            Err(address_error(url, &reason))
        }
        Some((scheme, rest)) if ServiceKind::ALL.iter().any(|kind| kind.scheme() == scheme) => {
            let shown = strip_user(path);
            let bucket = strip_user(rest);
            let reason = format!("write '{scheme}://{bucket}', or './{shown}' for a directory of that name");
            Err(address_error(shown, &reason))
        }
        Some(_) => {
            let shown = strip_user(path);
            let reason =
                format!("a store is {}; a directory of that name is written './{shown}'", known_schemes());
            Err(address_error(shown, &reason))
        }
    }
}

/// Leaves out what stands before the last `@`: it may have a password, and a password may have an `@`.
fn strip_user(path: &str) -> &str {
    path.rsplit_once('@').map_or(path, |(_, rest)| rest)
}

fn address_error(url: &str, reason: &str) -> StoreError {
    StoreError::Address { url: url.to_owned(), reason: reason.to_owned(), kind: ErrorKind::Usage }
}

/// Leaves out what stands before `@` and after `?`: user names, passwords, tokens.
fn strip_secrets(scheme: &str, rest: &str) -> String {
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = host.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests;
