//! Directories that are moved into each other.
//!
//! Each worker holds all directories open, so that an operation names its directories wherever they are.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, renameat, statat};

use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
use super::linearize::{CheckedObject, EventDurability, SequentialModel, check_linearizable, relevant};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

/// Directories below the root, which is the last one.
const DIRECTORIES: usize = 6;
const ROOT: usize = DIRECTORIES;

fn name_of(directory: u64) -> String {
    format!("directory{directory}")
}

pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    (0..DIRECTORIES as u64).try_for_each(|directory| std::fs::create_dir(dir.join(name_of(directory))))
}

/// Records each place at which a directory is: twice the directory and where it is.
pub(super) fn observe(worker: &mut HistoryWorker) {
    let root = worker.path("");
    worker.record("final", &[], || {
        let mut found = Vec::new();
        walk(&root, ROOT as u64, &mut found)?;
        Ok(found)
    });
}

fn walk(path: &Path, number: u64, found: &mut Vec<u64>) -> io::Result<()> {
    // Deeper than all of them in a row, there is a circle.
    if found.len() > 4 * DIRECTORIES * DIRECTORIES {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let child = name.strip_prefix("directory").and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX);
        found.extend([child, number]);
        walk(&entry.path(), child, found)?;
    }
    Ok(())
}

/// Moves directories and looks for them.
pub(super) struct MovesProgram {
    // Kept open: by its descriptor a directory is found wherever it has been moved.
    directories: Vec<File>,
}

impl MovesProgram {
    /// Opens all directories, which are in the root still.
    pub(super) fn open(dir: &Path) -> Self {
        let open = |path: &Path| File::open(path).expect("a directory that was made");
        let mut directories: Vec<_> =
            (0..DIRECTORIES as u64).map(|number| open(&dir.join(name_of(number)))).collect();
        directories.push(open(dir));
        Self { directories }
    }
}

impl HistoryProgram for MovesProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let moved = worker.random.next_below(DIRECTORIES as u64);
        let from = worker.random.next_below(DIRECTORIES as u64 + 1);
        let to = worker.random.next_below(DIRECTORIES as u64 + 1);
        let name = name_of(moved);
        let at = |directory: u64| &self.directories[directory as usize];
        let look = |directory: u64| match statat(at(directory), &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(1_u64),
            Err(rustix::io::Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        };
        // To move something to where it is does nothing, so that this is a look instead.
        if from == to || worker.random.is_one_in(3) {
            worker.record("look", &[moved, from], || look(from));
            return;
        }
        worker.record("move", &[moved, from, to], || Ok(renameat(at(from), &name, at(to), &name)?));
    }
}

/// Where each directory is.
struct MovesModel;

impl MovesModel {
    /// Whether `directory` is `ancestor` or below it.
    fn is_within(state: &[usize; DIRECTORIES], directory: usize, ancestor: usize) -> bool {
        let mut at = directory;
        while at != ROOT {
            if at == ancestor {
                return true;
            }
            at = state[at];
        }
        false
    }
}

impl SequentialModel for MovesModel {
    type State = [usize; DIRECTORIES];

    fn apply(&self, state: &Self::State, event: &HistoryEvent) -> Option<Self::State> {
        let moved = event.argument(0) as usize % DIRECTORIES;
        let from = event.argument(1) as usize;
        let to = event.argument(2) as usize;
        if event.name == "look" {
            let is_there = u64::from(state[moved] == from);
            return event.results().is_none_or(|results| results == [is_there]).then_some(*state);
        }
        // Linux looks for the source before it looks for a circle.
        let error = if state[moved] != from {
            Some(libc::ENOENT)
        } else if Self::is_within(state, to, moved) {
            Some(libc::EINVAL)
        } else {
            None
        };
        match (&event.outcome, error) {
            (HistoryOutcome::Done(_) | HistoryOutcome::Unknown(_), None) => {
                let mut after = *state;
                after[moved] = to;
                Some(after)
            }
            (HistoryOutcome::Unknown(_), Some(_)) => Some(*state),
            (HistoryOutcome::Failed(errno), Some(expected)) => (*errno == expected).then_some(*state),
            (HistoryOutcome::Done(_), Some(_)) | (HistoryOutcome::Failed(_), None) => None,
        }
    }

    fn is_reading(&self, event: &HistoryEvent) -> bool {
        event.name == "look"
    }

    fn durability(&self, _event: &HistoryEvent) -> EventDurability {
        EventDurability::OneCall
    }
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let (last, mut performed): (Vec<_>, Vec<_>) =
        relevant(events, &[libc::ENOENT, libc::EINVAL]).into_iter().partition(|event| event.name == "final");
    // A look whose outcome is unknown says nothing.
    performed.retain(|event| event.name != "look" || !event.is_unknown());
    let Some((end, places)) = last.iter().find_map(|event| Some((*event, event.results()?))) else {
        return vec![HistoryViolation("the tree at the end is not known".into())];
    };
    let mut found = Vec::new();
    let pairs: Vec<_> = places.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let mut looks = Vec::new();
    for directory in 0..DIRECTORIES as u64 {
        let at: Vec<u64> =
            pairs.iter().filter(|(child, _)| *child == directory).map(|(_, parent)| *parent).collect();
        if at.len() != 1 {
            found.push(HistoryViolation(format!("{} is in {} places: {at:?}", name_of(directory), at.len())));
        }
        // Where the walk found it is where it must be after all that is known.
        looks.extend(at.into_iter().map(|parent| HistoryEvent {
            name: "look".into(),
            arguments: vec![directory, parent],
            outcome: HistoryOutcome::Done(vec![1]),
            ..end.clone()
        }));
    }
    performed.extend(&looks);
    let object = CheckedObject { name: "a tree of directories", take_over };
    found.extend(check_linearizable(&MovesModel, [ROOT; DIRECTORIES], &performed, object));
    found
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    /// Directories 0 to 5, where those at the end that are not named are in the root.
    fn found(logs: &[&str], moved: &[(u64, u64)]) -> Vec<String> {
        let mut places = String::new();
        for directory in 0..DIRECTORIES as u64 {
            let parent =
                moved.iter().find(|(child, _)| *child == directory).map_or(ROOT as u64, |(_, at)| *at);
            places.push_str(&format!(" {directory} {parent}"));
        }
        let last = format!("I 900 final\nD 901{places}\n");
        let logs = logs.iter().copied().chain([last.as_str()]);
        let events: Vec<_> = logs.enumerate().flat_map(|(client, log)| parse_log(client, log)).collect();
        check(&events, None).into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn what_moves_do_is_accepted() {
        let none: [String; 0] = [];
        assert_eq!(
            found(&["I 1 move 0 6 1\nD 2\nI 3 move 1 6 0\nF 4 22\nI 5 move 0 6 2\nF 6 2\n"], &[(0, 1)]),
            none
        );
        // Only one of two that would make a circle together.
        assert_eq!(found(&["I 1 move 0 6 1\nD 9\n", "I 1 move 1 6 0\nF 9 22\n"], &[(0, 1)]), none);
    }

    #[test]
    fn circles_are_found() {
        let both = ["I 1 move 0 6 1\nD 9\n", "I 1 move 1 6 0\nD 9\n"];
        assert!(!found(&both, &[(0, 1), (1, 0)]).is_empty());
        assert!(!found(&both, &[]).is_empty());
    }

    #[test]
    fn lost_and_doubled_directories_are_found() {
        let log = |places: &str| {
            [parse_log(0, "I 1 move 0 6 1\nD 2\n"), parse_log(1, &format!("I 9 final\nD 10{places}\n"))]
                .concat()
        };
        assert!(check(&log(" 0 1 1 6 2 6 3 6 4 6 5 6"), None).is_empty());
        let lost = check(&log(" 1 6 2 6 3 6 4 6 5 6"), None);
        assert!(lost[0].0.contains("in 0 places"), "{lost:?}");
        let doubled = check(&log(" 0 1 0 6 1 6 2 6 3 6 4 6 5 6"), None);
        assert!(doubled[0].0.contains("in 2 places"), "{doubled:?}");
    }

    #[test]
    fn one_of_two_that_move_the_same_wins() {
        assert!(!found(&["I 1 move 0 6 1\nD 9\n", "I 1 move 0 6 2\nD 9\n"], &[(0, 1)]).is_empty());
        assert!(!found(&["I 1 move 0 6 1\nD 9\n", "I 11 look 0 6\nD 12 1\n"], &[(0, 1)]).is_empty());
    }
}
