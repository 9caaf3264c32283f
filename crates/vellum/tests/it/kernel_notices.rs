//! What clients of shared worktrees rely on in the kernel: what a notice drops while the kernel waits for an answer.
//!
//! Each test mounts a service of its own, which answers some requests only when it is told to.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use vellum_fs::Epoch;
use vellum_fuse::mount::{AttachOptions, mount_service};
use vellum_fuse::transport::mounting::MountParameters;
use vellum_fuse::transport::{DeferredReply, RequestService};
use vellum_fuse::wire::{
    EntryAnswer, FuseAnswer, FuseOperation, FuseRequest, NodeAttributes, Opcode, SmallAnswer,
};
use vellum_fuse::{CacheInvalidator, MountPosture};
use vellum_types::{Ino, UnixTime};

use crate::mounting::{detach_mount, wait_until};
use crate::world::World;

const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
/// Long enough for a notice that waits for nothing.
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Held {
    /// Requests of this kind are answered when they are let go.
    opcode: Option<Opcode>,
    /// Requests that wait, a count.
    waiting: usize,
    lookups: usize,
    getattrs: usize,
    size: u64,
}

/// A root with the name `f`, which stands for a file.
#[derive(Default)]
struct HoldingService {
    held: Mutex<Held>,
    changed: Condvar,
}

impl HoldingService {
    /// Holds requests of a kind from now on.
    fn hold(&self, opcode: Opcode) {
        self.held.lock().opcode = Some(opcode);
    }

    fn wait_until_held(&self) {
        wait_until("a request is held", || self.held.lock().waiting > 0);
    }

    fn let_go(&self) {
        self.held.lock().opcode = None;
        self.changed.notify_all();
    }

    fn entry(node: u64, size: u64) -> EntryAnswer {
        let time = UnixTime { secs: 1, nanos: 0 };
        let mode = if node == ROOT { 0o040_755 } else { 0o100_644 };
        let attr = NodeAttributes {
            ino: node,
            size,
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
        EntryAnswer { attr, generation: 0, timeout: LONG }
    }
}

struct Service(Arc<HoldingService>);

impl RequestService for Service {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        _later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let service = &self.0;
        let mut held = service.held.lock();
        // Of the moment at which the request comes.
        let size = held.size;
        let counted = match operation {
            FuseOperation::Lookup { .. } => Some(&mut held.lookups),
            FuseOperation::Getattr if request.header.node == FILE => Some(&mut held.getattrs),
            _ => None,
        };
        if let Some(counted) = counted {
            *counted += 1;
        }
        held.waiting += 1;
        while held.opcode.is_some_and(|opcode| opcode.number() == request.header.opcode)
            && request.header.node == if matches!(operation, FuseOperation::Getattr) { FILE } else { ROOT }
        {
            service.changed.wait(&mut held);
        }
        held.waiting -= 1;
        drop(held);
        match operation {
            FuseOperation::Lookup { name: b"f" } => {
                // The attributes are to be asked for.
                let mut answer =
                    SmallAnswer::for_entry(&HoldingService::entry(FILE, size)).answer_body().to_vec();
                answer[24..32].fill(0);
                FuseAnswer::Bytes(answer)
            }
            FuseOperation::Lookup { .. } => FuseAnswer::Failed(Errno::NOENT),
            FuseOperation::Getattr => {
                let entry = HoldingService::entry(request.header.node, size);
                FuseAnswer::Small(SmallAnswer::for_attributes(&entry))
            }
            FuseOperation::Forget { .. } | FuseOperation::BatchForget(_) => FuseAnswer::None,
            FuseOperation::Mkdir { .. } => FuseAnswer::Failed(Errno::NOSPC),
            _ => FuseAnswer::Failed(Errno::NOSYS),
        }
    }
}

/// The mount. It is taken away when this is dropped.
struct HoldingMount {
    service: Arc<HoldingService>,
    invalidator: Arc<CacheInvalidator>,
    path: PathBuf,
    _world: World,
}

impl HoldingMount {
    fn new() -> Self {
        let world = World::empty();
        let path = world.path("mounted");
        std::fs::create_dir(&path).unwrap();
        let service = Arc::new(HoldingService::default());
        let options = AttachOptions {
            parameters: MountParameters {
                name: "held".into(),
                read_only: false,
                allow_other: false,
                no_exec: false,
            },
            no_rings: true,
            posture: MountPosture::Shared,
            report: Arc::new(|_| {}),
        };
        let mounted = mount_service(Service(service.clone()), &path, &options).unwrap();
        let invalidator = mounted.cache_invalidator();
        // It ends when the mount does.
        std::thread::spawn(move || mounted.wait_until_unmounted());
        Self { service, invalidator, path, _world: world }
    }

    fn file_size(&self) -> u64 {
        std::fs::metadata(self.path.join("f")).unwrap().size()
    }

    /// How many lookups and requests for attributes of the file the kernel has sent.
    fn counts(&self) -> [usize; 2] {
        let held = self.service.held.lock();
        [held.lookups, held.getattrs]
    }

    /// Looks at the file, and tells the kernel something while it waits for an answer.
    fn look_while_held(&self, opcode: Opcode, tell: impl FnOnce()) -> u64 {
        self.service.hold(opcode);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| self.file_size());
            self.service.wait_until_held();
            self.service.held.lock().size += 1;
            tell();
            self.service.let_go();
            looking.join().unwrap()
        })
    }
}

impl Drop for HoldingMount {
    fn drop(&mut self) {
        self.service.let_go();
        detach_mount(&self.path);
    }
}

#[test]
fn names_whose_lookup_is_under_way_are_dropped_with_all_others() {
    let mount = HoldingMount::new();
    if !mount.invalidator.can_invalidate_all_names() {
        return;
    }
    mount.look_while_held(Opcode::Lookup, || {});
    mount.file_size();
    assert_eq!(mount.counts()[0], 1);
    // A name that is cached, and one that is being looked up again.
    mount.invalidator.invalidate_all_names();
    mount.look_while_held(Opcode::Lookup, || mount.invalidator.invalidate_all_names());
    assert_eq!(mount.counts()[0], 2);
    mount.file_size();
    assert_eq!(mount.counts()[0], 3);
    mount.file_size();
    assert_eq!(mount.counts()[0], 3);
}

#[test]
fn attributes_that_are_being_asked_for_are_dropped() {
    let mount = HoldingMount::new();
    mount.look_while_held(Opcode::Getattr, || {});
    assert_eq!((mount.file_size(), mount.counts()[1]), (0, 1));
    mount.invalidator.invalidate_attributes(FILE);
    mount.look_while_held(Opcode::Getattr, || mount.invalidator.invalidate_attributes(FILE));
    assert_eq!(mount.counts()[1], 2);
    // What came meanwhile was not cached.
    assert_eq!((mount.file_size(), mount.counts()[1]), (2, 3));
    assert_eq!((mount.file_size(), mount.counts()[1]), (2, 3));
}

#[test]
fn dropping_one_name_waits_for_a_change_of_its_directory_and_dropping_all_names_does_not() {
    let mount = HoldingMount::new();
    mount.file_size();
    mount.service.hold(Opcode::Mkdir);
    std::thread::scope(|scope| {
        let making = scope.spawn(|| std::fs::create_dir(mount.path.join("new")));
        mount.service.wait_until_held();
        let dropping = scope.spawn(|| mount.invalidator.invalidate_name(Epoch::default(), Ino::ROOT, b"f"));
        mount.invalidator.invalidate_all_names();
        mount.invalidator.invalidate_attributes(ROOT);
        std::thread::sleep(MOMENT);
        assert!(!dropping.is_finished() && !making.is_finished());
        mount.service.let_go();
        dropping.join().unwrap();
        assert!(making.join().unwrap().is_err());
    });
}
