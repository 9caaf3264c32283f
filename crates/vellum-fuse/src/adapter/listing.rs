//! `readdir` and `readdirplus`: as many names of a directory as fit into an answer.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::Result;
use vellum_fs::StateReader;
use vellum_types::{FileKind, Ino};

use super::content::limit_read_len;
use super::convert::file_kind_bits;
use super::entry::{new_plain_entry, sibling_place};
use super::listing_cache::DirListing;
use super::seeking::StaleCache;
use super::{FuseAdapter, InodeOwner};
use crate::metrics::ServedRequest;
use crate::node::{ListedDirName, NodePlace};
use crate::transport::DeferredReply;
use crate::wire::{EntryAnswer, FuseAnswer, ListingAnswer, NameInAnswer};

/// The part of a directory that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingRange {
    /// The position of the last name that the reader has; 0 at the beginning.
    pub offset: u64,
    /// Bytes that the answer may have.
    pub room: u32,
}

impl ListingRange {
    fn new_listing(self) -> ListingAnswer {
        ListingAnswer::new(limit_read_len(self.room))
    }

    /// A listing with attributes, of `max` bytes at most.
    fn new_listing_up_to(self, max: usize) -> ListingAnswer {
        ListingAnswer::new(limit_read_len(self.room).min(max))
    }
}

fn new_name_record(listed: &ListedDirName, next: u64) -> NameInAnswer<'_> {
    NameInAnswer { name: &listed.name, node: listed.node, mode: file_kind_bits(listed.kind), next }
}

impl FuseAdapter {
    pub(super) fn answer_readdir(
        &self,
        call: ServedRequest<'_>,
        range: ListingRange,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let all = match self.read_listing(call, range) {
            Ok(all) => all,
            Err(error) => return FuseAnswer::Failed(error),
        };
        let mut listing = range.new_listing();
        for (next, listed) in all.entries_after(range.offset) {
            if !listing.add_name(new_name_record(listed, *next)) {
                break;
            }
        }
        self.answer_listing(call.head.node, listing, later)
    }

    pub(super) fn answer_readdirplus(
        &self,
        call: ServedRequest<'_>,
        range: ListingRange,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let dir = call.head.node;
        let all = match self.read_listing(call, range) {
            Ok(all) => all,
            Err(error) => return FuseAnswer::Failed(error),
        };
        let mut listing = range.new_listing_up_to(self.posture.listing_max());
        // An entry must not belong to another epoch than the one in which it is held.
        let entered = self.enter_epoch();
        // Whether an entry has room is known only when it is made, and by then it is held.
        let mut rejected = None;
        for (next, listed) in all.entries_after(range.offset) {
            // While the kernel waits for this answer, it locks the directory: no process changes its names. So names
            // that were listed for this request still exist. Those listed for an earlier one may have been moved or
            // replaced.
            let entry = if range.offset == 0 {
                self.listed_entry(listed, dir)
            } else {
                self.current_entry(listed, dir)
            };
            // A name that was removed since is left out.
            let Ok(entry) = entry else { continue };
            let named = NameInAnswer {
                node: entry.attr.ino,
                mode: entry.attr.mode,
                ..new_name_record(listed, *next)
            };
            if !listing.add_name_with_entry(named, &self.limit_timeout(&entry)) {
                rejected = Some((listed, entry.attr.ino));
                break;
            }
        }
        drop(entered);
        // The kernel will not forget an entry that it was not sent.
        if let Some((_, node)) = rejected.filter(|(listed, _)| !listed.is_dot_name()) {
            self.forget_node(node, 1);
        }
        self.answer_listing(dir, listing, later)
    }

    fn read_listing(&self, call: ServedRequest<'_>, range: ListingRange) -> Result<Arc<DirListing>, Errno> {
        let node = call.head.node;
        self.serve_request(call, || {
            if range.offset == 0 && matches!(NodePlace::from_node(node), NodePlace::Main(..)) {
                // Recorded before it is listed: a restore in between must find it.
                self.cache_tracker.listings.record_node(node);
            }
            self.listings.get_or_list(node, range.offset, || self.list_names(node))
        })
    }

    /// Answers with a listing. The kernel caches it until it learns of a change of the directory. A directory of a past
    /// epoch changes under its new node id, so the kernel would not learn of that: its cache is dropped before it gets
    /// the listing, which makes it compare the directory's times from then on.
    fn answer_listing(&self, node: u64, listing: ListingAnswer, later: DeferredReply<'_>) -> FuseAnswer {
        let stale = self.is_past_node(node).then(|| StaleCache::for_node(node));
        self.answer_after_invalidation(FuseAnswer::Bytes(listing.into_bytes()), stale, later)
    }

    /// The names of a directory, beginning with `.` and `..`.
    fn list_names(&self, dir: u64) -> Result<Vec<ListedDirName>> {
        let parent = self.parent_dir(dir)?.to_node().unwrap_or(Ino::ROOT.0);
        let dots = [(b".".to_vec(), dir), (b"..".to_vec(), parent)];
        let mut listing: Vec<_> =
            dots.into_iter().map(|(name, node)| ListedDirName { name, node, kind: FileKind::Dir }).collect();
        match self.inode_owner(dir)? {
            InodeOwner::Live(fs, ino) => {
                listing.extend(fs.list_entries(ino)?.into_iter().map(|entry| ListedDirName {
                    name: entry.name,
                    // A node id of 0 means that the kernel shows no number. The name can still be looked up.
                    node: NodePlace::Main(fs.epochs().current_epoch(), entry.ino).to_node().unwrap_or(0),
                    kind: entry.kind,
                }));
            }
            // Directories of a past state are answered from the present one.
            InodeOwner::Past(..) => return Err(Errno::NOTDIR.into()),
            InodeOwner::Removed(_) => {}
            InodeOwner::Frozen(tree, ino) => {
                listing.extend(tree.list_entries(ino)?.into_iter().map(|(name, child)| ListedDirName {
                    name,
                    node: sibling_place(dir, child.ino).to_node().unwrap_or(0),
                    kind: child.kind,
                }));
            }
            InodeOwner::Virtual(number) => listing.extend(self.virt.list_entries(number)?),
        }
        Ok(listing)
    }

    /// The entry of a name that was listed for this request. Like each answer that names a node, it holds the node.
    fn listed_entry(&self, listed: &ListedDirName, dir: u64) -> Result<EntryAnswer> {
        let entry = self.listed_attr(listed, dir)?;
        if !listed.is_dot_name() {
            self.hold_entry(&entry)?;
        }
        Ok(entry)
    }

    /// The entry of a name that was listed for an earlier request. The kernel caches the entry under this name, so the
    /// name is looked up again: the inode that it had may exist elsewhere by now.
    fn current_entry(&self, listed: &ListedDirName, dir: u64) -> Result<EntryAnswer> {
        match self.inode_owner(dir)? {
            InodeOwner::Live(..) if !listed.is_dot_name() => self.lookup(dir, &listed.name),
            InodeOwner::Frozen(..) if self.posture.replaces_trees() && !listed.is_dot_name() => {
                self.lookup(dir, &listed.name)
            }
            // These do not change.
            InodeOwner::Live(..)
            | InodeOwner::Past(..)
            | InodeOwner::Removed(_)
            | InodeOwner::Frozen(..)
            | InodeOwner::Virtual(_) => self.listed_entry(listed, dir),
        }
    }

    fn listed_attr(&self, listed: &ListedDirName, dir: u64) -> Result<EntryAnswer> {
        match (NodePlace::from_node(dir), NodePlace::from_node(listed.node)) {
            // Nothing is read of a snapshot that is only listed: the kernel asks again before it uses anything but the
            // name.
            (NodePlace::Virtual(_), place @ NodePlace::Snapshot(..)) => {
                let unread = new_plain_entry(place, &self.virt.unread_snapshot_attr(listed.kind))?;
                Ok(EntryAnswer { timeout: Duration::ZERO, ..unread })
            }
            // Some virtual files are made when they are looked up.
            (NodePlace::Virtual(_), NodePlace::Main(..) | NodePlace::Virtual(_)) => {
                Ok(EntryAnswer { timeout: Duration::ZERO, ..self.getattr(listed.node)? })
            }
            (NodePlace::Main(..) | NodePlace::Snapshot(..), _) => self.getattr(listed.node),
        }
    }
}
