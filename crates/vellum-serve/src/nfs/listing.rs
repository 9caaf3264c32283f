//! Listings of directories that go on at the right place, whatever was added or removed meanwhile.
//!
//! A name's place in a listing is a number that follows from the name alone, and entries come in the order of their places: a client
//! that hands a place in goes on behind it, also if the name is gone, and after the gateway was started again. Two links of one
//! file have two names, and so two places. A listing is kept while clients go through it, so that a page costs what is on it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_library::{DirEntry, Metadata, TreeInodes};
use vellum_types::UnixTime;

use super::protocol::{NfsStatus, TRANSFER_MAX};
use super::tree::{Answered, NfsTree};
use super::xdr::{XdrWriter, padding_len};

/// Most listings that are kept.
const LISTINGS: usize = 64;
/// Most names in all listings that are kept, beside the newest one.
const NAMES: usize = 512 << 10;
/// The places of `.` and `..`; 0 is the beginning.
const OWN_PLACE: u64 = 1;
const PARENT_PLACE: u64 = 2;
/// The first place of another name.
const FIRST_PLACE: u64 = 3;
/// Places have 63 bits: clients take them for offsets, which have a sign.
const PLACE_MASK: u64 = i64::MAX as u64;
/// Bytes of a listing's answer beside its entries: whether attributes follow and these, the verifier, and two words at the end.
const FRAME_BYTES: usize = 4 + 84 + 8 + 8;
/// Bytes of an entry beside its name: that it follows, its number, the length of its name, its place.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;

/// A directory's names in the order of their places.
struct Listing {
    names: Vec<ListedName>,
    /// The directory's time of change when it was read.
    changed: UnixTime,
}

struct ListedName {
    place: u64,
    ino: u64,
    name: Box<[u8]>,
}

/// The listings that are kept, the newest last.
pub struct ListingTable {
    key: [u8; 32],
    kept: Mutex<VecDeque<KeptListing>>,
}

struct KeptListing {
    dir: u64,
    listing: Arc<Listing>,
}

/// How much of a page is left.
struct PageRoom {
    /// Bytes of the answer.
    answer: usize,
    /// Bytes of numbers, names and places.
    names: usize,
    is_empty: bool,
}

impl ListingTable {
    /// An empty one. The key decides over places: nobody can make names for which they are the same.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key, kept: Mutex::default() }
    }

    /// The listing of a directory for a page that begins behind a place.
    fn get(&self, inodes: &TreeInodes, dir: &Metadata, place: u64) -> Result<Arc<Listing>, NfsStatus> {
        let changed = dir.attributes().ctime;
        let kept = {
            let all = self.kept.lock();
            all.iter().find(|kept| kept.dir == dir.ino()).map(|kept| kept.listing.clone())
        };
        // Who goes on sees no name that was added meanwhile: POSIX leaves that open, and a directory of which somebody removes
        // page by page is not read anew for each page.
        if let Some(listing) = kept.filter(|kept| place != 0 || kept.changed == changed) {
            return Ok(listing);
        }
        let listing = Arc::new(self.sort(inodes.list(dir.ino())?, changed));
        self.keep(dir.ino(), &listing);
        Ok(listing)
    }

    fn sort(&self, entries: Vec<DirEntry>, changed: UnixTime) -> Listing {
        use std::os::unix::ffi::OsStringExt as _;
        let listed = entries.into_iter().map(|entry| {
            let name = entry.name.into_vec().into_boxed_slice();
            ListedName { place: self.place_of(&name), ino: entry.ino, name }
        });
        let mut names: Vec<_> = listed.collect();
        names.sort_unstable_by(|a, b| (a.place, &a.name).cmp(&(b.place, &b.name)));
        // Of a million names, two have the same place once in ten million directories. The second one then has the next.
        let mut last = 0;
        for name in &mut names {
            name.place = name.place.max(last + 1);
            last = name.place;
        }
        Listing { names, changed }
    }

    fn place_of(&self, name: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.key, name);
        let number = hash.as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes);
        (number & PLACE_MASK).max(FIRST_PLACE)
    }

    fn keep(&self, dir: u64, listing: &Arc<Listing>) {
        let mut kept = self.kept.lock();
        kept.retain(|other| other.dir != dir);
        let mut names: usize = kept.iter().map(|other| other.listing.names.len()).sum();
        while kept.len() >= LISTINGS || names > NAMES {
            let Some(oldest) = kept.pop_front() else { break };
            names -= oldest.listing.names.len();
        }
        kept.push_back(KeptListing { dir, listing: listing.clone() });
    }
}

impl PageRoom {
    fn new(answer: u32, names: u32) -> Result<Self, NfsStatus> {
        let answer =
            (answer.min(TRANSFER_MAX) as usize).checked_sub(FRAME_BYTES).ok_or(NfsStatus::TooSmall)?;
        Ok(Self { answer, names: names as usize, is_empty: true })
    }

    /// Takes the room of an entry. False: there is not so much.
    fn take(&mut self, name: &[u8], attributes: usize) -> bool {
        let own = ENTRY_BYTES + name.len() + padding_len(name.len());
        // The bytes of names are a wish, those of the answer are not: what does not fit at all is too small.
        let fits = own + attributes <= self.answer && (own <= self.names || self.is_empty);
        if fits {
            self.answer -= own + attributes;
            self.names = self.names.saturating_sub(own);
            self.is_empty = false;
        }
        fits
    }
}

/// An entry that is on a page.
struct PageEntry<'a> {
    ino: u64,
    name: &'a [u8],
    place: u64,
}

impl NfsTree {
    pub(super) fn list(&self, dir: &[u8], place: u64, count: u32, out: &mut XdrWriter) -> Answered {
        let mut room = PageRoom::new(count, count)?;
        self.put_page(dir, place, out, &mut |out, entry| {
            if !room.take(entry.name, 0) {
                return if room.is_empty { Err(NfsStatus::TooSmall) } else { Ok(false) };
            }
            put_entry(out, entry);
            Ok(true)
        })
    }

    pub(super) fn list_with_attributes(
        &self,
        dir: &[u8],
        place: u64,
        names: u32,
        count: u32,
        out: &mut XdrWriter,
    ) -> Answered {
        // Attributes and a handle, and that they follow.
        const WITH: usize = 4 + 84 + 4 + 4 + super::handle::HANDLE_LEN;
        let mut room = PageRoom::new(count, names)?;
        self.put_page(dir, place, out, &mut |out, entry| {
            let found = match self.inodes.stat(entry.ino).map_err(NfsStatus::from) {
                // Removed since the directory was read.
                Err(NfsStatus::Stale) => return Ok(true),
                found => found?,
            };
            if !room.take(entry.name, WITH) {
                return if room.is_empty { Err(NfsStatus::TooSmall) } else { Ok(false) };
            }
            put_entry(out, entry);
            self.put_known(out, &found);
            out.put_bool(true);
            out.put_opaque(&self.handle_of(&found));
            Ok(true)
        })
    }

    /// Writes a page. `put` writes an entry, or returns false if there is no room for it.
    fn put_page(
        &self,
        dir: &[u8],
        place: u64,
        out: &mut XdrWriter,
        put: &mut dyn FnMut(&mut XdrWriter, &PageEntry<'_>) -> Result<bool, NfsStatus>,
    ) -> Answered {
        let dir = self.hold_dir(dir)?;
        let listing = self.listings.get(&self.inodes, &dir, place)?;
        self.put_known(out, &dir);
        // The verifier: places mean the same at all times.
        out.put_u64(0);
        let is_whole = self.put_entries(&dir, &listing, place, &mut |entry| put(out, entry))?;
        out.put_bool(false);
        out.put_bool(is_whole);
        Ok(Vec::new())
    }

    /// Shows the entries behind a place. Returns whether `put` took all of them.
    fn put_entries(
        &self,
        dir: &Metadata,
        listing: &Listing,
        place: u64,
        put: &mut dyn FnMut(&PageEntry<'_>) -> Result<bool, NfsStatus>,
    ) -> Result<bool, NfsStatus> {
        if place < OWN_PLACE && !put(&PageEntry { ino: dir.ino(), name: b".", place: OWN_PLACE })? {
            return Ok(false);
        }
        if place < PARENT_PLACE {
            let ino = self.inodes.parent(dir.ino())?;
            if !put(&PageEntry { ino, name: b"..", place: PARENT_PLACE })? {
                return Ok(false);
            }
        }
        let is_current = listing.changed == dir.attributes().ctime;
        let start = listing.names.partition_point(|name| name.place <= place);
        for listed in listing.names.get(start..).unwrap_or_default() {
            // The directory was changed since it was read: each name is looked up.
            let ino = match is_current {
                true => Some(listed.ino),
                false => self.inodes.find_entry(dir.ino(), &listed.name)?,
            };
            let Some(ino) = ino else { continue };
            if !put(&PageEntry { ino, name: &listed.name, place: listed.place })? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn put_entry(out: &mut XdrWriter, entry: &PageEntry<'_>) {
    out.put_bool(true);
    out.put_u64(entry.ino);
    out.put_opaque(entry.name);
    out.put_u64(entry.place);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::ffi::OsString;

    use vellum_library::FileKind;

    use super::*;

    fn entries(count: usize) -> Vec<DirEntry> {
        let name = |number: usize| OsString::from(format!("name {number}"));
        (0..count).map(|number| DirEntry { name: name(number), kind: FileKind::File, ino: 7 }).collect()
    }

    #[test]
    fn places_are_of_the_name_alone() {
        let table = ListingTable::new([1; 32]);
        let all = table.sort(entries(1000), UnixTime::default());
        let some = table.sort(entries(10), UnixTime::default());
        for name in &some.names {
            let same = all.names.iter().find(|other| other.name == name.name).unwrap();
            assert_eq!(same.place, name.place);
        }
        assert!(all.names.windows(2).all(|pair| pair[0].place < pair[1].place));
        assert!(all.names[0].place >= FIRST_PLACE && all.names[999].place <= PLACE_MASK);
    }

    #[test]
    fn only_so_many_listings_are_kept() {
        let table = ListingTable::new([1; 32]);
        let listing = |count| Arc::new(table.sort(entries(count), UnixTime::default()));
        let small = listing(1);
        for dir in 0..LISTINGS as u64 + 5 {
            table.keep(dir, &small);
        }
        assert_eq!(table.kept.lock().len(), LISTINGS);
        assert_eq!(table.kept.lock()[0].dir, 5);
        // The newest one is kept, however long it is.
        let names = |count: usize| {
            let listed = |_| ListedName { place: 3, ino: 7, name: Box::default() };
            Arc::new(Listing { names: (0..count).map(listed).collect(), changed: UnixTime::default() })
        };
        table.keep(1000, &names(NAMES + 1));
        table.keep(1001, &small);
        assert_eq!(table.kept.lock().iter().map(|kept| kept.dir).collect::<Vec<_>>(), [1001]);
    }
}
