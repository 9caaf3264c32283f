//! The walk: a queue of directories that workers share, and the entries found.
//!
//! Invariant: a directory is queued after its parent's entries are stored. Directories are held open only while children
//! wait to be opened through them, and only up to a number; beyond it they are reached again from the nearest one that
//! is held.

use parking_lot::{Mutex, MutexGuard};
use vellum_host::beneath::{BeneathError, HeldDir, raise_open_files_limit};
use vellum_host::metadata::FileStat;
use vellum_host::worker_pool::WorkerPool;

use super::rules::IgnoreRules;
use super::selection::{PathSelection, SelectedPart};
use super::tree::{DirCoverage, NONE, ScanEntry, entry_name_in};
use super::{ScanProblem, ScanProblemCause};
use crate::statcache::{CachedDir, StatCache};

/// Share of the permitted open files that a walk takes for directories.
const HELD_SHARE: u64 = 4;
/// Most directories held open: a wide tree needs as many as it is deep, and few are deeper.
const HELD_MAX: usize = 4096;

/// A directory that is, or will be, visited.
#[derive(Debug)]
pub(super) struct WalkNode {
    pub parent: u32,
    /// Place among the entries of the parent.
    pub entry: u32,
    pub listing: ScannedDir,
    pub outcome: VisitOutcome,
    /// Held while children wait.
    dir: Option<HeldDir>,
    waiting: u32,
}

/// What was found in a directory.
#[derive(Debug)]
pub(super) struct ScannedDir {
    pub entries: Vec<ScanEntry>,
    pub names: Vec<u8>,
    pub coverage: DirCoverage,
    pub cached: Option<CachedDir>,
    pub left_out: u32,
}

/// What became of the attempt to look into a directory.
#[derive(Debug, Clone, Copy)]
pub(super) enum VisitOutcome {
    /// It is what its entry says (read or not).
    AsSeen,
    /// In its place stands this now.
    Became(FileStat),
    /// Nothing is there any more.
    Gone,
}

/// A directory to be visited.
pub(super) struct VisitTask {
    pub node: u32,
    pub parent: u32,
    pub name: Box<[u8]>,
    /// What its entry said.
    pub stat: FileStat,
    pub part: SelectedPart,
    pub cached: Option<CachedDir>,
    pub rules: Option<IgnoreRules>,
}

/// A subdirectory found, for which a node and a task will be made.
pub(super) struct FoundSubdirectory {
    pub entry: u32,
    pub part: SelectedPart,
    pub cached: Option<CachedDir>,
}

/// The state of a walk at its end.
pub(super) struct FinishedWalk {
    pub nodes: Vec<WalkNode>,
    pub problems: Vec<ScanProblem>,
}

pub(super) struct ScanWalk<'w> {
    root: &'w HeldDir,
    pub cache: Option<&'w StatCache>,
    pub selection: Option<&'w PathSelection>,
    pub threads: usize,
    held_max: usize,
    pool: WorkerPool<VisitTask>,
    state: Mutex<ScanWalkState>,
}

struct ScanWalkState {
    nodes: Vec<WalkNode>,
    held: usize,
    problems: Vec<ScanProblem>,
}

impl<'w> ScanWalk<'w> {
    pub(super) fn new(
        root: &'w HeldDir,
        stat: FileStat,
        cache: Option<&'w StatCache>,
        selection: Option<&'w PathSelection>,
        threads: usize,
    ) -> Self {
        let part = if selection.is_some() { SelectedPart::Some(0) } else { SelectedPart::Whole };
        let cached = cache.map(|_| CachedDir::ROOT);
        let task = VisitTask { node: 0, parent: NONE, name: Box::default(), stat, part, cached, rules: None };
        let nodes = vec![WalkNode::new(NONE, 0, cached)];
        let share = usize::try_from(raise_open_files_limit() / HELD_SHARE).unwrap_or(HELD_MAX);
        let state = ScanWalkState { nodes, held: 0, problems: Vec::new() };
        let held_max = share.min(HELD_MAX);
        Self {
            root,
            cache,
            selection,
            threads,
            held_max,
            pool: WorkerPool::with_first_task(task),
            state: Mutex::new(state),
        }
    }

    /// Visits everything and returns what was found.
    pub(super) fn run_walk(self) -> FinishedWalk {
        std::thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(|| self.pool.run_worker(|task| self.visit_dir(task)));
            }
            self.pool.run_worker(|task| self.visit_dir(task));
        });
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
        let opened = self.open_node_dir(task.parent).and_then(|parent| parent.open_dir_to_read(&task.name));
        self.release_dir(task.parent);
        opened
    }

    /// What stands under a task's name now.
    pub(super) fn stat_task_entry(&self, task: &VisitTask) -> Result<FileStat, BeneathError> {
        self.open_node_dir(task.parent)?.stat(&task.name)
    }

    /// A visited directory, to open its children.
    fn open_node_dir(&self, node: u32) -> Result<HeldDir, BeneathError> {
        let (mut here, names) = self.find_nearest_held(node);
        for name in names.iter().rev() {
            here = here.open_dir(name)?;
        }
        if !names.is_empty() {
            let mut state = self.lock();
            if state.held < self.held_max && state.nodes[node as usize].waiting > 0 {
                let held_before = state.nodes[node as usize].dir.replace(here.clone()).is_some();
                state.held += usize::from(!held_before);
            }
        }
        Ok(here)
    }

    /// The nearest directory that is held, at `node` or above, and the names down from it, last first.
    fn find_nearest_held(&self, mut node: u32) -> (HeldDir, Vec<Box<[u8]>>) {
        let state = self.lock();
        let mut names = Vec::new();
        loop {
            let at = &state.nodes[node as usize];
            if let Some(dir) = &at.dir {
                return (dir.clone(), names);
            }
            if at.parent == NONE {
                return (self.root.clone(), names);
            }
            names.push(state.node_name(node).into());
            node = at.parent;
        }
    }

    /// One child less waits to be opened through `node`.
    fn release_dir(&self, node: u32) {
        let mut state = self.lock();
        let at = &mut state.nodes[node as usize];
        at.waiting = at.waiting.saturating_sub(1);
        if at.waiting == 0 && at.dir.take().is_some() {
            state.held -= 1;
        }
    }

    /// Stores what was found in a directory and queues its subdirectories.
    pub(super) fn store_listing(
        &self,
        task: &VisitTask,
        dir: HeldDir,
        mut listing: ScannedDir,
        found: Vec<FoundSubdirectory>,
        rules: Option<&IgnoreRules>,
    ) {
        let mut state = self.lock();
        let mut tasks = Vec::with_capacity(found.len());
        for found in &found {
            let number = state.nodes.len() as u32;
            let entry = &mut listing.entries[found.entry as usize];
            entry.child = number;
            let name = entry_name_in(&listing.names, entry).into();
            let stat = entry.stat;
            state.nodes.push(WalkNode::new(task.node, found.entry, found.cached));
            let rules = rules.cloned();
            let part = found.part;
            let cached = found.cached;
            tasks.push(VisitTask { node: number, parent: task.node, name, stat, part, cached, rules });
        }
        let hold = !found.is_empty() && state.held < self.held_max;
        state.held += usize::from(hold);
        let node = &mut state.nodes[task.node as usize];
        node.waiting = found.len() as u32;
        node.dir = hold.then_some(dir);
        node.listing = listing;
        drop(state);
        // The last one queued is taken first: the walk keeps to the order of names, more or less.
        self.pool.add_tasks(tasks.into_iter().rev());
    }

    /// Records that the directory of a task is not what it was.
    pub(super) fn set_outcome(&self, task: &VisitTask, outcome: VisitOutcome) {
        self.lock().nodes[task.node as usize].outcome = outcome;
    }

    /// Reports something about an entry (or, with an empty name, the directory) of a node.
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
        Self { parent, entry, listing, outcome: VisitOutcome::AsSeen, dir: None, waiting: 0 }
    }
}
