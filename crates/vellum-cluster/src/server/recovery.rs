//! Answers to requests that an earlier process has carried out, and whose answers it took with it.
//!
//! Invariant: nothing is changed here.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use vellum_fuse::transport::{AnswerSink, RequestService, answer_forwarded_request};
use vellum_fuse::wire::{
    FuseAnswer, FuseOperation, FuseRequest, Opcode, OpenFileAnswer, RequestHeader, SmallAnswer, open_flags,
};

/// A file that an earlier process has opened. What is locked through it ends with the descriptor, or with the session.
const OPEN_FILE: OpenFileAnswer = OpenFileAnswer { handle: 0, flags: open_flags::DIRECT_IO };

/// Whether a request changes the worktree in one step, which is marked.
#[must_use]
pub fn is_marked_operation(operation: &FuseOperation<'_>) -> bool {
    use FuseOperation as Do;
    match operation {
        Do::Setattr(_)
        | Do::Symlink { .. }
        | Do::Mknod { .. }
        | Do::Mkdir { .. }
        | Do::Create { .. }
        | Do::Open { .. }
        | Do::Unlink { .. }
        | Do::Rmdir { .. }
        | Do::Rename { .. }
        | Do::Link { .. }
        | Do::Write { .. }
        | Do::WriteStored { .. }
        | Do::Setxattr { .. }
        | Do::Removexattr { .. } => true,
        // A file without a name is gone with the process that made it. The next two take several steps, and doing them
        // again does the same.
        Do::Tmpfile { .. } | Do::Fallocate { .. } | Do::CopyFileRange { .. } => false,
        Do::Init(_)
        | Do::Destroy
        | Do::Lookup { .. }
        | Do::Forget { .. }
        | Do::BatchForget(_)
        | Do::Getattr
        | Do::Statx
        | Do::Readlink
        | Do::Opendir
        | Do::Read { .. }
        | Do::Flush { .. }
        | Do::Release { .. }
        | Do::Releasedir
        | Do::Getlk(_)
        | Do::Setlk { .. }
        | Do::Interrupt { .. }
        | Do::Statfs
        | Do::Fsync { .. }
        | Do::Fsyncdir { .. }
        | Do::Getxattr { .. }
        | Do::Listxattr { .. }
        | Do::Readdir { .. }
        | Do::Readdirplus { .. }
        | Do::Lseek { .. }
        | Do::Ioctl { .. }
        | Do::Unknown => false,
    }
}

/// Whether a request changes the worktree in several steps, and is marked after the last one. Without the mark, a client
/// would take what was answered for lost with the process. It is done again all the same: that does the same, and only
/// that tells how much was done.
#[must_use]
pub fn is_marked_afterwards(operation: &FuseOperation<'_>) -> bool {
    matches!(operation, FuseOperation::Fallocate { .. } | FuseOperation::CopyFileRange { .. })
}

/// The answer to a marked request that was carried out, from how things stand now. If another client has removed since what
/// it made, the answer is `EIO`: its outcome is not known any more.
#[must_use]
pub fn rebuild_answer(service: &dyn RequestService, request: &FuseRequest<'_>) -> FuseAnswer {
    match describe_outcome(service, request) {
        // A kernel that gets ESTALE looks the path up again and then repeats the request, as a new one: a file that was
        // created and removed would be created a second time.
        FuseAnswer::Failed(Errno::NOENT | Errno::STALE) => FuseAnswer::Failed(Errno::IO),
        answer => answer,
    }
}

fn describe_outcome(service: &dyn RequestService, request: &FuseRequest<'_>) -> FuseAnswer {
    use FuseOperation as Do;
    let node = request.header.node;
    match request.decode_operation() {
        Ok(
            Do::Symlink { name, .. }
            | Do::Mknod { name, .. }
            | Do::Mkdir { name, .. }
            | Do::Link { name, .. },
        ) => look_up(service, node, name),
        Ok(Do::Create { name, .. }) => match look_up(service, node, name) {
            FuseAnswer::Small(entry) => {
                let open = SmallAnswer::for_open_file(OPEN_FILE);
                FuseAnswer::Bytes([entry.answer_body(), open.answer_body()].concat())
            }
            // An error stays what it is: only a success has another form.
            other => other,
        },
        Ok(Do::Open { .. }) => FuseAnswer::Small(SmallAnswer::for_open_file(OPEN_FILE)),
        // Fewer bytes are written only at the largest size of a file.
        Ok(Do::Write { data, .. }) => {
            FuseAnswer::Small(SmallAnswer::for_byte_count(u32::try_from(data.len()).unwrap_or(u32::MAX)))
        }
        Ok(Do::WriteStored { chunks, .. }) => FuseAnswer::Small(SmallAnswer::for_byte_count(
            u32::try_from(chunks.count_bytes()).unwrap_or(u32::MAX),
        )),
        Ok(Do::Setattr(_)) => ask_service(service, Opcode::Getattr, node, &[]),
        // Unlink, rmdir, rename and extended attributes succeed without a body.
        Ok(_) | Err(_) => FuseAnswer::Done,
    }
}

fn look_up(service: &dyn RequestService, dir: u64, name: &[u8]) -> FuseAnswer {
    ask_service(service, Opcode::Lookup, dir, &[name, b"\0"].concat())
}

/// Has a service answer a request of the server itself. It must be of a kind that is answered at once.
pub fn ask_service(service: &dyn RequestService, opcode: Opcode, node: u64, body: &[u8]) -> FuseAnswer {
    let header = RequestHeader { opcode: opcode.number(), unique: 0, node, uid: 0, gid: 0, pid: 0 };
    let answered = Arc::new(DirectAnswer::default());
    let sink: Arc<dyn AnswerSink> = answered.clone();
    answer_forwarded_request(service, &FuseRequest::from_parts(header, body), &sink);
    let answer = answered.0.lock().take();
    // Callers ask only for what is answered before this returns, so that no answer means a fault.
    answer.unwrap_or(FuseAnswer::Failed(Errno::IO))
}

/// The answer to a request of the server itself.
#[derive(Default)]
struct DirectAnswer(Mutex<Option<FuseAnswer>>);

impl AnswerSink for DirectAnswer {
    fn accept_answer(&self, _unique: u64, answer: FuseAnswer) {
        *self.0.lock() = Some(answer);
    }
}
