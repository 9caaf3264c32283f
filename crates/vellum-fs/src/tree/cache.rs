//! A cache of inodes, directory entries and extended attributes, including absent ones.
//!
//! Invariant: never stale. What is put carries the ticket of the miss that it answers; a commit that touches the same
//! shard in between makes the ticket worthless ([`InodeCache::invalidate_keys`] comes after each commit, before the operation
//! returns). A hit allocates nothing.

mod clock;
mod sharded;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use vellum_types::{Dentry, Ino, InodeAttr, MapKey, MapKeyRef};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use sharded::InsertTicket;
use sharded::{CacheCounts, ShardedCache};

/// The default capacity, bytes: the inodes of about 100,000 files.
pub const CAPACITY: usize = 64 << 20;

/// Bytes that an entry takes beside its own.
const ENTRY: usize = 64;

/// Spreads numbers: 2^64 over the golden ratio.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The cache.
pub struct InodeCache {
    seed: u64,
    attrs: ShardedCache<Ino, Arc<InodeAttr>>,
    dentries: ShardedCache<NamedKey, Option<Dentry>>,
    xattrs: ShardedCache<NamedKey, Option<Arc<[u8]>>>,
}

/// What has a name within an inode.
type NamedKey = (Ino, Box<[u8]>);

/// What the cache did and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Questions that it answered.
    pub hits: u64,
    /// Questions that it could not answer.
    pub misses: u64,
    /// Entries that had to go for want of room.
    pub evictions: u64,
    /// Entries that it holds.
    pub entries: u64,
    /// Bytes that these take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub capacity: u64,
}

impl CacheStatistics {
    /// The share of questions that it answered, 0 to 1; None if it was asked nothing.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let lookups = self.hits.saturating_add(self.misses);
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }
}

impl Default for InodeCache {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl InodeCache {
    /// Holds up to `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let [attrs, dentries, xattrs] = split_capacity(capacity);
        Self {
            // A seed of its own, since names come from users: without it they could choose many of one hash.
            seed: RandomState::new().build_hasher().finish(),
            attrs: ShardedCache::new(attrs),
            dentries: ShardedCache::new(dentries),
            xattrs: ShardedCache::new(xattrs),
        }
    }

    /// Returns the attributes of an inode, or a ticket with which they can be inserted.
    pub fn get_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>, InsertTicket> {
        self.attrs.get(self.hash_ino(ino), |held| *held == ino)
    }

    /// Returns the attributes of an inode if the cache has them.
    pub fn find_attr(&self, ino: Ino) -> Option<Arc<InodeAttr>> {
        self.get_attr(ino).ok()
    }

    /// Keeps what was read after a miss.
    pub fn insert_attr(&self, ino: Ino, attr: &Arc<InodeAttr>, ticket: InsertTicket) {
        // What is allocated counts, and not what is used of it.
        let inline = attr.inline.as_ref().map_or(0, Vec::capacity);
        let weight = ENTRY + size_of::<InodeAttr>() + attr.name.capacity() + attr.target.capacity() + inline;
        self.attrs.insert(self.hash_ino(ino), ino, Arc::clone(attr), weight, ticket);
    }

    /// Returns the cached entry of a name (None: the name does not exist), or a ticket with which it can be inserted.
    pub fn get_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>, InsertTicket> {
        self.dentries.get(self.hash_name(dir, name), match_name(dir, name))
    }

    /// Keeps what was read after a miss.
    pub fn insert_dentry(&self, dir: Ino, name: &[u8], dentry: Option<Dentry>, ticket: InsertTicket) {
        let weight = ENTRY + size_of::<Dentry>() + name.len();
        self.dentries.insert(self.hash_name(dir, name), (dir, name.into()), dentry, weight, ticket);
    }

    /// Returns a cached extended attribute (None: it does not exist), or a ticket with which it can be inserted.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Arc<[u8]>>, InsertTicket> {
        self.xattrs.get(self.hash_name(ino, name), match_name(ino, name))
    }

    /// Keeps what was read after a miss.
    pub fn insert_xattr(&self, ino: Ino, name: &[u8], value: Option<Arc<[u8]>>, ticket: InsertTicket) {
        let weight = ENTRY + name.len() + value.as_ref().map_or(0, |value| value.len());
        self.xattrs.insert(self.hash_name(ino, name), (ino, name.into()), value, weight, ticket);
    }

    /// Removes changed keys from the cache, and invalidates the tickets for them. Must be called after each commit.
    pub fn invalidate_keys(&self, changed: &[MapKey]) {
        for key in changed {
            match MapKeyRef::parse(key.as_bytes()) {
                Ok(MapKeyRef::Attr(ino)) => {
                    self.attrs.invalidate_entry(self.hash_ino(ino), |held| *held == ino)
                }
                Ok(MapKeyRef::Dentry(dir, name)) => {
                    self.dentries.invalidate_entry(self.hash_name(dir, name), match_name(dir, name));
                }
                Ok(MapKeyRef::Xattr(ino, name)) => {
                    self.xattrs.invalidate_entry(self.hash_name(ino, name), match_name(ino, name))
                }
                // Of neither this cache keeps anything.
                Ok(MapKeyRef::Extent(..)) | Err(_) => {}
            }
        }
    }

    /// Forgets everything: the worktree stands on another state.
    pub fn clear_all(&self) {
        self.attrs.clear_all();
        self.dentries.clear_all();
        self.xattrs.clear_all();
    }

    /// Holds up to `capacity` bytes from now on.
    pub fn set_capacity(&self, capacity: usize) {
        let [attrs, dentries, xattrs] = split_capacity(capacity);
        self.attrs.set_capacity(attrs);
        self.dentries.set_capacity(dentries);
        self.xattrs.set_capacity(xattrs);
    }

    /// What it did since it was made, and what it holds.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let mut sum = CacheStatistics::default();
        for CacheCounts { hits, misses, evictions, entries, bytes, capacity } in
            [self.attrs.read_counts(), self.dentries.read_counts(), self.xattrs.read_counts()]
        {
            sum.hits += hits;
            sum.misses += misses;
            sum.evictions += evictions;
            sum.entries += entries;
            sum.bytes += bytes;
            sum.capacity += capacity;
        }
        sum
    }

    fn hash_ino(&self, ino: Ino) -> u64 {
        // A folded product: all bits of it depend on all of the number.
        let product = u128::from(ino.0 ^ self.seed) * u128::from(ODD);
        (product as u64) ^ ((product >> 64) as u64)
    }

    #[inline]
    fn hash_name(&self, ino: Ino, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed ^ ino.0.wrapping_mul(ODD))
    }
}

fn match_name(ino: Ino, name: &[u8]) -> impl Fn(&NamedKey) -> bool {
    move |held| held.0 == ino && *held.1 == *name
}

/// Attributes are the bulk; entries are small; hardly a file has extended attributes.
fn split_capacity(capacity: usize) -> [usize; 3] {
    let eighth = capacity / 8;
    [capacity - 3 * eighth, 2 * eighth, eighth]
}

#[cfg(test)]
mod tests;
