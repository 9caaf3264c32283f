//! The names of a directory, as many as fit into an answer.

use super::answer::AnswerBuffer;
use super::attributes::EntryAnswer;

/// Records begin at multiples of so many bytes.
const ALIGNMENT: usize = 8;

/// Bytes of `fuse_dirent` before the name.
const DIRENT_LEN: usize = 24;

/// Bytes of `fuse_entry_out`.
const ENTRY_LEN: usize = 128;

/// Names for an answer.
#[derive(Debug)]
pub struct ListingAnswer {
    bytes: Vec<u8>,
    room: usize,
}

/// A name, what it stands for, and from where to read on behind it.
#[derive(Debug, Clone, Copy)]
pub struct NameInAnswer<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The node.
    pub node: u64,
    /// Its mode: only the kind counts.
    pub mode: u32,
    /// The offset of the next name.
    pub next: u64,
}

impl ListingAnswer {
    /// Room for so many bytes.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room }
    }

    /// Adds a name (`fuse_dirent`); false if it does not fit.
    #[must_use]
    pub fn add_name(&mut self, listed: NameInAnswer<'_>) -> bool {
        let fits = self.has_room(DIRENT_LEN + listed.name.len());
        if fits {
            self.encode_dirent(listed);
        }
        fits
    }

    /// Adds a name with its attributes (`fuse_direntplus`); false if it does not fit.
    #[must_use]
    pub fn add_name_with_entry(&mut self, listed: NameInAnswer<'_>, entry: &EntryAnswer) -> bool {
        let fits = self.has_room(ENTRY_LEN + DIRENT_LEN + listed.name.len());
        if fits {
            entry.encode(&mut self.bytes);
            self.encode_dirent(listed);
        }
        fits
    }

    fn has_room(&self, len: usize) -> bool {
        self.bytes.len() + len.next_multiple_of(ALIGNMENT) <= self.room
    }

    fn encode_dirent(&mut self, listed: NameInAnswer<'_>) {
        let len = u32::try_from(listed.name.len()).unwrap_or(u32::MAX);
        // What `readdir` calls a type are the bits above the permissions.
        let kind = listed.mode >> 12;
        self.bytes.append_bytes(&listed.node.to_ne_bytes());
        self.bytes.append_bytes(&listed.next.to_ne_bytes());
        self.bytes.append_bytes(&len.to_ne_bytes());
        self.bytes.append_bytes(&kind.to_ne_bytes());
        self.bytes.append_bytes(listed.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
