//! The property: whatever is done to whichever object, a verification names it, and reading gives right bytes or an
//! error.

use std::collections::BTreeSet;
use std::sync::Arc;

use rayon::prelude::*;
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::Ino;
use vellum_volume::verify::{VerifyReport, VerifyScope, verify_volume};
use vellum_volume::{StateDir, Volume, WriteSession};

use crate::model::{Tree, noise, small};
use crate::ram::{Image, Ram};
use crate::world::{PLAIN, SEALED, World, assert_clean, snapshot, verified};

/// Bits flipped in each object, about: all of a small one, evenly spread ones of others.
const FLIPS: usize = 400;
/// Lengths that an object is cut to, about.
const CUTS: usize = 40;

/// A volume with one of each kind of object.
struct Subject {
    world: World,
    trees: Vec<(MapRoot, Tree)>,
    image: Image,
    _writer: WriteSession,
}

impl Subject {
    fn new(encrypted: bool) -> Self {
        let world = World::new(encrypted);
        let volume = &world.volume;
        let gone = snapshot(volume, &small(1), "forgotten");
        let one = small(2);
        let mut two = one.clone();
        two.unlink(Ino::ROOT, b"inline");
        two.file(Ino::ROOT, "more", noise(4, 1500));
        let ids = [snapshot(volume, &one, "one"), snapshot(volume, &two, "two")];
        volume.add_tag("v1", ids[0]).unwrap();
        volume.forget_snapshot(&gone).unwrap();
        let writer = volume.begin_write_session().unwrap();
        let roots = ids.map(|id| volume.catalog.get_record(&id).unwrap().root);
        let image = world.ram.image();
        Self { trees: roots.into_iter().zip([one, two]).collect(), image, world, _writer: writer }
    }

    fn read(&self, volume: &Volume) -> usize {
        self.trees.iter().map(|(root, tree)| tree.compare(volume, *root)).sum()
    }
}

/// What is done to a store: objects replaced or removed, and the names that a verification must tell.
struct Harm {
    change: Vec<(ObjectKey, Option<Vec<u8>>)>,
    named: Vec<ObjectKey>,
    /// Whether it is enough that something is found, or read in full.
    any: bool,
}

impl Harm {
    fn to(key: &ObjectKey, bytes: Vec<u8>) -> Self {
        Self { change: vec![(key.clone(), Some(bytes))], named: vec![key.clone()], any: false }
    }
}

/// One thread's eyes: a volume that was open before the harm, and a state directory of a newcomer.
struct Watcher {
    ram: Arc<Ram>,
    open: Volume,
    cold: StateDir,
}

impl Watcher {
    fn new(subject: &Subject) -> Self {
        let ram = Ram::of(subject.image.clone());
        let open = subject.world.seen_in(ram.clone());
        assert_eq!(subject.read(&open), 0);
        // From here on it knows all records.
        open.catalog.load_all_records().unwrap();
        Self { ram, open, cold: subject.world.newcomer() }
    }

    fn suffer(&self, subject: &Subject, harm: &Harm, number: usize) {
        let mut image = subject.image.clone();
        for (key, bytes) in &harm.change {
            match bytes {
                Some(bytes) => image.insert(key.clone(), bytes.as_slice().into()),
                None => image.remove(key),
            };
        }
        self.ram.become_like(&image);
        assert_named(&verified(&self.open), harm);
        let _ = std::fs::remove_dir_all(self.cold.join("index"));
        // A newcomer may be unable to open the volume; what it reads is right.
        if let Ok(volume) = Volume::open_on(self.ram.clone(), &self.cold) {
            let unreadable = subject.read(&volume);
            if number.is_multiple_of(8) {
                let report =
                    verify_volume(&volume, &VerifyScope::All, false, &ProgressMeter::default()).unwrap();
                assert!(unreadable == 0 || !report.findings.is_empty());
                if !harm.any {
                    assert_named(&report, harm);
                }
            }
        }
        self.ram.become_like(&subject.image);
        self.open.blobs.refresh_index().unwrap();
    }
}

fn assert_named(report: &VerifyReport, harm: &Harm) {
    for key in &harm.named {
        let found = report.findings.iter().any(|finding| finding.object.contains(key.name()));
        assert!(found, "{key} is not named by {:#?}", report.findings);
    }
}

fn suffer_all(subject: &Subject, harms: &[Harm]) {
    let portions: Vec<_> = harms.chunks(harms.len().div_ceil(rayon::current_num_threads())).collect();
    portions.par_iter().for_each(|portion| {
        let watcher = Watcher::new(subject);
        portion.iter().enumerate().for_each(|(number, harm)| watcher.suffer(subject, harm, number));
        assert_clean(&watcher.open);
    });
}

/// Evenly spread numbers below `len`, about `count` of them.
fn spread(len: usize, count: usize) -> impl Iterator<Item = usize> {
    // A step that shares no factor with 8 goes through all bits of a byte.
    let step = (len / count).max(1) | 1;
    (0..len).step_by(if len <= count { 1 } else { step })
}

fn flips(subject: &Subject) -> Vec<Harm> {
    let mut harms = Vec::new();
    for (key, bytes) in &subject.image {
        for bit in spread(bytes.len() * 8, FLIPS) {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            harms.push(Harm::to(key, flipped));
        }
    }
    harms
}

#[test]
fn any_flipped_bit_of_a_sealed_volume_is_named_and_nothing_wrong_is_read() {
    let subject = Subject::new(SEALED);
    suffer_all(&subject, &flips(&subject));
}

#[test]
fn any_flipped_bit_of_a_plain_volume_is_named_and_nothing_wrong_is_read() {
    let subject = Subject::new(PLAIN);
    suffer_all(&subject, &flips(&subject));
}

/// The folder of an object, which is its type; tags and worktree heads differ.
fn folder(key: &ObjectKey) -> &str {
    key.as_str().split('/').next().unwrap()
}

fn resized(subject: &Subject) -> Vec<Harm> {
    let mut harms = Vec::new();
    for (key, bytes) in &subject.image {
        harms.extend(spread(bytes.len(), CUTS).map(|len| Harm::to(key, bytes[..len].to_vec())));
        harms.push(Harm::to(key, bytes[..bytes.len() - 1].to_vec()));
        harms.push(Harm::to(key, [&**bytes, b"\0"].concat()));
        harms.push(Harm::to(key, [&**bytes, &**bytes].concat()));
        harms.push(Harm::to(key, [b"\0", &**bytes].concat()));
    }
    harms
}

fn exchanged(subject: &Subject, other: &Image) -> Vec<Harm> {
    let mut harms = Vec::new();
    let all: Vec<_> = subject.image.iter().collect();
    for (at, (key, bytes)) in all.iter().enumerate() {
        for (partner, theirs) in all.iter().skip(at + 1) {
            let change =
                vec![((*key).clone(), Some(theirs.to_vec())), ((*partner).clone(), Some(bytes.to_vec()))];
            harms.push(Harm { change, named: vec![(*key).clone(), (*partner).clone()], any: false });
        }
        // Of the other volume: the object of the same name, else each of the same type.
        for (foreign, theirs) in other.iter().filter(|(foreign, _)| folder(foreign) == folder(key)) {
            if foreign != *key || theirs != *bytes {
                harms.push(Harm::to(key, theirs.to_vec()));
            }
        }
    }
    harms
}

fn deleted(subject: &Subject) -> Vec<Harm> {
    let harm = |key: &ObjectKey| {
        // That a slot or a session is gone cannot be told from its being removed. What an index object said is
        // missed, not the object itself.
        let named = !["keys", "sessions", "index"].contains(&folder(key));
        let named = if named { vec![key.clone()] } else { Vec::new() };
        Harm { change: vec![(key.clone(), None)], named, any: true }
    };
    subject.image.keys().map(harm).collect()
}

#[test]
fn objects_cut_extended_exchanged_or_deleted_are_named() {
    for encrypted in [SEALED, PLAIN] {
        let subject = Subject::new(encrypted);
        let other = Subject::new(encrypted);
        let kinds: BTreeSet<_> = subject.image.keys().map(folder).collect();
        let expected = match encrypted {
            true => "config forgotten index keys operations packs refs sessions slot-keys snapshots",
            false => "config forgotten index operations packs refs sessions snapshots",
        };
        assert_eq!(kinds.into_iter().collect::<Vec<_>>().join(" "), expected);
        let mut harms = resized(&subject);
        harms.extend(exchanged(&subject, &other.image));
        harms.extend(deleted(&subject));
        suffer_all(&subject, &harms);
    }
}

#[test]
fn a_deleted_index_object_is_missed_by_what_it_knew_and_rebuilt() {
    let subject = Subject::new(SEALED);
    for key in subject.world.ram.keys("index") {
        let ram = Ram::of(subject.image.clone());
        let open = subject.world.seen_in(ram.clone());
        ram.delete_object(&key).unwrap();
        let newcomer = subject.world.seen_in(ram.clone());
        let needed = subject.read(&newcomer) > 0;
        for volume in [&open, &newcomer] {
            assert_eq!(!verified(volume).findings.is_empty(), needed);
        }
        open.blobs.rebuild_index().unwrap();
        let volume = subject.world.seen_in(ram.clone());
        assert_eq!(subject.read(&volume), 0);
        assert_clean(&volume);
    }
}
