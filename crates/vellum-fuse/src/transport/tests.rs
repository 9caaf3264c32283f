use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use vellum_types::UnixTime;

use super::mounting::{MountParameters, abort_mount, attach_mount, detach_mount};
use super::*;
use crate::posture::MountPosture;
use crate::wire::{EntryAnswer, FuseAnswer, FuseOperation, FuseRequest, NodeAttributes, SmallAnswer};

/// A directory with files of any name, of which one is answered only when a test releases it.
struct HeldUp {
    entered: Sender<()>,
    release: Mutex<Receiver<()>>,
}

const ROOT: u64 = 1;
/// Longest that the test waits for itself.
const PATIENCE: Duration = Duration::from_secs(60);
const SLOW: &[u8] = b"slow";

impl RequestService for HeldUp {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        _later: DeferredReply<'_>,
    ) -> FuseAnswer {
        match operation {
            FuseOperation::Lookup { name } => {
                if name == SLOW {
                    self.entered.send(()).unwrap();
                    self.release.lock().recv_timeout(PATIENCE).unwrap();
                }
                FuseAnswer::Small(SmallAnswer::for_entry(&entry(2)))
            }
            FuseOperation::Getattr => {
                FuseAnswer::Small(SmallAnswer::for_attributes(&entry(request.header.node)))
            }
            FuseOperation::Statx => FuseAnswer::Small(SmallAnswer::for_statx(&entry(request.header.node))),
            FuseOperation::Forget { .. } | FuseOperation::BatchForget(_) => FuseAnswer::None,
            _ => FuseAnswer::Failed(Errno::NOSYS),
        }
    }
}

/// Answers that may not be cached: the kernel asks again each time.
fn entry(node: u64) -> EntryAnswer {
    let time = UnixTime { secs: 1, nanos: 0 };
    let mode = if node == ROOT { 0o040_755 } else { 0o100_644 };
    let attr = NodeAttributes {
        ino: node,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        device: (0, 0),
        block_size: 4096,
    };
    EntryAnswer { attr, generation: 0, timeout: Duration::ZERO }
}

/// A mount that is taken away at the end, whatever happened.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = detach_mount(&self.0);
    }
}

fn mount(service: HeldUp, at: &Path) -> (Mounted, FuseConnection) {
    let attachment =
        MountParameters { name: "test".into(), read_only: false, allow_other: false, no_exec: false };
    let device = attach_mount(FuseDevice::open().unwrap(), at, &attachment).unwrap();
    let mounted = Mounted(at.into());
    assert!(perform_handshake(&device, false, MountPosture::Exclusive).unwrap().is_none());
    (mounted, FuseConnection::start(device, None, service, 4).unwrap())
}

#[test]
fn a_program_whose_request_is_held_up_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (entered, was_asked) = channel();
    let (release, released) = channel();
    let (mounted, connection) = mount(HeldUp { entered, release: Mutex::new(released) }, dir.path());
    for _ in 0..5 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // By now one thread reads alone for it, if the machine lets it.
                (0..100).for_each(|_| assert!(fs::metadata(dir.path().join("quick")).is_ok()));
                fs::metadata(dir.path().join("slow")).unwrap();
            });
            was_asked.recv_timeout(PATIENCE).unwrap();
            // Nobody has said that the slow one may go on.
            (0..100).for_each(|_| assert!(fs::metadata(dir.path().join("other")).is_ok()));
            release.send(()).unwrap();
        });
    }
    drop(mounted);
    connection.wait_until_unmounted().unwrap();
}

/// Lets the kernel offer rings, and puts back what was there.
struct RingOffer(String);

/// Where an administrator lets the kernel offer rings.
const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";

impl RingOffer {
    fn make() -> Self {
        let before = fs::read_to_string(OFFER).expect("this test needs Linux 6.14, with FUSE over io_uring");
        fs::write(OFFER, "Y").unwrap();
        Self(before)
    }
}

impl Drop for RingOffer {
    fn drop(&mut self) {
        fs::write(OFFER, &self.0).unwrap();
    }
}

#[test]
fn nobody_waits_for_ever_for_a_ring_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (entered, was_asked) = channel();
    let (release, released) = channel();
    let service = HeldUp { entered, release: Mutex::new(released) };
    let attachment =
        MountParameters { name: "test".into(), read_only: false, allow_other: false, no_exec: false };
    // The kernel says with its first request whether it offers them, and refuses to register them later.
    let offer = RingOffer::make();
    let device = attach_mount(FuseDevice::open().unwrap(), dir.path(), &attachment).unwrap();
    let mounted = Mounted(dir.path().into());
    let rings =
        perform_handshake(&device, true, MountPosture::Exclusive).unwrap().expect("the kernel offers rings");
    drop(offer);
    let break_rings = rings.ring_breaker();
    let connection = FuseConnection::start(device, Some(rings), service, 4).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fs::metadata(dir.path().join("slow")));
        was_asked.recv_timeout(PATIENCE).unwrap();
        break_rings();
        release.send(()).unwrap();
        // Its answer cannot be submitted.
        connection.wait_until_unmounted().unwrap_err();
        abort_mount(dir.path()).unwrap();
        waiting.join().unwrap().unwrap_err();
    });
    drop(mounted);
}
