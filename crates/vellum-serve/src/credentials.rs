//! Who may use a gateway: names with passwords, from a file or the environment, never from arguments, which everybody on
//! a machine can read.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::{Result, ServeError};
use crate::private_file::{describe_open_error, open_private_file, read_private_file};

/// The variable of the environment that holds a name and a password.
pub const CREDENTIALS_VARIABLE: &str = "VELLUM_SERVE_CREDENTIALS";
/// The name that is used if none was given.
const DEFAULT_NAME: &str = "vellum";
/// Fewest bytes of a password: other programs of the machine can try as many as they like.
const PASSWORD_MIN: usize = 12;
/// Random bytes of a password that is made up.
const GENERATED_LEN: usize = 18;
/// Largest file of credentials, bytes.
const FILE_MAX: u64 = 64 << 10;
/// Longest header that is looked at, bytes.
const HEADER_MAX: usize = 2048;

/// What a user of a gateway may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserAccess {
    /// Read.
    Read,
    /// Read and write, if the gateway writes at all.
    Write,
}

/// Those who may use a gateway.
pub struct GatewayCredentials {
    users: Vec<GatewayUser>,
}

/// A password that was made up, to be shown once.
pub struct GeneratedPassword {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

struct GatewayUser {
    name: String,
    /// As it is: signatures are made with it.
    password: String,
    /// Of `NAME:PASSWORD`: hashes are compared, which says nothing of where two differ.
    hash: blake3::Hash,
    access: UserAccess,
}

impl GatewayCredentials {
    /// Those of the file, else of the environment, else a password that is made up.
    pub fn load(file: Option<&Path>) -> Result<(Self, Option<GeneratedPassword>)> {
        if let Some(path) = file {
            let refuse =
                |reason: String| ServeError::Credentials { place: path.display().to_string(), reason };
            let opened = open_private_file(path).map_err(|error| refuse(describe_open_error(&error)))?;
            let text = read_private_file(opened, FILE_MAX).map_err(refuse)?;
            return Ok((Self::parse(&text).map_err(refuse)?, None));
        }
        let refuse = |reason: String| ServeError::Credentials { place: CREDENTIALS_VARIABLE.into(), reason };
        match std::env::var(CREDENTIALS_VARIABLE) {
            Ok(text) => Ok((Self::parse(&text).map_err(refuse)?, None)),
            Err(std::env::VarError::NotPresent) => Self::generate(),
            Err(std::env::VarError::NotUnicode(_)) => Err(refuse("it is not UTF-8".into())),
        }
    }

    fn generate() -> Result<(Self, Option<GeneratedPassword>)> {
        let mut bytes = [0; GENERATED_LEN];
        getrandom::fill(&mut bytes)
            .map_err(|error| ServeError::for_action("get random bytes")(error.into()))?;
        let mut password = String::with_capacity(GENERATED_LEN * 2);
        for byte in bytes {
            // Writing into a string does not fail.
            let _ = write!(password, "{byte:02x}");
        }
        let user = GatewayUser::new(DEFAULT_NAME, &password, UserAccess::Write);
        let generated = GeneratedPassword { name: DEFAULT_NAME.into(), password };
        Ok((Self { users: vec![user] }, Some(generated)))
    }

    /// Parses lines of `NAME PASSWORD`, or `NAME PASSWORD read`. Empty lines and those that begin with `#` are passed over.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let users =
            lines.map(|(number, line)| parse_user(line).map_err(|why| format!("line {number}: {why}")));
        let users = users.collect::<std::result::Result<Vec<_>, _>>()?;
        if users.is_empty() { Err("it holds no name".into()) } else { Ok(Self { users }) }
    }

    /// The password of a name, and what its user may do. None: nobody has this name.
    #[must_use]
    pub fn find_user(&self, name: &str) -> Option<(&str, UserAccess)> {
        self.users.iter().find(|user| user.name == name).map(|user| (user.password.as_str(), user.access))
    }

    /// What the user may do whom a header of HTTP's basic authentication names. None: nobody has this name and password.
    #[must_use]
    pub fn check_basic(&self, header: &[u8]) -> Option<UserAccess> {
        let (scheme, encoded) = header.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") || encoded.len() > HEADER_MAX {
            return None;
        }
        let shown = blake3::hash(&STANDARD.decode(encoded.trim_ascii()).ok()?);
        // Hashes compare in constant time.
        self.users.iter().find(|user| user.hash == shown).map(|user| user.access)
    }
}

impl GatewayUser {
    fn new(name: &str, password: &str, access: UserAccess) -> Self {
        Self {
            name: name.into(),
            password: password.into(),
            hash: blake3::hash(format!("{name}:{password}").as_bytes()),
            access,
        }
    }
}

fn parse_user(line: &str) -> std::result::Result<GatewayUser, String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (name, password, access) = match *words.as_slice() {
        [name, password] => (name, password, UserAccess::Write),
        [name, password, "read"] => (name, password, UserAccess::Read),
        _ => return Err("it is not 'NAME PASSWORD' or 'NAME PASSWORD read'".into()),
    };
    // In basic authentication a colon ends the name.
    if name.contains(':') {
        return Err("the name has a colon".into());
    }
    if password.len() < PASSWORD_MIN {
        return Err(format!("the password is shorter than {PASSWORD_MIN} bytes"));
    }
    Ok(GatewayUser::new(name, password, access))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn basic(user: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(user)).into_bytes()
    }

    #[test]
    fn names_and_passwords_have_to_match_whole() {
        let users =
            GatewayCredentials::parse("# mine\n\nann correct-horse-1\nbob other-horse-22 read\n").unwrap();
        assert_eq!(users.check_basic(&basic("ann:correct-horse-1")), Some(UserAccess::Write));
        assert_eq!(users.check_basic(&basic("bob:other-horse-22")), Some(UserAccess::Read));
        for wrong in ["ann:other-horse-22", "ann:correct-horse-", "ann", "", ":", "bob:other-horse-22 read"] {
            assert_eq!(users.check_basic(&basic(wrong)), None, "{wrong}");
        }
        let bearer = [b"Bearer ".as_slice(), &basic("ann:correct-horse-1")[6..]].concat();
        for wrong in [b"".as_slice(), b"Basic", b"Basic ", b"Basic !!!", &bearer] {
            assert_eq!(users.check_basic(wrong), None);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_line() {
        for (text, reason) in [
            ("", "holds no name"),
            ("# nobody", "holds no name"),
            ("ann", "line 1: it is not"),
            ("\nann correct-horse-1 write", "line 2: it is not"),
            ("a:b correct-horse-1", "line 1: the name has a colon"),
            ("ann short", "line 1: the password is shorter"),
        ] {
            assert!(GatewayCredentials::parse(text).err().unwrap().contains(reason), "{text}");
        }
    }

    #[test]
    fn two_passwords_that_are_made_up_differ() {
        let (users, made) = GatewayCredentials::generate().unwrap();
        let made = made.unwrap();
        let header = basic(&format!("{}:{}", made.name, made.password));
        assert_eq!(users.check_basic(&header), Some(UserAccess::Write));
        assert_eq!(GatewayCredentials::generate().unwrap().0.check_basic(&header), None);
    }
}
