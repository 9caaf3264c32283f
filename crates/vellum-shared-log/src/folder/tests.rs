//! Files in a log that forgets, moves, is cut and forged: what is made from it is what a kill leaves, with everything
//! that was acknowledged.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod engines;
mod forgery;
mod memory_log;
mod story;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_live::folder::EngineFolder;
use vellum_live::sim::SimFolder;
use vellum_types::VolumeId;
use vellum_volume::lease::BootClock;

use super::*;
use crate::claim::{ClaimRequest, TakenClaim, claim_log};
use crate::log::{LogClaim, LogIncarnation, LogPosition, ServerRecord, SharedLog};
use memory_log::MemoryLog;

fn keys() -> Arc<VolumeKeys> {
    let master = MasterKey::from_bytes(std::array::from_fn(|i| u8::try_from(i).unwrap()));
    Arc::new(VolumeKeys::for_encrypted(&master, VolumeId([7; 16])))
}

fn server(number: u8) -> ServerRecord {
    ServerRecord { host: format!("host{number}"), address: None, instance: [number; 16] }
}

/// A disk with the two folders of a live state.
struct Disk {
    root: Arc<SimFolder>,
}

impl Disk {
    fn new() -> Self {
        Self { root: SimFolder::with_files(BTreeMap::new()) }
    }

    fn folder(&self, folder: LoggedFolder) -> Arc<SimFolder> {
        match folder {
            LoggedFolder::Metadata => self.root.sibling_folder("meta"),
            LoggedFolder::WriteLog => self.root.sibling_folder("log"),
        }
    }

    /// All files, without the zeros at their ends: room that was reserved is not in the log.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        trim_files(self.root.file_contents())
    }
}

fn trim_files(files: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let trim = |bytes: Vec<u8>| {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes[..end].to_vec()
    };
    files.into_iter().map(|(name, bytes)| (name, trim(bytes))).collect()
}

fn small_limits() -> SharedFilesLimits {
    SharedFilesLimits {
        sync_wait: Duration::from_secs(60),
        queue: 1 << 20,
        log: 4 << 10,
        ..SharedFilesLimits::default()
    }
}

/// Claims a log at once.
fn claim(log: &Arc<MemoryLog>, number: u8) -> (Arc<HeldClaim>, TakenClaim) {
    let log: Arc<dyn SharedLog> = log.clone();
    let expected = log.create().unwrap();
    claim_expected(&log, expected, number)
}

fn claim_expected(
    log: &Arc<dyn SharedLog>,
    expected: LogIncarnation,
    number: u8,
) -> (Arc<HeldClaim>, TakenClaim) {
    let me = server(number);
    let request = ClaimRequest {
        expected,
        server: &me,
        own: &[],
        early: true,
        clock: &BootClock,
        before_claim: &|_| Ok(()),
    };
    let taken = claim_log(&**log, &request).unwrap();
    let held = HeldClaim::new(log.clone(), server(number), &taken, Arc::new(BootClock));
    (Arc::new(held), taken)
}

fn parts(disk: &Disk, held: &Arc<HeldClaim>, limits: SharedFilesLimits) -> SharedFilesParts {
    SharedFilesParts {
        claim: held.clone(),
        keys: keys(),
        metadata: disk.folder(LoggedFolder::Metadata),
        write_log: disk.folder(LoggedFolder::WriteLog),
        limits,
    }
}

/// Puts what is on a disk into a log.
fn begin(disk: &Disk, log: &Arc<MemoryLog>, limits: SharedFilesLimits) -> (SharedFiles, Arc<HeldClaim>) {
    let (held, taken) = claim(log, 1);
    (SharedFiles::from_local_files(parts(disk, &held, limits), taken.claim.end).unwrap(), held)
}

/// Replays a log, and puts the files in their places on a new disk.
fn replay(log: &dyn SharedLog, claim: &LogClaim, floor: u64) -> Result<(Disk, ReplayedFiles), ReplayError> {
    let staging = SimFolder::with_files(BTreeMap::new());
    let floor = LogPosition(floor);
    let keys = keys();
    let replayed = replay_log(&ReplayRequest { log, keys: &keys, claim, floor, staging: &*staging })?;
    let staged = staging.file_contents();
    assert_eq!(staged.len(), replayed.files.len(), "nothing else is left in the staging folder");
    let files = replayed.files.iter().map(|file| {
        let folder = match file.folder {
            LoggedFolder::Metadata => "meta",
            LoggedFolder::WriteLog => "log",
        };
        (format!("{folder}/{}", file.name), staged[&file.staged].clone())
    });
    Ok((Disk { root: SimFolder::with_files(files.collect()) }, replayed))
}

/// What another machine makes of a log now.
fn take_over(log: &Arc<MemoryLog>, number: u8) -> (Disk, ReplayedFiles, Arc<HeldClaim>) {
    let (held, taken) = claim(log, number);
    let (disk, replayed) = replay(&**log, &taken.claim, 0).unwrap();
    (disk, replayed, held)
}

#[test]
fn files_on_another_machine_are_the_same() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let before = disk.folder(LoggedFolder::Metadata).create_file("before").unwrap();
    before.write_at(b"there before the log was", 3).unwrap();
    let (files, _held) = begin(&disk, &log, SharedFilesLimits::default());
    let meta = files.folder(LoggedFolder::Metadata);
    let segments = files.folder(LoggedFolder::WriteLog);
    let file = meta.create_file("first.new").unwrap();
    file.write_both_at(b"header", b"body", 0).unwrap();
    file.reserve_len(10_000).unwrap();
    file.write_at(&[0; 4096], 10).unwrap();
    meta.rename_file("first.new", "first").unwrap();
    file.write_at(b"written under its new name", 20).unwrap();
    let long = vec![0xa5; 3 * operation::WRITE_MAX + 17];
    let segment = segments.create_file("segment").unwrap();
    segment.write_at(&long, 24).unwrap();
    segments.create_file("gone").unwrap().write_at(b"gone", 0).unwrap();
    segments.remove_file("gone").unwrap();
    meta.create_file("before").unwrap().write_at(b"emptied", 0).unwrap();
    let cut = meta.create_file("cut").unwrap();
    cut.write_at(b"0123456789", 0).unwrap();
    cut.set_len(4).unwrap();
    meta.sync_folder().unwrap();
    let (other, replayed, _other_held) = take_over(&log, 2);
    assert_eq!(other.contents(), disk.contents());
    assert_eq!(other.root.file_contents()["meta/cut"], b"0123");
    assert!(replayed.log_len() > long.len() as u64);
    assert!(!log.contains(b"header") && !log.contains(b"segment"), "neither content nor names are in clear");
}

#[test]
fn who_takes_over_goes_on_under_the_same_numbers() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, _held) = begin(&disk, &log, SharedFilesLimits::default());
    let meta = files.folder(LoggedFolder::Metadata);
    meta.create_file("a").unwrap().write_at(b"by the first", 0).unwrap();
    meta.sync_folder().unwrap();
    let mut last = disk;
    for number in 2..6_u8 {
        let (disk, replayed, held) = take_over(&log, number);
        assert_eq!(disk.contents(), last.contents(), "{number}");
        let files =
            SharedFiles::from_replay(parts(&disk, &held, SharedFilesLimits::default()), &replayed).unwrap();
        let meta = files.folder(LoggedFolder::Metadata);
        meta.open_file("a").unwrap().write_at(&[number; 5], 100 * u64::from(number)).unwrap();
        meta.create_file(&format!("new-{number}")).unwrap().write_at(b"new", 0).unwrap();
        meta.sync_folder().unwrap();
        last = disk;
    }
}

#[test]
fn who_was_taken_over_acknowledges_nothing() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, held) = begin(&disk, &log, SharedFilesLimits::default());
    let meta = files.folder(LoggedFolder::Metadata);
    let file = meta.create_file("a").unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    file.sync_file().unwrap();
    let (other, ..) = take_over(&log, 2);
    file.write_at(b"too late", 0).unwrap();
    let error = file.sync_file().unwrap_err();
    assert!(error.to_string().contains("host2 has taken it over"), "{error}");
    assert!(file.write_at(b"later still", 0).is_err() && meta.create_file("b").is_err());
    assert!(held.failure().is_some_and(|failure| failure.is_fenced) && !held.is_sure());
    assert_eq!(other.root.file_contents()["meta/a"], b"acknowledged");
}
