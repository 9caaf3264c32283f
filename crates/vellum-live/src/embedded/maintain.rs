//! Bounds memory and the journal: checkpoints, frozen groups, removal of unneeded files. Also forks.
//!
//! Invariant: a file gets its name after it is durable, and the files that it replaces are removed after its name is
//! durable.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::checkpoint::{self, CheckpointHeader, GroupRun};
use super::engine::EmbeddedEngine;
use super::folder::{EngineFolder, LocalFolder, link_or_copy_file, wrap_io_error};
use super::groups::KeyGroups;
use super::journal::{self, JournalSegment};
use super::open::FIRST;
use super::run::{self, RunBuilder, SortedRun};
use super::suffix::GroupKey;
use crate::error::LiveError;

/// Entries that are taken at once, while transactions wait.
const PORTION: usize = 512;
/// The journal may be this many times as long as what is in memory.
const JOURNAL_FACTOR: u64 = 4;

/// Where space is short, the journal may be this many times as long as what is in memory, and this long in any case, bytes:
/// less is not worth a checkpoint.
const SHRUNK_FACTOR: u64 = 2;
const SHRUNK_MIN: u64 = 64 << 10;

/// What only one thread at a time may do.
pub(crate) struct Maintenance {
    /// The number of the checkpoint that would be read if the store were opened now.
    pub checkpoint: u64,
    /// The number of the next run.
    pub next_run: u64,
    /// The length of the journal when a checkpoint last failed.
    pub failed_at: u64,
}

impl EmbeddedEngine {
    /// Makes a checkpoint if the journal is long, and removes files that are no longer needed.
    pub(crate) fn run_maintenance(&self) -> Result<(), LiveError> {
        let mut held = self.maintenance.lock();
        // First, since it frees space, and a checkpoint needs some.
        self.remove_dropped_runs()?;
        let len = self.writer.lock().journal.len;
        let live = self.groups.read().live_memory_size() as u64;
        let limit = self.limits.journal.max(live.saturating_mul(JOURNAL_FACTOR));
        // After a failure, for want of space most likely, the next attempt waits until there is more to win.
        if len < limit.max(held.failed_at.saturating_add(limit / 4)) {
            return Ok(());
        }
        self.checkpoint_journal(&mut held).inspect_err(|_| held.failed_at = len)
    }

    /// Makes a checkpoint if that frees much of what the journal takes; whether it did.
    pub(crate) fn shrink_journal(&self) -> Result<bool, LiveError> {
        let mut held = self.maintenance.lock();
        self.remove_dropped_runs()?;
        let len = self.writer.lock().journal.len;
        let live = self.read_groups(KeyGroups::live_memory_size) as u64;
        if len < SHRUNK_MIN.max(live.saturating_mul(SHRUNK_FACTOR)) {
            return Ok(false);
        }
        self.checkpoint_journal(&mut held).map(|()| true)
    }

    /// Replaces the journal by a checkpoint. Transactions go on meanwhile.
    pub(crate) fn checkpoint_journal(&self, held: &mut Maintenance) -> Result<(), LiveError> {
        self.check_not_failed()?;
        // Nobody else makes files of the journal: the maintenance lock is held.
        let number = self.writer.lock().journal.segment.number + 1;
        let folder = &*self.folder;
        let name = journal::format_journal_name(number);
        let created = JournalSegment::create_segment(folder, number)
            .and_then(|segment| folder.sync_folder().map(|()| segment));
        let segment = created.map_err(wrap_io_error(folder, "create", &name)).inspect_err(|_| {
            // Without records it means nothing, and the next attempt takes its name.
            let _ = folder.remove_file(&name);
        })?;
        // From here on transactions go into the new file, so that the checkpoint and that file together are
        // everything.
        let (beginning, before) = self.switch_journal(Arc::new(segment))?;
        let portion = |from: &[u8]| self.read_groups(|groups| groups.collect_live_entries(from, PORTION));
        let settle = || {
            let upto = self.written.load(Ordering::Acquire);
            // If the checkpoint replaced the journal before, a loss of power could leave entries of a transaction
            // whose record is lost, beside others of it that are not there.
            self.wait_until_durable(upto).map(|()| upto)
        };
        checkpoint::write_checkpoint(folder, number, &beginning, portion, settle).inspect_err(|_| {
            // What it has written so far takes space that may be what is missing.
            let _ = folder.remove_file(&format!(
                "{}{}",
                checkpoint::format_checkpoint_name(number),
                checkpoint::UNFINISHED
            ));
        })?;
        // From here on the new checkpoint counts, even if the removal of older files fails: an opening takes the
        // newest.
        let older = std::mem::replace(&mut held.checkpoint, number);
        held.failed_at = 0;
        self.counters.count_checkpoint();
        // Subtracted, not set: transactions were appended meanwhile.
        self.writer.lock().journal.len -= before;
        remove_superseded_files(folder, older, number)
    }

    /// Lets the journal go on in a new file. Returns what the checkpoint begins with, and the journal's length so far.
    fn switch_journal(&self, segment: Arc<JournalSegment>) -> Result<(CheckpointHeader, u64), LiveError> {
        let mut writer = self.writer.lock();
        self.check_not_failed()?;
        // The old file stays among those that a sync flushes: its last records may not be durable yet.
        self.syncing.lock().segments.push(Arc::clone(&segment));
        writer.journal.switch_segment(segment);
        // With the writer held: the list belongs to exactly this place of the sequence.
        let runs = self.read_groups(list_group_runs);
        Ok((CheckpointHeader { begin: writer.sequence, runs }, writer.journal.len))
    }

    /// Seals what stands under a prefix. What takes much memory moves into runs.
    pub(crate) fn freeze_prefix(&self, prefix: &[u8]) -> Result<(), LiveError> {
        // Checkpoints and removals of files wait meanwhile.
        let mut held = self.maintenance.lock();
        self.check_not_failed()?;
        let sealed = {
            let _writer = self.writer.lock();
            let mut groups = self.groups.write();
            // The writer is locked: no transaction is between its record in the journal and its entries in memory.
            groups.seal_groups(prefix, self.limits.run)
        };
        // The writer is free again: sealed groups do not change while they are written.
        for group in &sealed {
            self.move_group_to_run(*group, &mut held)?;
        }
        // The journal still has all entries of the new runs. Only a checkpoint names the runs and lets these records
        // go; until then a crash finds the entries in the journal, and the files are leftovers.
        if sealed.is_empty() { Ok(()) } else { self.checkpoint_journal(&mut held) }
    }

    /// Moves a sealed group into a run.
    fn move_group_to_run(&self, group: GroupKey, held: &mut Maintenance) -> Result<(), LiveError> {
        let number = held.next_run;
        held.next_run += 1;
        let name = run::format_run_name(number);
        let remove = || self.folder.remove_file(&name).map_err(wrap_io_error(&*self.folder, "remove", &name));
        let written = self.write_group_run(group, number).inspect_err(|_| {
            let _ = remove();
        })?;
        if !written {
            return remove();
        }
        // Read back before the entries leave memory: a file that cannot be opened must not be the only copy.
        let run = Arc::new(SortedRun::open_run(&*self.folder, number)?);
        let replaced = {
            let _writer = self.writer.lock();
            self.groups.write().install_run(run)
        };
        if replaced.is_some() { Ok(()) } else { remove() }
    }

    /// Writes the entries of a sealed group. False: the group went meanwhile.
    fn write_group_run(&self, group: GroupKey, number: u64) -> Result<bool, LiveError> {
        let io = wrap_io_error(&*self.folder, "write", &run::format_run_name(number));
        // Nothing names the file before a checkpoint does: it can have its name from the start.
        let file = self.folder.create_file(&run::format_run_name(number)).map_err(&io)?;
        let mut builder = RunBuilder::new(&*file, number, group).map_err(&io)?;
        let mut from = Vec::new();
        loop {
            let Some(entries) = self.read_groups(|groups| groups.sealed_entries(&group, &from, PORTION))
            else {
                return Ok(false);
            };
            // Everything in the group is written.
            let Some((last, _)) = entries.last() else { break };
            from = [last.as_bytes(), &[0]].concat();
            for (rest, value) in &entries {
                builder.push_entry(rest.as_bytes(), value).map_err(&io)?;
            }
        }
        builder.finish_run().and_then(|()| self.folder.sync_folder()).map_err(&io)?;
        Ok(true)
    }

    /// Removes the files of runs that durable transactions dropped. Who still reads one has it open.
    fn remove_dropped_runs(&self) -> Result<(), LiveError> {
        // A transaction that is not durable may be undone by a crash, and then the run is needed again.
        let durable = self.syncing.lock().durable;
        // Removed under the same lock, so that a file is removed once.
        let mut pending_deletions = self.pending_deletions.lock();
        let ready = pending_deletions.partition_point(|(sequence, _)| *sequence <= durable);
        for (_, number) in pending_deletions.drain(..ready) {
            let name = run::format_run_name(number);
            self.folder.remove_file(&name).map_err(wrap_io_error(&*self.folder, "remove", &name))?;
        }
        Ok(())
    }

    /// Makes a store of the same content in an empty folder.
    pub(crate) fn fork_to_folder(&self, to: &dyn EngineFolder) -> Result<(), LiveError> {
        // Held throughout: no run is removed before it is linked.
        let _held = self.maintenance.lock();
        let (beginning, entries, runs) = {
            let writer = self.writer.lock();
            self.read_groups(|groups| {
                let beginning = CheckpointHeader { begin: writer.sequence, runs: list_group_runs(groups) };
                let runs: Vec<_> = groups.iter_runs().map(|run| run.number).collect();
                (beginning, groups.collect_live_entries(&[], usize::MAX), runs)
            })
        };
        let begin = beginning.begin;
        // The fork must not have what the original could lose.
        self.wait_until_durable(begin)?;
        // Runs never change, so that both stores can have one file by two names.
        for number in runs {
            let name = run::format_run_name(number);
            link_or_copy_file(&*self.folder, &name, to).map_err(wrap_io_error(to, "make", &name))?;
        }
        let created = JournalSegment::create_segment(to, FIRST).and_then(|_| to.sync_folder());
        created.map_err(wrap_io_error(to, "create", &journal::format_journal_name(FIRST)))?;
        let mut entries = Some(entries);
        checkpoint::write_checkpoint(
            to,
            FIRST,
            &beginning,
            |_| entries.take().unwrap_or_default(),
            || Ok(begin),
        )
    }

    /// Makes a store of the same content in a new or empty directory.
    pub(crate) fn fork_into(&self, dir: &Path) -> Result<(), LiveError> {
        let io = |source| LiveError::Io { action: "make", path: dir.display().to_string(), source };
        let locked = LocalFolder::open_locked(dir).map_err(io)?;
        let to = locked.ok_or_else(|| LiveError::InUse(dir.display().to_string()))?;
        // Another store would be overwritten.
        if !to.list_files().map_err(io)?.is_empty() {
            return Err(io(std::io::ErrorKind::DirectoryNotEmpty.into()));
        }
        self.fork_to_folder(&to)
    }

    fn read_groups<T>(&self, read: impl FnOnce(&KeyGroups) -> T) -> T {
        read(&self.groups.read())
    }
}

fn list_group_runs(groups: &KeyGroups) -> Vec<GroupRun> {
    groups.iter_runs().map(|run| (run.group, run.number)).collect()
}

/// Removes what a checkpoint replaces: the one before, and the journal from there on.
pub(crate) fn remove_superseded_files(
    folder: &dyn EngineFolder,
    older: u64,
    number: u64,
) -> Result<(), LiveError> {
    let names = (older..number)
        // Each number from the old one on, since an attempt at a checkpoint that failed has left a file of the
        // journal and no checkpoint.
        .flat_map(|old| [checkpoint::format_checkpoint_name(old), journal::format_journal_name(old)]);
    for name in names {
        folder.remove_file(&name).map_err(wrap_io_error(folder, "remove", &name))?;
    }
    Ok(())
}
