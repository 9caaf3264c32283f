//! The state of a walk: the entries of each directory, and the directories that changed meanwhile.
//!
//! Invariant: a directory is queued after its parent's entries are stored.

use parking_lot::{Mutex, MutexGuard};
use vellum_host::beneath::{BeneathError, HeldDir};
use vellum_host::metadata::FileStat;
use vellum_host::parallel_walk::{ParallelWalk, WalkParent};

use super::rules::IgnoreRules;
use super::selection::{PathSelection, SelectedPart};
use super::tree::{DirCoverage, NONE, ScanEntry, entry_name_in};
use super::{ScanExclusions, ScanProblem, ScanProblemCause};
use crate::statcache::{CachedDir, StatCache};

/// A directory that is, or will be, visited.
#[derive(Debug)]
pub(super) struct WalkNode {
    pub parent: u32,
    /// Position among the entries of the parent.
    pub entry: u32,
    pub listing: ScannedDir,
    pub outcome: VisitOutcome,
}

/// The contents of a directory.
#[derive(Debug)]
pub(super) struct ScannedDir {
    pub entries: Vec<ScanEntry>,
    pub names: Vec<u8>,
    pub coverage: DirCoverage,
    pub cached: Option<CachedDir>,
    pub left_out: u32,
}

/// The outcome of a visit.
#[derive(Debug, Clone, Copy)]
pub(super) enum VisitOutcome {
    /// The directory is the one of its entry (whether or not it could be read).
    AsSeen,
    /// An entry with these attributes has replaced it.
    Became(FileStat),
    /// It was removed.
    Gone,
}

/// A directory to be visited.
pub(super) struct VisitTask {
    pub node: u32,
    pub parent: u32,
    /// The parent, if it is kept open.
    parent_dir: Option<WalkParent>,
    pub name: Box<[u8]>,
    /// The attributes of its entry.
    pub stat: FileStat,
    pub part: SelectedPart,
    pub cached: Option<CachedDir>,
    pub rules: Option<IgnoreRules>,
    /// The filesystem of the scan here.
    pub device: u64,
}

/// A subdirectory for which a node and a task will be created.
pub(super) struct FoundSubdirectory {
    pub entry: u32,
    pub part: SelectedPart,
    pub cached: Option<CachedDir>,
}

/// The final state of a walk.
pub(super) struct FinishedWalk {
    pub nodes: Vec<WalkNode>,
    pub problems: Vec<ScanProblem>,
}

/// What is scanned, and how.
#[derive(Clone, Copy)]
pub(super) struct ScanInput<'w> {
    pub cache: Option<&'w StatCache>,
    pub selection: Option<&'w PathSelection>,
    pub exclusions: &'w ScanExclusions,
    pub threads: usize,
}

pub(super) struct ScanWalk<'w> {
    root: &'w HeldDir,
    pub input: ScanInput<'w>,
    walk: ParallelWalk<VisitTask>,
    state: Mutex<ScanWalkState>,
}

struct ScanWalkState {
    nodes: Vec<WalkNode>,
    problems: Vec<ScanProblem>,
}

impl<'w> ScanWalk<'w> {
    pub(super) fn new(root: &'w HeldDir, stat: FileStat, input: ScanInput<'w>) -> Self {
        let part = if input.selection.is_some() { SelectedPart::Some(0) } else { SelectedPart::Whole };
        let cached = input.cache.map(|_| CachedDir::ROOT);
        let task = VisitTask {
            node: 0,
            parent: NONE,
            parent_dir: None,
            name: Box::default(),
            device: stat.dev,
            stat,
            part,
            cached,
            rules: None,
        };
        let state = ScanWalkState { nodes: vec![WalkNode::new(NONE, 0, cached)], problems: Vec::new() };
        let walk = ParallelWalk::new(task, input.threads);
        Self { root, input, walk, state: Mutex::new(state) }
    }

    /// Visits all directories and returns the result.
    pub(super) fn run_walk(self) -> FinishedWalk {
        self.walk.run_walk(|task| self.visit_dir(task));
        let state = self.state.into_inner();
        FinishedWalk { nodes: state.nodes, problems: state.problems }
    }

    fn lock(&self) -> MutexGuard<'_, ScanWalkState> {
        self.state.lock()
    }

    /// Opens the directory of a task.
    pub(super) fn open_task_dir(&self, task: &VisitTask) -> Result<HeldDir, BeneathError> {
        if task.parent == NONE {
            return Ok(self.root.clone());
        }
        self.open_parent_dir(task)?.open_dir_to_read(&task.name)
    }

    /// The present attributes of a task's entry.
    pub(super) fn stat_task_entry(&self, task: &VisitTask) -> Result<FileStat, BeneathError> {
        self.open_parent_dir(task)?.stat(&task.name)
    }

    fn open_parent_dir(&self, task: &VisitTask) -> Result<HeldDir, BeneathError> {
        match &task.parent_dir {
            Some(parent) => Ok(parent.dir().clone()),
            // The number of directories that are held open is limited. Below a parent that is not, the path
            // is opened from the root, component by component.
            None => self.root.resolve_dir(&self.node_path(task.parent)),
        }
    }

    /// Stores the contents of a directory, and queues its subdirectories.
    pub(super) fn store_listing(
        &self,
        task: &VisitTask,
        dir: HeldDir,
        mut listing: ScannedDir,
        found: Vec<FoundSubdirectory>,
        rules: Option<&IgnoreRules>,
    ) {
        let parent_dir = if found.is_empty() { None } else { self.walk.hold_dir(dir) };
        // The listing is stored and the subdirectories get their numbers under one lock: a worker that visits
        // one of them needs the path of its node, which leads through these entries.
        let mut state = self.lock();
        let mut tasks = Vec::with_capacity(found.len());
        for found in &found {
            let number = state.nodes.len() as u32;
            let entry = &mut listing.entries[found.entry as usize];
            entry.child = number;
            let name = entry_name_in(&listing.names, entry).into();
            let stat = entry.stat;
            let device = match task.part {
                SelectedPart::Whole => task.device,
                // A path that was named is looked at where it is.
                SelectedPart::Some(_) => stat.dev,
            };
            state.nodes.push(WalkNode::new(task.node, found.entry, found.cached));
            tasks.push(VisitTask {
                node: number,
                parent: task.node,
                parent_dir: parent_dir.clone(),
                name,
                stat,
                part: found.part,
                cached: found.cached,
                rules: rules.cloned(),
                device,
            });
        }
        state.nodes[task.node as usize].listing = listing;
        drop(state);
        // This takes the lock of the queue. It is not taken under the lock of the state, so that no order
        // between the two has to be kept.
        self.walk.add_dirs(tasks.into_iter());
    }

    /// Records that the directory of a task was replaced or removed.
    pub(super) fn set_outcome(&self, task: &VisitTask, outcome: VisitOutcome) {
        self.lock().nodes[task.node as usize].outcome = outcome;
    }

    /// Reports a problem with an entry of a node, or, with an empty name, with its directory.
    pub(super) fn report_problem(&self, node: u32, name: &[u8], cause: ScanProblemCause) {
        let mut state = self.lock();
        let mut path = state.node_path(node);
        if !path.is_empty() && !name.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        state.problems.push(ScanProblem { path, cause });
    }

    /// The path of a node from the root.
    pub(super) fn node_path(&self, node: u32) -> Vec<u8> {
        self.lock().node_path(node)
    }
}

impl ScanWalkState {
    fn node_name(&self, node: u32) -> &[u8] {
        let at = &self.nodes[node as usize];
        let listing = &self.nodes[at.parent as usize].listing;
        entry_name_in(&listing.names, &listing.entries[at.entry as usize])
    }

    fn node_path(&self, mut node: u32) -> Vec<u8> {
        let mut names = Vec::new();
        while self.nodes[node as usize].parent != NONE {
            names.push(self.node_name(node));
            node = self.nodes[node as usize].parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}

impl WalkNode {
    fn new(parent: u32, entry: u32, cached: Option<CachedDir>) -> Self {
        let listing = ScannedDir {
            entries: Vec::new(),
            names: Vec::new(),
            coverage: DirCoverage::Unread,
            cached,
            left_out: 0,
        };
        Self { parent, entry, listing, outcome: VisitOutcome::AsSeen }
    }
}
