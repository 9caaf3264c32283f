//! Two sides in one process, joined by pipes: whole runs, lost connections, and hostile sides.

mod random;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use vellum_host::ProgressMeter;

use super::*;
use crate::ends::local::LocalEnd;
use crate::ends::{ListingRequest, SourceContent, SourceEnd, SyncEnd, SyncSide};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, SyncJob, SyncReport};
use crate::local::scan::NoFilter;
use crate::model::listing::TreeListing;
use crate::model::options::{
    CompareOptions, DeleteOptions, DeletePhase, DeltaMode, EffortOptions, PreserveOptions, SymlinkHandling,
    SyncOptions, WriteOptions,
};
use crate::plan::SyncPlan;
use crate::remote::wire::{FrameKind, Greeting, WireCodec, WireFrame, WireReader, WireWriter};

/// No wait takes this long on any machine.
const TIMEOUT: u64 = 60_000;

fn settings(codec: WireCodec) -> LinkSettings {
    LinkSettings { codec, timeout: TIMEOUT }
}

/// Both ends of a pair of pipes: what one writes the other reads.
type Ends = [(OwnedFd, OwnedFd); 2];

fn pipes() -> Ends {
    let (read_a, write_b) = io::pipe().unwrap();
    let (read_b, write_a) = io::pipe().unwrap();
    [(read_a.into(), write_a.into()), (read_b.into(), write_b.into())]
}

/// A server that lives as long as its client.
struct Served {
    client: Option<SyncClient>,
    server: Option<JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.client.take());
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

fn served(home: &Path, codec: WireCodec) -> Served {
    let [ours, theirs] = pipes();
    with_server(ours, theirs, home, codec)
}

fn with_server(
    ours: (OwnedFd, OwnedFd),
    theirs: (OwnedFd, OwnedFd),
    home: &Path,
    codec: WireCodec,
) -> Served {
    let home = home.to_path_buf();
    let server = std::thread::spawn(move || {
        let link = SessionLink::start_link(theirs.0, theirs.1, &settings(codec));
        let _ = serve_session(&link, &home);
        link.close();
    });
    let client = SyncClient::new(SessionLink::start_link(ours.0, ours.1, &settings(codec)));
    Served { client: Some(client), server: Some(server) }
}

impl Served {
    fn client(&self) -> &SyncClient {
        self.client.as_ref().unwrap()
    }
}

fn begin(role: ServerRole, path: &str) -> BeginRequest {
    BeginRequest { role, path: path.into(), name: None, follows_name: false, timeout: TIMEOUT }
}

fn options() -> SyncOptions {
    let preserve = PreserveOptions {
        recursive: true,
        times: true,
        modes: true,
        symlinks: SymlinkHandling::Keep,
        specials: true,
        hard_links: true,
        ..PreserveOptions::default()
    };
    SyncOptions {
        preserve,
        delete: DeleteOptions { when: DeletePhase::After, force: true, ..DeleteOptions::default() },
        writing: WriteOptions { delta: DeltaMode::Always, ..WriteOptions::default() },
        effort: EffortOptions { jobs: Some(4), ..EffortOptions::default() },
        compare: CompareOptions::default(),
        ..SyncOptions::default()
    }
}

fn wish(side: SyncSide, options: &SyncOptions) -> ListingRequest {
    ListingRequest {
        side,
        options: Arc::new(options.clone()),
        rules: Arc::new(NoFilter),
        top: Vec::new(),
        avoid: None,
        owners: false,
    }
}

/// The client's directory is the destination.
fn pull(client: &SyncClient, from: &str, to: &Path, options: &SyncOptions) -> Result<SyncReport> {
    let meter = ProgressMeter::default();
    client.request_end(&begin(ServerRole::Source, from))?;
    let from = client.list_entries(None, &wish(SyncSide::Source, options), &meter)?;
    let local = LocalEnd::open(to)?;
    let to = local.list_entries(&wish(SyncSide::Destination, options), &meter)?;
    let plan = SyncPlan::new(&from, &to, options);
    let source = client.wire_source();
    local.execute_plan(&SyncJob { plan: &plan, source: &source, from: &from, to: &to, options }, &meter)
}

/// The server's directory is the destination.
fn push(client: &SyncClient, from: &Path, to: &str, options: &SyncOptions) -> Result<SyncReport> {
    let meter = ProgressMeter::default();
    let local = LocalEnd::open(from)?;
    client.request_end(&begin(ServerRole::Destination, to))?;
    let from = local.list_entries(&wish(SyncSide::Source, options), &meter)?;
    let to = client.list_entries(None, &wish(SyncSide::Destination, options), &meter)?;
    let plan = SyncPlan::new(&from, &to, options);
    client.execute_plan(&SyncJob { plan: &plan, source: &local, from: &from, to: &to, options }, &meter)
}

fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..len).map(|_| byte()).collect()
}

/// A tree with one of everything.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    for number in 0..40 {
        fs::write(root.join(format!("dir/small{number}")), noise(number * 37, number as u64)).unwrap();
    }
    fs::write(root.join("big"), noise(3_000_000, 1)).unwrap();
    fs::write(root.join("name\nwith \u{1b}[31m"), "odd").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    symlink("../dir/../nowhere", root.join("dir/link")).unwrap();
    fs::hard_link(root.join("big"), root.join("dir/again")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 5 << 20).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o640)).unwrap();
    let old = std::time::UNIX_EPOCH - std::time::Duration::new(1_000_000, 5);
    fs::File::open(root.join("big")).unwrap().set_modified(old).unwrap();
}

/// Everything that a tree is, in words.
fn describe_tree(root: &Path) -> Vec<String> {
    fn walk(root: &Path, at: &Path, lines: &mut Vec<String>) {
        let mut names: Vec<PathBuf> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for path in names {
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_file() {
                blake3::hash(&fs::read(&path).unwrap()).to_string()
            } else {
                String::new()
            };
            let link = fs::read_link(&path).ok();
            let shown = path.strip_prefix(root).unwrap().display().to_string();
            let mode = meta.mode();
            let secs = meta.mtime();
            let nanos = meta.mtime_nsec();
            let size = if meta.is_dir() { 0 } else { meta.len() };
            lines.push(format!("{shown:?} {mode:o} {secs}.{nanos} {size} {link:?} {content}"));
            if meta.is_dir() {
                walk(root, &path, lines);
            }
        }
    }
    let mut all = Vec::new();
    walk(root, root, &mut all);
    all
}

#[test]
fn a_tree_is_fetched_and_brought() {
    for codec in [WireCodec::Plain, WireCodec::Zstd] {
        let temp = tempfile::tempdir().unwrap();
        let here = temp.path().join("here");
        let there = temp.path().join("there");
        make_tree(&here);
        fs::create_dir(&there).unwrap();
        fs::write(there.join("stale"), "goes").unwrap();
        let pulled = pull(served(temp.path(), codec).client(), "here", &there, &options()).unwrap();
        assert!(pulled.problems.is_empty(), "{pulled:?}");
        assert_eq!(describe_tree(&there), describe_tree(&here));
        let pushed = push(served(temp.path(), codec).client(), &here, "new", &options()).unwrap();
        assert!(pushed.problems.is_empty(), "{pushed:?}");
        assert_eq!(describe_tree(&temp.path().join("new")), describe_tree(&here));
        let again = push(served(temp.path(), codec).client(), &here, "new", &options()).unwrap();
        assert_eq!(again.steps, 0, "{again:?}");
    }
}

#[test]
fn holes_stay_holes() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    let there = temp.path().join("there");
    make_tree(&here);
    fs::create_dir(&there).unwrap();
    pull(served(temp.path(), WireCodec::Zstd).client(), "here", &there, &options()).unwrap();
    assert!(fs::metadata(there.join("sparse")).unwrap().blocks() * 512 < 1 << 20);
}

#[test]
fn what_the_other_side_has_is_not_sent_again() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    let there = temp.path().join("there");
    for dir in [&here, &there] {
        fs::create_dir(dir).unwrap();
    }
    let old = noise(4_000_000, 9);
    let mut new = old.clone();
    new.splice(2_000_000..2_000_000, noise(10, 10));
    fs::write(here.join("file"), &new).unwrap();
    for both in 0..2 {
        fs::write(there.join("file"), &old).unwrap();
        let served = served(temp.path(), WireCodec::Zstd);
        let report = match both {
            0 => pull(served.client(), "here", &there, &options()),
            _ => push(served.client(), &here, "there", &options()),
        };
        assert!(report.unwrap().problems.is_empty());
        assert!(fs::read(there.join("file")).unwrap() == new);
        let (sent, received) = served.client().link().traffic();
        assert!(sent + received < 200_000, "{sent} + {received}");
    }
}

#[test]
fn more_files_than_fit_ahead_arrive() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    let there = temp.path().join("there");
    for dir in [&here, &there] {
        fs::create_dir(dir).unwrap();
    }
    for number in 0..60_u64 {
        fs::write(here.join(format!("f{number}")), noise(900_000, number)).unwrap();
    }
    pull(served(temp.path(), WireCodec::Plain).client(), "here", &there, &options()).unwrap();
    assert_eq!(describe_tree(&there), describe_tree(&here));
}

#[test]
fn files_of_one_name_come_alone() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("one"), "content").unwrap();
    let there = temp.path().join("there");
    fs::create_dir(&there).unwrap();
    let served = served(temp.path(), WireCodec::Plain);
    assert_eq!(served.client().request_end(&begin(ServerRole::Source, "one")).unwrap(), FoundPath::Single);
    let options = SyncOptions { delete: DeleteOptions::default(), ..options() };
    pull(served.client(), "one", &there, &options).unwrap();
    assert_eq!(fs::read(there.join("one")).unwrap(), b"content");
    assert!(
        served.client().request_end(&begin(ServerRole::Source, "none")).is_err(),
        "and the conversation goes on"
    );
    assert_eq!(
        served.client().request_end(&begin(ServerRole::Destination, "none")).unwrap(),
        FoundPath::Nothing
    );
}

#[test]
fn errors_of_the_far_side_are_told_in_the_end() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    let there = temp.path().join("there");
    make_tree(&here);
    fs::create_dir(&there).unwrap();
    let served = served(temp.path(), WireCodec::Plain);
    let client = served.client();
    let options = options();
    let meter = ProgressMeter::default();
    client.request_end(&begin(ServerRole::Source, "here")).unwrap();
    let from = client.list_entries(None, &wish(SyncSide::Source, &options), &meter).unwrap();
    fs::remove_file(here.join("empty")).unwrap();
    fs::write(here.join("dir/small3"), "another length").unwrap();
    let local = LocalEnd::open(&there).unwrap();
    let to = local.list_entries(&wish(SyncSide::Destination, &options), &meter).unwrap();
    let plan = SyncPlan::new(&from, &to, &options);
    let source = client.wire_source();
    let job = SyncJob { plan: &plan, source: &source, from: &from, to: &to, options: &options };
    let report = local.execute_plan(&job, &meter).unwrap();
    let paths: Vec<_> = report.problems.iter().map(|problem| problem.path.clone()).collect();
    assert!(paths.contains(&b"empty".to_vec()) && paths.contains(&b"dir/small3".to_vec()), "{report:?}");
    assert!(there.join("big").exists() && !there.join("dir/small3").exists());
}

#[test]
fn hashes_are_those_of_the_far_side() {
    let temp = tempfile::tempdir().unwrap();
    make_tree(&temp.path().join("here"));
    let served = served(temp.path(), WireCodec::Zstd);
    served.client().request_end(&begin(ServerRole::Source, "here")).unwrap();
    let listing = served
        .client()
        .list_entries(None, &wish(SyncSide::Source, &options()), &ProgressMeter::default())
        .unwrap();
    let files: Vec<_> = listing.iter().filter(|entry| entry.is_file()).map(|entry| entry.id()).collect();
    let hashes = served.client().hash_files(&files).unwrap();
    for (id, hash) in files.iter().zip(hashes) {
        let path = String::from_utf8(listing.entry(*id).path()).unwrap();
        let content = fs::read(temp.path().join("here").join(path)).unwrap();
        assert_eq!(hash, Some(*blake3::hash(&content).as_bytes()));
    }
}

// Cuts.

/// Passes on what comes until so many bytes have gone, then ends both ways.
fn relay(from: OwnedFd, to: OwnedFd, mut left: u64) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut from = fs::File::from(from);
        let mut to = fs::File::from(to);
        let mut passed = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        while left > 0 {
            let room = buffer.len().min(left.try_into().unwrap_or(usize::MAX));
            let count = match from.read(&mut buffer[..room]) {
                Ok(0) | Err(_) => break,
                Ok(count) => count,
            };
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
            passed.extend_from_slice(&buffer[..count]);
            left -= count as u64;
        }
        passed
    })
}

/// An operation of a client.
type Run<'r> = &'r dyn Fn(&SyncClient) -> Result<SyncReport>;

/// A run through relays that cut after so many bytes of each way; what went by.
fn cut_run(home: &Path, cuts: [u64; 2], run: Run<'_>) -> [Vec<u8>; 2] {
    let [client_side, client_far] = pipes();
    let [server_side, server_far] = pipes();
    let up = relay(client_far.0, server_far.1, cuts[0]);
    let down = relay(server_far.0, client_far.1, cuts[1]);
    let served = with_server(client_side, server_side, home, WireCodec::Plain);
    let _ = run(served.client());
    drop(served);
    [up.join().unwrap(), down.join().unwrap()]
}

/// Where frames end in what went by, after the greeting.
fn boundaries(bytes: &[u8]) -> Vec<u64> {
    let mut at = 20;
    let mut found = vec![0, 20];
    while let Some(len) = bytes.get(at..at + 4) {
        at += 13 + u32::from_le_bytes(len.try_into().unwrap()) as usize;
        found.push(at as u64);
    }
    found
}

/// hostile.md 54.
#[test]
fn a_cut_anywhere_and_another_run_are_as_good_as_one() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    fs::create_dir_all(here.join("dir")).unwrap();
    for number in 0..4 {
        fs::write(here.join(format!("dir/f{number}")), noise(700, number)).unwrap();
    }
    fs::write(here.join("big"), noise(300_000, 77)).unwrap();
    let old = noise(290_000, 77);
    let prepare = |there: &Path| {
        let _ = fs::remove_dir_all(there);
        fs::create_dir(there).unwrap();
        fs::write(there.join("big"), &old).unwrap();
        fs::write(there.join("stale"), "goes").unwrap();
    };
    let there = temp.path().join("there");
    let pulls = |client: &SyncClient| pull(client, "here", &there, &options());
    let pushes = |client: &SyncClient| push(client, &here, "there", &options());
    let runs: [Run<'_>; 2] = [&pulls, &pushes];
    for run in runs {
        prepare(&there);
        let passed = cut_run(temp.path(), [u64::MAX; 2], run);
        assert_eq!(describe_tree(&there), describe_tree(&here));
        for way in 0..2 {
            for cut in boundaries(&passed[way]) {
                // In the middle of a frame is another place than at its end.
                for cut in [cut, cut.saturating_sub(2)] {
                    prepare(&there);
                    let mut cuts = [u64::MAX; 2];
                    cuts[way] = cut;
                    cut_run(temp.path(), cuts, run);
                    let half = fs::read(there.join("big")).unwrap();
                    assert!(half == old || half == noise(300_000, 77), "a mixture, cut at {cut}");
                    let served = served(temp.path(), WireCodec::Plain);
                    let report = run(served.client()).unwrap();
                    assert!(report.problems.is_empty(), "{report:?}");
                    assert_eq!(describe_tree(&there), describe_tree(&here), "cut at {cut}");
                }
            }
        }
    }
}

/// hostile.md 51: whatever the pieces in which bytes come.
#[test]
fn bytes_may_come_one_by_one() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    let there = temp.path().join("there");
    fs::create_dir_all(here.join("dir")).unwrap();
    fs::write(here.join("dir/file"), noise(3000, 5)).unwrap();
    fs::create_dir(&there).unwrap();
    let [client_side, client_far] = pipes();
    let [server_side, server_far] = pipes();
    let trickle = |from: OwnedFd, to: OwnedFd| {
        std::thread::spawn(move || {
            let mut from = fs::File::from(from);
            let mut to = fs::File::from(to);
            let mut byte = [0];
            while from.read(&mut byte).is_ok_and(|count| count > 0) && to.write_all(&byte).is_ok() {}
        })
    };
    let ways = [trickle(client_far.0, server_far.1), trickle(server_far.0, client_far.1)];
    let served = with_server(client_side, server_side, temp.path(), WireCodec::Plain);
    let report = pull(served.client(), "here", &there, &options()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!(describe_tree(&there), describe_tree(&here));
    drop(served);
    ways.into_iter().for_each(|way| way.join().unwrap());
}

/// hostile.md 52.
#[test]
fn time_outs_of_any_length_are_taken() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("here")).unwrap();
    fs::write(temp.path().join("here/file"), "content").unwrap();
    for timeout in [0, 1 << 31, u64::MAX] {
        let served = served(temp.path(), WireCodec::Zstd);
        served.client().request_end(&BeginRequest { timeout, ..begin(ServerRole::Source, "here") }).unwrap();
        let meter = ProgressMeter::default();
        let listing =
            served.client().list_entries(None, &wish(SyncSide::Source, &options()), &meter).unwrap();
        assert!(listing.find_path(b"file").is_some(), "{timeout}");
    }
}

// Sides that mean harm.

/// The far side of a client, played by hand.
struct Stranger {
    frames: WireReader<fs::File>,
    writer: WireWriter<fs::File>,
}

/// A client, and who it speaks to.
fn with_stranger(timeout: u64) -> (SyncClient, Stranger) {
    let [ours, theirs] = pipes();
    let client = SyncClient::new(SessionLink::start_link(
        ours.0,
        ours.1,
        &LinkSettings { codec: WireCodec::Plain, timeout },
    ));
    let mut from = fs::File::from(theirs.0);
    let mut to = fs::File::from(theirs.1);
    Greeting::new(WireCodec::Plain).send_to(&mut to).unwrap();
    Greeting::receive_from(&mut from).unwrap();
    let frames = WireReader::new(from, WireCodec::Plain).unwrap();
    (client, Stranger { frames, writer: WireWriter::new(to, WireCodec::Plain).unwrap() })
}

impl Stranger {
    fn say(&mut self, kind: FrameKind, number: u32, payload: &[u8]) {
        // Who is refused sees its stream break.
        let _ = self.writer.write_frame(&WireFrame::new(kind, number, payload.to_vec()));
        let _ = self.writer.flush();
    }

    fn until(&mut self, kind: FrameKind) -> WireFrame {
        loop {
            let frame = self.frames.read_frame().unwrap();
            if frame.kind == kind {
                return frame;
            }
        }
    }
}

/// A file of so many bytes, in a listing of its own.
fn one_file(size: u64) -> TreeListing {
    use crate::model::listing::{DirectoryBlock, ListingEntryId, NewListingEntry};
    let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    let file = NewListingEntry { kind: vellum_types::FileKind::File, size, ..NewListingEntry::unknown_dir() };
    block.push(b"file", &file, None).unwrap();
    listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    listing
}

/// What becomes of a file whose content is `frames`; the stream's number is put in.
fn content_of(size: u64, old: Option<&[u8]>, frames: &[(FrameKind, Vec<u8>)]) -> Result<u64> {
    let (client, mut stranger) = with_stranger(TIMEOUT);
    let listing = one_file(size);
    let frames = frames.to_vec();
    let far = std::thread::spawn(move || {
        let kind = loop {
            let frame = stranger.frames.read_frame().unwrap();
            if matches!(frame.kind, FrameKind::Open | FrameKind::OpenDelta | FrameKind::OpenInPlace) {
                break frame.number;
            }
        };
        frames.iter().for_each(|(what, payload)| stranger.say(*what, kind, payload));
        stranger
    });
    let temp = tempfile::tempdir().unwrap();
    let old = old.map(|bytes| {
        fs::write(temp.path().join("old"), bytes).unwrap();
        fs::File::open(temp.path().join("old")).unwrap()
    });
    let file = listing.find_path(b"file").unwrap();
    let SourceContent::Pieces(mut pieces) =
        client.wire_source().open_content(file, old.as_ref().map(crate::ends::OldVersion::from_kept_file))?
    else {
        panic!("pieces")
    };
    let mut count = 0;
    let outcome = loop {
        match pieces.next_piece() {
            Ok(Some(_)) => count += 1,
            Ok(None) => break Ok(count),
            Err(error) => break Err(error),
        }
    };
    drop(pieces);
    drop(client);
    far.join().unwrap();
    outcome
}

fn range(offset: u64, len: u64) -> Vec<u8> {
    [offset.to_le_bytes(), len.to_le_bytes()].concat()
}

#[test]
fn a_file_that_is_as_long_as_it_says_is_taken() {
    let frames = [
        (FrameKind::Data, vec![1; 10]),
        (FrameKind::Hole, 10_u64.to_le_bytes().to_vec()),
        (FrameKind::End, Vec::new()),
    ];
    assert_eq!(content_of(20, None, &frames).unwrap(), 2);
}

/// A frame of a stream.
type SentFrame = (FrameKind, Vec<u8>);

/// hostile.md 47, 50: wrong sizes, and streams without an end.
#[test]
fn sizes_that_lie_fail_the_file() {
    let lies: [(u64, Vec<SentFrame>); 5] = [
        (20, vec![(FrameKind::Data, vec![1; 21])]),
        (20, vec![(FrameKind::Data, vec![1; 10]), (FrameKind::End, Vec::new())]),
        (20, vec![(FrameKind::Hole, u64::MAX.to_le_bytes().to_vec())]),
        (20, vec![(FrameKind::Whole, vec![1; 19])]),
        (0, vec![(FrameKind::Data, vec![1; 1]); 1000]),
    ];
    for (size, frames) in lies {
        assert!(content_of(size, None, &frames).is_err(), "{frames:?}");
    }
}

/// After rsync's CVE-2024-12086: what is taken from an old file is of that file alone, and within it.
#[test]
fn pieces_outside_of_the_old_file_fail_the_file() {
    let old = noise(100_000, 3);
    for (offset, len) in [(0, 100_001), (100_000, 1), (u64::MAX, 2), (u64::MAX - 1, 100)] {
        let frames = [(FrameKind::Old, range(offset, len)), (FrameKind::End, Vec::new())];
        assert!(content_of(200_000, Some(&old), &frames).is_err(), "{offset} {len}");
        assert!(content_of(200_000, None, &frames).is_err(), "and without an old one");
    }
}

/// hostile.md 47: unrequested content ends the session.
#[test]
fn what_was_not_asked_for_is_refused() {
    for (kind, payload) in [
        (FrameKind::Data, b"bytes".to_vec()),
        (FrameKind::Listing, vec![39, 0, 0, 0]),
        (FrameKind::Plan, Vec::new()),
        (FrameKind::Digests, vec![1; 33]),
        (FrameKind::Message, b"{\"Nonsense\":1}".to_vec()),
        (FrameKind::Message, b"{".to_vec()),
    ] {
        let (client, mut stranger) = with_stranger(TIMEOUT);
        let far = std::thread::spawn(move || {
            stranger.until(FrameKind::Message);
            stranger.say(kind, 7, &payload);
            stranger
        });
        assert!(client.request_end(&begin(ServerRole::Source, "x")).is_err(), "{kind:?}");
        assert!(
            client.link().loss_reason().is_some_and(|why| why.contains("not requested")),
            "{:?}",
            client.link().loss_reason()
        );
        far.join().unwrap();
    }
}

#[test]
fn more_than_a_stream_may_send_is_refused() {
    let frames = vec![(FrameKind::Data, vec![0; 1 << 20]); 20];
    let (client, mut stranger) = with_stranger(TIMEOUT);
    let listing = one_file(1 << 30);
    let far = std::thread::spawn(move || {
        let number = stranger.until(FrameKind::Open).number;
        frames.iter().for_each(|(kind, payload)| stranger.say(*kind, number, payload));
        stranger
    });
    let SourceContent::Pieces(pieces) =
        client.wire_source().open_content(listing.find_path(b"file").unwrap(), None).unwrap()
    else {
        panic!("pieces")
    };
    // Nobody takes any of it.
    far.join().unwrap();
    while client.link().loss_reason().is_none() {
        std::thread::yield_now();
    }
    drop(pieces);
}

/// hostile.md 51, 52: a side that sends nothing.
#[test]
fn a_silent_side_is_given_up() {
    let (client, stranger) = with_stranger(50);
    let error = client.request_end(&begin(ServerRole::Source, "x")).unwrap_err();
    assert!(matches!(error, SyncError::Lost), "{error:?}");
    assert!(client.link().loss_reason().is_some_and(|why| why.contains("nothing was received")));
    drop(stranger);
}

#[test]
fn a_server_ends_when_its_client_is_silent() {
    let temp = tempfile::tempdir().unwrap();
    let [ours, theirs] = pipes();
    let home = temp.path().to_path_buf();
    let server = std::thread::spawn(move || {
        let link = SessionLink::start_link(
            theirs.0,
            theirs.1,
            &LinkSettings { codec: WireCodec::Plain, timeout: 50 },
        );
        serve_session(&link, &home)
    });
    server.join().unwrap().unwrap();
    drop(ours);
}

fn is_refused(client: &SyncClient, entry: crate::model::listing::ListingEntry<'_>) -> bool {
    match client.wire_source().open_content(entry, None) {
        Ok(SourceContent::Pieces(mut pieces)) => pieces.next_piece().is_err(),
        _ => panic!("pieces"),
    }
}

/// After rsync's CVE-2024-12086 and -12747, from the other side: only a file of the listing is served, and only if it
/// still is a regular file.
#[test]
fn only_files_of_the_listing_are_served() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    fs::create_dir(&here).unwrap();
    fs::write(temp.path().join("secret"), "secret").unwrap();
    fs::write(here.join("file"), "public").unwrap();
    symlink("../secret", here.join("link")).unwrap();
    let served = served(temp.path(), WireCodec::Plain);
    let client = served.client();
    client.request_end(&begin(ServerRole::Source, "here")).unwrap();
    let listing =
        client.list_entries(None, &wish(SyncSide::Source, &options()), &ProgressMeter::default()).unwrap();
    let content =
        |path: &[u8]| match client.wire_source().open_content(listing.find_path(path).unwrap(), None) {
            Ok(SourceContent::Pieces(mut pieces)) => pieces.next_piece().map(|_| ()),
            _ => panic!("pieces"),
        };
    content(b"file").unwrap();
    assert!(content(b"link").is_err());
    let beyond = one_file(5);
    assert!(is_refused(client, beyond.root()));
    // The file becomes a symlink after it was listed.
    fs::remove_file(here.join("file")).unwrap();
    symlink("../secret", here.join("file")).unwrap();
    assert!(content(b"file").is_err());
    // And so does the directory that a file is in.
    fs::remove_file(here.join("file")).unwrap();
    fs::create_dir(temp.path().join("outside")).unwrap();
    fs::write(temp.path().join("outside/file"), "secret").unwrap();
    fs::create_dir(here.join("dir")).unwrap();
    fs::write(here.join("dir/file"), "public").unwrap();
    let listing =
        client.list_entries(None, &wish(SyncSide::Source, &options()), &ProgressMeter::default()).unwrap();
    fs::remove_dir_all(here.join("dir")).unwrap();
    symlink("../outside", here.join("dir")).unwrap();
    assert!(is_refused(client, listing.find_path(b"dir/file").unwrap()));
}

/// After rsync's CVE-2024-12087 and -12088: a destination whose directories were exchanged for symlinks.
#[test]
fn nothing_is_written_through_a_symlink_at_the_far_side() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path().join("here");
    let there = temp.path().join("there");
    fs::create_dir_all(here.join("dir")).unwrap();
    fs::write(here.join("dir/file"), "new").unwrap();
    fs::create_dir_all(there.join("dir")).unwrap();
    fs::create_dir(temp.path().join("outside")).unwrap();
    let served = served(temp.path(), WireCodec::Plain);
    let client = served.client();
    let options = options();
    let meter = ProgressMeter::default();
    let local = LocalEnd::open(&here).unwrap();
    client.request_end(&begin(ServerRole::Destination, "there")).unwrap();
    let from = local.list_entries(&wish(SyncSide::Source, &options), &meter).unwrap();
    let to = client.list_entries(None, &wish(SyncSide::Destination, &options), &meter).unwrap();
    let plan = SyncPlan::new(&from, &to, &options);
    fs::remove_dir(there.join("dir")).unwrap();
    symlink("../outside", there.join("dir")).unwrap();
    let job = SyncJob { plan: &plan, source: &local, from: &from, to: &to, options: &options };
    let report = client.execute_plan(&job, &meter).unwrap();
    assert!(!report.problems.is_empty());
    assert_eq!(fs::read_dir(temp.path().join("outside")).unwrap().count(), 0);
}

#[test]
fn a_plan_before_a_listing_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("there")).unwrap();
    let served = served(temp.path(), WireCodec::Plain);
    served.client().request_end(&begin(ServerRole::Destination, "there")).unwrap();
    let empty = one_file(0);
    let options = options();
    let plan = SyncPlan::new(&empty, &empty, &options);
    let local = LocalEnd::open(temp.path()).unwrap();
    let job = SyncJob { plan: &plan, source: &local, from: &empty, to: &empty, options: &options };
    assert!(served.client().execute_plan(&job, &ProgressMeter::default()).is_err());
}

/// A request to stop is sent by another thread than the messages of a run.
#[test]
fn no_message_is_sent_between_the_parts_of_another() {
    const SENT: usize = 6;
    let [ours, theirs] = pipes();
    let link = SessionLink::start_link(ours.0, ours.1, &settings(WireCodec::Plain));
    let peer = SessionLink::start_link(theirs.0, theirs.1, &settings(WireCodec::Plain));
    let long = BeginRequest {
        // Each byte takes three of the message.
        path: vec![b'1'; crate::remote::wire::FRAME_MAX as usize / 2],
        ..begin(ServerRole::Source, "")
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..SENT / 2 {
                    link.send_message(&message::SessionMessage::Begin(long.clone())).unwrap();
                }
            });
        }
        scope.spawn(|| (0..SENT).for_each(|_| link.send_message(&message::SessionMessage::Stop).unwrap()));
        for _ in 0..SENT {
            let received = peer.receive_message().unwrap();
            assert!(matches!(received, link::IncomingMessage::Message(message::SessionMessage::Begin(_))));
        }
    });
    link.close();
    peer.close();
}
