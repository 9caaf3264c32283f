//! Large files, whose ranges several threads copy; and content that is read again after it was written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vellum_host::ProgressMeter;
use vellum_host::beneath::TEMP_PREFIX;
use vellum_sync::Result;
use vellum_sync::ends::local::LocalEnd;
use vellum_sync::ends::{
    ContentPieces, FilePart, ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, SyncSide,
    TransferPiece,
};
use vellum_sync::local::receive::{DestinationEnd, SyncJob, SyncReport};
use vellum_sync::model::listing::{ContentDigest, ContentDigests, ListingEntry, ListingEntryId, TreeListing};
use vellum_sync::model::options::{DeltaMode, SyncOptions, WriteOptions};
use vellum_sync::plan::SyncPlan;
use vellum_sync::rules::SyncFilters;

use crate::disk::Disk;
use crate::run::{everything, sync};

/// Bytes of a file that is copied in three ranges.
const LEN: usize = (40 << 20) + 123;
/// Where it has a hole: across the end of the first range.
const HOLE: std::ops::Range<usize> = 15 << 20..19 << 20;
/// After this long a test has failed that waits for another thread.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are not like each other, without zeros but for the hole.
fn content() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..LEN).map(|at| (at / 4096 * 31 + at % 251) as u8 | 1).collect();
    bytes[HOLE].fill(0);
    bytes
}

/// Writes them, the hole as one.
fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all_at(&bytes[..HOLE.start], 0).unwrap();
    file.write_all_at(&bytes[HOLE.end..], HOLE.end as u64).unwrap();
}

struct Pair {
    dir: tempfile::TempDir,
    /// The destination.
    to: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        fs::create_dir(&to).unwrap();
        Self::with(dir, to)
    }

    fn with(dir: tempfile::TempDir, to: PathBuf) -> Self {
        fs::create_dir(dir.path().join("from")).unwrap();
        Self { dir, to }
    }

    fn from(&self) -> PathBuf {
        self.dir.path().join("from")
    }

    fn sync(&self, writing: WriteOptions, jobs: u32) -> SyncReport {
        let mut options = SyncOptions { writing, ..everything() };
        options.effort.jobs = Some(jobs);
        let report = sync(&self.from(), &self.to, &options);
        assert_eq!(report.problems, []);
        report
    }
}

#[test]
fn the_ranges_of_a_large_file_make_the_whole() {
    let bytes = content();
    // Within a filesystem the kernel copies; from one to another it does not.
    let disk = Disk::in_memory(100);
    let apart = Pair::with(tempfile::tempdir().unwrap(), disk.path().join("to"));
    fs::create_dir(&apart.to).unwrap();
    for pair in [Pair::new(), apart] {
        write_sparse(&pair.from().join("f"), &bytes);
        for jobs in [1, 4] {
            for sparse in [false, true] {
                let mut options = everything();
                (options.effort.jobs, options.preserve.sparse) = (Some(jobs), sparse);
                let report = sync(&pair.from(), &pair.to, &options);
                assert_eq!(report.problems, []);
                assert_eq!(report.written, (LEN - HOLE.len()) as u64, "a hole is not written");
                assert!(fs::read(pair.to.join("f")).unwrap() == bytes, "{jobs} threads, sparse: {sparse}");
                fs::remove_file(pair.to.join("f")).unwrap();
            }
        }
    }
}

#[test]
fn what_differs_in_any_range_is_written_over() {
    let pair = Pair::new();
    let bytes = content();
    fs::write(pair.from().join("f"), &bytes).unwrap();
    for jobs in [1, 4] {
        let mut old = bytes.clone();
        // On both sides of a range's end, in the hole, and beyond the end of the new one.
        for place in [0, (16 << 20) - 1, 16 << 20, HOLE.end - 1, LEN - 1] {
            old[place] ^= 0xff;
        }
        old.extend_from_slice(b"beyond");
        fs::write(pair.to.join("f"), &old).unwrap();
        let report = pair.sync(WriteOptions { in_place: true, ..WriteOptions::default() }, jobs);
        assert!(fs::read(pair.to.join("f")).unwrap() == bytes);
        assert!(report.written <= 5 * (64 << 10), "{report:?}");
        assert_eq!(report.written + report.spared, LEN as u64);
        // One that is shorter than the first range, to which the rest is appended.
        fs::write(pair.to.join("f"), &bytes[..1000]).unwrap();
        let report = pair.sync(WriteOptions { append: true, ..WriteOptions::default() }, jobs);
        assert!(fs::read(pair.to.join("f")).unwrap() == bytes);
        assert_eq!((report.written, report.spared), (LEN as u64 - 1000, 0));
    }
}

/// Who appends relies on the length of what a run left that was cut off.
#[test]
fn what_is_appended_grows_in_order() {
    // The first range fits, and the last would, too.
    let disk = Disk::in_memory(24);
    let pair = Pair::with(tempfile::tempdir().unwrap(), disk.path().join("to"));
    fs::create_dir(&pair.to).unwrap();
    let bytes = content();
    write_sparse(&pair.from().join("f"), &bytes);
    for (name, writing) in [
        ("appended", WriteOptions { append: true, ..WriteOptions::default() }),
        ("in place", WriteOptions { in_place: true, ..WriteOptions::default() }),
    ] {
        fs::write(pair.to.join("f"), &bytes[..1000]).unwrap();
        let mut options = SyncOptions { writing, ..everything() };
        options.effort.jobs = Some(4);
        assert!(!sync(&pair.from(), &pair.to, &options).problems.is_empty(), "the disk is too small");
        let found = fs::read(pair.to.join("f")).unwrap();
        assert!(found.len() > 1000 && found == bytes[..found.len()], "{name}: {} bytes", found.len());
    }
}

/// A directory of which each file's content is something else.
struct PiecesSource<F>(LocalEnd, F);

impl<F: Send + Sync> SyncEnd for PiecesSource<F> {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        self.0.list_entries(wish, meter)
    }

    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        self.0.hash_files(listing, files, meter)
    }
}

impl<P: ContentPieces + 'static, F: Fn() -> P + Send + Sync> SourceEnd for PiecesSource<F> {
    fn open_content(&self, _: ListingEntry<'_>, _: Option<OldVersion<'_>>) -> Result<SourceContent> {
        Ok(SourceContent::Pieces(Box::new(self.1())))
    }
}

/// A run from such a source.
fn sync_told<P: ContentPieces + 'static>(
    pair: &Pair,
    options: &SyncOptions,
    reported: impl Fn() -> P + Send + Sync,
) -> SyncReport {
    let meter = ProgressMeter::default();
    let source = PiecesSource(LocalEnd::open(&pair.from()).unwrap(), reported);
    let target = LocalEnd::open(&pair.to).unwrap();
    let wish = |side| ListingRequest {
        side,
        options: Arc::new(options.clone()),
        rules: Arc::new(SyncFilters::default()).create_filter(side, b"/").unwrap(),
        top: Vec::new(),
        avoid: None,
        owners: false,
    };
    let from = source.list_entries(&wish(SyncSide::Source), &meter).unwrap();
    let to = target.list_entries(&wish(SyncSide::Destination), &meter).unwrap();
    let plan = SyncPlan::new(&from, &to, options);
    target
        .execute_plan(&SyncJob { plan: &plan, source: &source, from: &from, to: &to, options }, &meter)
        .unwrap()
}

/// Where threads wait until so many are there.
#[derive(Default)]
struct Meeting(Mutex<usize>, Condvar);

impl Meeting {
    fn of(&self, threads: usize) {
        let mut there = self.0.lock();
        *there += 1;
        self.1.notify_all();
        let late = self.1.wait_while_for(&mut there, |there| *there < threads, PATIENCE);
        assert!(!late.timed_out(), "only {} of {threads} threads came", *there);
    }
}

/// Three parts of a byte each, none of which comes before three threads ask for one.
struct Parts {
    meeting: Arc<Meeting>,
    byte: Option<[u8; 1]>,
    given: [u8; 1],
}

impl ContentPieces for Parts {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        let Some(byte) = self.byte.take() else { return Ok(None) };
        self.meeting.of(3);
        self.given = byte;
        Ok(Some(TransferPiece::Data(&self.given)))
    }

    fn split_parts(&self) -> Option<Vec<FilePart>> {
        let part = |(start, byte): (u64, &u8)| {
            let pieces = Self { meeting: self.meeting.clone(), byte: Some([*byte]), given: [0] };
            FilePart { start, end: start + 1, pieces: Box::new(pieces) }
        };
        Some((0..).zip(b"abc").map(part).collect())
    }
}

#[test]
fn threads_without_a_file_of_their_own_take_parts_of_a_large_one() {
    let pair = Pair::new();
    fs::write(pair.from().join("f"), "abc").unwrap();
    let mut options = everything();
    options.effort.jobs = Some(3);
    let meeting = Arc::new(Meeting::default());
    let parts = || Parts { meeting: meeting.clone(), byte: None, given: [0] };
    assert_eq!(sync_told(&pair, &options, parts).problems, []);
    assert_eq!(fs::read(pair.to.join("f")).unwrap(), b"abc");
}

/// Five bytes, after which something befalls the file into which they were written.
struct Struck {
    to: PathBuf,
    given: bool,
}

impl ContentPieces for Struck {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        if !std::mem::replace(&mut self.given, true) {
            return Ok(Some(TransferPiece::Data(b"right")));
        }
        let found = fs::read_dir(&self.to).unwrap().map(|entry| entry.unwrap());
        let is_written = |name: &[u8]| name.starts_with(TEMP_PREFIX) || name == b"in-place";
        found.filter(|entry| is_written(entry.file_name().as_encoded_bytes())).for_each(|entry| {
            fs::OpenOptions::new().write(true).open(entry.path()).unwrap().write_all_at(b"w", 0).unwrap();
        });
        Ok(None)
    }
}

#[test]
fn what_is_read_again_is_compared_with_what_arrived() {
    for (name, in_place) in [("replaced", false), ("in-place", true)] {
        let pair = Pair::new();
        fs::write(pair.from().join(name), "right").unwrap();
        let mut options = everything();
        options.writing = WriteOptions { in_place, delta: DeltaMode::Never, ..WriteOptions::default() };
        for verify in [false, true] {
            options.writing.verify = verify;
            fs::write(pair.to.join(name), "old").unwrap();
            let struck = || Struck { to: pair.to.clone(), given: false };
            let reported: Vec<_> =
                sync_told(&pair, &options, struck).problems.into_iter().map(|one| one.message).collect();
            let found = fs::read(pair.to.join(name)).unwrap();
            match verify {
                // Nobody looked.
                false => {
                    assert_eq!((reported.as_slice(), found.as_slice()), ([].as_slice(), b"wight".as_slice()))
                }
                true => {
                    assert!(reported.iter().any(|message| message.contains("not what")), "{reported:?}");
                    assert!(in_place || found == b"old", "what is wrong gets no name");
                }
            }
        }
    }
}

/// A file of which the source says, after a short hash, that the first bytes are as they were.
struct Alike {
    given: bool,
    whole: ContentDigest,
}

impl ContentPieces for Alike {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        let first = !std::mem::replace(&mut self.given, true);
        Ok(first.then_some(TransferPiece::Old { offset: 0, len: 5 }))
    }

    fn content_digest(&self) -> Option<ContentDigest> {
        Some(self.whole)
    }
}

#[test]
fn what_stays_in_place_is_held_against_the_hash_of_the_whole() {
    for (content, is_alike) in [("alike", true), ("other", false)] {
        let pair = Pair::new();
        fs::write(pair.from().join("f"), content).unwrap();
        fs::write(pair.to.join("f"), "alike and longer").unwrap();
        let mut options = everything();
        options.writing.in_place = true;
        let whole = *blake3::hash(content.as_bytes()).as_bytes();
        let report = sync_told(&pair, &options, || Alike { given: false, whole });
        assert_eq!(report.problems.is_empty(), is_alike, "{report:?}");
    }
}
