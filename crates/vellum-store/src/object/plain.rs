//! Objects that other programs read and write, too: any key, any size, replaced and deleted on a condition.
//!
//! Invariant: a tag stands for one version of an object, so that a change on a condition never hits another version.
//! Deliberately absent: requests (see `service::plain`), and what objects mean.

mod time;

use vellum_types::UnixTime;

pub(super) use self::time::{MTIME_FIELD, decode_mtime, encode_mtime};

/// What identifies a version of an object at its service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectTag {
    /// The `ETag`, with its quotes.
    pub(super) etag: Option<Box<str>>,
    /// The version or generation, where the service has no tags to compare.
    pub(super) version: Option<Box<str>>,
}

impl ObjectTag {
    /// The MD5 hash of the content, if the tag is one: of an object that was uploaded in one piece, without a key of the
    /// customer's.
    #[must_use]
    pub fn as_md5(&self) -> Option<[u8; 16]> {
        let text = self.etag.as_deref()?.trim_matches('"');
        // The tag of an object that was uploaded in parts has a dash and the number of parts at the end, and is no
        // hash of the content. Slicing below needs ASCII.
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        let mut hash = [0; 16];
        for (place, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(place * 2..place * 2 + 2)?, 16).ok()?;
        }
        Some(hash)
    }

    /// Whether both are of one version, as far as both are known: listings of some services have no versions.
    #[must_use]
    pub fn is_same_version(&self, other: &Self) -> bool {
        match (&self.version, &other.version, &self.etag, &other.etag) {
            (Some(ours), Some(theirs), ..) => ours == theirs,
            // Some listings return the tag without the quotes that the header has.
            (_, _, Some(ours), Some(theirs)) => ours.trim_matches('"') == theirs.trim_matches('"'),
            _ => true,
        }
    }
}

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainObject {
    /// Its key below the folder.
    pub key: String,
    /// Its length, bytes.
    pub size: u64,
    /// When it was uploaded.
    pub uploaded: UnixTime,
    /// Its version.
    pub tag: ObjectTag,
}

/// All objects of a folder and below.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainListing {
    /// The objects, in no order.
    pub objects: Vec<PlainObject>,
    /// Directory markers: keys of empty objects that end with a slash, without it.
    pub markers: Vec<String>,
    /// Keys that end with a slash and are no markers.
    pub misnamed: Vec<String>,
}

/// What a service returns about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainObjectHead {
    /// Its length, bytes.
    pub size: u64,
    /// When it was uploaded.
    pub uploaded: UnixTime,
    /// When the file was last changed that it is a copy of, if that was stored with it.
    pub mtime: Option<UnixTime>,
    /// Its version.
    pub tag: ObjectTag,
}

/// What must stand at a key so that it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectCondition {
    /// Nothing.
    Absent,
    /// This version.
    Unchanged(ObjectTag),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_are_hashes_are_known_by_their_look() {
        let tag = |text: &str| ObjectTag { etag: Some(text.into()), version: None };
        let empty = tag("\"d41d8cd98f00b204e9800998ecf8427e\"").as_md5();
        assert_eq!(empty.map(|hash| (hash[0], hash[15])), Some((0xd4, 0x7e)));
        for text in ["\"d41d8cd98f00b204e9800998ecf8427e-3\"", "\"0x8D9\"", "", "ééééééééééééééééé"]
        {
            assert_eq!(tag(text).as_md5(), None, "{text}");
        }
        assert!(tag("\"a\"").is_same_version(&tag("a")) && !tag("a").is_same_version(&tag("b")));
    }
}
