//! Listings: as many names of a directory as fit into an answer.
//!
//! Invariant: an answer is never longer than the room that the request has for it.

use super::attributes::EntryAnswer;
use super::buffer::AnswerBuffer;
use super::fields::{MalformedRequest, RequestFields};

/// The alignment of records, bytes.
const ALIGNMENT: usize = 8;

/// Bytes of `fuse_dirent` in front of the name.
const DIRENT_LEN: usize = 24;

/// Bytes of `fuse_entry_out`.
pub(super) const ENTRY_LEN: usize = 128;

/// An answer with names.
#[derive(Debug)]
pub struct ListingAnswer {
    bytes: Vec<u8>,
    room: usize,
}

/// A name, what it stands for, and the position behind it.
#[derive(Debug, Clone, Copy)]
pub struct NameInAnswer<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The node id.
    pub node: u64,
    /// The mode of the node, of which only the kind of file is used.
    pub mode: u32,
    /// The position from which the next names are read.
    pub next: u64,
}

impl ListingAnswer {
    /// An empty answer with room for `room` bytes.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room }
    }

    /// Adds a name (`fuse_dirent`). Returns false if it does not fit.
    #[must_use]
    pub fn add_name(&mut self, listed: NameInAnswer<'_>) -> bool {
        let fits = self.has_room(DIRENT_LEN + listed.name.len());
        if fits {
            self.encode_dirent(listed);
        }
        fits
    }

    /// Adds a name with its entry (`fuse_direntplus`). Returns false if it does not fit.
    #[must_use]
    pub fn add_name_with_entry(&mut self, listed: NameInAnswer<'_>, entry: &EntryAnswer) -> bool {
        // Tested before anything is written, since the kernel must be sent whole entries only.
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
        // The type in a directory entry is the upper four bits of a mode.
        let kind = listed.mode >> 12;
        self.bytes.append_bytes(&listed.node.to_ne_bytes());
        self.bytes.append_bytes(&listed.next.to_ne_bytes());
        self.bytes.append_bytes(&len.to_ne_bytes());
        self.bytes.append_bytes(&kind.to_ne_bytes());
        self.bytes.append_bytes(listed.name);
        // The kernel looks for the next record there.
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// The bytes of the answer.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Calls `visit` with the node and the name of each entry of a listing with entries. Ends at what is none.
pub(crate) fn visit_listed_entries(listing: &[u8], mut visit: impl FnMut(u64, &[u8])) {
    visit_entry_places(listing, |_, node, name| visit(node, name));
}

/// Makes a listing without entries of one with entries: both have the same names.
#[must_use]
pub fn without_entries(listing: &[u8]) -> Vec<u8> {
    let mut names = Vec::with_capacity(listing.len());
    visit_entry_places(listing, |place, _, name| {
        let begin = place + ENTRY_LEN;
        let len = (DIRENT_LEN + name.len()).next_multiple_of(ALIGNMENT);
        names.extend(listing.get(begin..begin + len).unwrap_or_default());
    });
    names
}

/// The same, with the place of the entry in the listing, bytes.
pub(super) fn visit_entry_places(listing: &[u8], mut visit: impl FnMut(usize, u64, &[u8])) {
    let mut fields = RequestFields(listing);
    let read_entry = |fields: &mut RequestFields<'_>| -> Result<(u64, usize), MalformedRequest> {
        let node = fields.read_number()?;
        fields.skip_bytes(ENTRY_LEN - size_of::<u64>())?;
        // The number, and the position behind it.
        fields.skip_bytes(2 * size_of::<u64>())?;
        let len: u32 = fields.read_number()?;
        fields.skip_bytes(size_of::<u32>())?;
        Ok((node, usize::try_from(len).map_err(|_| MalformedRequest::Short)?))
    };
    loop {
        let place = listing.len() - fields.0.len();
        let Ok((node, len)) = read_entry(&mut fields) else { return };
        let Ok(name) = fields.read_bytes(len) else { return };
        visit(place, node, name);
        let padding = (DIRENT_LEN + len).next_multiple_of(ALIGNMENT) - (DIRENT_LEN + len);
        if fields.skip_bytes(padding).is_err() {
            return;
        }
    }
}
