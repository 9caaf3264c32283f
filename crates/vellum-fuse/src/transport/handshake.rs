//! The handshake: in the first request the kernel reports its features, and the answer selects among them.
//!
//! Invariant: no feature is selected that the kernel has not offered.

use std::io;

use rustix::io::Errno;

use super::device::{FuseDevice, MAX_WRITE, REQUEST_MAX};
use super::ring::SLOTS as RING_SLOTS;
use super::rings::RingTransport;
use crate::posture::MountPosture;
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest, InitAnswer, InitRequest, MAJOR, flags};

/// The oldest minor version that is supported (Linux 5.1): the first whose kernel does not need directories to be
/// opened.
const MINOR_MIN: u32 = 29;

/// Requests that the kernel may have in progress while no process waits for them: readahead and write-back.
const MAX_BACKGROUND: u16 = 64;

/// The same if requests come through rings: fewer than a ring has slots. Write-back that waits for room in the write log
/// keeps its slot, and must not keep all of them.
const MAX_BACKGROUND_IN_RINGS: u16 = RING_SLOTS as u16 / 4 * 3;

/// Bytes of a page as the protocol counts them.
const PAGE: u32 = 4096;

/// Waits for the kernel's first request, and answers it. Returns the rings through which further requests come; None if
/// they come through the device: if the kernel does not offer rings (its administrator decides that), they cannot be
/// created, or `may_use_rings` is false.
///
/// Fails if the kernel is too old, or if the mount ends meanwhile.
pub fn perform_handshake(
    device: &FuseDevice,
    may_use_rings: bool,
    posture: MountPosture,
) -> io::Result<Option<RingTransport>> {
    let mut room = vec![0; REQUEST_MAX];
    loop {
        let bytes = device.read_request(&mut room)?;
        let bytes = bytes.ok_or_else(|| io::Error::other("the mount went away before it was served"))?;
        let request = FuseRequest::decode(bytes).map_err(io::Error::other)?;
        let unique = request.header.unique;
        // The kernel sends nothing else before it has the answer to this request.
        let Ok(FuseOperation::Init(init)) = request.decode_operation() else {
            device.send_answer(unique, FuseAnswer::Failed(Errno::IO));
            return Err(io::Error::other("the kernel asks for something else before it says what it can do"));
        };
        // After an error in place of the answer, the kernel fails all requests of the mount.
        if init.major < MAJOR || init.major == MAJOR && init.minor < MINOR_MIN {
            device.send_answer(unique, FuseAnswer::Failed(Errno::PROTO));
            let major = init.major;
            let minor = init.minor;
            return Err(io::Error::other(format!(
                "the kernel speaks version {major}.{minor} of FUSE; {MAJOR}.{MINOR_MIN} is the oldest that will do"
            )));
        }
        let offered = init.major == MAJOR && init.flags & flags::OVER_IO_URING != 0;
        // Made before the answer: a kernel to which rings were announced waits for all of them to be registered.
        // Rings are an optimisation: if they cannot be created, the device carries everything.
        let rings = if offered && may_use_rings { RingTransport::new(device).ok() } else { None };
        let mut answer = build_init_answer(&init, rings.is_some(), posture);
        if rings.is_some() {
            answer.flags |= flags::OVER_IO_URING;
        }
        device.send_answer(unique, FuseAnswer::Small(answer.encode()));
        if init.major == MAJOR {
            let minor = init.minor;
            tracing::info!(minor, rings = rings.is_some(), "the kernel and the mount agreed on FUSE {MAJOR}");
            return Ok(rings);
        }
        // A kernel of a later major version now knows ours, and sends the request again in that.
    }
}

fn build_init_answer(init: &InitRequest, has_rings: bool, posture: MountPosture) -> InitAnswer {
    let max_write = u32::try_from(MAX_WRITE).unwrap_or(u32::MAX);
    let max_background = if has_rings { MAX_BACKGROUND_IN_RINGS } else { MAX_BACKGROUND };
    InitAnswer {
        max_readahead: init.max_readahead,
        flags: posture.wanted_features() & init.flags,
        max_background,
        // From this number on, the kernel starts no further write-back by itself.
        congestion: max_background / 4 * 3,
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
        let answer = build_init_answer(&init, false, MountPosture::Exclusive);
        assert_eq!(answer.flags, flags::DONT_MASK);
        assert_eq!(usize::from(answer.max_pages), MAX_WRITE / 4096);
    }
}
