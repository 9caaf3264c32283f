//! Requests of the kernel, decoded and carried out: each is watched by the tally, answered, and if something beneath
//! failed, reported.
//!
//! The kernel is the only one who changes the mounted state, through the lease; so it may keep names and attributes
//! for as long as it likes. What it must forget, others tell it (never a thread that answers requests: it could wait
//! for itself).

mod modify;
mod requests;
pub mod seeking;
mod view;

use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileAttr, InitFlags, Request};
use vellum_fs::frozen::Frozen;
use vellum_fs::{Caller, Entered, Epoch, Fs, FsError, Result};
use vellum_types::{FileKind, Ino};

use crate::dirs::Dirs;
use crate::forget::Missed;
use crate::node::Place;
use crate::tally::{Asked, Op, Tally};
use crate::virt::Virtual;
use seeking::Seeking;

/// How long the kernel may believe what it was told of the mounted state, and of snapshots: as long as it likes.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// What the kernel is asked to do, as far as it can.
const WANTED: [InitFlags; 12] = [
    // Opening and closing need nothing of us: the kernel does not ask.
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    // Whether the umask counts depends on default ACLs, which only the filesystem knows.
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_WRITEBACK_CACHE,
    InitFlags::FUSE_PARALLEL_DIROPS,
    // Also lets the kernel remember that a file has no capabilities, instead of asking before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // Pages go only when somebody says so.
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_MAX_PAGES,
];

/// Largest write that the kernel sends in one request, bytes: the most that it does without being told otherwise by
/// its administrator.
const MAX_WRITE: u32 = 1 << 20;

/// Requests that the kernel keeps going without anybody waiting: readahead and write-back.
const MAX_BACKGROUND: u16 = 64;

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
    pub(crate) missed: Arc<Missed>,
    pub(crate) seeking: Seeking,
    pub(crate) report: Arc<Report>,
}

/// A node with its attributes, and how long the kernel may believe them.
#[derive(Debug)]
pub(crate) struct Known {
    pub attr: FileAttr,
    pub generation: u64,
    pub patience: Duration,
}

/// Whose an inode is.
enum Owner<'a> {
    Live(&'a Arc<Fs>, Ino),
    /// A file of a state that the worktree does not stand on any more.
    Past(&'a Arc<Fs>, Epoch, Ino),
    Frozen(Arc<Frozen>, Ino),
    Virtual(u64),
}

impl Adapter {
    /// Carries out a request on a node: counts it, logs it, and reports what should not have happened.
    fn serve<T>(
        &self,
        op: Op,
        req: &Request,
        node: u64,
        name: &[u8],
        work: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        let asked = Asked { op, who: (req.uid(), req.gid(), req.pid()), node, name };
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
            (self.report)(&format!("{}: {}", self.name_of(asked.node), chain(error)));
        }
        Errno::from_i32(error.errno().raw_os_error())
    }

    fn owner(&self, node: u64) -> Result<Owner<'_>> {
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

    /// The live worktree, for changing this inode of it.
    fn live(&self, node: u64) -> Result<(&Arc<Fs>, Ino)> {
        match self.owner(node)? {
            Owner::Live(fs, ino) => Ok((fs, ino)),
            Owner::Past(..) => Err(rustix::io::Errno::STALE.into()),
            Owner::Frozen(..) | Owner::Virtual(_) => Err(rustix::io::Errno::ROFS.into()),
        }
    }
}

/// Whose an inode of a past epoch is. Who has a file open sees what it was; who stands in a directory, what it is.
fn past(fs: &Arc<Fs>, epoch: Epoch, ino: Ino) -> Result<Owner<'_>> {
    match fs.past_attr(epoch, ino) {
        Ok(attr) if attr.kind != FileKind::Dir => return Ok(Owner::Past(fs, epoch, ino)),
        Err(error) if error.errno() != rustix::io::Errno::STALE => return Err(error),
        // Of a state that is gone nothing was known any more but directories.
        Ok(_) | Err(_) => {}
    }
    match fs.getattr(ino)?.attr.kind {
        FileKind::Dir => Ok(Owner::Live(fs, ino)),
        _ => Err(rustix::io::Errno::STALE.into()),
    }
}

fn caller(req: &Request, umask: u32) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), umask }
}

fn chain(error: &FsError) -> String {
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
