//! The map's keys: `inode number (u64, big endian) ‖ tag (u8) ‖ suffix`, ordered as bytes.
//!
//! Invariant: a key that decodes is valid: its tag is known, a name is a legal file name, an offset has eight bytes.

use crate::codec::DecodeError;
use crate::id::Ino;
use crate::limits::NAME_MAX;

/// What a key's value describes. The order of the tags is the order in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyTag {
    /// The inode itself; no suffix.
    Attr,
    /// A directory entry; the suffix is its name.
    Dentry,
    /// An extended attribute; the suffix is its name.
    Xattr,
    /// A piece of content; the suffix is its offset.
    Extent,
}

impl KeyTag {
    /// The byte that stands for this tag in a key.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::Attr => 0,
            Self::Dentry => 1,
            Self::Xattr => 2,
            Self::Extent => 3,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Attr),
            1 => Some(Self::Dentry),
            2 => Some(Self::Xattr),
            3 => Some(Self::Extent),
            _ => None,
        }
    }
}

/// An owned key, as stored in nodes and layers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    /// The key of an inode's attributes.
    #[must_use]
    pub fn attr(ino: Ino) -> Self {
        Self::with(ino, KeyTag::Attr, &[])
    }

    /// The key of a directory's entry.
    #[must_use]
    pub fn dentry(parent: Ino, name: &[u8]) -> Self {
        Self::with(parent, KeyTag::Dentry, name)
    }

    /// The key of an extended attribute.
    #[must_use]
    pub fn xattr(ino: Ino, name: &[u8]) -> Self {
        Self::with(ino, KeyTag::Xattr, name)
    }

    /// The key of the extent that starts at `offset`.
    #[must_use]
    pub fn extent(ino: Ino, offset: u64) -> Self {
        Self::with(ino, KeyTag::Extent, &offset.to_be_bytes())
    }

    /// The first possible key with this tag: the start of a range scan.
    #[must_use]
    pub fn first(ino: Ino, tag: KeyTag) -> Self {
        Self::with(ino, tag, &[])
    }

    fn with(ino: Ino, tag: KeyTag, suffix: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(9 + suffix.len());
        bytes.extend_from_slice(&ino.0.to_be_bytes());
        bytes.push(tag.as_byte());
        bytes.extend_from_slice(suffix);
        Self(bytes)
    }

    /// The bytes, in the order of which the map is sorted.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes themselves.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl From<KeyRef<'_>> for Key {
    fn from(key: KeyRef<'_>) -> Self {
        match key {
            KeyRef::Attr(ino) => Self::attr(ino),
            KeyRef::Dentry(dir, name) => Self::dentry(dir, name),
            KeyRef::Xattr(ino, name) => Self::xattr(ino, name),
            KeyRef::Extent(ino, offset) => Self::extent(ino, offset),
        }
    }
}

/// A key taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRef<'a> {
    /// Attributes of an inode.
    Attr(Ino),
    /// The entry `name` of a directory.
    Dentry(Ino, &'a [u8]),
    /// The extended attribute `name`.
    Xattr(Ino, &'a [u8]),
    /// The extent at an offset.
    Extent(Ino, u64),
}

impl<'a> KeyRef<'a> {
    /// Takes apart the bytes of a key, which may come from a hostile node.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (ino, rest) = bytes.split_first_chunk::<8>().ok_or(DecodeError::Truncated)?;
        let (tag, suffix) = rest.split_first().ok_or(DecodeError::Truncated)?;
        let ino = Ino(u64::from_be_bytes(*ino));
        match KeyTag::from_byte(*tag).ok_or(DecodeError::Invalid("key tag"))? {
            KeyTag::Attr if suffix.is_empty() => Ok(Self::Attr(ino)),
            KeyTag::Attr => Err(DecodeError::Trailing),
            KeyTag::Dentry => check_name(suffix).map(|()| Self::Dentry(ino, suffix)),
            KeyTag::Xattr if (1..=NAME_MAX).contains(&suffix.len()) && !suffix.contains(&0) => {
                Ok(Self::Xattr(ino, suffix))
            }
            KeyTag::Xattr => Err(DecodeError::Invalid("xattr name")),
            KeyTag::Extent => {
                let offset = suffix.try_into().map_err(|_| DecodeError::Invalid("extent offset"))?;
                Ok(Self::Extent(ino, u64::from_be_bytes(offset)))
            }
        }
    }

    /// The inode that the key belongs to.
    #[must_use]
    pub fn ino(&self) -> Ino {
        match self {
            Self::Attr(ino) | Self::Dentry(ino, _) | Self::Xattr(ino, _) | Self::Extent(ino, _) => *ino,
        }
    }
}

/// Refuses what no file may be called: the empty name, `.`, `..`, names with `/` or NUL, and over-long ones.
/// This stands between a hostile volume and the paths that a restore writes to.
pub fn check_name(name: &[u8]) -> Result<(), DecodeError> {
    let legal = (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if legal { Ok(()) } else { Err(DecodeError::Invalid("file name")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_file_stand_together_and_in_order() {
        let keys = [
            Key::attr(Ino(1)),
            Key::dentry(Ino(1), b"a"),
            Key::dentry(Ino(1), b"b"),
            Key::xattr(Ino(1), b"user.x"),
            Key::extent(Ino(1), 0),
            Key::extent(Ino(1), 65_536),
            Key::attr(Ino(2)),
            Key::attr(Ino(256)),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn keys_parse_back() {
        assert_eq!(KeyRef::parse(Key::dentry(Ino(7), b"x").as_bytes()), Ok(KeyRef::Dentry(Ino(7), b"x")));
        assert_eq!(KeyRef::parse(Key::extent(Ino(7), 9).as_bytes()), Ok(KeyRef::Extent(Ino(7), 9)));
        assert_eq!(KeyRef::parse(Key::attr(Ino(7)).as_bytes()), Ok(KeyRef::Attr(Ino(7))));
    }

    #[test]
    fn hostile_names_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert!(KeyRef::parse(Key::dentry(Ino(1), name).as_bytes()).is_err(), "{name:?}");
        }
        assert!(KeyRef::parse(Key::dentry(Ino(1), &[b'x'; 255]).as_bytes()).is_ok());
    }
}
