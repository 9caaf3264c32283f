//! Sessions of readers: what they read stays until they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use vellum_map::MapRoot;
use vellum_store::ObjectKey;
use vellum_types::SnapshotId;
use vellum_volume::session::ReadSession;
use vellum_volume::{Volume, VolumeError};

use crate::collecting::collect;
use crate::model::small;
use crate::ram::Hooked;
use crate::world::{SEALED, World, bury_sessions, change_session, refused, snapshot};

const HOUR: Duration = Duration::from_secs(3600);

/// A volume with a snapshot that is to be read, and another one on which its worktree stands.
struct Library {
    world: World,
    read: SnapshotId,
    root: MapRoot,
}

impl Library {
    fn new() -> Self {
        let world = World::new(SEALED);
        let read = snapshot(&world.volume, &small(1), "read");
        snapshot(&world.volume, &small(2), "head");
        let root = world.volume.catalog.fetch_record(&read).unwrap().root;
        Self { world, read, root }
    }

    fn begin(&self) -> ReadSession {
        self.world.volume.begin_read_session(self.read).unwrap()
    }

    /// The volume as another machine has it.
    fn elsewhere(&self) -> Volume {
        self.world.seen_in(self.world.ram.clone())
    }

    fn assert_kept(&self) {
        let volume = self.elsewhere();
        let done = collect(&volume).unwrap();
        assert_eq!((done.deleted, done.writers), (0, Vec::new()));
        small(1).assert_readable(&volume, self.root);
    }

    fn assert_freed(&self) {
        assert!(collect(&self.elsewhere()).unwrap().deleted > 0);
        assert_eq!(self.world.ram.keys("sessions"), []);
    }

    fn session_key(&self) -> ObjectKey {
        let [key] = &self.world.ram.keys("sessions")[..] else { panic!("one session") };
        key.clone()
    }
}

#[test]
fn what_is_read_stays_until_the_reader_ends() {
    let library = Library::new();
    let session = library.begin();
    library.world.volume.forget_snapshot(&library.read).unwrap();
    library.assert_kept();
    session.renew_if_due().unwrap();
    drop(session);
    library.assert_freed();
    let error = refused(library.world.volume.begin_read_session(library.read));
    assert!(matches!(error, VolumeError::MissingRecord(_)), "{error}");
    assert_eq!(library.world.ram.keys("sessions"), []);
}

#[test]
fn a_reader_that_died_holds_nothing() {
    let library = Library::new();
    std::mem::forget(library.begin());
    library.world.volume.forget_snapshot(&library.read).unwrap();
    bury_sessions(&library.world.ram, &library.world.volume);
    library.assert_freed();
}

#[test]
fn a_reader_on_another_machine_counts_for_a_day_by_the_stores_clock() {
    let library = Library::new();
    library.world.ram.keep_dates();
    std::mem::forget(library.begin());
    library.world.volume.forget_snapshot(&library.read).unwrap();
    let key = library.session_key();
    change_session(&library.world.ram, &library.world.volume, &key, |session| {
        session.scope = "elsewhere".into()
    });
    library.world.ram.date(&key, SystemTime::now() - 23 * HOUR);
    library.assert_kept();
    library.world.ram.date(&key, SystemTime::now() - 25 * HOUR);
    library.assert_freed();
}

#[test]
fn a_snapshot_that_is_forgotten_and_collected_while_its_reader_begins_is_refused() {
    let library = Library::new();
    let image = library.world.ram.image();
    for at in 0.. {
        library.world.ram.become_like(&image);
        let other = library.elsewhere();
        let read = library.read;
        let start = Arc::new(AtomicU64::new(u64::MAX));
        let begin = start.clone();
        let hooked = Hooked::new(library.world.ram.clone(), move |number| {
            if number.checked_sub(begin.load(Ordering::SeqCst)) == Some(at) {
                other.forget_snapshot(&read).unwrap();
                collect(&other).unwrap();
            }
        });
        let volume = library.world.seen_in(hooked.clone());
        let first = hooked.operations();
        start.store(first, Ordering::SeqCst);
        let begun = volume.begin_read_session(library.read);
        if hooked.operations() - first <= at {
            assert!(at > 2 && begun.is_ok(), "{at}");
            break;
        }
        // Its last look at the store is whether the snapshot is there.
        assert!(matches!(refused(begun), VolumeError::MissingRecord(_)), "{at}");
        assert_eq!(library.world.ram.keys("sessions"), [], "{at}");
    }
}

#[test]
fn a_reader_that_begins_while_its_snapshot_is_forgotten_and_collected_is_refused_or_finds_all() {
    let library = Library::new();
    let image = library.world.ram.image();
    let mut outcomes = Vec::new();
    for at in 0.. {
        library.world.ram.become_like(&image);
        let reader = library.elsewhere();
        let read = library.read;
        let begun = Arc::new(Mutex::new(None));
        let keep = begun.clone();
        let start = Arc::new(AtomicU64::new(u64::MAX));
        let begin = start.clone();
        let hooked = Hooked::new(library.world.ram.clone(), move |number| {
            if number.checked_sub(begin.load(Ordering::SeqCst)) == Some(at) {
                *keep.lock() = Some(reader.begin_read_session(read));
            }
        });
        let volume = library.world.seen_in(hooked.clone());
        let first = hooked.operations();
        start.store(first, Ordering::SeqCst);
        volume.forget_snapshot(&library.read).unwrap();
        collect(&volume).unwrap();
        let Some(begun) = begun.lock().take() else {
            assert!(hooked.operations() - first <= at, "{at}");
            break;
        };
        outcomes.push(begun.is_ok());
        match begun {
            Ok(_session) => small(1).assert_readable(&library.elsewhere(), library.root),
            Err(error) => assert!(matches!(error, VolumeError::MissingRecord(_)), "{at}: {error}"),
        }
    }
    assert!(outcomes.contains(&true) && outcomes.contains(&false), "{outcomes:?}");
}

#[test]
fn readers_of_other_machines_are_named_until_they_expire() {
    let library = Library::new();
    let volume = library.elsewhere();
    assert_eq!(volume.find_read_snapshot(&[library.read]).unwrap(), None);
    let session = library.begin();
    let (id, reader) = volume.find_read_snapshot(&[library.read]).unwrap().unwrap();
    assert_eq!((id, reader.root, reader.is_here), (library.read, library.root, true));
    assert_eq!(reader.to_string(), format!("process {}", std::process::id()));
    change_session(&library.world.ram, &library.world.volume, &library.session_key(), |session| {
        session.host = "far\n".into();
        session.scope = "another".into();
        session.pid = 12;
    });
    let (_, reader) = volume.find_read_snapshot(&[library.read]).unwrap().unwrap();
    assert_eq!(reader.to_string(), "process 12 on far\\u{a}");
    change_session(&library.world.ram, &library.world.volume, &library.session_key(), |session| {
        session.renewed.secs -= 25 * 3600
    });
    assert_eq!(volume.find_read_snapshot(&[library.read]).unwrap(), None);
    drop(session);
}
