//! Requests of the kernel, decoded and carried out: each is watched by the tally, answered, and if something beneath
//! failed, reported.
//!
//! The kernel is the only one who changes the mounted state, through the lease; so it may keep names and attributes
//! for as long as it likes. What it must forget, others tell it (never a thread that answers requests: it could wait
//! for itself).

mod modify;
mod reading;
pub(crate) mod removed;
mod requests;
pub mod seeking;
mod view;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::frozen::Frozen;
use vellum_fs::{Caller, Entered, Epoch, Fs, FsError, Result};
use vellum_types::{Attr, FileKind, Ino};

use crate::dirs::{Dirs, Remembered};
use crate::forget::Missed;
use crate::node::Place;
use crate::orphans::OrphanRemover;
use crate::tally::line::Told;
use crate::tally::{Asked, Op, Tally};
use crate::virt::Virtual;
use crate::wire::{Header, Operation};
use removed::RemovedDirs;
use seeking::Seeking;

/// How long the kernel may believe what it was told of the mounted state, and of snapshots: as long as it likes.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Called with what went wrong beneath the filesystem, for the mount's log.
pub type Report = dyn Fn(&str) + Send + Sync;

/// The state that is mounted.
pub enum Main {
    /// A live worktree.
    Live(Arc<Fs>),
    /// A snapshot.
    Frozen(Arc<Frozen>),
}

/// Answers the kernel.
pub struct Adapter {
    pub(crate) main: Main,
    pub(crate) virt: Virtual,
    pub(crate) tally: Arc<Tally>,
    pub(crate) dirs: Dirs,
    pub(crate) remembered: Arc<Remembered>,
    pub(crate) missed: Arc<Missed>,
    pub(crate) removed: RemovedDirs,
    /// Files of which the kernel may have pages.
    pub(crate) paged: Remembered,
    pub(crate) seeking: Seeking,
    pub(crate) report: Arc<Report>,
    /// Of a live worktree.
    pub(crate) orphans: Option<OrphanRemover>,
}

/// A request as the kernel sent it.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    head: &'a Header,
    what: &'a Operation<'a>,
}

/// Whose an inode is.
enum Owner<'a> {
    Live(&'a Arc<Fs>, Ino),
    /// A file of a state that the worktree does not stand on any more.
    Past(&'a Arc<Fs>, Epoch, Ino),
    Frozen(Arc<Frozen>, Ino),
    Virtual(u64),
    /// A directory that was removed while somebody has it.
    Removed(Box<Attr>),
}

impl Adapter {
    /// Carries out a request on a node: counts it, logs it, and reports what should not have happened.
    fn serve<T: Told>(
        &self,
        op: Op,
        call: Call<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        let asked = Asked { op, head: call.head, what: call.what };
        // A read may wait for a store that is far away: a restore does not wait for that.
        let _entered = if op == Op::Read { None } else { self.enter() };
        self.tally.watch(asked, work).map_err(|error| self.errno(asked, &error))
    }

    /// Keeps the worktree on the state that it stands on.
    fn enter(&self) -> Option<Entered<'_>> {
        match &self.main {
            Main::Live(fs) => Some(fs.enter()),
            Main::Frozen(_) => None,
        }
    }

    fn errno(&self, asked: Asked<'_>, error: &FsError) -> Errno {
        // That another took the worktree over is told once, by who finds out.
        if !matches!(error, FsError::Posix(_)) && !error.is_fenced() {
            (self.report)(&format!("{}: {}", self.name_of(asked.head.node), chain(error)));
        }
        error.errno()
    }

    fn owner(&self, node: u64) -> Result<Owner<'_>> {
        if let Some(attr) = self.removed.attr(node) {
            return Ok(Owner::Removed(Box::new(attr)));
        }
        Ok(match Place::of(node) {
            Place::Main(epoch, ino) => match &self.main {
                Main::Live(fs) if ino == Ino::ROOT || epoch == fs.epoch() => Owner::Live(fs, ino),
                Main::Live(fs) => past(fs, epoch, ino)?,
                Main::Frozen(tree) => Owner::Frozen(tree.clone(), ino),
            },
            Place::Snapshot(slot, ino) => Owner::Frozen(self.virt.tree(slot)?, ino),
            Place::Virtual(number) => Owner::Virtual(number),
        })
    }

    /// Whether a node is of a state that the worktree does not stand on any more.
    fn is_of_past(&self, node: u64) -> bool {
        match (&self.main, Place::of(node)) {
            (Main::Live(fs), Place::Main(epoch, ino)) => ino != Ino::ROOT && epoch != fs.epoch(),
            _ => false,
        }
    }

    /// How long the kernel may believe what it is told of a node: not at all of what changes without its knowing.
    fn patience(&self, node: u64) -> Duration {
        let changes = match Place::of(node) {
            Place::Virtual(number) => self.virt.changes(number),
            _ => self.is_of_past(node),
        };
        if changes { Duration::ZERO } else { LONG }
    }

    /// The live worktree, for changing this inode of it.
    fn live(&self, node: u64) -> Result<(&Arc<Fs>, Ino)> {
        match self.owner(node)? {
            Owner::Live(fs, ino) => Ok((fs, ino)),
            Owner::Past(..) => Err(Errno::STALE.into()),
            // Nothing can be made in a directory that is removed.
            Owner::Removed(_) => Err(Errno::NOENT.into()),
            Owner::Frozen(..) | Owner::Virtual(_) => Err(Errno::ROFS.into()),
        }
    }
}

/// Whose an inode of a past epoch is. Who has a file open sees what it was; who stands in a directory, what it is.
fn past(fs: &Arc<Fs>, epoch: Epoch, ino: Ino) -> Result<Owner<'_>> {
    match fs.past_attr(epoch, ino) {
        Ok(attr) if attr.kind != FileKind::Dir => return Ok(Owner::Past(fs, epoch, ino)),
        Err(error) if error.errno() != Errno::STALE => return Err(error),
        // Of a state that is gone nothing was known any more but directories.
        Ok(_) | Err(_) => {}
    }
    match fs.getattr(ino)?.attr.kind {
        FileKind::Dir => Ok(Owner::Live(fs, ino)),
        _ => Err(Errno::STALE.into()),
    }
}

fn caller(header: &Header, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask }
}

pub(crate) fn chain(error: &FsError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
