//! Writes that wait until there is room for them, and changes that wait until they are known to be allowed.
//!
//! While the store takes nothing and the write log is full, writes wait, and other requests must not wait with them: what is
//! here can be read, and the mount can be ended. So a thread of its own carries out these writes, one after the other: they
//! wait for the same room. The same holds for all changes while it is not known who has the worktree.
//!
//! Invariant: no thread that takes requests from the kernel waits for that.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::fs::OFlags;

use super::device::FuseDevice;
use super::ring::{RequestRing, RingSlot};
use super::rings::answer_ring_request;
use super::service::{RequestService, answer_device_request};
use crate::wire::{FuseOperation, FuseRequest};

/// Hands writes that wait to the thread.
#[derive(Clone)]
pub(super) struct WaitingWrites {
    writes: Sender<WaitingWrite>,
}

/// A write, and where its answer goes.
enum WaitingWrite {
    /// As it was read, with the descriptor that it was read from.
    Device(Arc<FuseDevice>, Vec<u8>),
    /// The slot stays in use.
    Ring(Arc<RequestRing>, RingSlot),
}

impl WaitingWrites {
    /// Starts the thread. It ends when all clones of this are dropped and it has carried out all writes. Nobody waits for
    /// that: when the mount has ended, nobody waits for the answers.
    pub fn start<S: RequestService>(service: &Arc<S>) -> io::Result<Self> {
        let (writes, waiting) = channel();
        let service = service.clone();
        std::thread::Builder::new()
            .name("vellum-writes".into())
            .spawn(move || run_waiting_writes(service.as_ref(), &waiting))?;
        Ok(Self { writes })
    }

    /// Has the thread answer a write of the device. The kernel has a bounded number of them under way, which bounds the
    /// memory that these copies take.
    pub fn enqueue_device_write(&self, device: &Arc<FuseDevice>, request: &[u8]) {
        self.enqueue_write(WaitingWrite::Device(device.clone(), request.to_vec()));
    }

    /// Has the thread answer a write of a ring.
    pub fn enqueue_ring_write(&self, ring: &Arc<RequestRing>, slot: RingSlot) {
        self.enqueue_write(WaitingWrite::Ring(ring.clone(), slot));
    }

    fn enqueue_write(&self, write: WaitingWrite) {
        let sent = self.writes.send(write);
        debug_assert!(sent.is_ok(), "the thread ends after those that take requests");
    }
}

/// Whether a request is a write, or another change, that may have to wait.
pub(super) fn is_waiting_write(service: &impl RequestService, operation: &FuseOperation<'_>) -> bool {
    match operation {
        FuseOperation::Write { data, .. } => service.may_write_wait(data.len()) || service.may_change_wait(),
        other => is_change(other) && service.may_change_wait(),
    }
}

/// Whether an operation changes the worktree.
fn is_change(operation: &FuseOperation<'_>) -> bool {
    match operation {
        FuseOperation::Setattr(_)
        | FuseOperation::Symlink { .. }
        | FuseOperation::Mknod { .. }
        | FuseOperation::Mkdir { .. }
        | FuseOperation::Tmpfile { .. }
        | FuseOperation::Create { .. }
        | FuseOperation::Unlink { .. }
        | FuseOperation::Rmdir { .. }
        | FuseOperation::Rename { .. }
        | FuseOperation::Link { .. }
        | FuseOperation::Write { .. }
        | FuseOperation::WriteStored { .. }
        | FuseOperation::Setxattr { .. }
        | FuseOperation::Removexattr { .. }
        | FuseOperation::Fallocate { .. }
        | FuseOperation::Ioctl { .. }
        | FuseOperation::CopyFileRange { .. } => true,
        FuseOperation::Open { flags } => OFlags::from_bits_retain(*flags).contains(OFlags::TRUNC),
        // Those that make something durable wait among themselves.
        FuseOperation::Fsync { .. }
        | FuseOperation::Fsyncdir { .. }
        | FuseOperation::Init(_)
        | FuseOperation::Destroy
        | FuseOperation::Lookup { .. }
        | FuseOperation::Forget { .. }
        | FuseOperation::BatchForget(_)
        | FuseOperation::Getattr
        | FuseOperation::Statx
        | FuseOperation::Readlink
        | FuseOperation::Read { .. }
        | FuseOperation::Opendir
        | FuseOperation::Flush { .. }
        | FuseOperation::Release { .. }
        | FuseOperation::Releasedir
        | FuseOperation::Getlk(_)
        | FuseOperation::Setlk { .. }
        | FuseOperation::Interrupt { .. }
        | FuseOperation::Statfs
        | FuseOperation::Getxattr { .. }
        | FuseOperation::Listxattr { .. }
        | FuseOperation::Readdir { .. }
        | FuseOperation::Readdirplus { .. }
        | FuseOperation::Lseek { .. }
        | FuseOperation::Unknown => false,
    }
}

fn run_waiting_writes(service: &impl RequestService, waiting: &Receiver<WaitingWrite>) {
    for write in waiting {
        match write {
            WaitingWrite::Device(device, bytes) => {
                // It was decoded before it was enqueued, so this succeeds.
                let Ok(request) = FuseRequest::decode(&bytes) else { continue };
                let answer = answer_device_request(service, &device, &request, request.decode_operation());
                device.send_answer(request.header.unique, answer);
            }
            WaitingWrite::Ring(ring, slot) => {
                // A ring that fails ends the mount: its threads notice it.
                let _ = answer_ring_request(service, &ring, slot);
            }
        }
    }
}
