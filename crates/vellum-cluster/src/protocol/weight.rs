//! What a request takes of a server's memory until its answer is sent.
//!
//! Invariant: client and server compute the same, so that a client can stay within the server's limit.

use vellum_fuse::transport::MAX_WRITE;
use vellum_fuse::wire::{FuseOperation, FuseRequest};

use super::{COMMAND_MAX, COMMAND_OPCODE};

/// What every request takes besides, bytes: its head, its place in tables, and an answer of a fixed size.
const REQUEST_WEIGHT: usize = 512;

/// The weight of a request, bytes: of what it brings, and of the longest answer that it can get. `operation`: what it asks
/// for; None: nothing that has an answer with a body.
#[must_use]
pub fn weigh_request(request: &FuseRequest<'_>, operation: Option<&FuseOperation<'_>>) -> usize {
    REQUEST_WEIGHT + request.body().len() + answer_room(request, operation)
}

fn answer_room(request: &FuseRequest<'_>, operation: Option<&FuseOperation<'_>>) -> usize {
    if request.header.opcode == COMMAND_OPCODE {
        // A command is no operation of the kernel, and its body would not decode as one.
        return COMMAND_MAX;
    }
    use FuseOperation as Do;
    let room = match operation {
        Some(
            Do::Read { len: room, .. }
            | Do::Readdir { room, .. }
            | Do::Readdirplus { room, .. }
            | Do::Getxattr { room, .. }
            | Do::Listxattr { room }
            | Do::Ioctl { room, .. },
        ) => *room,
        // A link's target has at most `PATH_MAX` bytes.
        Some(Do::Readlink) => 4096,
        Some(
            Do::Init(_)
            | Do::Destroy
            | Do::Lookup { .. }
            | Do::Forget { .. }
            | Do::BatchForget(_)
            | Do::Getattr
            | Do::Statx
            | Do::Setattr(_)
            | Do::Symlink { .. }
            | Do::Mknod { .. }
            | Do::Mkdir { .. }
            | Do::Tmpfile { .. }
            | Do::Create { .. }
            | Do::Open { .. }
            | Do::Opendir
            | Do::Unlink { .. }
            | Do::Rmdir { .. }
            | Do::Rename { .. }
            | Do::Link { .. }
            | Do::Write { .. }
            | Do::WriteStored { .. }
            | Do::Flush { .. }
            | Do::Release { .. }
            | Do::Releasedir
            | Do::Getlk(_)
            | Do::Setlk { .. }
            | Do::Interrupt { .. }
            | Do::Statfs
            | Do::Fsync { .. }
            | Do::Fsyncdir { .. }
            | Do::Setxattr { .. }
            | Do::Removexattr { .. }
            | Do::Fallocate { .. }
            | Do::Lseek { .. }
            | Do::CopyFileRange { .. }
            | Do::Unknown,
        )
        | None => 0,
    };
    // A kernel asks for no more than was agreed with it. A hostile client may name 4 GiB, and gets no more than MAX_WRITE.
    usize::try_from(room).unwrap_or(MAX_WRITE).min(MAX_WRITE)
}

/// Whether the answer to a request is kept for a client that may not have got it. What changes nothing, and names no node,
/// is answered anew instead.
#[must_use]
pub fn is_answer_kept(request: &FuseRequest<'_>) -> bool {
    !matches!(
        request.decode_operation(),
        Ok(FuseOperation::Read { .. }
            | FuseOperation::Readdir { .. }
            | FuseOperation::Readlink
            | FuseOperation::Getxattr { .. }
            | FuseOperation::Listxattr { .. }
            | FuseOperation::Getlk(_))
    )
}
