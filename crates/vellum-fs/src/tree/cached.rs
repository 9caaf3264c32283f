//! Reading through the caches: attributes, directory entries and extended attributes by inode, and access times.
//!
//! Invariant: what is put into the cache was read after the miss that it answers, and was not changed since
//! ([`crate::tree::cache`]). Deliberately absent: what POSIX makes of absent entries.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vellum_host::clock::current_time;
use vellum_types::{BareInodeAttr, Dentry, Ino, InodeAttr, MapKey, UnixTime};

use super::LiveMap;
use super::cache::{InodeCache, InsertTicket};
use crate::error::Result;

/// An access is recorded at the latest when the last one recorded is this old, in seconds: relatime.
const ACCESS_AGE: i64 = 24 * 60 * 60;

impl LiveMap {
    /// The attributes of an inode that somebody holds: stale if it is gone.
    pub fn inode_attr(&self, ino: Ino) -> Result<Arc<InodeAttr>> {
        let ticket = match self.cache.get_attr(ino) {
            Ok(attr) => return Ok(attr),
            Err(ticket) => ticket,
        };
        let mut attr = self.read_head_state(|view| view.expect_inode_attr(ino))?;
        self.accesses.apply_access_time(ino, &mut attr);
        let attr = Arc::new(attr);
        self.cache.insert_attr(ino, &attr, ticket);
        Ok(attr)
    }

    /// The same without its inline content. Reads the cache, but adds nothing to it: the caller shows the attributes
    /// once, and the kernel caches them.
    pub fn bare_inode_attr(&self, ino: Ino) -> Result<BareInodeAttr> {
        if let Some(attr) = self.cache.find_attr(ino) {
            return Ok(BareInodeAttr::copy_of(&attr));
        }
        let mut bare = self.read_head_state(|view| view.expect_bare_attr(ino))?;
        self.accesses.apply_access_time(ino, &mut bare.attr);
        Ok(bare)
    }

    /// What a directory holds under a name.
    // Each component of each path comes by here: a hit has to cost no call of its own.
    #[inline]
    pub fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        match self.cache.get_dentry(dir, name) {
            Ok(dentry) => Ok(dentry),
            Err(ticket) => self.read_dentry(dir, name, ticket),
        }
    }

    fn read_dentry(&self, dir: Ino, name: &[u8], ticket: InsertTicket) -> Result<Option<Dentry>> {
        let dentry = self.read_head_state(|view| view.lookup_dentry(dir, name))?;
        self.cache.insert_dentry(dir, name, dentry, ticket);
        Ok(dentry)
    }

    /// The value of an extended attribute; None if it is not there.
    pub fn find_xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Arc<[u8]>>> {
        let ticket = match self.cache.get_xattr(ino, name) {
            Ok(value) => return Ok(value),
            Err(ticket) => ticket,
        };
        let value = self.read_head_state(|view| view.get_value(&MapKey::for_xattr(ino, name)))?;
        let value: Option<Arc<[u8]>> = value.map(|value| value.as_bytes().into());
        // Absence is kept, too: the kernel asks for `security.capability` again and again, and hardly any
        // file has it.
        self.cache.insert_xattr(ino, name, value.clone(), ticket);
        Ok(value)
    }

    /// Records an access now if the last recorded one is older than the last change, or a day old (relatime). The time
    /// is shown at once, and stored with the next change of the inode.
    pub fn record_access(&self, ino: Ino) -> Result<()> {
        if self.keeps_access_times.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = current_time();
        if is_access_due(&*self.inode_attr(ino)?, now) {
            self.accesses.record_access(ino, now);
            // The cached attributes still have the time before.
            self.cache.invalidate_keys(&[MapKey::for_attr(ino)]);
        }
        Ok(())
    }

    /// Stops updating access times: from now on reading changes nothing, as a read-only mount requires.
    pub fn freeze_access_times(&self) {
        self.keeps_access_times.store(true, Ordering::Relaxed);
    }

    /// The cache of inodes and names: its statistics and its size.
    #[must_use]
    pub fn inode_cache(&self) -> &InodeCache {
        &self.cache
    }

    /// Forgets what is cached, because the worktree has another state. To be called in the body of
    /// [`LiveMap::change_head`]: no operation is in progress then, and none continues with cached values.
    pub(crate) fn forget_cached(&self) {
        self.cache.clear_all();
        self.accesses.forget_all();
    }
}

fn is_access_due(attr: &InodeAttr, now: UnixTime) -> bool {
    // Within one tick of the clock an access is not later than the change before it: nothing would be recorded.
    if now <= attr.atime && attr.atime <= attr.mtime.max(attr.ctime) {
        return false;
    }
    attr.atime <= attr.mtime.max(attr.ctime) || now.secs.saturating_sub(attr.atime.secs) >= ACCESS_AGE
}
