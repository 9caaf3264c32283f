//! Copies are equal, and holes stay holes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::beneath::stat_file;
use crate::metadata::FileStat;

const MIB: u64 = 1 << 20;

/// 8 MiB of which two pieces are data.
fn sparse() -> (File, FileStat) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8 * MIB).unwrap();
    file.write_all_at(&[7; 65_536], MIB).unwrap();
    file.write_all_at(&[9; 65_536], 4 * MIB).unwrap();
    let stat = stat_file(&file).unwrap();
    (file, stat)
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(stat_file(file).unwrap().size).unwrap()];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

#[test]
fn segments_cover_the_data_and_skip_the_holes() {
    let (file, stat) = sparse();
    assert!(stat.may_have_holes);
    let segments: Vec<_> = iter_data_segments(&file, &stat).map(Result::unwrap).collect();
    assert!(segments.iter().any(|s| s.offset <= MIB && s.offset + s.len >= MIB + 65_536));
    assert!(segments.iter().any(|s| s.offset <= 4 * MIB && s.offset + s.len >= 4 * MIB + 65_536));
    assert!(segments.iter().map(|s| s.len).sum::<u64>() < 8 * MIB);
    assert!(segments.is_sorted_by(|a, b| a.offset + a.len <= b.offset));
}

#[test]
fn a_file_with_all_its_blocks_is_one_segment() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    file.sync_all().unwrap();
    let stat = stat_file(&file).unwrap();
    let segments: Vec<_> = iter_data_segments(&file, &stat).map(Result::unwrap).collect();
    assert_eq!(segments, [DataSegment { offset: 0, len: 10_000 }]);
}

#[test]
fn empty_files_and_mere_holes_have_no_data() {
    let file = tempfile::tempfile().unwrap();
    assert_eq!(iter_data_segments(&file, &stat_file(&file).unwrap()).count(), 0);
    file.set_len(MIB).unwrap();
    assert_eq!(iter_data_segments(&file, &stat_file(&file).unwrap()).count(), 0);
}

#[test]
fn copies_are_equal_and_as_sparse() {
    let (from, stat) = sparse();
    for copy in [clone_or_copy_content, copy_data] {
        let to = tempfile::tempfile().unwrap();
        let copied = copy(&from, &to, &stat).unwrap();
        assert_eq!(content(&to), content(&from), "{copied:?}");
        assert!(stat_file(&to).unwrap().may_have_holes, "{copied:?}");
    }
}

#[test]
fn a_file_that_lies_about_its_size_is_read_by_hand() {
    // Files of /proc have size 0 and content: a caller that measured them asks for what it measured.
    let text = std::fs::read("/proc/self/cmdline").unwrap();
    let from = File::open("/proc/self/cmdline").unwrap();
    let stat = FileStat { size: text.len() as u64, may_have_holes: false, ..stat_file(&from).unwrap() };
    let to = tempfile::tempfile().unwrap();
    copy_data(&from, &to, &stat).unwrap();
    assert_eq!(content(&to), text);
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let from = tempfile::tempfile().unwrap();
    from.write_all_at(&[1; 1000], 0).unwrap();
    from.sync_all().unwrap();
    let stat = FileStat { may_have_holes: false, ..stat_file(&from).unwrap() };
    from.set_len(500).unwrap();
    let to = tempfile::tempfile().unwrap();
    assert!(matches!(copy_data(&from, &to, &stat), Err(CloneError::Shrunk { expected: 1000 })));
}

#[test]
fn whether_blocks_can_be_shared_is_found_out_without_leaving_anything() {
    let dir = tempfile::tempdir().unwrap();
    let can_share = can_share_blocks(dir.path());
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    // Whatever the answer is, a copy says the same.
    let from = File::create_new(dir.path().join("from")).unwrap();
    from.write_all_at(&[1; 4096], 0).unwrap();
    let from = File::open(dir.path().join("from")).unwrap();
    let to = File::create_new(dir.path().join("to")).unwrap();
    let copied = clone_or_copy_content(&from, &to, &stat_file(&from).unwrap()).unwrap();
    assert_eq!(copied.strategy == CopyStrategy::Reflink, can_share);
    assert!(!can_share_blocks(&dir.path().join("nothing")));
}
