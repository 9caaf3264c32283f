//! From what is in the directory to an engine.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};

use super::engine::{Engine, Syncing, Writer};
use super::folder::Folder;
use super::frame::HEADER_LEN;
use super::groups::Groups;
use super::hooks::Hooks;
use super::journal::{Journal, Segment, name_of, number_in};
use super::replay::Replay;
use super::stats::Counters;
use crate::error::LiveError;

/// The number of the first file.
const FIRST: u64 = 1;

impl Engine {
    /// Makes an engine of what a folder holds; of an empty one, an empty engine.
    pub(crate) fn open(folder: Arc<dyn Folder>, hooks: Box<dyn Hooks>) -> Result<Self, LiveError> {
        let failed = |action| {
            let path = folder.describe("");
            move |source| LiveError::Io { action, path, source }
        };
        let names = folder.list().map_err(failed("list"))?;
        let mut numbers: Vec<_> = names.iter().filter_map(|name| number_in(name)).collect();
        numbers.sort_unstable();
        let mut replay = Replay::new(&*folder, Groups::default(), 0, 0);
        replay.run(&numbers, &*hooks)?;
        let Replay { groups, last, durable, mut segments, .. } = replay;
        if segments.is_empty() {
            let segment = Segment::create(&*folder, FIRST).map_err(failed("create"))?;
            folder.sync().map_err(failed("create"))?;
            segments.push((Arc::new(segment), HEADER_LEN as u64));
        }
        let Some((segment, end)) = segments.last().cloned() else {
            return Err(LiveError::Damaged { path: name_of(FIRST), what: "it is missing".into() });
        };
        let writer = Writer { journal: Journal::new(segment, end), sequence: last };
        let segments = segments.into_iter().map(|(segment, _)| segment).collect();
        Ok(Self {
            folder,
            hooks,
            writer: Mutex::new(writer),
            groups: RwLock::new(groups),
            written: AtomicU64::new(last),
            syncing: Mutex::new(Syncing { durable, leading: false, segments }),
            synced: Condvar::new(),
            counters: Counters::default(),
            poison: OnceLock::new(),
            dirty: AtomicBool::new(durable < last),
            background: OnceLock::new(),
        })
    }
}
