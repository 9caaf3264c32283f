//! Frames, listings and plans survive the wire; what a hostile side sends is refused.

use proptest::prelude::*;
use vellum_types::{FileKind, UnixTime};

use super::*;
use crate::model::listing::{
    DirectoryBlock, EntryDetail, EntryFlags, ListingEntryId, ListingError, NewListingEntry, TreeListing,
};

fn round(codec: WireCodec, frames: &[WireFrame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = WireWriter::new(&mut bytes, codec).unwrap();
    for frame in frames {
        writer.write_frame(frame).unwrap();
        writer.flush().unwrap();
    }
    drop(writer);
    bytes
}

fn read_all(codec: WireCodec, bytes: Vec<u8>) -> (Vec<WireFrame>, WireError) {
    let mut reader = WireReader::new(std::io::Cursor::new(bytes), codec).unwrap();
    let mut frames = Vec::new();
    loop {
        match reader.read_frame() {
            Ok(frame) => frames.push(frame),
            Err(error) => return (frames, error),
        }
    }
}

fn frames() -> Vec<WireFrame> {
    vec![
        WireFrame::new(FrameKind::Ping, 0, Vec::new()),
        WireFrame::new(FrameKind::Data, 7, vec![1; 100_000]),
        WireFrame::new(FrameKind::End, u32::MAX, b"end".to_vec()),
    ]
}

#[test]
fn frames_survive_the_wire() {
    for codec in [WireCodec::Plain, WireCodec::Zstd] {
        let (read, _) = read_all(codec, round(codec, &frames()));
        assert_eq!(read, frames());
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let bytes = round(WireCodec::Plain, &frames());
    for at in [0, 4, 5, 9, 10, 20_000, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(read_all(WireCodec::Plain, damaged).0.len() < 3, "{at}");
    }
}

#[test]
fn a_cut_stream_gives_whole_frames_alone() {
    for codec in [WireCodec::Plain, WireCodec::Zstd] {
        let bytes = round(codec, &frames());
        for cut in (0..bytes.len()).step_by(bytes.len() / 50 + 1) {
            let (read, _) = read_all(codec, bytes[..cut].to_vec());
            assert_eq!(read, frames()[..read.len()]);
        }
    }
}

#[test]
fn a_length_that_lies_takes_no_memory() {
    let mut bytes = Vec::new();
    bytes.extend((FRAME_MAX + 1).to_le_bytes());
    bytes.extend([10; 20]);
    assert!(matches!(read_all(WireCodec::Plain, bytes).1, WireError::TooLong(_)));
}

#[test]
fn who_is_not_vellum_is_told() {
    let mut answer: &[u8] = b"Welcome to this host!\n\x1b[31m";
    let error = Greeting::receive_from(&mut answer).unwrap_err().to_string();
    assert!(error.contains("Welcome to this host!") && !error.contains('\x1b'), "{error}");
    let mut newer = b"VELLUM-SYNC\n\x02\x00\x03\x00\x00\x00\x00\x00".as_slice();
    assert!(matches!(Greeting::receive_from(&mut newer), Err(WireError::Version(2, 3, 1))));
    assert!(matches!(Greeting::receive_from(&mut b"".as_slice()), Err(WireError::Closed)));
}

fn some_listing() -> TreeListing {
    let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let file = |size, secs| NewListingEntry {
        kind: FileKind::File,
        size,
        mtime: UnixTime { secs, nanos: 5 },
        ..NewListingEntry::unknown_dir()
    };
    let mut block = DirectoryBlock::default();
    block.push(b"a", &NewListingEntry::unknown_dir(), None).unwrap();
    block.push(b"ab", &file(10, -5), None).unwrap();
    let link = NewListingEntry {
        kind: FileKind::Symlink,
        flags: EntryFlags::LINKED,
        ..NewListingEntry::unknown_dir()
    };
    block
        .push(b"b", &link, Some(EntryDetail { target: b"../x".as_slice().into(), ..EntryDetail::default() }))
        .unwrap();
    block.push(b"c", &NewListingEntry::unknown_dir(), None).unwrap();
    let first = listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    let dirs = [first, ListingEntryId::from_u32(first.as_u32() + 3).unwrap()];
    for dir in dirs.into_iter().rev() {
        let mut block = DirectoryBlock::default();
        for name in 0..50 {
            block.push(format!("file{name:02}").as_bytes(), &file(name * 1000, 1 << 33), None).unwrap();
        }
        listing.attach_block(dir, &mut block).unwrap();
    }
    listing
}

fn payloads(listing: &TreeListing) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    encode_listing(listing, &mut |payload| {
        payloads.push(payload);
        Ok::<(), WireError>(())
    })
    .unwrap();
    payloads
}

fn decode(payloads: &[Vec<u8>]) -> Result<Option<TreeListing>, WireError> {
    let mut decoder = ListingDecoder::default();
    for payload in payloads {
        if let Some(listing) = decoder.decode_payload(payload)? {
            return Ok(Some(listing));
        }
    }
    Ok(None)
}

fn describe_tree(listing: &TreeListing) -> Vec<String> {
    let describe_entry = |entry: crate::model::listing::ListingEntry<'_>| {
        let mode = entry.mode();
        let mtime = entry.mtime();
        let size = entry.size();
        format!("{entry:?} {mode:o} {mtime:?} {size} {:?} {:?}", entry.flags(), entry.detail())
    };
    listing.iter().map(describe_entry).collect()
}

#[test]
fn listings_survive_the_wire_with_their_numbers() {
    let listing = some_listing();
    let arrived = decode(&payloads(&listing)).unwrap().unwrap();
    assert_eq!(describe_tree(&arrived), describe_tree(&listing));
}

/// One directory, its entries as told: what a peer could make of it by hand.
fn forged(dir: u8, names: &[&[u8]], kind: u8) -> Vec<Vec<u8>> {
    let root = vec![1 << 5 | 7, 0, 0, 0];
    let mut block = vec![dir, names.len() as u8];
    for name in names {
        block.extend([kind << 5 | 7, 0, name.len() as u8]);
        block.extend(*name);
        block.extend([0].iter().chain((kind == 0).then_some(&0)));
    }
    vec![root, block, Vec::new()]
}

/// After rsync's CVE-2024-12087 and hostile.md 35: names that lead elsewhere.
#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [&b".."[..], b".", b"", b"a/b", b"/etc", b"a\0b"] {
        assert!(
            matches!(decode(&forged(0, &[name], 0)), Err(WireError::Listing(ListingError::Name))),
            "{name:?}"
        );
    }
    assert!(decode(&forged(0, &[b"fine"], 0)).unwrap().is_some());
}

/// After rsync's CVE-2024-12087: a symlink, and a file beneath it.
#[test]
fn entries_below_a_symlink_are_refused() {
    let mut payloads = forged(0, &[b"link"], 2);
    let below = forged(1, &[b"passwd"], 0)[1].clone();
    payloads.insert(2, below);
    assert!(matches!(decode(&payloads), Err(WireError::Listing(ListingError::Place))));
}

/// hostile.md 45: the number that means "whose it is" to a kernel would leave a file, and its set-id bits, to root.
#[test]
fn an_owner_that_is_nobody_is_refused() {
    for (uid, gid) in [(u32::MAX, 0), (0, u32::MAX)] {
        let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
        let mut block = DirectoryBlock::default();
        block
            .push(
                b"f",
                &NewListingEntry {
                    kind: FileKind::File,
                    mode: 0o4755,
                    uid,
                    gid,
                    ..NewListingEntry::unknown_dir()
                },
                None,
            )
            .unwrap();
        listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
        assert!(decode(&payloads(&listing)).is_err(), "{uid}:{gid}");
    }
}

#[test]
fn counts_and_orders_that_lie_are_refused() {
    assert!(decode(&forged(0, &[b"b", b"a"], 0)).is_err());
    assert!(decode(&forged(0, &[b"a", b"a"], 0)).is_err());
    assert!(decode(&forged(9, &[b"a"], 0)).is_err());
    let endless = vec![forged(0, &[], 0)[0].clone(), [&[0][..], &[0xff; 9], &[1]].concat()];
    assert!(decode(&endless).is_err());
    let short = vec![forged(0, &[], 0)[0].clone(), vec![0, 200, 1], Vec::new()];
    assert!(decode(&short).is_err());
}

#[test]
fn steps_about_entries_that_are_not_there_are_refused() {
    let listing = some_listing();
    let mut decoder = PlanDecoder::default();
    assert!(decoder.decode_payload(&[3, 1, 0, 1, 0, 0], &listing, &listing).is_ok());
    for step in [
        [3, 1, 0, 0, 0, 0],
        [3, 1, 0, 127, 0, 0],
        [3, 10, 0, 1, 0, 0],
        [3, 11, 0, 0, 0, 0],
        [3, 51, 0, 1, 0, 0],
        [7, 1, 0, 1, 0, 0],
    ] {
        assert!(PlanDecoder::default().decode_payload(&step, &listing, &listing).is_err(), "{step:?}");
    }
    assert!(decoder.decode_payload(&[2, 1, 0, 1, 0, 0], &listing, &listing).is_err(), "phases go on only");
}

/// A plan that made directories and renamed was refused, since two phases changed places on their way.
#[test]
fn every_phase_and_every_action_arrives_as_it_was_sent() {
    use crate::plan::{Differences, StepAction, StepPhase, SyncPlan, SyncStep, WriteMethod};
    let listing = some_listing();
    let phases = [
        StepPhase::Clear,
        StepPhase::Dirs,
        StepPhase::Rename,
        StepPhase::Files,
        StepPhase::Links,
        StepPhase::Delete,
        StepPhase::Finish,
    ];
    let actions = [
        StepAction::MakeDir,
        StepAction::Write(WriteMethod::Whole),
        StepAction::Write(WriteMethod::Delta),
        StepAction::Write(WriteMethod::InPlace),
        StepAction::Write(WriteMethod::Append),
        StepAction::Symlink,
        StepAction::Special,
        StepAction::Link,
        StepAction::Attributes,
        StepAction::Rename,
        StepAction::Delete,
        StepAction::LinkBasis(0),
        StepAction::LinkBasis(19),
        StepAction::CopyBasis(0),
        StepAction::CopyBasis(19),
    ];
    let id = Some(ListingEntryId::ROOT);
    for action in actions {
        let step = |phase| SyncStep { phase, action, what: Differences(7), source: id, old: id, other: id };
        let steps = phases.into_iter().map(step).collect();
        let plan = SyncPlan { steps, ..SyncPlan::default() };
        let mut decoder = PlanDecoder::default();
        let mut arrived = None;
        crate::remote::wire::encode_plan(&plan, &mut |payload| -> Result<(), WireError> {
            arrived = decoder.decode_payload(&payload, &listing, &listing)?;
            Ok(())
        })
        .unwrap();
        assert_eq!(arrived.unwrap(), plan.steps);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for codec in [WireCodec::Plain, WireCodec::Zstd] {
            read_all(codec, bytes.clone());
        }
        let mut decoder = ListingDecoder::default();
        for payload in bytes.chunks(40) {
            if decoder.decode_payload(payload).is_err() {
                break;
            }
        }
        let listing = some_listing();
        let _ = PlanDecoder::default().decode_payload(&bytes, &listing, &listing);
    }

    #[test]
    fn damaged_listings_are_decoded_or_refused(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut payloads = payloads(&some_listing());
        let byte = at.index(payloads[1].len());
        payloads[1][byte] = to;
        let _ = decode(&payloads);
    }
}
