//! What one program closed, and others open afterwards.
//!
//! Each worker has a file whose content it overwrites, one whose size it changes, and a directory in which it creates names;
//! each time with the next number. All others look.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use super::event::{HistoryEvent, HistoryViolation};
use super::files::{close, read_number, write_number};
use super::take_over::TakeOver;
use super::worker::{HistoryProgram, HistoryWorker};

/// What shows the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisiblePart {
    Content,
    Size,
    Name,
}

const PARTS: [VisiblePart; 3] = [VisiblePart::Content, VisiblePart::Size, VisiblePart::Name];
/// Most names in a directory: all are listed each time.
const NAMES_MAX: u64 = 300;

fn name_of(part: u64, client: u64) -> String {
    format!("visible{part}-{client}")
}

pub(super) fn prepare(dir: &Path, clients: usize) -> io::Result<()> {
    for client in 0..clients as u64 {
        write_number(File::create(dir.join(name_of(0, client)))?, 0, false)?;
        close(File::create(dir.join(name_of(1, client)))?)?;
        std::fs::create_dir(dir.join(name_of(2, client)))?;
    }
    Ok(())
}

pub(super) fn observe(worker: &mut HistoryWorker) {
    for client in 0..worker.task.clients as u64 {
        (0..PARTS.len() as u64).for_each(|part| look(worker, part, client));
    }
}

/// Changes its own files and looks at those of others.
pub(super) struct VisibleProgram {
    /// The last number of each part.
    last: [u64; PARTS.len()],
}

impl VisibleProgram {
    pub(super) fn new() -> Self {
        Self { last: [0; PARTS.len()] }
    }
}

impl HistoryProgram for VisibleProgram {
    fn perform(&mut self, worker: &mut HistoryWorker) {
        let part = worker.random.next_below(PARTS.len() as u64);
        if worker.random.is_one_in(2) {
            let client = worker.random.next_below(worker.task.clients as u64);
            return look(worker, part, client);
        }
        let own = worker.task.client as u64;
        let path = worker.path(name_of(part, own));
        let next = self.last[part as usize] + 1;
        let changed = match PARTS[part as usize] {
            VisiblePart::Content => worker.record("change", &[part, own, next], || {
                write_number(File::options().write(true).open(path)?, next, false)
            }),
            VisiblePart::Size => worker.record("change", &[part, own, next], || {
                let file = File::options().write(true).open(path)?;
                file.set_len(next)?;
                close(file)
            }),
            VisiblePart::Name if next > NAMES_MAX => None,
            VisiblePart::Name => worker.record("change", &[part, own, next], || {
                close(File::create_new(path.join(next.to_string()))?)
            }),
        };
        // An attempt whose outcome is unknown has used its number; names end at their limit.
        if changed.is_some() || next <= NAMES_MAX || part != 2 {
            self.last[part as usize] = next;
        }
    }
}

fn look(worker: &mut HistoryWorker, part: u64, client: u64) {
    let path = worker.path(name_of(part, client));
    worker.record("look", &[part, client], || match PARTS[part as usize] {
        VisiblePart::Content => read_number(&path),
        VisiblePart::Size => Ok(std::fs::metadata(&path)?.len()),
        VisiblePart::Name => {
            let mut last = 0;
            for entry in std::fs::read_dir(&path)? {
                // A name that is no number counts as one that nobody has created yet.
                last = last.max(entry?.file_name().to_string_lossy().parse().unwrap_or(u64::MAX));
            }
            Ok(last)
        }
    });
}

pub(super) fn check(events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
    let mut changes: BTreeMap<(u64, u64), Vec<&HistoryEvent>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.name == "change") {
        changes.entry((event.argument(0), event.argument(1))).or_default().push(event);
    }
    let looks = events.iter().filter(|event| event.name == "look");
    let check = |look: &HistoryEvent| {
        let &[seen] = look.results()? else { return None };
        let of_file = changes.get(&(look.argument(0), look.argument(1))).map_or(&[][..], Vec::as_slice);
        // They are in the order of their times and numbers.
        let ended = of_file.partition_point(|change| change.start < look.start);
        // The lost server may have answered the change, and the next one the look.
        let may_be_lost = |change: &HistoryEvent| {
            take_over.is_some_and(|take_over| take_over.may_lose(change) && take_over.may_precede(look))
        };
        let is_known = |change: &&&HistoryEvent| {
            change.results().is_some() && change.is_before(look) && !may_be_lost(change)
        };
        let known = of_file[..ended].iter().rev().find(is_known);
        let least = known.map_or(0, |change| change.argument(2));
        // What had begun before the look ended may be seen already.
        let begun = of_file.partition_point(|change| look.end.is_none_or(|end| change.start < end));
        let most = begun.checked_sub(1).map_or(0, |last| of_file[last].argument(2));
        if seen >= least && seen <= most {
            return None;
        }
        let shown = known.map_or_else(|| "nothing".to_owned(), |change| change.to_string());
        Some(HistoryViolation(format!("{look} after {shown}, while at most {most} was begun")))
    };
    looks.filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::super::event::parse_log;
    use super::*;

    fn found(look: &str) -> usize {
        let writer = "I 10 change 0 0 1\nD 20\nI 30 change 0 0 2\nD 40\nI 50 change 0 0 3\nU 60 5\n";
        check(&[parse_log(0, writer), parse_log(1, look)].concat(), None).len()
    }

    #[test]
    fn what_is_visible_is_accepted() {
        for look in ["I 1 look 0 0\nD 2 0\n", "I 21 look 0 0\nD 22 1\n", "I 31 look 0 0\nD 32 1\n"] {
            assert_eq!(found(look), 0, "{look}");
        }
        for look in ["I 31 look 0 0\nD 32 2\n", "I 61 look 0 0\nD 62 2\n", "I 61 look 0 0\nD 62 3\n"] {
            assert_eq!(found(look), 0, "{look}");
        }
    }

    #[test]
    fn what_is_stale_or_from_the_future_is_found() {
        for look in ["I 21 look 0 0\nD 22 0\n", "I 41 look 0 0\nD 42 1\n", "I 21 look 0 0\nD 22 2\n"] {
            assert_eq!(found(look), 1, "{look}");
        }
        for look in ["I 1 look 0 0\nD 2 1\n", "I 61 look 0 0\nD 62 4\n", "I 61 look 1 0\nD 62 1\n"] {
            assert_eq!(found(look), 1, "{look}");
        }
    }
}
