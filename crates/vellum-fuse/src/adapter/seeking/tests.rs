//! Seeking against a kernel that has pages which we have not been given.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use parking_lot::Mutex;

use proptest::prelude::*;

use super::*;

/// Blocks of a file: what we know of it, and what the kernel has changed.
#[derive(Debug, Clone)]
struct File {
    known: Vec<bool>,
    changed: Vec<bool>,
}

impl File {
    fn find(blocks: &[bool], at: u64, seek: SeekTarget) -> Result<u64> {
        // What follows the last data is the end of the file.
        let size = blocks.iter().rposition(|data| *data).map_or(0, |last| last + 1);
        let at = usize::try_from(at).unwrap();
        if at >= size {
            return Err(Errno::NXIO.into());
        }
        let wanted = |data: &bool| *data == (seek == SeekTarget::Data);
        let found = blocks[at..size].iter().position(wanted).map(|found| at + found);
        match (found, seek) {
            (Some(found), _) => Ok(found as u64),
            (None, SeekTarget::Hole) => Ok(size as u64),
            (None, SeekTarget::Data) => Err(Errno::NXIO.into()),
        }
    }

    fn truth(&self) -> Vec<bool> {
        self.known.iter().zip(&self.changed).map(|(known, changed)| known | changed).collect()
    }

    fn write_back(&mut self, range: &Range<u64>) {
        for (at, changed) in (0..).zip(&mut self.changed) {
            if range.contains(&at) && std::mem::take(changed) {
                self.known[usize::try_from(at).unwrap()] = true;
            }
        }
    }
}

/// Seeks, and gives what was found and what was written back.
fn seek(file: File, goal: SeekGoal) -> (SeekDone, Vec<(u64, u64)>) {
    let file = Arc::new(Mutex::new(file));
    let ours = file.clone();
    let find = move |at, seek| File::find(&ours.lock().known, at, seek);
    let look = goal.search_content(&find).unwrap();
    let (done, result) = channel();
    let written = Mutex::new(Vec::new());
    UncertainSeek::new(7, goal, look, find, move |found| done.send(found).unwrap()).resolve_seek(
        |node, range| {
            assert_eq!(node, 7);
            file.lock().write_back(range);
            written.lock().push((range.start, range.end));
        },
    );
    (result.recv().unwrap(), written.into_inner())
}

fn known(blocks: &[u8]) -> File {
    File {
        known: blocks.iter().map(|block| *block == b'x').collect(),
        changed: blocks.iter().map(|block| *block == b'c').collect(),
    }
}

#[test]
fn data_that_is_known_is_not_in_doubt() {
    assert_eq!(seek(known(b"..x.xx"), SeekGoal { offset: 2, seek: SeekTarget::Data }), (Ok(2), vec![]));
}

#[test]
fn pages_before_the_hole_stay() {
    let (found, written) = seek(known(b"xxxx"), SeekGoal { offset: 0, seek: SeekTarget::Hole });
    assert_eq!((found, written), (Ok(4), vec![(4, END)]));
    let (found, written) = seek(known(b"xx..xx"), SeekGoal { offset: 0, seek: SeekTarget::Hole });
    assert_eq!((found, written), (Ok(2), vec![(2, 4)]));
}

#[test]
fn what_the_kernel_has_behind_the_end_is_found() {
    assert_eq!(seek(known(b"x..c"), SeekGoal { offset: 1, seek: SeekTarget::Data }).0, Ok(3));
    assert_eq!(seek(known(b"xccc"), SeekGoal { offset: 0, seek: SeekTarget::Hole }).0, Ok(4));
    assert_eq!(seek(known(b"x.cc"), SeekGoal { offset: 2, seek: SeekTarget::Hole }).0, Ok(4));
}

#[test]
fn many_filled_holes_are_not_looked_at_one_by_one() {
    let file = known(&b"xc".repeat(100));
    let (found, written) = seek(file, SeekGoal { offset: 0, seek: SeekTarget::Hole });
    assert_eq!((found, written.len()), (Ok(200), HOLES_MAX + 1));
}

proptest! {
    #[test]
    fn what_is_found_is_what_the_kernel_would_find(
        blocks in prop::collection::vec((any::<bool>(), prop::bool::weighted(0.3)), 0..24),
        offset in 0..26_u64,
        data in any::<bool>(),
    ) {
        let (known, changed) = blocks.into_iter().unzip();
        let file = File { known, changed };
        let goal = SeekGoal { offset, seek: if data { SeekTarget::Data } else { SeekTarget::Hole } };
        let expected = File::find(&file.truth(), offset, goal.seek).map_err(|error| error.errno());
        prop_assert_eq!(seek(file, goal).0, expected);
    }
}
