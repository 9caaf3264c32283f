//! Opening: requests that a mount answers whose kernel does not open files by itself.
//!
//! Invariant: the node of an open file is held because the kernel knows it, as long as it is open. Its handle only says
//! through which open file something was locked.

use rustix::fs::OFlags;
use rustix::io::Errno;
use vellum_fs::{AttributeChanges, FsError, Result};
use vellum_types::FileKind;

use super::entry::hold_live_entry;
use super::names::{PERMISSIONS, without_content};
use super::{FuseAdapter, request_caller};
use crate::metrics::ServedRequest;
use crate::wire::{EntryAnswer, FuseAnswer, OpenFileAnswer, SmallAnswer};

/// What a request that creates a file and opens it wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileCreation<'a> {
    pub name: &'a [u8],
    /// The flags of `open`.
    pub flags: OFlags,
    pub mode: u32,
    pub umask: u32,
}

impl FuseAdapter {
    /// Opens a file, and truncates it if the program wants that. The kernel has checked the permissions.
    pub(super) fn answer_open(&self, call: ServedRequest<'_>, flags: u32) -> FuseAnswer {
        if !self.posture.answers_open() {
            // The kernel opens this file and all further ones by itself.
            return FuseAnswer::Failed(Errno::NOSYS);
        }
        let open = || {
            let is_truncated = OFlags::from_bits_retain(flags).contains(OFlags::TRUNC);
            let changes = AttributeChanges { size: Some(0), ..AttributeChanges::default() };
            // What is gone cannot be opened.
            let entry =
                if is_truncated { self.setattr(call, &changes) } else { self.getattr(call.head.node) };
            entry.map(drop)
        };
        self.answer_small(call, open, |()| SmallAnswer::for_open_file(self.open_file()))
    }

    /// Opens a directory. The kernel caches no listing of it.
    pub(super) fn answer_opendir(&self, call: ServedRequest<'_>) -> FuseAnswer {
        if !self.posture.answers_open() {
            return FuseAnswer::Failed(Errno::NOSYS);
        }
        match self.getattr(call.head.node) {
            Ok(_) => FuseAnswer::Small(SmallAnswer::for_open_file(OpenFileAnswer { handle: 0, flags: 0 })),
            Err(error) => FuseAnswer::Failed(self.report_error(call, &error)),
        }
    }

    /// A descriptor was closed. What was written through it is in the worktree since it was written.
    pub(super) fn answer_flush(&self, node: u64, handle: u64, owner: u64) -> FuseAnswer {
        self.end_descriptor_locks(node, handle, owner);
        // Without requests that open files the kernel sends none of these, either, once it was answered so.
        if self.posture.answers_open() { FuseAnswer::Done } else { FuseAnswer::Failed(Errno::NOSYS) }
    }

    /// Creates a file and opens it.
    pub(super) fn answer_create(&self, call: ServedRequest<'_>, creation: FileCreation<'_>) -> FuseAnswer {
        if !self.posture.answers_open() {
            // The kernel sends `mknod` instead.
            return FuseAnswer::Failed(Errno::NOSYS);
        }
        let create = || self.create_file(call, creation);
        self.answer_entry(call, create, |entry| SmallAnswer::for_created_file(entry, self.open_file()))
    }

    /// How a file without a name is opened: by the kernel itself, unless it has locks.
    pub(super) fn open_tmpfile(&self) -> OpenFileAnswer {
        if self.posture.answers_open() {
            self.open_file()
        } else {
            OpenFileAnswer { handle: 0, flags: self.posture.open_file_flags() }
        }
    }

    fn create_file(&self, call: ServedRequest<'_>, creation: FileCreation<'_>) -> Result<EntryAnswer> {
        let FileCreation { name, flags, mode, umask } = creation;
        let (fs, dir) = self.live_dir(call.head.node, name)?;
        let caller = request_caller(call.head, umask);
        match fs.names().mknod(dir, name, FileKind::File, mode & PERMISSIONS, 0, caller) {
            Ok(made) => hold_live_entry(fs, &without_content(&made)),
            // Another machine has created it since the kernel looked. Whether the program may open it is for the kernel
            // to check: it looks again after `ESTALE`.
            Err(FsError::Posix(Errno::EXIST)) if !flags.contains(OFlags::EXCL) => Err(Errno::STALE.into()),
            Err(error) => Err(error),
        }
    }
}
