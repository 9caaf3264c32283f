//! New files from old ones, and false signatures.

use proptest::prelude::*;

use super::*;

/// The shortest block length.
fn signature(old: &[u8]) -> FileSignature {
    FileSignature::from_reader(&mut &*old, old.len() as u64).unwrap().unwrap()
}

/// Applies the operations to the old file; returns the new one and the bytes of data in the operations.
fn rebuild(old: &[u8], new: &[u8], signature: FileSignature) -> (Vec<u8>, usize) {
    let mut built = Vec::new();
    let mut sent = 0;
    SignatureMatcher::new(signature)
        .scan_file(&mut &*new, new.len() as u64, &mut |op| {
            match op {
                DeltaOperation::Copy { offset, len } => {
                    let from = offset as usize;
                    let to = (offset + len) as usize;
                    built.extend_from_slice(&old[from..to]);
                }
                DeltaOperation::Data(data) => {
                    sent += data.len();
                    built.extend_from_slice(data);
                }
            }
            Ok(())
        })
        .unwrap();
    (built, sent)
}

/// The same in place over the old file, from its start on.
fn overwrite(old: &[u8], new: &[u8], signature: FileSignature) -> (Vec<u8>, usize) {
    let mut built = old.to_vec();
    let mut position = 0;
    let mut sent = 0;
    SignatureMatcher::new_in_place(signature)
        .scan_file(&mut &*new, new.len() as u64, &mut |op| {
            let bytes = match op {
                DeltaOperation::Copy { offset, len } => {
                    assert!(offset as usize >= position, "{offset} was written over at {position}");
                    built[offset as usize..(offset + len) as usize].to_vec()
                }
                DeltaOperation::Data(data) => {
                    sent += data.len();
                    data.to_vec()
                }
            };
            built.resize(built.len().max(position + bytes.len()), 0);
            built[position..position + bytes.len()].copy_from_slice(&bytes);
            position += bytes.len();
            Ok(())
        })
        .unwrap();
    built.truncate(position);
    (built, sent)
}

fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..len).map(|_| byte()).collect()
}

#[derive(Debug, Clone)]
enum Edit {
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Overwrite(usize, Vec<u8>),
    Double,
}

fn edits() -> impl Strategy<Value = Edit> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..3000);
    prop_oneof![
        (any::<usize>(), bytes()).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<usize>(), 0..5000_usize).prop_map(|(at, len)| Edit::Remove(at, len)),
        (any::<usize>(), bytes()).prop_map(|(at, bytes)| Edit::Overwrite(at, bytes)),
        Just(Edit::Double),
    ]
}

fn edit(bytes: &mut Vec<u8>, edit: &Edit) {
    let len = bytes.len();
    match edit {
        Edit::Insert(at, new) => drop(bytes.splice(at % (len + 1)..at % (len + 1), new.iter().copied())),
        Edit::Remove(at, gone) => drop(bytes.drain(at % (len + 1)..(at % (len + 1) + gone).min(len))),
        Edit::Overwrite(at, new) => {
            bytes.iter_mut().skip(at % (len + 1)).zip(new).for_each(|(old, new)| *old = *new);
        }
        Edit::Double => bytes.extend_from_within(..),
    }
}

/// When the old file is overwritten in place, content that moved towards the start is not sent, nor is content that
/// stayed.
#[test]
fn what_moved_towards_the_start_is_taken_in_place() {
    let old = noise(1 << 20, 1);
    let removed = [&old[..100_000], &old[150_000..]].concat();
    let (built, sent) = overwrite(&old, &removed, signature(&old));
    assert!(built == removed && sent < 20_000, "{sent}");
    let (built, sent) = overwrite(&old, &old, signature(&old));
    assert!(built == old && sent == 0, "{sent}");
    // What moved towards the end is sent, and no more than that.
    let inserted = [&old[..900_000], b"inserted", &old[900_000..]].concat();
    let (built, sent) = overwrite(&old, &inserted, signature(&old));
    assert!(built == inserted && sent < 200_000, "{sent}");
    let zeros = vec![0; 5000];
    let (built, _) = overwrite(&zeros, &[0; 3 << 20], signature(&zeros));
    assert!(built == [0; 3 << 20]);
}

proptest! {
    #[test]
    fn what_is_sent_makes_the_new_file_in_place(
        len in 0..60_000_usize,
        seed in any::<u64>(),
        changes in prop::collection::vec(edits(), 0..4),
    ) {
        let old = noise(len, seed);
        let mut new = old.clone();
        changes.iter().for_each(|change| edit(&mut new, change));
        prop_assert_eq!(overwrite(&old, &new, signature(&old)).0, new);
    }

    #[test]
    fn what_is_sent_makes_the_new_file(
        len in 0..60_000_usize,
        seed in any::<u64>(),
        changes in prop::collection::vec(edits(), 0..4),
    ) {
        let old = noise(len, seed);
        let mut new = old.clone();
        changes.iter().for_each(|change| edit(&mut new, change));
        let (built, _) = rebuild(&old, &new, signature(&old));
        prop_assert_eq!(built, new);
    }

    #[test]
    fn signatures_survive_the_wire(len in 0..20_000_usize, seed in any::<u64>()) {
        let signature = signature(&noise(len, seed));
        prop_assert_eq!(FileSignature::decode(&signature.encode()), Ok(signature));
    }

    #[test]
    fn any_bytes_are_a_signature_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(signature) = FileSignature::decode(&bytes) {
            prop_assert_eq!(signature.encode(), bytes);
        }
    }
}

#[test]
fn an_equal_file_costs_nothing() {
    let old = noise(1_000_003, 1);
    assert_eq!(rebuild(&old, &old, signature(&old)), (old.clone(), 0));
}

#[test]
fn an_insertion_costs_about_a_block() {
    let old = noise(4_000_000, 2);
    let mut new = old.clone();
    new.splice(2_000_000..2_000_000, noise(100, 3));
    let (built, sent) = rebuild(&old, &new, signature(&old));
    assert_eq!(built, new);
    assert!(sent <= 100 + 2 * choose_block_size(4_000_000).unwrap() as usize, "{sent}");
}

#[test]
fn a_longer_file_needs_only_its_end() {
    let old = noise(100_000, 4);
    let new = [&old[..], &noise(500, 5)].concat();
    let (built, sent) = rebuild(&old, &new, signature(&old));
    assert_eq!(built, new);
    assert!(sent <= 500 + choose_block_size(100_000).unwrap() as usize);
}

#[test]
fn zeros_take_no_longer_than_anything() {
    let old = vec![0; 3_000_000];
    let new = [vec![0; 1_500_001], vec![1], vec![0; 1_500_000]].concat();
    let (built, _) = rebuild(&old, &new, signature(&old));
    assert!(built == new);
}

/// After rsync's CVE-2024-12084: a peer's lengths caused a write beyond the buffer.
#[test]
fn lengths_of_a_signature_are_checked_before_memory_is_taken() {
    let encoded = |block: u32, len: u64| [&block.to_le_bytes()[..], &len.to_le_bytes(), &[0; 24]].concat();
    for (block, len) in [(0, 24), (1, 24), (1 << 10, u64::MAX), (u32::MAX, 100), (1 << 10, 1 << 40)] {
        assert_eq!(FileSignature::decode(&encoded(block, len)), Err(SignatureError::Lengths { block, len }));
    }
    assert_eq!(FileSignature::decode(&encoded(1 << 10, 10_000)), Err(SignatureError::Count));
    assert_eq!(FileSignature::decode(&[]), Err(SignatureError::Count));
    assert!(FileSignature::decode(&encoded(1 << 10, 2048)).is_ok());
}

/// After rsync's CVE-2024-12085: hashes shorter than announced were compared with adjacent memory.
#[test]
fn a_signature_that_is_cut_or_too_long_is_refused() {
    let encoded = signature(&noise(10_000, 3)).encode();
    assert!(FileSignature::decode(&encoded).is_ok());
    for len in 0..encoded.len() {
        assert!(FileSignature::decode(&encoded[..len]).is_err(), "{len} of {}", encoded.len());
    }
    assert!(FileSignature::decode(&[&encoded[..], &[0]].concat()).is_err());
}

/// A signature whose weak hashes are those of all windows of the file, and whose strong ones match none.
#[test]
fn weak_hashes_that_lie_at_each_byte_do_not_make_it_slow() {
    let new = vec![0; 8 << 20];
    let block = choose_block_size(new.len() as u64).unwrap();
    let weak = signature(&new).hashes[0].0;
    let hashes =
        (0..new.len().div_ceil(block as usize)).map(|at| (weak, (at as u64).to_le_bytes())).collect();
    let lying = FileSignature { block, len: new.len() as u64, hashes };
    let (built, sent) = rebuild(&[], &new, lying);
    assert!(built == new && sent == new.len());
}

#[test]
fn blocks_grow_with_files() {
    assert_eq!(choose_block_size(0), Some(1024));
    assert_eq!(choose_block_size(100 << 20), Some(20_480));
    assert_eq!(choose_block_size(1 << 40), Some(4 << 20));
    assert_eq!(choose_block_size(u64::MAX), None);
}

#[test]
fn several_threads_make_the_signature_that_one_makes() {
    // Shares that do not end with a block, and a file that ends before it should.
    let old = noise((9 << 20) + 77, 5);
    let file = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &old, 0).unwrap();
    assert_eq!(FileSignature::from_file(&file, old.len() as u64).unwrap(), Some(signature(&old)));
    assert_eq!(FileSignature::from_file(&file, old.len() as u64 + 1).unwrap(), None);
}

#[test]
fn what_is_equal_goes_out_before_the_end_of_the_file_is_seen() {
    let old = noise(8 << 20, 6);
    let mut longest = 0;
    let matcher = SignatureMatcher::new(signature(&old));
    let mut note = |op: DeltaOperation<'_>| {
        longest = longest.max(if let DeltaOperation::Copy { len, .. } = op { len } else { 0 });
        Ok(())
    };
    matcher.scan_file(&mut &*old, old.len() as u64, &mut note).unwrap();
    assert!(longest < 3 << 20, "{longest}");
}
