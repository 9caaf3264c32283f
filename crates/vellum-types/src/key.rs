//! The map's keys: `inode number (u64, big endian) ‖ tag (u8) ‖ suffix`, ordered as bytes.
//!
//! Invariant: a key that decodes is valid: its tag is known, a name is a legal file name, an offset has eight bytes.

use crate::codec::DecodeError;
use crate::id::Ino;
use crate::limits::NAME_MAX;

/// The kind of value that a key has. The order of the tags is the order in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MapKeyTag {
    /// The inode itself; no suffix.
    Attr,
    /// A directory entry; the suffix is its name.
    Dentry,
    /// An extended attribute; the suffix is its name.
    Xattr,
    /// A piece of content; the suffix is its offset.
    Extent,
}

impl MapKeyTag {
    /// The byte that stands for this tag in a key.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            // The numbers are in stored keys, and give the order of the map.
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
pub struct MapKey(Vec<u8>);

impl MapKey {
    /// The key of an inode's attributes.
    #[must_use]
    pub fn for_attr(ino: Ino) -> Self {
        Self::from_parts(ino, MapKeyTag::Attr, &[])
    }

    /// The key of a directory's entry.
    #[must_use]
    pub fn for_dentry(parent: Ino, name: &[u8]) -> Self {
        Self::from_parts(parent, MapKeyTag::Dentry, name)
    }

    /// The key of an extended attribute.
    #[must_use]
    pub fn for_xattr(ino: Ino, name: &[u8]) -> Self {
        Self::from_parts(ino, MapKeyTag::Xattr, name)
    }

    /// The key of the extent that starts at `offset`.
    #[must_use]
    pub fn for_extent(ino: Ino, offset: u64) -> Self {
        // Big endian, so that a scan meets the extents in the order of their offsets.
        Self::from_parts(ino, MapKeyTag::Extent, &offset.to_be_bytes())
    }

    /// The first possible key with this tag: the start of a range scan.
    #[must_use]
    pub fn first_for_tag(ino: Ino, tag: MapKeyTag) -> Self {
        // The empty suffix comes before all others.
        Self::from_parts(ino, tag, &[])
    }

    fn from_parts(ino: Ino, tag: MapKeyTag, suffix: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(9 + suffix.len());
        // Big endian, so that the order of the bytes is that of the inode numbers.
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

impl From<MapKeyRef<'_>> for MapKey {
    fn from(key: MapKeyRef<'_>) -> Self {
        match key {
            MapKeyRef::Attr(ino) => Self::for_attr(ino),
            MapKeyRef::Dentry(dir, name) => Self::for_dentry(dir, name),
            MapKeyRef::Xattr(ino, name) => Self::for_xattr(ino, name),
            MapKeyRef::Extent(ino, offset) => Self::for_extent(ino, offset),
        }
    }
}

/// A key taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKeyRef<'a> {
    /// Attributes of an inode.
    Attr(Ino),
    /// The entry `name` of a directory.
    Dentry(Ino, &'a [u8]),
    /// The extended attribute `name`.
    Xattr(Ino, &'a [u8]),
    /// The extent at an offset.
    Extent(Ino, u64),
}

impl<'a> MapKeyRef<'a> {
    /// Takes apart the bytes of a key, which may come from a hostile node.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (ino, rest) = bytes.split_first_chunk::<8>().ok_or(DecodeError::Truncated)?;
        let (tag, suffix) = rest.split_first().ok_or(DecodeError::Truncated)?;
        let ino = Ino(u64::from_be_bytes(*ino));
        match MapKeyTag::from_byte(*tag).ok_or(DecodeError::Invalid("key tag"))? {
            MapKeyTag::Attr if suffix.is_empty() => Ok(Self::Attr(ino)),
            // With a suffix, it would be a second key of the same attributes.
            MapKeyTag::Attr => Err(DecodeError::Trailing),
            // Paths are made of these names: one that no file can have must not get any further.
            MapKeyTag::Dentry => check_name(suffix).map(|()| Self::Dentry(ino, suffix)),
            // The kernel takes names of attributes as C strings of 1 to 255 bytes.
            MapKeyTag::Xattr if (1..=NAME_MAX).contains(&suffix.len()) && !suffix.contains(&0) => {
                Ok(Self::Xattr(ino, suffix))
            }
            MapKeyTag::Xattr => Err(DecodeError::Invalid("xattr name")),
            MapKeyTag::Extent => {
                // With another length, the order of keys would not be that of offsets.
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

/// Refuses names that no file can have: the empty name, `.`, `..`, names with `/` or NUL, and names that are too
/// long. This check protects the paths that a restore writes to from a hostile volume.
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
            MapKey::for_attr(Ino(1)),
            MapKey::for_dentry(Ino(1), b"a"),
            MapKey::for_dentry(Ino(1), b"b"),
            MapKey::for_xattr(Ino(1), b"user.x"),
            MapKey::for_extent(Ino(1), 0),
            MapKey::for_extent(Ino(1), 65_536),
            MapKey::for_attr(Ino(2)),
            MapKey::for_attr(Ino(256)),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn keys_parse_back() {
        assert_eq!(
            MapKeyRef::parse(MapKey::for_dentry(Ino(7), b"x").as_bytes()),
            Ok(MapKeyRef::Dentry(Ino(7), b"x"))
        );
        assert_eq!(
            MapKeyRef::parse(MapKey::for_extent(Ino(7), 9).as_bytes()),
            Ok(MapKeyRef::Extent(Ino(7), 9))
        );
        assert_eq!(MapKeyRef::parse(MapKey::for_attr(Ino(7)).as_bytes()), Ok(MapKeyRef::Attr(Ino(7))));
    }

    #[test]
    fn hostile_names_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert!(MapKeyRef::parse(MapKey::for_dentry(Ino(1), name).as_bytes()).is_err(), "{name:?}");
        }
        assert!(MapKeyRef::parse(MapKey::for_dentry(Ino(1), &[b'x'; 255]).as_bytes()).is_ok());
    }
}
