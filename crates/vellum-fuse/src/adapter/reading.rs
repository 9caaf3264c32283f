//! Content, and places in it, of whatever stands behind a node; and what a directory lists, as many names as fit.

use rustix::io::Errno;
use vellum_fs::{Result, Seek};
use vellum_types::Ino;

use super::seeking::{Doubtful, Goal, Look, seek_answer};
use super::{Adapter, Call, Owner};
use crate::attr::kind_bits;
use crate::connection::{Later, MAX_WRITE};
use crate::dirs;
use crate::node::Place;
use crate::tally::Op;
use crate::wire::{Answer, Listed, Listing};

/// Where `lseek` is to go: to data. The other way that the kernel asks for is to a hole.
const SEEK_DATA: u32 = 3;

/// A stretch of an open directory that is to be listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub handle: u64,
    /// How many names were listed already.
    pub offset: u64,
    pub room: u32,
}

impl Stretch {
    /// The names from here on, each with the offset behind it.
    fn names(self, all: &[dirs::Listed]) -> impl Iterator<Item = (u64, &dirs::Listed)> {
        (1..).zip(all).skip(usize::try_from(self.offset).unwrap_or(usize::MAX))
    }

    fn listing(self) -> Listing {
        Listing::new(bounded(self.room))
    }
}

/// Whoever asks for more than one request carries gets that.
fn bounded(len: u32) -> usize {
    usize::try_from(len).map_or(MAX_WRITE, |len| len.min(MAX_WRITE))
}

fn record(listed: &dirs::Listed, next: u64) -> Listed<'_> {
    Listed { name: &listed.name, node: listed.node, mode: kind_bits(listed.kind), next }
}

impl Adapter {
    pub(super) fn answer_read(&self, call: Call<'_>, offset: u64, len: u32) -> Answer {
        let at = (offset, bounded(len));
        let done = self.serve(Op::Read, call, || self.read_node(call.head.node, at));
        if let Ok(bytes) = &done {
            self.tally.read(bytes.len());
        }
        Answer::of_bytes(done)
    }

    fn read_node(&self, node: u64, at: (u64, usize)) -> Result<Vec<u8>> {
        let (offset, len) = at;
        match self.owner(node)? {
            Owner::Live(fs, ino) => {
                let epoch = fs.epoch();
                let read = fs.read(ino, offset, len);
                // It was restored meanwhile: what was read may be of the new state.
                if fs.epoch() == epoch { read } else { self.read_node(node, at) }
            }
            Owner::Past(fs, epoch, ino) => fs.read_from(epoch, ino, offset, len),
            Owner::Frozen(tree, ino) => tree.read(ino, offset, len),
            Owner::Virtual(number) => self.virt.read(number, offset, len),
        }
    }

    /// Finds data or a hole: in a live file, if pages of the kernel's may say otherwise, later, when they are here.
    pub(super) fn answer_seek(&self, call: Call<'_>, at: (u64, u32), later: Later<'_>) -> Answer {
        let (offset, whence) = at;
        let Ok(Owner::Live(fs, ino)) = self.owner(call.head.node) else {
            return seek_answer(self.serve(Op::Lseek, call, || self.seek_node(call.head.node, at)));
        };
        let goal = Goal { offset, seek: if whence == SEEK_DATA { Seek::Data } else { Seek::Hole } };
        let find = |at, seek| fs.seek(ino, at, seek);
        match self.serve(Op::Lseek, call, || goal.look(&find)) {
            Err(error) => Answer::Failed(error),
            Ok(Look { found, doubt: None }) => seek_answer(found),
            Ok(look) => {
                let (fs, unanswered) = (fs.clone(), later.take());
                let find = move |at, seek| fs.seek(ino, at, seek);
                let done = move |done| unanswered.answer(seek_answer(done));
                self.seeking.settle(Doubtful::new(call.head.node, goal, look, find, done));
                Answer::None
            }
        }
    }

    fn seek_node(&self, node: u64, (offset, whence): (u64, u32)) -> Result<u64> {
        match self.owner(node)? {
            // Of a live one, the kernel may have pages that we have not been given.
            Owner::Live(..) | Owner::Past(..) => Err(Errno::STALE.into()),
            Owner::Frozen(tree, ino) => tree.seek(ino, offset, whence == SEEK_DATA),
            Owner::Virtual(_) => Err(Errno::INVAL.into()),
        }
    }

    pub(super) fn answer_readdir(&self, call: Call<'_>, stretch: Stretch) -> Answer {
        let all = match self.names(call, stretch) {
            Ok(all) => all,
            Err(error) => return Answer::Failed(error),
        };
        let mut listing = stretch.listing();
        for (next, listed) in stretch.names(&all) {
            if !listing.add(record(listed, next)) {
                break;
            }
        }
        Answer::Bytes(listing.into_bytes())
    }

    pub(super) fn answer_readdirplus(&self, call: Call<'_>, stretch: Stretch) -> Answer {
        let all = match self.names(call, stretch) {
            Ok(all) => all,
            Err(error) => return Answer::Failed(error),
        };
        let mut listing = stretch.listing();
        // What is told must still be there when it is held.
        let entered = self.enter();
        let mut untold = None;
        for (next, listed) in stretch.names(&all) {
            // What went away since the directory was listed is left out.
            let Ok(entry) = self.listed(listed, call.head.node) else { continue };
            if !listing.add_known(record(listed, next), &entry) {
                untold = Some(listed);
                break;
            }
        }
        drop(entered);
        if let Some(listed) = untold.filter(|listed| !matches!(listed.name.as_slice(), b"." | b"..")) {
            self.forget_node(listed.node, 1);
        }
        Answer::Bytes(listing.into_bytes())
    }

    fn names(&self, call: Call<'_>, stretch: Stretch) -> std::result::Result<dirs::Listing, Errno> {
        let list = || self.dirs.listing(stretch.handle, stretch.offset, || self.list(call.head.node));
        self.serve(Op::Readdir, call, list)
    }

    /// Whether a directory lists the same until it is changed through this mount.
    pub(super) fn is_steady(&self, owner: &Owner<'_>, node: u64) -> bool {
        match (owner, Place::of(node)) {
            // In one of a past epoch the kernel may remember what was listed then.
            (Owner::Live(fs, ino), Place::Main(epoch, _)) => *ino == Ino::ROOT || epoch == fs.epoch(),
            (Owner::Virtual(_), _) => false,
            _ => true,
        }
    }
}
