//! Random versions of files, by every way between two ends: what arrives is what was there.

use proptest::prelude::*;

use super::*;
use crate::model::options::CompareMethod;

/// How content goes to its place.
#[derive(Debug, Clone, Copy)]
enum Way {
    Local,
    Pull,
    Push,
}

/// What becomes of a file between two versions.
#[derive(Debug, Clone)]
enum Edit {
    Insert(usize, usize),
    Remove(usize, usize),
    Rotate(usize),
    Overwrite(usize, usize),
    /// A range is copied to another place, over what is there.
    Copy(usize, usize, usize),
    Zero(usize, usize),
    Double,
}

/// Longest file, bytes: some are sent whole, and some in blocks.
const LEN_MAX: usize = 300_000;

fn edits() -> impl Strategy<Value = Edit> {
    let at = || 0..LEN_MAX;
    prop_oneof![
        (at(), 1..60_000_usize).prop_map(|(at, len)| Edit::Insert(at, len)),
        (at(), 1..60_000_usize).prop_map(|(at, len)| Edit::Remove(at, len)),
        at().prop_map(Edit::Rotate),
        (at(), 1..9000_usize).prop_map(|(at, len)| Edit::Overwrite(at, len)),
        (at(), at(), 1..60_000_usize).prop_map(|(from, to, len)| Edit::Copy(from, to, len)),
        (at(), 1..60_000_usize).prop_map(|(at, len)| Edit::Zero(at, len)),
        Just(Edit::Double),
    ]
}

fn edit(bytes: &mut Vec<u8>, edit: &Edit, seed: u64) {
    let all = bytes.len();
    let range = |at: usize, len: usize| {
        let start = at % (all + 1);
        start..(start + len).min(all)
    };
    match *edit {
        Edit::Insert(at, len) => drop(bytes.splice(at % (all + 1)..at % (all + 1), noise(len, seed))),
        Edit::Remove(at, len) => drop(bytes.drain(range(at, len))),
        Edit::Rotate(at) if all > 0 => bytes.rotate_left(at % all),
        Edit::Rotate(_) => {}
        Edit::Overwrite(at, len) => {
            let range = range(at, len);
            let new = noise(range.len(), seed);
            bytes[range].copy_from_slice(&new);
        }
        Edit::Copy(from, to, len) => {
            let from = range(from, len);
            let len = from.len().min(range(to, len).len());
            bytes.copy_within(from.start..from.start + len, to % (all + 1));
        }
        Edit::Zero(at, len) => bytes[range(at, len)].fill(0),
        Edit::Double => bytes.extend_from_within(..),
    }
}

fn ways() -> impl Strategy<Value = (Way, WriteOptions)> {
    let way = prop::sample::select(vec![Way::Local, Way::Pull, Way::Push]);
    let delta = prop::sample::select(vec![DeltaMode::Auto, DeltaMode::Always, DeltaMode::Never]);
    (way, delta, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(way, delta, in_place, resume, verify)| {
            (way, WriteOptions { delta, in_place, resume, verify, ..WriteOptions::default() })
        },
    )
}

/// Runs, and runs again: the second time from what came of the first one.
fn run(way: Way, root: &Path, options: &SyncOptions) -> SyncReport {
    let served = served(root, WireCodec::Plain);
    let from = root.join("from");
    let to = root.join("to");
    match way {
        Way::Pull => pull(served.client(), "from", &to, options).unwrap(),
        Way::Push => push(served.client(), &from, "to", options).unwrap(),
        Way::Local => {
            let source = LocalEnd::open(&from).unwrap();
            let target = LocalEnd::open(&to).unwrap();
            let meter = ProgressMeter::default();
            let from = source.list_entries(&wish(SyncSide::Source, options), &meter).unwrap();
            let to = target.list_entries(&wish(SyncSide::Destination, options), &meter).unwrap();
            let plan = SyncPlan::new(&from, &to, options);
            target
                .execute_plan(
                    &SyncJob { plan: &plan, source: &source, from: &from, to: &to, options },
                    &meter,
                )
                .unwrap()
        }
    }
}

proptest! {
    /// In place, moved data came from where it was written over already, and the next run did not mend it.
    #[test]
    fn every_way_makes_the_same_file(
        (way, writing) in ways(),
        old in 0..LEN_MAX,
        seed in any::<u64>(),
        changes in prop::collection::vec(edits(), 1..5),
    ) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        let from = root.join("from");
        let to = root.join("to");
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        let old = noise(old, seed);
        let mut new = old.clone();
        changes.iter().enumerate().for_each(|(number, change)| edit(&mut new, change, seed ^ number as u64));
        fs::write(from.join("f"), &new).unwrap();
        fs::write(to.join("f"), &old).unwrap();
        let compare = CompareOptions { by: CompareMethod::Nothing, ..CompareOptions::default() };
        let options = SyncOptions { writing, compare, ..options() };
        let report = run(way, root, &options);
        prop_assert_eq!(&report.problems, &Vec::new());
        prop_assert!(fs::read(to.join("f")).unwrap() == new, "another file arrived");
        // Back again, from what is there now.
        fs::write(from.join("f"), &old).unwrap();
        let report = run(way, root, &options);
        prop_assert_eq!(&report.problems, &Vec::new());
        prop_assert!(fs::read(to.join("f")).unwrap() == old, "another file came back");
    }
}
