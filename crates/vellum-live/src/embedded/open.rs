//! Opening: from the files of the directory to an engine.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};
use vellum_types::DecodeError;

use super::checkpoint::{self, Checkpoint, CheckpointHeader, UNFINISHED};
use super::engine::{EmbeddedEngine, EngineLimits, SyncState, WriterState};
use super::folder::{EngineFolder, wrap_io_error};
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
    pub(crate) fn open_folder(
        folder: Arc<dyn EngineFolder>,
        hooks: Box<dyn DurabilityHooks>,
        limits: EngineLimits,
    ) -> Result<Self, LiveError> {
        let mut found = FolderContents::read_folder(&*folder)?;
        // A store without a checkpoint was never opened to the end. What lies here can only be the beginnings of one.
        if found.checkpoints.is_empty() {
            create_store_files(&*folder, &found)?;
            found = FolderContents::read_folder(&*folder)?;
        }
        // The newest checkpoint has its name only after it was whole and durable.
        let newest = found.checkpoints.last().copied().unwrap_or(FIRST);
        let Checkpoint { beginning, groups, upto } = checkpoint::read_checkpoint(&*folder, newest)?;
        // Older files are what a crash left between a checkpoint's name and their removal: the checkpoint holds all
        // of theirs.
        let numbers: Vec<_> = found.journals.iter().copied().filter(|number| *number >= newest).collect();
        let mut replay = JournalReplay::new(&*folder, groups, beginning, upto);
        replay.replay_journal(newest, &numbers, &*hooks)?;
        let JournalReplay { mut groups, runs, last, durable, segments, .. } = replay;
        for (group, number) in &runs {
            load_run(&*folder, &mut groups, *group, *number)?;
        }
        // Only now: had replay failed, the old files would be what a rescue needs.
        found.remove_leftovers(&*folder, newest)?;
        let pending_deletions =
            found.runs.iter().filter(|number| runs.iter().all(|(_, needed)| needed != *number));
        // Not at once: the transaction that dropped a run may have been replayed without being durable, and a crash
        // now would bring the run back into use.
        let pending_deletions: Vec<_> = pending_deletions.map(|number| (last, *number)).collect();
        // Above every number that a file has, needed or not: a run that is written must not meet an old file of its
        // name.
        let next_run =
            runs.iter().map(|(_, number)| number).chain(&found.runs).max().map_or(FIRST, |max| max + 1);
        let Some((segment, end)) = segments.last().cloned() else {
            return Err(missing_file_error(&*folder, &journal::format_journal_name(newest)));
        };
        // Its header may never have been durable, if its maker was killed before it was used.
        segment.file.sync_file().map_err(wrap_io_error(
            &*folder,
            "sync",
            &journal::format_journal_name(segment.number),
        ))?;
        // The length counts towards the next checkpoint, so a store that is opened often still makes one.
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
            // The checkpoint was durable, and so is everything up to it.
            syncing: Mutex::new(SyncState { durable, settled: upto, leading: false, segments }),
            synced: Condvar::new(),
            // Work for the background thread: syncing what was replayed, or removing runs.
            dirty: AtomicBool::new(durable < last || !pending_deletions.is_empty()),
            grown: AtomicBool::new(false),
            pending_deletions: Mutex::new(pending_deletions),
            counters: EngineCounters::default(),
            poison: OnceLock::new(),
            background: OnceLock::new(),
        })
    }
}

impl FolderContents {
    fn read_folder(folder: &dyn EngineFolder) -> Result<Self, LiveError> {
        let names = folder.list_files().map_err(wrap_io_error(folder, "list", ""))?;
        let numbers = |number_in: fn(&str) -> Option<u64>| {
            let mut numbers: Vec<_> = names.iter().filter_map(|name| number_in(name)).collect();
            numbers.sort_unstable();
            numbers
        };
        Ok(Self {
            checkpoints: numbers(checkpoint::parse_checkpoint_number),
            journals: numbers(journal::parse_journal_number),
            runs: numbers(run::parse_run_number),
            unfinished: names.iter().filter(|name| name.ends_with(UNFINISHED)).cloned().collect(),
        })
    }

    /// Removes what a crash left behind: what is older than the checkpoint, and what never became whole.
    fn remove_leftovers(&self, folder: &dyn EngineFolder, newest: u64) -> Result<(), LiveError> {
        // The checkpoint may have got its name a moment before the crash: only now is it durable.
        folder.sync_folder().map_err(wrap_io_error(folder, "sync", ""))?;
        let older = |numbers: &[u64], name_of: fn(u64) -> String| -> Vec<_> {
            numbers.iter().filter(|number| **number < newest).map(|number| name_of(*number)).collect()
        };
        let checkpoints = older(&self.checkpoints, checkpoint::format_checkpoint_name);
        let journals = older(&self.journals, journal::format_journal_name);
        for name in checkpoints.iter().chain(&journals).chain(&self.unfinished) {
            folder.remove_file(name).map_err(wrap_io_error(folder, "remove", name))?;
        }
        Ok(())
    }
}

/// Makes the files of an empty store. The checkpoint comes last: without it nothing was ever acknowledged.
fn create_store_files(folder: &dyn EngineFolder, found: &FolderContents) -> Result<(), LiveError> {
    let name = journal::format_journal_name(FIRST);
    let io = wrap_io_error(folder, "create", &name);
    for number in &found.journals {
        let file = folder.open_file(&journal::format_journal_name(*number)).map_err(&io)?;
        // A journal with records, or a later one, belonged to a store whose checkpoint is lost. To begin an empty
        // store over it would destroy what can be rescued.
        if *number != FIRST || file.size().map_err(&io)? > HEADER_LEN as u64 {
            return Err(missing_file_error(folder, &checkpoint::format_checkpoint_name(*number)));
        }
    }
    JournalSegment::create_segment(folder, FIRST).and_then(|_| folder.sync_folder()).map_err(&io)?;
    checkpoint::write_checkpoint(folder, FIRST, &CheckpointHeader::default(), |_| Vec::new(), || Ok(0))
}

fn load_run(
    folder: &dyn EngineFolder,
    groups: &mut KeyGroups,
    group: super::suffix::GroupKey,
    number: u64,
) -> Result<(), LiveError> {
    let run = SortedRun::open_run(folder, number)?;
    // The file is sound and another group's: the numbers in the checkpoint are wrong, or files were exchanged.
    if run.group != group {
        let what = format!("at byte 0: {}", DecodeError::Invalid("group"));
        return Err(LiveError::Damaged { path: folder.describe_file(&run::format_run_name(number)), what });
    }
    groups.add_run(Arc::new(run));
    Ok(())
}

fn missing_file_error(folder: &dyn EngineFolder, name: &str) -> LiveError {
    LiveError::Damaged { path: folder.describe_file(name), what: "it is missing".into() }
}
