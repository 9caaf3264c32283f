//! Names in the charsets of two hosts (`--iconv`).
//!
//! A source is listed in the charset of the destination: plans, rules of the destination and the writing code use one
//! charset. Names and the targets of symlinks are converted, as in rsync; rules and paths in options are not.
//!
//! Invariant: an entry that cannot be converted is left out and reported as unlisted, so that its copy is not deleted;
//! no entry gets a name that only resembles its own. Deliberately absent: content.

mod listing;
mod source;

use std::borrow::Cow;

use encoding_rs::{Encoding, mem};

pub use source::{ConvertedSource, SourcePlace};

/// A charset of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameCharset {
    /// ISO-8859-1. The Encoding Standard uses windows-1252 for this label, whose characters from 0x80 to 0x9F differ.
    Latin1,
    /// US-ASCII, for which the Encoding Standard uses windows-1252, too.
    Ascii,
    /// Another charset, as the Encoding Standard defines it.
    Standard(&'static Encoding),
}

impl NameCharset {
    /// The charset of this name, in any case of its letters; None if it is unknown, or if its bytes for `/` and NUL are
    /// not those of ASCII.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        // Names of charsets are written in many ways: `ISO-8859-1`, `iso8859_1`, `ISO 8859-1`.
        let plain: String = name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_lowercase())
            .collect();
        match plain.as_str() {
            "iso88591" | "latin1" | "l1" | "cp819" | "ibm819" => return Some(Self::Latin1),
            "ascii" | "usascii" | "ansix341968" | "iso646us" => return Some(Self::Ascii),
            _ => {}
        }
        let found = Encoding::for_label_no_replacement(name.as_bytes())?;
        // In other charsets the byte of a slash can be a part of a character, and a name could become a path.
        found.is_ascii_compatible().then_some(Self::Standard(found))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latin1 => "ISO-8859-1",
            Self::Ascii => "US-ASCII",
            Self::Standard(encoding) => encoding.name(),
        }
    }

    fn decode(self, bytes: &[u8]) -> Option<Cow<'_, str>> {
        match self {
            Self::Latin1 => Some(mem::decode_latin1(bytes)),
            Self::Ascii => str::from_utf8(bytes).ok().filter(|text| text.is_ascii()).map(Cow::Borrowed),
            // A name that begins with the bytes of a byte order mark is a name like any other, and a
            // replacement character would make two names one.
            Self::Standard(encoding) => encoding.decode_without_bom_handling_and_without_replacement(bytes),
        }
    }

    fn encode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Latin1 => mem::is_str_latin1(text).then(|| mem::encode_latin1_lossy(text).into_owned()),
            Self::Ascii => text.is_ascii().then(|| text.as_bytes().to_vec()),
            Self::Standard(encoding) => {
                let (bytes, _, has_replacements) = encoding.encode(text);
                (!has_replacements).then(|| bytes.into_owned())
            }
        }
    }
}

/// A conversion from one charset into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameConversion {
    /// The charset of the original names.
    pub from: NameCharset,
    /// The charset of the converted names.
    pub to: NameCharset,
}

/// Why a name cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameConversionError {
    /// Its bytes are invalid in its charset.
    #[error("is not valid {0}")]
    Invalid(&'static str),
    /// It has a character that the other charset does not have.
    #[error("has a character that {0} does not have")]
    NoCharacter(&'static str),
    /// The converted name is longer than names may be.
    #[error("is too long in {0}")]
    TooLong(&'static str),
    /// Another entry of the directory has the converted name already.
    #[error("is that of another entry, in {0}")]
    Taken(&'static str),
}

impl NameConversion {
    /// The conversion in the opposite direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    /// Converts bytes.
    pub fn convert(self, bytes: &[u8]) -> Result<Vec<u8>, NameConversionError> {
        let text = self.from.decode(bytes).ok_or(NameConversionError::Invalid(self.from.name()))?;
        self.to.encode(&text).ok_or(NameConversionError::NoCharacter(self.to.name()))
    }

    /// Converts a path; names that cannot be converted stay as they are.
    #[must_use]
    pub fn convert_path(self, path: &[u8]) -> Vec<u8> {
        let names = path.split(|byte| *byte == b'/');
        let names: Vec<Vec<u8>> =
            names.map(|name| self.convert(name).unwrap_or_else(|_| name.to_vec())).collect();
        names.join(&b'/')
    }
}

/// The charsets of the names on this host and on the other one; between two directories of one host, those of the
/// source and of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameCharsets {
    /// The charset of this host.
    pub local: NameCharset,
    /// The charset of the other host.
    pub remote: NameCharset,
}

/// Why an argument is not a pair of charsets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CharsetSpecError {
    /// It does not consist of two names.
    #[error("'{0}' does not name two charsets")]
    NotTwo(String),
    /// A name is not that of a charset, or the charset cannot be used for names.
    #[error("'{0}' is not a charset that names can be converted from and to")]
    Unknown(String),
    /// The remote charset is the locale's, which only the other host knows.
    #[error("the charset of the other host's locale is not known here")]
    RemoteLocale,
}

impl NameCharsets {
    /// Parses `LOCAL,REMOTE`; LOCAL can be `.`, the charset of the locale.
    pub fn parse_spec(spec: &str, locale: &str) -> Result<Self, CharsetSpecError> {
        let (local, remote) =
            spec.split_once(',').ok_or_else(|| CharsetSpecError::NotTwo(spec.to_owned()))?;
        let find =
            |name: &str| NameCharset::find(name).ok_or_else(|| CharsetSpecError::Unknown(name.to_owned()));
        if remote == "." {
            return Err(CharsetSpecError::RemoteLocale);
        }
        Ok(Self { local: find(if local == "." { locale } else { local })?, remote: find(remote)? })
    }

    /// The conversion from this host's charset to the other one's.
    #[must_use]
    pub fn to_remote(self) -> NameConversion {
        NameConversion { from: self.local, to: self.remote }
    }

    /// The conversion from the other host's charset to this one's.
    #[must_use]
    pub fn to_local(self) -> NameConversion {
        self.to_remote().reversed()
    }
}

#[cfg(test)]
mod tests;
