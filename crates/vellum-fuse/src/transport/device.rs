//! The device `/dev/fuse`: each open descriptor is one end of a mount.
//!
//! Invariant: an answer is written to a descriptor of the mount that the request was read from.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

use crate::wire::{FuseAnswer, Invalidation, encode_answer_head};

const PATH: &str = "/dev/fuse";

/// Bytes of the largest write that the kernel sends in one request: the most that it sends without a change of its
/// limits by the administrator (`fs.fuse.max_pages_limit`).
pub const MAX_WRITE: usize = 1 << 20;

/// Bytes of the buffer that a request is read into: the largest write and its head, rounded up to a page.
pub const REQUEST_MAX: usize = MAX_WRITE + 4096;

/// Attaches a newly opened descriptor to the mount of another one (`FUSE_DEV_IOC_CLONE`).
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// A descriptor of the device. The mount ends when its last descriptor is closed.
#[derive(Debug)]
pub struct FuseDevice(OwnedFd);

impl From<OwnedFd> for FuseDevice {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl FuseDevice {
    /// Opens the device for a new mount.
    pub fn open() -> io::Result<Self> {
        Ok(Self(rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Opens a further descriptor of the same mount, from which another thread can read requests.
    pub fn reopen(&self) -> io::Result<Self> {
        let other = Self::open()?;
        let mut number = self.0.as_raw_fd().cast_unsigned();
        #[expect(unsafe_code, reason = "no safe call attaches a descriptor to a mount")]
        // SAFETY: the operation reads the 32 bits that it is given, which are a number, and writes nothing.
        unsafe {
            rustix::ioctl::ioctl(&other.0, Updater::<CLONE, u32>::new(&mut number))?;
        }
        Ok(other)
    }

    /// Waits for a request, and returns its bytes; None when the mount has ended.
    pub fn read_request<'b>(&self, room: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        let len = loop {
            match rustix::io::read(&self.0, &mut *room) {
                Ok(len) => break len,
                // `ENOENT`: the program was interrupted before its request was read. `EINTR`: this thread was.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                // The connection was aborted, or the filesystem was unmounted.
                Err(Errno::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        Ok(Some(&room[..len]))
    }

    /// Answers a request. An error is ignored: the process that waited was killed, or the mount has ended.
    pub fn send_answer(&self, unique: u64, answer: FuseAnswer) {
        let _ = match answer {
            FuseAnswer::None | FuseAnswer::Later => Ok(0),
            // The kernel takes the number of an error with a minus sign.
            FuseAnswer::Failed(error) => rustix::io::write(
                &self.0,
                &encode_answer_head(0, error.raw_os_error().wrapping_neg(), unique),
            ),
            FuseAnswer::Done => rustix::io::write(&self.0, &encode_answer_head(0, 0, unique)),
            FuseAnswer::Small(mut small) => rustix::io::write(&self.0, small.finish_answer(unique)),
            FuseAnswer::Bytes(bytes) => self.write_answer(unique, &bytes),
            FuseAnswer::Shared(bytes) => self.write_answer(unique, &bytes),
        };
    }

    fn write_answer(&self, unique: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let head = encode_answer_head(bytes.len(), 0, unique);
        // One write for both parts: the kernel takes an answer only as a whole.
        rustix::io::writev(&self.0, &[IoSlice::new(&head), IoSlice::new(bytes)])
    }

    /// Whether the mount still exists.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        // The kernel reports `POLLERR` on the descriptor of a mount that has ended.
        self.poll_state().is_some_and(|state| !state.contains(PollFlags::ERR))
    }

    /// Whether a request is waiting to be read.
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.poll_state().is_some_and(|state| state.contains(PollFlags::IN))
    }

    fn poll_state(&self) -> Option<PollFlags> {
        let mut device = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut device, Some(&now)).ok()?;
        Some(device[0].revents())
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Returns a descriptor for notifications to the kernel.
    pub fn new_notifier(&self) -> io::Result<KernelNotifier> {
        Ok(KernelNotifier(self.0.try_clone()?))
    }
}

/// Sends notifications to the kernel. A thread that answers requests must not use it: the kernel may have to wait for
/// an answer of the same thread before the call returns.
#[derive(Debug)]
pub struct KernelNotifier(OwnedFd);

impl KernelNotifier {
    /// Sends a notification. Also fails if the kernel has cached nothing of what it is to drop.
    pub fn send_notice(&self, notice: Invalidation<'_>) -> Result<(), Errno> {
        rustix::io::write(&self.0, &notice.encode()).map(|_| ())
    }
}
