//! Content and positions in it, of any kind of node; and directory listings, as many names as fit.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::{Result, SeekTarget};

use super::seeking::{SeekFinding, SeekGoal, StaleCache, UncertainSeek, build_seek_answer};
use super::{AdapterCall, FuseAdapter, InodeOwner, MountedState};
use crate::attr::file_kind_bits;
use crate::connection::{DeferredReply, MAX_WRITE};
use crate::dirs;
use crate::node::NodePlace;
use crate::tally::RequestKind;
use crate::wire::{FuseAnswer, ListingAnswer, NameInAnswer};

/// Where `lseek` is to go: to data. The other way that the kernel asks for is to a hole.
const SEEK_DATA: u32 = 3;

/// A stretch of a directory that is to be listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingRange {
    /// The place of the last name that was listed already.
    pub offset: u64,
    pub room: u32,
}

impl ListingRange {
    fn new_listing(self) -> ListingAnswer {
        ListingAnswer::new(limit_read_len(self.room))
    }
}

/// Whoever asks for more than one request carries gets that.
fn limit_read_len(len: u32) -> usize {
    usize::try_from(len).map_or(MAX_WRITE, |len| len.min(MAX_WRITE))
}

fn new_name_record(listed: &dirs::ListedDirName, next: u64) -> NameInAnswer<'_> {
    NameInAnswer { name: &listed.name, node: listed.node, mode: file_kind_bits(listed.kind), next }
}

impl FuseAdapter {
    pub(super) fn answer_read(
        &self,
        call: AdapterCall<'_>,
        offset: u64,
        len: u32,
        direct: bool,
    ) -> FuseAnswer {
        let len = limit_read_len(len);
        if !direct && matches!(self.main, MountedState::Live(_)) {
            // Before it is read: who writes beside the kernel's pages afterwards must know of them.
            self.paged.record_node(call.head.node);
        }
        let done =
            self.serve_request(RequestKind::Read, call, || self.read_node(call.head.node, offset, len));
        if let Ok(bytes) = &done {
            self.tally.count_read_bytes(bytes.len());
        }
        FuseAnswer::from_bytes_result(done)
    }

    fn read_node(&self, node: u64, offset: u64, len: usize) -> Result<Vec<u8>> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => {
                let epoch = fs.current_epoch();
                let read = fs.read(ino, offset, len);
                // It was restored meanwhile: what was read may be of the new state.
                if fs.current_epoch() == epoch { read } else { self.read_node(node, offset, len) }
            }
            InodeOwner::Past(fs, epoch, ino) => fs.read_past_content(epoch, ino, offset, len),
            InodeOwner::Frozen(tree, ino) => tree.read(ino, offset, len),
            InodeOwner::Virtual(number) => self.virt.read_file(number, offset, len),
            InodeOwner::Removed(_) => Err(Errno::ISDIR.into()),
        }
    }

    /// Finds data or a hole: in a live file, if pages of the kernel's may say otherwise, later, when they are here.
    pub(super) fn answer_seek(
        &self,
        call: AdapterCall<'_>,
        offset: u64,
        whence: u32,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let Ok(InodeOwner::Live(fs, ino)) = self.inode_owner(call.head.node) else {
            return build_seek_answer(
                self.serve_request(RequestKind::Lseek, call, || {
                    self.seek_node(call.head.node, offset, whence)
                }),
            );
        };
        let goal =
            SeekGoal { offset, seek: if whence == SEEK_DATA { SeekTarget::Data } else { SeekTarget::Hole } };
        let find = |at, seek| fs.seek_data_or_hole(ino, at, seek);
        match self.serve_request(RequestKind::Lseek, call, || goal.search_content(&find)) {
            Err(error) => FuseAnswer::Failed(error),
            Ok(SeekFinding { found, doubt: None }) => build_seek_answer(found),
            Ok(look) => {
                let fs = fs.clone();
                let unanswered = later.into_pending();
                let find = move |at, seek| fs.seek_data_or_hole(ino, at, seek);
                let done = move |done| unanswered.send_answer(build_seek_answer(done));
                self.seeking.enqueue_seek(UncertainSeek::new(call.head.node, goal, look, find, done));
                FuseAnswer::Later
            }
        }
    }

    fn seek_node(&self, node: u64, offset: u64, whence: u32) -> Result<u64> {
        match self.inode_owner(node)? {
            // Of a live one, the kernel may have pages that we have not been given.
            InodeOwner::Live(..) | InodeOwner::Past(..) => Err(Errno::STALE.into()),
            InodeOwner::Frozen(tree, ino) => tree.seek_data_or_hole(ino, offset, whence == SEEK_DATA),
            InodeOwner::Virtual(_) | InodeOwner::Removed(_) => Err(Errno::INVAL.into()),
        }
    }

    pub(super) fn answer_readdir(
        &self,
        call: AdapterCall<'_>,
        stretch: ListingRange,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let all = match self.read_listing(call, stretch) {
            Ok(all) => all,
            Err(error) => return FuseAnswer::Failed(error),
        };
        let mut listing = stretch.new_listing();
        for (next, listed) in all.entries_after(stretch.offset) {
            if !listing.add_name(new_name_record(listed, *next)) {
                break;
            }
        }
        self.answer_listing(call.head.node, listing.into_bytes(), later)
    }

    pub(super) fn answer_readdirplus(
        &self,
        call: AdapterCall<'_>,
        stretch: ListingRange,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let all = match self.read_listing(call, stretch) {
            Ok(all) => all,
            Err(error) => return FuseAnswer::Failed(error),
        };
        let mut listing = stretch.new_listing();
        // What is told must still be there when it is held.
        let entered = self.enter_epoch();
        let mut untold = None;
        for (next, listed) in all.entries_after(stretch.offset) {
            // The kernel lets nobody change the names of a directory while it waits for an answer about it: what was
            // listed for this request stands. What was listed for an earlier one may have moved away or been replaced.
            let entry = if stretch.offset == 0 {
                self.listed_entry(listed, call.head.node)
            } else {
                self.current_entry(listed, call.head.node)
            };
            // What went away since the directory was listed is left out.
            let Ok(entry) = entry else { continue };
            let named = NameInAnswer {
                node: entry.attr.ino,
                mode: entry.attr.mode,
                ..new_name_record(listed, *next)
            };
            if !listing.add_name_with_entry(named, &entry) {
                untold = Some((listed, entry.attr.ino));
                break;
            }
        }
        drop(entered);
        if let Some((_, node)) = untold.filter(|(listed, _)| !listed.is_dot_name()) {
            self.forget_node(node, 1);
        }
        self.answer_listing(call.head.node, listing.into_bytes(), later)
    }

    fn read_listing(
        &self,
        call: AdapterCall<'_>,
        stretch: ListingRange,
    ) -> std::result::Result<Arc<dirs::DirListing>, Errno> {
        let node = call.head.node;
        let list = || {
            if stretch.offset == 0 && matches!(NodePlace::from_node(node), NodePlace::Main(..)) {
                self.remembered.record_node(node);
            }
            self.dirs.get_or_list(node, stretch.offset, || self.list_names(node))
        };
        self.serve_request(RequestKind::Readdir, call, list)
    }

    /// The kernel remembers how a directory lists, as long as it knows of no change. One of a past state is changed
    /// under another number: before the kernel hears how it lists, what it knows of it is taken away, so that it looks
    /// at its times from now on.
    fn answer_listing(&self, node: u64, listing: Vec<u8>, later: DeferredReply<'_>) -> FuseAnswer {
        if self.is_past_node(node) {
            let unanswered = later.into_pending();
            self.seeking.enqueue_invalidation(StaleCache::for_node(node), move || {
                unanswered.send_answer(FuseAnswer::Bytes(listing))
            });
            return FuseAnswer::Later;
        }
        FuseAnswer::Bytes(listing)
    }
}
