//! Moving entries: they are removed at the source once the destination has them.
//!
//! Invariant: an entry is removed only if the destination has it completely and durably, and if it still is as it was
//! listed; an entry that may be the same file as the destination's stays, too. Directories stay. Deliberately absent:
//! which entries the destination has once a plan is carried out (see `plan`).

use std::collections::HashSet;

use vellum_host::ProgressMeter;
use vellum_host::beneath::HeldDir;
use vellum_types::{FileKind, LookupResult};

use crate::error::{Result, SyncError};
use crate::local::receive::{SyncJob, SyncProblem, SyncReport};
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId, TreeListing};

/// Removes the moved entries of a plan at the source, except those with a reported problem; adds the result to the
/// report.
pub fn remove_moved_entries(job: &SyncJob<'_>, report: &mut SyncReport, meter: &ProgressMeter) -> Result<()> {
    if job.plan.moved.is_empty() || report.stopped {
        return Ok(());
    }
    // The source is the only copy until the destination is on the disk: a power cut must not lose both.
    if !report.durable {
        let message = "the destination may not be durable, so nothing was removed at the source";
        report.problems.push(SyncProblem { path: Vec::new(), message: message.into(), vanished: false });
        return Ok(());
    }
    let failed: HashSet<&[u8]> = report.problems.iter().map(|problem| problem.path.as_slice()).collect();
    // Of a directory that could not be made nothing may be there.
    let arrived = |id: &&ListingEntryId| {
        let path = job.from.entry(**id).path();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        // A problem of any directory above the entry counts as well as one of the entry itself.
        ends.chain([path.len()]).all(|end| path.get(..end).is_none_or(|above| !failed.contains(above)))
    };
    let entries: Vec<ListingEntryId> = job.plan.moved.iter().filter(arrived).copied().collect();
    let taken = job.source.remove_entries(job.from, &entries, meter)?;
    report.taken = taken.taken;
    // The copy is complete and durable at this point, so a stop only leaves more entries at the source.
    report.stopped |= taken.stopped;
    report.problems.extend(taken.problems);
    Ok(())
}

/// Removes entries that are still as they were listed; `place` opens the directory of an entry and returns its name
/// there.
pub(crate) fn remove_unchanged_entries<'l>(
    listing: &'l TreeListing,
    entries: &[ListingEntryId],
    meter: &ProgressMeter,
    place: impl Fn(&ListingEntry<'l>) -> Result<(HeldDir, Vec<u8>)>,
) -> SyncReport {
    let mut report = SyncReport::default();
    for entry in entries.iter().filter_map(|id| listing.get(*id)) {
        if meter.is_stopped() {
            report.stopped = true;
            break;
        }
        // The directory is opened component by component without following symlinks, so that one that was put
        // in its place since the listing has no effect.
        let removed = place(&entry).and_then(|(dir, name)| remove_unchanged_entry(&dir, &name, &entry));
        match removed {
            Ok(()) => report.taken += 1,
            Err(error) => {
                let message = format!("not removed at the source: {}", error.format_chain());
                report.problems.push(SyncProblem { path: entry.path(), message, vanished: false });
            }
        }
    }
    report
}

fn remove_unchanged_entry(dir: &HeldDir, name: &[u8], entry: &ListingEntry<'_>) -> Result<()> {
    // Another process may have removed it.
    let Some(stat) = dir.stat(name).none_if_missing()? else { return Ok(()) };
    let size = if stat.kind == FileKind::File { stat.size } else { 0 };
    let same = (entry.kind(), entry.size(), entry.mtime()) == (stat.kind, size, stat.mtime);
    // Names that come and go change the time of a file with several.
    let stamp =
        if entry.flags().contains(EntryFlags::LINKED) { 0 } else { entry.listing().change_stamp(entry.id()) };
    if !same || entry.is_dir() || stamp != 0 && stamp != crate::local::scan::compute_identity(&stat) {
        return Err(SyncError::Changed);
    }
    // Between the check and this call the entry can still change. No system call removes a name on a condition, so
    // the window can only be kept short.
    Ok(dir.unlink(name)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::ends::local::LocalEnd;
    use crate::ends::{ListingRequest, SourceEnd, SyncEnd, SyncSide};
    use crate::local::receive::DestinationEnd;
    use crate::local::scan::NoFilter;
    use crate::model::options::{PreserveOptions, SymlinkHandling, SyncOptions};
    use crate::plan::SyncPlan;

    fn options() -> SyncOptions {
        let preserve = PreserveOptions {
            recursive: true,
            times: true,
            symlinks: SymlinkHandling::Keep,
            ..PreserveOptions::default()
        };
        SyncOptions { preserve, stamps: true, moves: true, ..SyncOptions::default() }
    }

    fn list(end: &LocalEnd, side: SyncSide) -> TreeListing {
        let wish = ListingRequest {
            side,
            options: Arc::new(options()),
            rules: Arc::new(NoFilter),
            top: Vec::new(),
            avoid: None,
            owners: false,
        };
        end.list_entries(&wish, &ProgressMeter::default()).unwrap()
    }

    /// Copies `from` to `to`; calls `meddle` before the entries of `from` are removed.
    fn moved(root: &Path, meddle: impl Fn(&Path, &mut SyncReport)) -> SyncReport {
        let from = root.join("from");
        let to = root.join("to");
        fs::create_dir_all(&to).unwrap();
        let source = LocalEnd::open(&from).unwrap();
        let destination = LocalEnd::open(&to).unwrap();
        let ours = list(&source, SyncSide::Source);
        let theirs = list(&destination, SyncSide::Destination);
        let options = options();
        let meter = ProgressMeter::default();
        let plan = SyncPlan::new(&ours, &theirs, &options);
        let job = SyncJob { plan: &plan, source: &source, from: &ours, to: &theirs, options: &options };
        let mut report = destination.execute_plan(&job, &meter).unwrap();
        assert!(report.durable && report.problems.is_empty(), "{report:?}");
        meddle(&from, &mut report);
        remove_moved_entries(&job, &mut report, &meter).unwrap();
        report
    }

    fn make(root: &Path) {
        for name in ["a", "b", "c", "d/e", "f"] {
            let path = root.join("from").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "content").unwrap();
        }
    }

    #[test]
    fn what_changed_meanwhile_stays() {
        let temp = tempfile::tempdir().unwrap();
        make(temp.path());
        let report = moved(temp.path(), |from, _| {
            fs::write(from.join("a"), "longer content").unwrap();
            // Size and modification time are the same, and only the change time differs.
            let time = fs::metadata(from.join("b")).unwrap().modified().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::write(from.join("b"), "CONTENT").unwrap();
            fs::File::options().write(true).open(from.join("b")).unwrap().set_modified(time).unwrap();
            fs::remove_file(from.join("c")).unwrap();
            // Another directory in the place of one that was listed.
            fs::rename(from.join("d"), from.join("../was")).unwrap();
            fs::create_dir(from.join("../outside")).unwrap();
            fs::copy(from.join("../was/e"), from.join("../outside/e")).unwrap();
            std::os::unix::fs::symlink("../outside", from.join("d")).unwrap();
        });
        let failed: Vec<_> = report.problems.iter().map(|problem| problem.path.as_slice()).collect();
        assert!(failed.starts_with(&[b"a", b"b"]) && !failed.contains(&&b"f"[..]), "{report:?}");
        for (name, stays) in [("a", true), ("b", true), ("../outside/e", true), ("f", false)] {
            assert_eq!(temp.path().join("from").join(name).exists(), stays, "{name}");
        }
    }

    #[test]
    fn what_something_is_told_of_or_what_may_not_last_stays() {
        let temp = tempfile::tempdir().unwrap();
        make(temp.path());
        let report = moved(temp.path(), |_, report| {
            report.problems.push(SyncProblem {
                path: b"a".to_vec(),
                message: String::new(),
                vanished: false,
            });
        });
        assert_eq!(report.taken, 4);
        assert!(temp.path().join("from/a").exists());
        make(temp.path());
        let report = moved(temp.path(), |_, report| {
            report.problems.push(SyncProblem {
                path: b"d".to_vec(),
                message: String::new(),
                vanished: false,
            });
        });
        assert_eq!(report.taken, 4);
        assert!(temp.path().join("from/d/e").exists());
        make(temp.path());
        let report = moved(temp.path(), |_, report| report.durable = false);
        assert_eq!((report.taken, report.problems.len()), (0, 1));
        let report = moved(temp.path(), |_, report| report.stopped = true);
        assert_eq!((report.taken, report.problems.len()), (0, 0));
        assert!(temp.path().join("from/f").exists());
    }

    #[test]
    fn a_source_that_never_changes_gives_nothing_away() {
        struct Fixed;
        impl SyncEnd for Fixed {
            fn list_entries(&self, _: &ListingRequest, _: &ProgressMeter) -> Result<TreeListing> {
                Err(SyncError::Stopped)
            }
            fn hash_files(
                &self,
                _: &TreeListing,
                _: &[ListingEntryId],
                _: &ProgressMeter,
            ) -> Result<Vec<Option<crate::model::listing::ContentDigest>>> {
                Err(SyncError::Stopped)
            }
        }
        impl SourceEnd for Fixed {
            fn open_content(
                &self,
                _: ListingEntry<'_>,
                _: Option<crate::ends::OldVersion<'_>>,
            ) -> Result<crate::ends::SourceContent> {
                Err(SyncError::Stopped)
            }
        }
        let listing = TreeListing::new(&crate::model::listing::NewListingEntry::unknown_dir(), None);
        let refused = Fixed.remove_entries(&listing, &[], &ProgressMeter::default());
        assert!(matches!(refused, Err(SyncError::Unchangeable)));
    }
}
