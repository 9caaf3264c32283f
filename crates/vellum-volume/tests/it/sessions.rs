//! Which sessions a collection waits for: those from the future, unreadable ones, those of a newer version.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use vellum_crypto::RecordDomain;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::ErrorKind;
use vellum_volume::session::LEASE;
use vellum_volume::{Volume, VolumeError, WriteSession};

use crate::collecting::{Littered, collect};
use crate::ram::{Hooked, Ram};
use crate::world::{SEALED, change_session, refused};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(LEASE.unsigned_abs());

/// Something to collect, and a writer at work, whose session the tests change.
struct Scene {
    littered: Littered,
    ram: Arc<Ram>,
    session: ObjectKey,
    writer: WriteSession,
}

impl Scene {
    fn new() -> Self {
        let littered = Littered::new(SEALED);
        let ram = littered.world.ram.clone();
        let writer = littered.world.volume.begin_write_session().unwrap();
        let session = ram.keys("sessions").remove(0);
        Self { littered, ram, session, writer }
    }

    fn dated() -> Self {
        let scene = Self::new();
        scene.ram.keep_dates();
        scene
    }

    fn volume(&self) -> &Volume {
        &self.littered.world.volume
    }

    /// A writer on another machine, whose clock is off by this.
    fn is_elsewhere(&self, clock: i64) {
        change_session(&self.ram, self.volume(), &self.session, |session| {
            session.scope = "elsewhere".into();
            session.renewed.secs = session.renewed.secs.saturating_add(clock);
        });
    }

    fn assert_waits(&self, why: &str) {
        let packs = self.ram.keys("packs");
        let done = collect(self.volume()).unwrap();
        assert_eq!((done.deleted, done.writers.len()), (0, 1), "{why}");
        assert_eq!(done.writers[0].object, self.session.as_str(), "{why}");
        assert_eq!(self.ram.keys("packs"), packs, "{why}");
        assert_eq!(self.ram.keys("sessions"), std::slice::from_ref(&self.session), "{why}");
    }

    /// What was not changed for a day is over; its writer, if it has one, makes no snapshot.
    fn assert_over(mut self, why: &str) {
        let done = collect(self.volume()).unwrap();
        assert!(done.deleted > 0 && done.writers.is_empty(), "{why}");
        assert_eq!(self.ram.keys("sessions"), [], "{why}");
        assert!(matches!(refused(self.writer.flush_blobs()), VolumeError::SessionLost), "{why}");
        self.littered.assert_finished(&self.ram);
    }
}

fn ago(time: Duration) -> SystemTime {
    SystemTime::now() - time
}

#[test]
fn a_session_counts_for_a_day_by_the_stores_clock_whatever_its_own_clock_says() {
    let years = 10 * 365 * LEASE;
    for clock in [years, -years, i64::MAX, 0] {
        let scene = Scene::dated();
        scene.is_elsewhere(clock);
        scene.assert_waits("written just now");
        scene.ram.date(&scene.session, ago(DAY - HOUR));
        scene.assert_waits("written 23 hours ago");
        scene.ram.date(&scene.session, ago(DAY + HOUR));
        scene.assert_over("written 25 hours ago");
    }
}

#[test]
fn a_session_dated_in_the_stores_future_does_not_count_for_ever() {
    let scene = Scene::dated();
    scene.is_elsewhere(0);
    scene.ram.date(&scene.session, SystemTime::now() + HOUR);
    scene.assert_waits("a clock may be set back a little");
    scene.ram.date(&scene.session, SystemTime::now() + 1000 * DAY);
    scene.assert_over("nobody renewed it since the clock was set back");
}

/// Ways in which a session cannot be read.
fn unreadable(scene: &Scene) -> Vec<(&'static str, Vec<u8>)> {
    let volume = scene.volume();
    let key = &scene.session;
    let mut flipped = scene.ram.bytes(key);
    flipped[30] ^= 1;
    let aad = key.as_str().as_bytes();
    let mut plain = Vec::new();
    volume.keys.open_record(RecordDomain::Session, aad, &scene.ram.bytes(key), &mut plain).unwrap();
    plain[0] = 2;
    let mut newer = Vec::new();
    volume.keys.seal_record(RecordDomain::Session, aad, &plain, &mut newer);
    vec![
        ("empty", Vec::new()),
        ("junk", b"junk".to_vec()),
        ("flipped", flipped),
        ("of a newer version", newer),
        ("oversized", vec![0; 5000]),
    ]
}

#[test]
fn an_unreadable_session_is_named_and_counts_for_a_day() {
    for number in 0..5 {
        let scene = Scene::dated();
        let (why, bytes) = unreadable(&scene).swap_remove(number);
        scene.ram.force(&scene.session, &bytes);
        scene.assert_waits(why);
        let reported = collect(scene.volume()).unwrap().writers.remove(0).session.unwrap_err();
        assert!(reported.contains(scene.session.as_str()), "{why}: {reported}");
        scene.ram.date(&scene.session, ago(DAY + HOUR));
        scene.assert_over(why);
    }
}

#[test]
fn where_the_store_tells_no_times_an_unreadable_session_counts_until_it_is_deleted() {
    for number in 0..5 {
        let scene = Scene::new();
        let (why, bytes) = unreadable(&scene).swap_remove(number);
        scene.ram.force(&scene.session, &bytes);
        scene.assert_waits(why);
        scene.ram.delete_object(&scene.session).unwrap();
        scene.assert_over(why);
    }
}

#[test]
fn a_session_that_is_renewed_while_it_is_judged_stays() {
    let scene = Scene::dated();
    scene.is_elsewhere(0);
    let image = scene.ram.image();
    let operations = {
        let hooked = Hooked::new(Ram::of(image.clone()), |_| {});
        let counted = scene.littered.world.seen_in(hooked.clone());
        let start = hooked.operations();
        collect(&counted).unwrap();
        hooked.operations() - start
    };
    assert!(operations > 10);
    for at in 0..operations + 10 {
        scene.ram.become_like(&image);
        scene.ram.date(&scene.session, ago(2 * DAY));
        let start = Arc::new(AtomicU64::new(u64::MAX));
        let begin = start.clone();
        let ram = scene.ram.clone();
        let key = scene.session.clone();
        let renewed = Mutex::new([&image[&key][..], b"renewed"].concat());
        let hooked = Hooked::new(scene.ram.clone(), move |number| {
            if number.checked_sub(begin.load(Ordering::SeqCst)) == Some(at) {
                ram.force(&key, &renewed.lock());
            }
        });
        let volume = scene.littered.world.seen_in(hooked.clone());
        start.store(hooked.operations(), Ordering::SeqCst);
        collect(&volume).unwrap();
        let is_there = scene.ram.keys("sessions").contains(&scene.session);
        // It is renewed before the collection ends, and is there then: nobody took the new one for the old one.
        assert!(is_there || hooked.operations() - start.load(Ordering::SeqCst) <= at, "operation {at}");
    }
}

#[test]
fn a_collector_that_is_unreadable_or_from_the_future_is_waited_for_and_taken_over_after_a_day() {
    let collector = ObjectKey::new("sessions/collector").unwrap();
    for number in 0..6 {
        let scene = Scene::dated();
        let (why, bytes) = match unreadable(&scene).get(number) {
            Some(case) => case.clone(),
            // A writer's session is no collector's, but looks as one would that was moved.
            None => ("a writer's", scene.ram.bytes(&scene.session)),
        };
        drop(scene.writer);
        scene.ram.force(&collector, &bytes);
        let before = scene.ram.image();
        let volume = &scene.littered.world.volume;
        let error = refused(collect(volume));
        assert_eq!(error.kind(), ErrorKind::Conflict, "{why}");
        let text = error.to_string();
        assert!(text.contains("sessions/collector") && text.contains("24 hours"), "{why}: {text}");
        assert_eq!(scene.ram.image(), before, "{why}");
        scene.ram.date(&collector, ago(DAY + HOUR));
        assert!(collect(volume).unwrap().deleted > 0, "{why}");
        scene.littered.assert_finished(&scene.ram);
    }
}
