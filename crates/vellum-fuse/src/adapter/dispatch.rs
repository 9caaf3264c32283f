//! The dispatch: which method answers which operation.
//!
//! Invariant: the match has no wildcard arm, so that a new operation does not compile until it is answered.
//!
//! Deliberately absent: `access` (the kernel checks permissions). An exclusive mount does not answer `open`, `opendir`,
//! `flush` and `create` (the kernel caches and writes back pages by itself, and opens files by itself).

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::content::{FilePosition, WrittenContent};
use super::listing::ListingRange;
use super::opening::FileCreation;
use super::{FuseAdapter, InodeOwner, MountedState};
use crate::metrics::ServedRequest;
use crate::transport::{DeferredReply, RequestService};
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest};

impl RequestService for FuseAdapter {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        use FuseOperation as Do;
        let call = ServedRequest { head: &request.header, operation: &operation };
        match operation {
            Do::Lookup { name } => self.answer_lookup(call, name),
            Do::Forget { times } => self.answer_forget(call.head.node, times),
            Do::BatchForget(forgotten) => self.answer_batch_forget(forgotten),
            Do::Getattr => self.answer_getattr(call),
            Do::Statx => self.answer_statx(call),
            Do::Setattr(changes) => self.answer_setattr(call, &changes),
            Do::Statfs => self.answer_statfs(call),
            Do::Ioctl { command, input, room } => self.answer_ioctl(call.head.node, command, input, room),
            Do::Readlink => self.answer_readlink(call),
            Do::Read { offset, len, direct } => self.answer_read(call, offset, len, direct),
            Do::Write { offset, flags, data } => {
                self.answer_write(call, offset, flags, WrittenContent::Bytes(data), later)
            }
            Do::WriteStored { offset, flags, chunks } => {
                self.answer_write(call, offset, flags, WrittenContent::Stored(chunks), later)
            }
            Do::Lseek { offset, whence } => self.answer_lseek(call, offset, whence, later),
            Do::Fallocate { offset, len, mode } => self.answer_fallocate(call, offset, len, mode, later),
            Do::CopyFileRange { offset, to, to_offset, len, wide } => {
                self.answer_copy_range(call, offset, FilePosition { node: to, offset: to_offset }, len, wide)
            }
            Do::Fsync { .. } | Do::Fsyncdir { .. } => self.answer_fsync(call),
            Do::Readdir { offset, room } => self.answer_readdir(call, ListingRange { offset, room }, later),
            Do::Readdirplus { offset, room } => {
                self.answer_readdirplus(call, ListingRange { offset, room }, later)
            }
            Do::Mknod { name, mode, device, umask } => self.answer_mknod(call, name, mode, device, umask),
            Do::Mkdir { name, mode, umask } => self.answer_mkdir(call, name, mode, umask),
            Do::Symlink { name, target } => self.answer_symlink(call, name, target),
            Do::Link { node, name } => self.answer_link(call, node, name),
            Do::Tmpfile { mode, umask } => self.answer_tmpfile(call, mode, umask),
            Do::Create { name, flags, mode, umask } => {
                let flags = OFlags::from_bits_retain(flags);
                self.answer_create(call, FileCreation { name, flags, mode, umask })
            }
            Do::Open { flags } => self.answer_open(call, flags),
            Do::Opendir => self.answer_opendir(call),
            Do::Flush { handle, owner } => self.answer_flush(call.head.node, handle, owner),
            Do::Release { handle, flock_owner } => self.answer_release(call.head.node, handle, flock_owner),
            Do::Getlk(lock) => self.answer_getlk(call, &lock),
            Do::Setlk { lock, waits } => self.answer_setlk(call, &lock, waits, later),
            Do::Interrupt { unique } => self.answer_interrupt(unique),
            Do::Unlink { name } => self.answer_unlink(call, name),
            Do::Rmdir { name } => self.answer_rmdir(call, name),
            Do::Rename { name, to_dir, to_name, flags } => {
                self.answer_rename(call, name, to_dir, to_name, flags)
            }
            Do::Getxattr { name, room } => self.answer_getxattr(call, name, room),
            Do::Listxattr { room } => self.answer_listxattr(call, room),
            Do::Setxattr { name, value, flags, drops_set_gid } => {
                self.answer_setxattr(call, name, value, flags, drops_set_gid)
            }
            Do::Removexattr { name } => self.answer_removexattr(call, name),
            // Nothing is kept for an open directory, and the unmount shows at the device.
            Do::Releasedir | Do::Destroy => FuseAnswer::Done,
            // The handshake was before the first request that arrives here.
            Do::Init(_) => FuseAnswer::Failed(Errno::IO),
            Do::Unknown => FuseAnswer::Failed(Errno::NOSYS),
        }
    }

    fn is_content_cached(&self, node: u64, offset: u64, len: u32) -> bool {
        match self.inode_owner(node) {
            Ok(InodeOwner::Live(fs, ino)) => fs.content().is_content_cached(ino, offset, len as usize),
            Ok(
                InodeOwner::Past(..)
                | InodeOwner::Frozen(..)
                | InodeOwner::Virtual(_)
                | InodeOwner::Removed(_),
            )
            | Err(_) => false,
        }
    }

    fn may_write_wait(&self, len: usize) -> bool {
        match &self.main {
            MountedState::Live(fs) => fs.write_log().is_nearly_full(len as u64),
            // A write to it fails at once.
            MountedState::Frozen(_) | MountedState::Followed(_) => false,
        }
    }

    fn may_change_wait(&self) -> bool {
        match &self.main {
            MountedState::Live(fs) => fs.may_change_wait(),
            MountedState::Frozen(_) | MountedState::Followed(_) => false,
        }
    }
}
