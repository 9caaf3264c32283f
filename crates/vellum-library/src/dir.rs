//! A directory of a live worktree, and all that can be done below it.
//!
//! Deliberately absent: permission checks. Whoever has the volume's key may do everything; what is made belongs to the
//! user and group of this process.

mod attributes;
mod content;
mod names;

use std::sync::Arc;

use vellum_fs::{Caller, Fs};
use vellum_types::Dentry;

use crate::paths::Reader;
use crate::source::{Live, Source};
use crate::tree::{Tree, sealed::Rooted};

/// A directory of a live worktree. It can be cloned, and shared among threads.
#[derive(Clone)]
pub struct Dir {
    reader: Reader,
    live: Arc<Live>,
}

impl Dir {
    /// The whole worktree.
    pub(crate) fn whole(live: Arc<Live>) -> Self {
        Self { reader: Reader::new(Source::Live(live.clone())), live }
    }

    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    fn fs(&self) -> &Arc<Fs> {
        &self.live.fs
    }
}

impl Rooted for Dir {
    fn reader(&self) -> &Reader {
        &self.reader
    }

    fn rooted(&self, root: Dentry) -> Self {
        Self { reader: self.reader.rooted(root), live: self.live.clone() }
    }
}

impl Tree for Dir {}

/// This process, for what it makes.
fn caller() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), umask: 0 }
}
