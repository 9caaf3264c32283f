//! A live worktree of a new volume.

use std::io;
use std::ops::Deref;

use tempfile::TempDir;
use vellum_library::{Result, Volume, VolumeOptions, Worktree};

pub struct Stand {
    pub work: Worktree,
    pub volume: Volume,
    pub dir: TempDir,
}

impl Deref for Stand {
    type Target = Worktree;

    fn deref(&self) -> &Worktree {
        &self.work
    }
}

impl Stand {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let volume =
            Volume::create_with(dir.path(), &VolumeOptions { plain: true, ..VolumeOptions::default() })
                .unwrap()
                .volume;
        let work = volume.create_worktree("work", None).unwrap();
        Self { work, volume, dir }
    }

    /// Closes everything and opens it again.
    pub fn again(self) -> Self {
        let Self { work, volume, dir } = self;
        drop((work, volume));
        let volume = Volume::open(dir.path()).unwrap();
        let work = volume.open_worktree("work").unwrap();
        Self { work, volume, dir }
    }
}

/// The kind of what must fail.
#[track_caller]
pub fn kind<T>(result: Result<T>) -> io::ErrorKind {
    match result {
        Ok(_) => panic!("it must fail"),
        Err(error) => error.io_kind(),
    }
}
