//! Credentials of this user, by name.
//!
//! Invariant: they are read from files that nobody else can read, and are never part of an address, a message or a
//! debug output.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use vellum_types::ErrorKind;
use zeroize::Zeroizing;

use crate::error::StoreError;

/// Largest file of credentials, bytes: a service account's key has some 2,400.
const FILE_MAX: u64 = 64 << 10;

/// The fields that a file of credentials can have.
const FIELDS: [&str; 11] = [
    "access-key-id",
    "secret-access-key",
    "session-token",
    "profile",
    "service-account-file",
    "token",
    "account",
    "account-key",
    "sas-token",
    "user",
    "password",
];

/// One set of credentials.
pub(super) struct ServiceCredentials {
    fields: Vec<(&'static str, Zeroizing<String>)>,
}

impl fmt::Debug for ServiceCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceCredentials(…)")
    }
}

impl ServiceCredentials {
    /// Reads `~/.config/vellum/credentials/NAME`: lines `field = value`, and comments that begin with `#`.
    ///
    /// Fails if others can read the file, or if it has an unknown field.
    pub fn load(name: &str) -> Result<Self, StoreError> {
        let fail = |reason: String, kind| StoreError::Credentials { name: shown_name(name), reason, kind };
        if !is_credentials_name(name) {
            return Err(fail(
                "a name has letters, digits, '-', '_' and '.' only".to_owned(),
                ErrorKind::Usage,
            ));
        }
        let path = credentials_dir()
            .ok_or_else(|| fail("neither XDG_CONFIG_HOME nor HOME is set".to_owned(), ErrorKind::Usage))?
            .join(name);
        let shown = path.display();
        let unreadable = |error: &io::Error| {
            fail(format!("cannot read {shown}: {error}"), ErrorKind::from_io_error(error))
        };
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let example = "for S3 'access-key-id' and 'secret-access-key'";
                let reason = format!("{shown} does not exist: it takes lines 'field = value', {example}");
                fail(reason, ErrorKind::NotFound)
            }
            _ => unreadable(&error),
        })?;
        // Of the open file, not of the path: what is checked is what is read.
        let metadata = file.metadata().map_err(|e| unreadable(&e))?;
        if metadata.mode() & 0o077 != 0 {
            let reason = format!("others can read {shown}: run 'chmod 600 {shown}'");
            return Err(fail(reason, ErrorKind::Denied));
        }
        let bytes = read_secret_bytes(&file).map_err(|e| unreadable(&e))?;
        Self::parse_file(&bytes).map_err(|reason| fail(format!("{shown}: {reason}"), ErrorKind::Usage))
    }

    /// Fails with a reason that repeats no value.
    fn parse_file(bytes: &[u8]) -> Result<Self, String> {
        // What is cut off could be the end of a value, which the service would refuse without a reason.
        if bytes.len() as u64 > FILE_MAX {
            return Err(format!("it is longer than {} KiB, so it is no file of credentials", FILE_MAX >> 10));
        }
        Self::parse(std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?)
    }

    /// Fails with a reason that repeats no value.
    fn parse(text: &str) -> Result<Self, String> {
        let mut fields: Vec<(&'static str, Zeroizing<String>)> = Vec::new();
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let (name, value) =
                line.split_once('=').ok_or_else(|| format!("line {number} is not 'field = value'"))?;
            let name = FIELDS.into_iter().find(|field| *field == name.trim()).ok_or_else(|| {
                format!("line {number} has an unknown field; these are known: {}", FIELDS.join(", "))
            })?;
            let value = value.trim();
            let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(format!("line {number} repeats '{name}'"));
            }
            fields.push((name, Zeroizing::new(value.to_owned())));
        }
        Ok(Self { fields })
    }

    /// The value of a field.
    pub fn get_field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// A user and a password, for a service that is no store.
pub struct LoginCredentials {
    /// The user, if there is one.
    pub user: Option<String>,
    /// The password, if there is one.
    pub password: Option<Zeroizing<String>>,
}

impl LoginCredentials {
    /// Reads the fields `user` and `password` of `~/.config/vellum/credentials/NAME`.
    pub fn load(name: &str) -> Result<Self, StoreError> {
        let credentials = ServiceCredentials::load(name)?;
        let password = credentials.get_field("password").map(|text| Zeroizing::new(text.to_owned()));
        Ok(Self { user: credentials.get_field("user").map(str::to_owned), password })
    }
}

impl fmt::Debug for LoginCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginCredentials(…)")
    }
}

/// The bytes of a file, up to one more than it may have. They are overwritten when they are dropped.
fn read_secret_bytes(file: &File) -> io::Result<Zeroizing<Vec<u8>>> {
    // With room for all of it: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(FILE_MAX + 1).unwrap_or(0)));
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What to do about credentials that a service refuses, as the end of a message. They were read again before.
pub(super) fn advise_renewal(name: Option<&str>) -> String {
    let file = name.and_then(|name| Some(credentials_dir()?.join(name)));
    match file {
        Some(file) => format!("; renew the credentials in {}", file.display()),
        None => "; renew the credentials that the environment has, or name others with '--credentials NAME'"
            .into(),
    }
}

fn credentials_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("vellum/credentials"))
}

fn is_credentials_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // Without slashes and a dot at its beginning, a name cannot lead out of the folder.
    !name.is_empty() && !name.starts_with('.') && name.len() <= 255 && name.bytes().all(allowed)
}

/// A name for messages. What is no name may be a secret that was given by mistake.
fn shown_name(name: &str) -> String {
    if is_credentials_name(name) && name.len() <= 64 { name.to_owned() } else { "NAME".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_credentials_are_read_and_mistakes_do_not_show_values() -> Result<(), String> {
        let text = "# made by hand\naccess-key-id = AKIA\n\nsecret-access-key=\"s3cret = x\"\n";
        let credentials = ServiceCredentials::parse(text)?;
        assert_eq!(credentials.get_field("access-key-id"), Some("AKIA"));
        assert_eq!(credentials.get_field("secret-access-key"), Some("s3cret = x"));
        assert_eq!(credentials.get_field("token"), None);
        assert!(!format!("{credentials:?}").contains("s3cret"));
        for text in ["s3cret", "secret_key = s3cret", "token = s3cret\ntoken = s3cret"] {
            let Err(reason) = ServiceCredentials::parse(text) else { panic!("{text:?} was accepted") };
            assert!(!reason.contains("s3cret"), "{reason}");
        }
        Ok(())
    }

    #[test]
    fn files_that_are_too_long_or_no_text_are_refused() -> io::Result<()> {
        use std::io::{Seek, Write};
        let line = "token = s3cret\n";
        let read = |text: &[u8]| {
            let mut file = tempfile::tempfile()?;
            file.write_all(text)?;
            file.rewind()?;
            Ok::<_, io::Error>(ServiceCredentials::parse_file(&read_secret_bytes(&file)?))
        };
        let blank_lines = usize::try_from(FILE_MAX).map_err(io::Error::other)? - line.len();
        let longest = "\n".repeat(blank_lines) + line;
        let Ok(credentials) = read(longest.as_bytes())? else { panic!("{FILE_MAX} bytes were refused") };
        assert_eq!(credentials.get_field("token"), Some("s3cret"));
        let too_long = longest + "#";
        for (text, expected) in
            [(too_long.as_bytes(), "longer than 64 KiB"), (b"token = s3cret\xff", "UTF-8")]
        {
            let Err(reason) = read(text)? else { panic!("it was accepted, and should not: {expected}") };
            assert!(reason.contains(expected) && !reason.contains("s3cret"), "{reason}");
        }
        Ok(())
    }

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "../x", "a b", "s3cr\u{e9}t"] {
            assert!(
                matches!(ServiceCredentials::load(name), Err(StoreError::Credentials { .. })),
                "{name:?}"
            );
        }
    }
}
