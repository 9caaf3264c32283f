//! The first request: the kernel reports its features, and the answer selects among them.

use std::io;

use rustix::io::Errno;

use super::device::{FuseDevice, MAX_WRITE, REQUEST_MAX};
use super::rings::RingTransport;
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest, InitAnswer, InitRequest, MAJOR, flags};

/// What the kernel is asked to do, as far as it can.
const WANTED: [u64; 18] = [
    flags::ASYNC_READ,
    // What the kernel has forgotten it finds again by its number: for file handles, and NFS.
    flags::EXPORT_SUPPORT,
    // Says whether an access control list takes the set-group-id bit away.
    flags::SETXATTR_EXT,
    flags::BIG_WRITES,
    // Opening and closing need nothing of us: the kernel does not ask.
    flags::NO_OPEN_SUPPORT,
    flags::NO_OPENDIR_SUPPORT,
    // Whether the umask counts depends on default ACLs, which only the filesystem knows.
    flags::DONT_MASK,
    flags::POSIX_ACL,
    flags::DO_READDIRPLUS,
    flags::READDIRPLUS_AUTO,
    flags::ASYNC_DIO,
    flags::WRITEBACK_CACHE,
    flags::PARALLEL_DIROPS,
    // Also lets the kernel remember that a file has no capabilities, instead of asking before each write.
    flags::HANDLE_KILLPRIV_V2,
    flags::CACHE_SYMLINKS,
    // Pages go only when somebody says so.
    flags::EXPLICIT_INVAL_DATA,
    flags::MAX_PAGES,
    flags::INIT_EXT,
];

/// The first minor version that is spoken here: since Linux 5.1, which takes it that directories are not opened.
const MINOR_MIN: u32 = 29;

/// Requests that the kernel keeps going without anybody waiting: readahead and write-back.
const MAX_BACKGROUND: u16 = 64;

/// From how many of these on the kernel writes no more by itself.
const CONGESTION: u16 = MAX_BACKGROUND / 4 * 3;

/// Bytes of a page as the protocol counts them.
const PAGE: u32 = 4096;

/// Waits for the kernel's first request, and answers it. Says by which rings the others come, if by any: the kernel must
/// offer it (its administrator decides), the machine let us, and nobody have said that they are not to be used.
pub fn perform_handshake(device: &FuseDevice, may_use_rings: bool) -> io::Result<Option<RingTransport>> {
    let mut room = vec![0; REQUEST_MAX];
    loop {
        let bytes = device.read_request(&mut room)?;
        let bytes = bytes.ok_or_else(|| io::Error::other("the mount went away before it was served"))?;
        let request = FuseRequest::decode(bytes).map_err(io::Error::other)?;
        let unique = request.header.unique;
        let init = match request.decode_operation() {
            Ok(FuseOperation::Init(init)) => init,
            _ => {
                device.send_answer(unique, FuseAnswer::Failed(Errno::IO));
                return Err(io::Error::other(
                    "the kernel asks for something else before it says what it can do",
                ));
            }
        };
        if init.major < MAJOR || init.major == MAJOR && init.minor < MINOR_MIN {
            device.send_answer(unique, FuseAnswer::Failed(Errno::PROTO));
            let major = init.major;
            let minor = init.minor;
            return Err(io::Error::other(format!(
                "the kernel speaks version {major}.{minor} of FUSE; {MAJOR}.{MINOR_MIN} is the oldest that will do"
            )));
        }
        let offered = init.major == MAJOR && init.flags & flags::OVER_IO_URING != 0;
        let rings = if offered && may_use_rings { RingTransport::new(device).ok() } else { None };
        let mut answer = build_init_answer(&init);
        if rings.is_some() {
            answer.flags |= flags::OVER_IO_URING;
        }
        device.send_answer(unique, FuseAnswer::Small(answer.encode()));
        if init.major == MAJOR {
            let minor = init.minor;
            tracing::info!(minor, rings = rings.is_some(), "the kernel and the mount agreed on FUSE {MAJOR}");
            return Ok(rings);
        }
        // A later version: now it knows ours, and begins anew.
    }
}

fn build_init_answer(init: &InitRequest) -> InitAnswer {
    let max_write = u32::try_from(MAX_WRITE).unwrap_or(u32::MAX);
    InitAnswer {
        max_readahead: init.max_readahead,
        flags: WANTED.into_iter().fold(0, |all, flag| all | flag) & init.flags,
        max_background: MAX_BACKGROUND,
        congestion: CONGESTION,
        max_write,
        max_pages: u16::try_from(max_write.max(init.max_readahead) / PAGE).unwrap_or(u16::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_can_is_asked_of_it() {
        let init =
            InitRequest { major: 7, minor: 31, max_readahead: 1 << 17, flags: flags::DONT_MASK | 1 << 11 };
        let answer = build_init_answer(&init);
        assert_eq!(answer.flags, flags::DONT_MASK);
        assert_eq!(usize::from(answer.max_pages), MAX_WRITE / 4096);
    }
}
