//! What bounds memory and the journal: checkpoints, frozen groups, files that nobody needs any more. And forks.
//!
//! Invariant: whatever is written gets its name when it is durable, and what it replaces goes when the name is.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::checkpoint::{self, CheckpointHeader, GroupRun};
use super::engine::{EmbeddedEngine, lock};
use super::folder::{EngineFolder, LocalFolder, failed, share};
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
    /// Makes a checkpoint if the journal is long, and removes files that nobody needs.
    pub(crate) fn tidy(&self) -> Result<(), LiveError> {
        let mut held = lock(&self.maintenance);
        self.purge()?;
        let len = lock(&self.writer).journal.len;
        let live = self.groups.read().unwrap_or_else(PoisonError::into_inner).live_weight() as u64;
        let limit = self.limits.journal.max(live.saturating_mul(JOURNAL_FACTOR));
        // After a failure, for want of space most likely, the next attempt waits until there is more to win.
        if len < limit.max(held.failed_at.saturating_add(limit / 4)) {
            return Ok(());
        }
        self.checkpoint(&mut held).inspect_err(|_| held.failed_at = len)
    }

    /// Makes a checkpoint if that frees much of what the journal takes; whether it did.
    pub(crate) fn shrink(&self) -> Result<bool, LiveError> {
        let mut held = lock(&self.maintenance);
        self.purge()?;
        let len = lock(&self.writer).journal.len;
        let live = self.read_groups(KeyGroups::live_weight) as u64;
        if len < SHRUNK_MIN.max(live.saturating_mul(SHRUNK_FACTOR)) {
            return Ok(false);
        }
        self.checkpoint(&mut held).map(|()| true)
    }

    /// Replaces the journal by a checkpoint. Transactions go on meanwhile.
    pub(crate) fn checkpoint(&self, held: &mut Maintenance) -> Result<(), LiveError> {
        self.check()?;
        let number = lock(&self.writer).journal.segment.number + 1;
        let folder = &*self.folder;
        let name = journal::name_of(number);
        let created =
            JournalSegment::create(folder, number).and_then(|segment| folder.sync().map(|()| segment));
        let segment = created.map_err(failed(folder, "create", &name)).inspect_err(|_| {
            // Without records it means nothing, and the next attempt takes its name.
            let _ = folder.remove(&name);
        })?;
        let (beginning, before) = self.turn_to(Arc::new(segment))?;
        let portion = |from: &[u8]| self.read_groups(|groups| groups.live_entries(from, PORTION));
        let settle = || {
            let upto = self.written.load(Ordering::Acquire);
            self.wait_durable(upto).map(|()| upto)
        };
        checkpoint::write(folder, number, &beginning, portion, settle).inspect_err(|_| {
            let _ = folder.remove(&format!("{}{}", checkpoint::name_of(number), checkpoint::UNFINISHED));
        })?;
        let older = std::mem::replace(&mut held.checkpoint, number);
        held.failed_at = 0;
        self.counters.checkpointed();
        lock(&self.writer).journal.len -= before;
        remove_older(folder, older, number)
    }

    /// Lets the journal go on in a new file. Tells what the checkpoint begins with, and the journal's length so far.
    fn turn_to(&self, segment: Arc<JournalSegment>) -> Result<(CheckpointHeader, u64), LiveError> {
        let mut writer = lock(&self.writer);
        self.check()?;
        lock(&self.syncing).segments.push(Arc::clone(&segment));
        writer.journal.turn_to(segment);
        let runs = self.read_groups(runs_of);
        Ok((CheckpointHeader { begin: writer.sequence, runs }, writer.journal.len))
    }

    /// Seals what stands under a prefix. What takes much memory moves into runs.
    pub(crate) fn freeze(&self, prefix: &[u8]) -> Result<(), LiveError> {
        let mut held = lock(&self.maintenance);
        self.check()?;
        let sealed = {
            let _writer = lock(&self.writer);
            let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
            groups.seal(prefix, self.limits.run)
        };
        for group in &sealed {
            self.move_out(*group, &mut held)?;
        }
        if sealed.is_empty() { Ok(()) } else { self.checkpoint(&mut held) }
    }

    /// Moves a sealed group into a run.
    fn move_out(&self, group: GroupKey, held: &mut Maintenance) -> Result<(), LiveError> {
        let number = held.next_run;
        held.next_run += 1;
        let name = run::name_of(number);
        let remove = || self.folder.remove(&name).map_err(failed(&*self.folder, "remove", &name));
        let written = self.write_run(group, number).inspect_err(|_| {
            let _ = remove();
        })?;
        if !written {
            return remove();
        }
        let run = Arc::new(SortedRun::open(&*self.folder, number)?);
        let replaced = {
            let _writer = lock(&self.writer);
            self.groups.write().unwrap_or_else(PoisonError::into_inner).install(run)
        };
        if replaced.is_some() { Ok(()) } else { remove() }
    }

    /// Writes the entries of a sealed group. False: the group went meanwhile.
    fn write_run(&self, group: GroupKey, number: u64) -> Result<bool, LiveError> {
        let io = failed(&*self.folder, "write", &run::name_of(number));
        // Nothing names the file before a checkpoint does: it can have its name from the start.
        let file = self.folder.create(&run::name_of(number)).map_err(&io)?;
        let mut builder = RunBuilder::new(&*file, number, group).map_err(&io)?;
        let mut from = Vec::new();
        loop {
            let Some(entries) = self.read_groups(|groups| groups.sealed_entries(&group, &from, PORTION))
            else {
                return Ok(false);
            };
            let Some((last, _)) = entries.last() else { break };
            from = [last.as_bytes(), &[0]].concat();
            for (rest, value) in &entries {
                builder.push(rest.as_bytes(), value).map_err(&io)?;
            }
        }
        builder.finish().and_then(|()| self.folder.sync()).map_err(&io)?;
        Ok(true)
    }

    /// Removes the files of runs that durable transactions dropped. Who still reads one has it open.
    fn purge(&self) -> Result<(), LiveError> {
        let durable = lock(&self.syncing).durable;
        let mut doomed = lock(&self.doomed);
        let ready = doomed.partition_point(|(sequence, _)| *sequence <= durable);
        for (_, number) in doomed.drain(..ready) {
            let name = run::name_of(number);
            self.folder.remove(&name).map_err(failed(&*self.folder, "remove", &name))?;
        }
        Ok(())
    }

    /// Makes a store of the same content in an empty folder.
    pub(crate) fn fork(&self, to: &dyn EngineFolder) -> Result<(), LiveError> {
        let _held = lock(&self.maintenance);
        let (beginning, entries, runs) = {
            let writer = lock(&self.writer);
            self.read_groups(|groups| {
                let beginning = CheckpointHeader { begin: writer.sequence, runs: runs_of(groups) };
                let runs: Vec<_> = groups.runs().map(|run| run.number).collect();
                (beginning, groups.live_entries(&[], usize::MAX), runs)
            })
        };
        let begin = beginning.begin;
        self.wait_durable(begin)?;
        for number in runs {
            let name = run::name_of(number);
            share(&*self.folder, &name, to).map_err(failed(to, "make", &name))?;
        }
        let created = JournalSegment::create(to, FIRST).and_then(|_| to.sync());
        created.map_err(failed(to, "create", &journal::name_of(FIRST)))?;
        let mut entries = Some(entries);
        checkpoint::write(to, FIRST, &beginning, |_| entries.take().unwrap_or_default(), || Ok(begin))
    }

    /// Makes a store of the same content in a new or empty directory.
    pub(crate) fn fork_into(&self, dir: &Path) -> Result<(), LiveError> {
        let io = |source| LiveError::Io { action: "make", path: dir.display().to_string(), source };
        let locked = LocalFolder::lock(dir).map_err(io)?;
        let to = locked.ok_or_else(|| LiveError::InUse(dir.display().to_string()))?;
        if !to.list().map_err(io)?.is_empty() {
            return Err(io(std::io::ErrorKind::DirectoryNotEmpty.into()));
        }
        self.fork(&to)
    }

    fn read_groups<T>(&self, read: impl FnOnce(&KeyGroups) -> T) -> T {
        read(&self.groups.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn runs_of(groups: &KeyGroups) -> Vec<GroupRun> {
    groups.runs().map(|run| (run.group, run.number)).collect()
}

/// Removes what a checkpoint replaces: the one before, and the journal from there on.
pub(crate) fn remove_older(folder: &dyn EngineFolder, older: u64, number: u64) -> Result<(), LiveError> {
    let names = (older..number).flat_map(|old| [checkpoint::name_of(old), journal::name_of(old)]);
    for name in names {
        folder.remove(&name).map_err(failed(folder, "remove", &name))?;
    }
    Ok(())
}
