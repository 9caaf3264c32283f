//! From what is in the directory to an engine.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};

use vellum_types::DecodeError;

use super::checkpoint::{self, Checkpoint, CheckpointHeader, UNFINISHED};
use super::engine::{EmbeddedEngine, EngineLimits, SyncState, WriterState};
use super::folder::{EngineFolder, failed};
use super::frame::HEADER_LEN;
use super::groups::KeyGroups;
use super::hooks::DurabilityHooks;
use super::journal::{self, Journal, JournalSegment};
use super::maintain::Maintenance;
use super::replay::JournalReplay;
use super::run::{self, SortedRun};
use super::stats::EngineCounters;
use crate::error::LiveError;

/// The number of the first file of the journal, and of the checkpoint before it.
pub(crate) const FIRST: u64 = 1;

/// What lies in the folder.
struct FolderContents {
    checkpoints: Vec<u64>,
    journals: Vec<u64>,
    runs: Vec<u64>,
    unfinished: Vec<String>,
}

impl EmbeddedEngine {
    /// Makes an engine of what a folder holds; of an empty one, an empty engine.
    pub(crate) fn open(
        folder: Arc<dyn EngineFolder>,
        hooks: Box<dyn DurabilityHooks>,
        limits: EngineLimits,
    ) -> Result<Self, LiveError> {
        let mut found = FolderContents::read(&*folder)?;
        if found.checkpoints.is_empty() {
            begin(&*folder, &found)?;
            found = FolderContents::read(&*folder)?;
        }
        let newest = found.checkpoints.last().copied().unwrap_or(FIRST);
        let Checkpoint { beginning, groups, upto } = checkpoint::read(&*folder, newest)?;
        let numbers: Vec<_> = found.journals.iter().copied().filter(|number| *number >= newest).collect();
        let mut replay = JournalReplay::new(&*folder, groups, beginning, upto);
        replay.run(newest, &numbers, &*hooks)?;
        let JournalReplay { mut groups, runs, last, durable, segments, .. } = replay;
        for (group, number) in &runs {
            add_run(&*folder, &mut groups, *group, *number)?;
        }
        found.clear(&*folder, newest)?;
        let doomed = found.runs.iter().filter(|number| runs.iter().all(|(_, needed)| needed != *number));
        let doomed: Vec<_> = doomed.map(|number| (last, *number)).collect();
        let next_run =
            runs.iter().map(|(_, number)| number).chain(&found.runs).max().map_or(FIRST, |max| max + 1);
        let Some((segment, end)) = segments.last().cloned() else {
            return Err(missing(&*folder, &journal::name_of(newest)));
        };
        // Its header may never have been durable, if its maker was killed before it was used.
        segment.file.sync().map_err(failed(&*folder, "sync", &journal::name_of(segment.number)))?;
        let len = segments.iter().map(|(_, end)| end - HEADER_LEN as u64).sum();
        let segments = segments.into_iter().map(|(segment, _)| segment).collect();
        Ok(Self {
            folder,
            hooks,
            limits,
            maintenance: Mutex::new(Maintenance { checkpoint: newest, next_run, failed_at: 0 }),
            writer: Mutex::new(WriterState { journal: Journal::new(segment, end, len), sequence: last }),
            groups: RwLock::new(groups),
            written: AtomicU64::new(last),
            marked: AtomicU64::new(durable),
            syncing: Mutex::new(SyncState { durable, settled: upto, leading: false, segments }),
            synced: Condvar::new(),
            dirty: AtomicBool::new(durable < last || !doomed.is_empty()),
            grown: AtomicBool::new(false),
            doomed: Mutex::new(doomed),
            counters: EngineCounters::default(),
            poison: OnceLock::new(),
            background: OnceLock::new(),
        })
    }
}

impl FolderContents {
    fn read(folder: &dyn EngineFolder) -> Result<Self, LiveError> {
        let names = folder.list().map_err(failed(folder, "list", ""))?;
        let numbers = |number_in: fn(&str) -> Option<u64>| {
            let mut numbers: Vec<_> = names.iter().filter_map(|name| number_in(name)).collect();
            numbers.sort_unstable();
            numbers
        };
        Ok(Self {
            checkpoints: numbers(checkpoint::number_in),
            journals: numbers(journal::number_in),
            runs: numbers(run::number_in),
            unfinished: names.iter().filter(|name| name.ends_with(UNFINISHED)).cloned().collect(),
        })
    }

    /// Removes what a crash left behind: what is older than the checkpoint, and what never became whole.
    fn clear(&self, folder: &dyn EngineFolder, newest: u64) -> Result<(), LiveError> {
        // The checkpoint may have got its name a moment before the crash: only now is it durable.
        folder.sync().map_err(failed(folder, "sync", ""))?;
        let older = |numbers: &[u64], name_of: fn(u64) -> String| -> Vec<_> {
            numbers.iter().filter(|number| **number < newest).map(|number| name_of(*number)).collect()
        };
        let checkpoints = older(&self.checkpoints, checkpoint::name_of);
        let journals = older(&self.journals, journal::name_of);
        for name in checkpoints.iter().chain(&journals).chain(&self.unfinished) {
            folder.remove(name).map_err(failed(folder, "remove", name))?;
        }
        Ok(())
    }
}

/// Makes the files of an empty store. The checkpoint comes last: without it nothing was ever acknowledged.
fn begin(folder: &dyn EngineFolder, found: &FolderContents) -> Result<(), LiveError> {
    let name = journal::name_of(FIRST);
    let io = failed(folder, "create", &name);
    for number in &found.journals {
        let file = folder.open(&journal::name_of(*number)).map_err(&io)?;
        if *number != FIRST || file.size().map_err(&io)? > HEADER_LEN as u64 {
            return Err(missing(folder, &checkpoint::name_of(*number)));
        }
    }
    JournalSegment::create(folder, FIRST).and_then(|_| folder.sync()).map_err(&io)?;
    checkpoint::write(folder, FIRST, &CheckpointHeader::default(), |_| Vec::new(), || Ok(0))
}

fn add_run(
    folder: &dyn EngineFolder,
    groups: &mut KeyGroups,
    group: super::suffix::GroupKey,
    number: u64,
) -> Result<(), LiveError> {
    let run = SortedRun::open(folder, number)?;
    if run.group != group {
        let what = format!("at byte 0: {}", DecodeError::Invalid("group"));
        return Err(LiveError::Damaged { path: folder.describe(&run::name_of(number)), what });
    }
    groups.add_run(Arc::new(run));
    Ok(())
}

fn missing(folder: &dyn EngineFolder, name: &str) -> LiveError {
    LiveError::Damaged { path: folder.describe(name), what: "it is missing".into() }
}
