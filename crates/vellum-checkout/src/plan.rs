//! The plan of `restore` and `fork`: the steps that make a directory equal to a snapshot.
//!
//! Two trees are walked side by side by path: the target, which is a state of the map, and the directory as it was
//! scanned, whose files are known as inodes of another state. Where both have the same inode and nothing below it
//! differs, the walk does not go down.
//!
//! In a partial checkout, a part of the target is left out ([`WantedPart`]).
//!
//! Invariant: a plan changes nothing, and names every file that its execution writes, changes or removes.

use std::collections::{BTreeSet, HashMap, HashSet};

use vellum_host::escape::format_path;
use vellum_types::{Dentry, FileKind, Ino};
use vellum_volume::diff::{PathScopes, StateComparison, compare_inodes, is_path_within};
use vellum_volume::tree::InodeRecord;
use vellum_volume::{FsTree, VolumeError};

use crate::absent::AbsentPaths;
use crate::capture::CaptureResult;
use crate::error::Result;
use crate::scan::{STATE_DIR, ScanDir, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanExclusions, ScanTree};

/// An entry of the target: its directory there, its name, its inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetEntry {
    /// The directory.
    pub dir: Ino,
    /// The name in it.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
}

/// A file to be made, or made anew.
#[derive(Debug, Clone)]
pub struct FileWrite {
    /// What is to be there.
    pub place: TargetEntry,
    /// What is there now, which goes in the same step.
    pub replaces: Option<ScanEntryId>,
    /// What the scan left out may stand there, and goes too.
    pub overwrites: bool,
    /// A file of the scanned directory that has the same content.
    pub same_content: Option<ScanEntryId>,
}

/// Another name for a file.
#[derive(Debug, Clone)]
pub struct LinkStep {
    /// The new name.
    pub place: TargetEntry,
    /// Directory and name of the first one.
    pub leader: (Ino, Vec<u8>),
    /// What is there now, which goes in the same step.
    pub replaces: Option<ScanEntryId>,
    /// What the scan left out may stand there, and goes too.
    pub overwrites: bool,
}

/// Everything to be done, by kind, in the order of execution.
#[derive(Debug, Default)]
pub struct PlanSteps {
    /// Entries to be removed, directories before what is in them.
    pub deletes: Vec<ScanEntryId>,
    /// Directories to be made, parents first.
    pub make_dirs: Vec<TargetEntry>,
    /// Files, symlinks, fifos, sockets and devices to be made.
    pub writes: Vec<FileWrite>,
    /// Names to be added, when all files are there.
    pub links: Vec<LinkStep>,
    /// Entries of which only metadata differ, with what is there.
    pub metas: Vec<(TargetEntry, ScanEntryId)>,
    /// Directories that get their metadata at the end, since what is done in them changes their times.
    pub dirs: BTreeSet<Ino>,
    /// Paths of the target that are left out; of those that were absent before, only if single paths are restored.
    pub left_out: Vec<Vec<u8>>,
    /// Paths on the list of absent ones at which a file is now, and stays or is replaced.
    pub found: Vec<Vec<u8>>,
    /// Paths at which nothing is made, since something else is in the place of a directory.
    pub blocked: Vec<Vec<u8>>,
}

impl PlanSteps {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty()
            && self.make_dirs.is_empty()
            && self.writes.is_empty()
            && self.links.is_empty()
            && self.metas.is_empty()
            && self.dirs.is_empty()
    }
}

/// What is planned from.
pub struct PlanInput<'a> {
    /// The state to be reached.
    pub target: &'a FsTree,
    /// The scanned directory; None for one that is empty.
    pub now: Option<CurrentDir<'a>>,
    /// Only these paths; empty: everything.
    pub paths: &'a [Vec<u8>],
    /// The directory of the target to begin at.
    pub base: Ino,
    /// Everything is to be made in another place, which is empty: what is scanned is a source of content only.
    pub elsewhere: bool,
    /// Which part of the target is to be there.
    pub part: WantedPart<'a>,
}

/// Which part of a target is to be in the directory.
#[derive(Debug, Clone, Copy)]
pub enum WantedPart<'a> {
    /// All of it.
    Everything,
    /// What is not absent, and what is there though it is on the list.
    Present(&'a AbsentPaths),
    /// These paths, with the directories on the way to them and the ignore files in these.
    Only {
        /// The paths.
        paths: &'a [Vec<u8>],
        /// What was absent so far.
        absent: &'a AbsentPaths,
        /// Which files are ignore files.
        exclusions: &'a ScanExclusions,
    },
    /// What is missing of these paths. Nothing that is there is changed.
    Missing {
        /// The paths.
        wanted: &'a AbsentPaths,
        /// A name in the directory, by directory of the target, of each file that has one there.
        links: &'a HashMap<Ino, (Ino, Vec<u8>)>,
    },
}

impl WantedPart<'_> {
    /// Whether an entry of the target, in a directory that is not left out, is.
    fn leaves_out(&self, path: &[u8], name: &[u8], is_there: bool) -> bool {
        match self {
            Self::Everything => false,
            Self::Present(absent) => !is_there && absent.find_covering(path).is_some(),
            Self::Only { paths, exclusions, .. } => {
                let is_wanted =
                    |wanted: &Vec<u8>| is_path_within(path, wanted) || is_path_within(wanted, path);
                !exclusions.is_rule_file(name) && !paths.iter().any(is_wanted)
            }
            Self::Missing { wanted, .. } => !wanted.is_concerned(path),
        }
    }

    /// Whether a directory is gone into though nothing in it differs from the target: something absent may be to be made
    /// there, or something present to be left out.
    fn visits_unchanged_dir(&self, path: &[u8], is_restoring_paths: bool) -> bool {
        match self {
            Self::Everything => false,
            Self::Present(absent) => is_restoring_paths && absent.is_concerned(path),
            Self::Only { paths, absent, .. } => {
                paths.iter().any(|wanted| is_path_within(wanted, path)) || absent.is_concerned(path)
            }
            Self::Missing { .. } => true,
        }
    }

    fn is_missing_only(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// A directory as it is.
pub struct CurrentDir<'a> {
    /// Its files.
    pub tree: &'a ScanTree,
    /// Their inodes.
    pub captured: &'a CaptureResult,
    /// The state that these are of.
    pub state: &'a FsTree,
}

impl PlanInput<'_> {
    /// Draws the plan.
    pub fn build_plan(&self) -> Result<PlanSteps> {
        let skip = self.find_dirs_to_visit()?;
        let mut work = PlanBuilder {
            planner: self,
            scopes: PathScopes::new(self.paths.iter().map(Vec::as_slice)),
            skip,
            steps: PlanSteps::default(),
            leaders: HashMap::new(),
            kept: HashMap::new(),
            stack: Vec::new(),
            path: Vec::new(),
            settles: false,
            visits: false,
        };
        // These files have a name in the directory, to which their other names become links.
        if let WantedPart::Missing { links, .. } = self.part {
            let leaders = links.iter().map(|(ino, (dir, name))| (*ino, (*dir, name.clone(), None)));
            work.leaders.extend(leaders);
        }
        let root = self.now.as_ref().map(|_| ScanDirIndex::ROOT);
        // It was met in no directory, and has no name.
        work.stack.push(PlanTask { dir: self.base, place: (Ino::SUPER, Vec::new()), now: root, above: 0 });
        while let Some(task) = work.stack.pop() {
            // The stack is in pre-order, so the path of a directory is the first `above` bytes of the path of
            // the one before it, and its name.
            let mut path = std::mem::take(&mut work.path);
            path.truncate(task.above);
            push_path_name(&mut path, &task.place.1);
            work.plan_dir(&task, &path)?;
            work.path = path;
        }
        Ok(work.steps)
    }

    /// Which directories may be passed over: those that are not in the set, if both sides have the same inode.
    fn find_dirs_to_visit(&self) -> Result<Option<HashSet<Ino>>> {
        // In another place everything is made, whatever is equal here.
        let Some(now) = self.now.as_ref().filter(|_| !self.elsewhere) else { return Ok(None) };
        let (touched, linked) = StateComparison { from: now.state, to: self.target }.find_touched_inodes()?;
        // A hard link can be the first name of a file in a directory in which nothing else differs. All
        // directories have to be visited to know which names belong together.
        if linked {
            return Ok(None);
        }
        Ok(Some(collect_touched_dirs(touched, [now.state, self.target])?))
    }
}

/// The inodes of which something differs between two states, and all that are above them in either.
pub(crate) fn collect_touched_dirs(touched: BTreeSet<Ino>, states: [&FsTree; 2]) -> Result<HashSet<Ino>> {
    let mut above = HashSet::new();
    for ino in touched {
        // An inode may have been moved: it differs for the directories above it in both states.
        for tree in states {
            add_ancestors(tree, ino, &mut above)?;
        }
    }
    Ok(above)
}

/// Adds an inode and all directories above it. What stands above the root is no inode.
fn add_ancestors(tree: &FsTree, ino: Ino, above: &mut HashSet<Ino>) -> Result<()> {
    let mut at = ino;
    above.insert(at);
    while at != Ino::SUPER
        && let Some(attr) = tree.inode_attr(at)?
    {
        at = attr.parent;
        // All that is above it was added with it. This ends circles, too.
        if !above.insert(at) {
            break;
        }
    }
    Ok(())
}

struct PlanTask {
    dir: Ino,
    /// The directory and the name by which it was met.
    place: (Ino, Vec<u8>),
    now: Option<ScanDirIndex>,
    /// How much of the path at hand is that of the directory above it. Whole paths of all that waits would take memory
    /// with the square of the depth.
    above: usize,
}

fn push_path_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

struct PlanBuilder<'a> {
    planner: &'a PlanInput<'a>,
    /// The selected paths.
    scopes: PathScopes<'a>,
    /// The directories that must be gone into; None: all.
    skip: Option<HashSet<Ino>>,
    steps: PlanSteps,
    /// The first name of each target inode that has several, and the present inode that was kept for it.
    leaders: HashMap<Ino, (Ino, Vec<u8>, Option<Ino>)>,
    /// The target inode that each present inode with several names was kept for.
    kept: HashMap<Ino, Ino>,
    stack: Vec<PlanTask>,
    /// The path of the directory that was last gone into.
    path: Vec<u8>,
    /// Whether the directory at hand gets its metadata at the end, if anything is done in it: not one that only lies
    /// on the way to the selected paths and is there already.
    settles: bool,
    /// Whether the directory that is the entry at hand is gone into though nothing in it differs.
    visits: bool,
}

impl<'a> PlanBuilder<'a> {
    fn plan_dir(&mut self, task: &PlanTask, here: &[u8]) -> Result<()> {
        let target = self.planner.target.read_inode(task.dir)?;
        self.check_dir(task, here, &target)?;
        let view = self.current_dir(task.now);
        let differs = match view.filter(|_| !self.planner.elsewhere) {
            Some(view) => self.differs_as_dir(&target, &view)?,
            None => true,
        };
        let part = self.planner.part;
        self.settles = self.steps.dirs.contains(&task.dir)
            || if part.is_missing_only() { !differs } else { self.is_selected(here) };
        let first_child = self.stack.len();
        if let Some(view) = view.filter(|_| !self.planner.elsewhere && !part.is_missing_only()) {
            self.plan_surplus_deletes(&view, &target, task);
        }
        let mut path = here.to_vec();
        for (name, dentry) in &target.entries {
            path.truncate(here.len());
            push_path_name(&mut path, name);
            let Some(selected) = self.selected_part(&path) else { continue };
            let there = view.and_then(|view| view.find_entry(name));
            if part.leaves_out(&path, name, there.is_some()) {
                self.plan_left_out(path.clone(), there.as_ref(), task.dir);
                continue;
            }
            if let (WantedPart::Present(absent), Some(there)) = (part, &there)
                && there.kind() != FileKind::Dir
                && absent.contains(&path)
            {
                self.steps.found.push(path.clone());
            }
            self.visits = part.visits_unchanged_dir(&path, !self.planner.paths.is_empty());
            let place = TargetEntry { dir: task.dir, name: name.clone(), ino: dentry.ino, kind: dentry.kind };
            self.plan_entry(place, there, here.len(), selected)?;
        }
        // The stack gives back its last entry first; reversed, the children are planned in the order of their
        // names.
        self.stack.get_mut(first_child..).unwrap_or_default().reverse();
        let is_settled = match part {
            // Whoever made it in the place of an absent one did not say what it should be like.
            WantedPart::Missing { wanted, .. } => wanted.find_covering(here).is_some(),
            WantedPart::Everything | WantedPart::Present(_) | WantedPart::Only { .. } => {
                differs && self.is_selected(here)
            }
        };
        if is_settled {
            self.steps.dirs.insert(task.dir);
        }
        Ok(())
    }

    /// An entry of the target that is not to be there: what is, goes.
    fn plan_left_out(&mut self, path: Vec<u8>, there: Option<&ScanEntryRef<'_>>, dir: Ino) {
        let is_list_new = match self.planner.part {
            WantedPart::Only { .. } => true,
            WantedPart::Everything | WantedPart::Missing { .. } => return,
            WantedPart::Present(_) => !self.planner.paths.is_empty(),
        };
        if let Some(there) = there {
            self.plan_delete(there);
            self.mark_dir_changed(dir);
        }
        if is_list_new {
            self.steps.left_out.push(path);
        }
    }

    /// Refuses a tree that a worktree cannot have made: writing finds directories by what their inodes say of where
    /// they are, so that must be where the walk met them. This ends circles too.
    fn check_dir(&self, task: &PlanTask, here: &[u8], target: &InodeRecord) -> Result<()> {
        let refuse = |what: &str| {
            let place = format_path(here);
            Err(VolumeError::BadTree(format!("'{place}' {what}")).into())
        };
        if target.attr.kind != FileKind::Dir {
            return refuse("is said to be a directory and is none");
        }
        if task.place.0 != Ino::SUPER {
            let (parent, name) = &task.place;
            if target.attr.parent != *parent || target.attr.name != *name {
                return refuse("is a directory that belongs to another place");
            }
        }
        // Below the root a file of this name does no harm: the state of a volume is a directory.
        let is_state = |(name, dentry): &(Vec<u8>, Dentry)| {
            name == STATE_DIR && (task.dir == Ino::ROOT || dentry.kind == FileKind::Dir)
        };
        if target.entries.iter().any(is_state) {
            return refuse("has an entry '.vellum', which is where the state of a volume is kept");
        }
        Ok(())
    }

    /// Something is done in a directory.
    fn mark_dir_changed(&mut self, dir: Ino) {
        if self.settles {
            self.steps.dirs.insert(dir);
        }
    }

    fn current_dir(&self, now: Option<ScanDirIndex>) -> Option<ScanDir<'a>> {
        Some(self.planner.now.as_ref()?.tree.dir(now?))
    }

    fn is_selected(&self, path: &[u8]) -> bool {
        self.planner.paths.is_empty() || self.scopes.contains(path)
    }

    fn selected_part(&self, path: &[u8]) -> Option<PlannedPart> {
        if self.is_selected(path) {
            return Some(PlannedPart::Whole);
        }
        self.scopes.reaches_into(path).then_some(PlannedPart::OnTheWay)
    }

    /// What is here and not in the target goes.
    fn plan_surplus_deletes(&mut self, view: &ScanDir<'_>, target: &InodeRecord, task: &PlanTask) {
        for entry in view.entries() {
            // Entries of a tree are sorted by name.
            let known =
                target.entries.binary_search_by(|(name, _)| name.as_slice().cmp(entry.name())).is_ok();
            if !known && self.is_selected(&entry.path()) {
                self.plan_delete(&entry);
                self.mark_dir_changed(task.dir);
            }
        }
    }

    fn plan_delete(&mut self, entry: &ScanEntryRef<'_>) {
        // The list has directories before their entries; execution goes through it in reverse.
        let mut waiting = vec![*entry];
        while let Some(entry) = waiting.pop() {
            self.steps.deletes.push(entry.id());
            if let (Some(child), Some(now)) = (entry.child_index(), &self.planner.now) {
                waiting.extend(now.tree.dir(child).entries());
            }
        }
    }

    fn plan_entry(
        &mut self,
        place: TargetEntry,
        there: Option<ScanEntryRef<'_>>,
        above: usize,
        part: PlannedPart,
    ) -> Result<()> {
        let elsewhere = self.planner.elsewhere;
        let same_kind = there.filter(|there| there.kind() == place.kind);
        if let Some(there) = there.filter(|_| self.planner.part.is_missing_only())
            && !self.is_same_dir(&place, &there)
        {
            // What has the name of a file counts as that file. In the place of a directory, all that is in it is missing.
            if place.kind == FileKind::Dir {
                self.steps.blocked.push(there.path());
            }
            return Ok(());
        }
        // `rename` replaces neither a directory by a file nor a file by a directory (EISDIR, ENOTDIR), so an
        // entry of another kind is removed first.
        if let (Some(there), None, false) = (there, same_kind, elsewhere) {
            self.plan_delete(&there);
        }
        if place.kind == FileKind::Dir {
            if same_kind.is_none() || elsewhere {
                self.mark_dir_changed(place.dir);
                self.steps.dirs.insert(place.ino);
                self.steps.make_dirs.push(place.clone());
            }
            if !self.can_skip_dir(&place, same_kind.as_ref()) {
                let now = same_kind.and_then(|there| there.child_index());
                self.stack.push(PlanTask { dir: place.ino, place: (place.dir, place.name), now, above });
            }
            return Ok(());
        }
        match part {
            PlannedPart::OnTheWay => Ok(()),
            PlannedPart::Whole => self.plan_file(place, same_kind),
        }
    }

    fn is_same_dir(&self, place: &TargetEntry, there: &ScanEntryRef<'_>) -> bool {
        let number = self.planner.now.as_ref().map(|now| now.captured.number_of_entry(there.id()));
        place.kind == FileKind::Dir && there.kind() == FileKind::Dir && number == Some(place.ino)
    }

    fn can_skip_dir(&self, place: &TargetEntry, there: Option<&ScanEntryRef<'_>>) -> bool {
        let (Some(above), Some(there), Some(now)) = (&self.skip, there, &self.planner.now) else {
            return false;
        };
        if self.visits {
            return false;
        }
        // Equal inode numbers are not enough: something below the directory may differ.
        now.captured.number_of_entry(there.id()) == place.ino && !above.contains(&place.ino)
    }

    fn plan_file(&mut self, place: TargetEntry, there: Option<ScanEntryRef<'_>>) -> Result<()> {
        let target = self.planner.target.read_inode(place.ino)?;
        if target.attr.kind != place.kind {
            let message = format!("the entry of inode {} says it is another kind of file", place.ino);
            return Err(VolumeError::BadTree(message).into());
        }
        let linked = target.attr.nlink > 1;
        let present = self.find_present_inode(there.as_ref())?;
        if let Some((dir, name, kept)) = self.leaders.get(&place.ino) {
            // If the first name was kept and this name is the same file already, there is nothing to do.
            let is_link_already = kept.is_some() && present.as_ref().map(|(ino, _)| *ino) == *kept;
            if !is_link_already {
                let leader = (*dir, name.clone());
                self.mark_dir_changed(place.dir);
                let replaces = there.map(|there| there.id()).filter(|_| !self.planner.elsewhere);
                self.steps.links.push(LinkStep { place, leader, replaces, overwrites: false });
            }
            return Ok(());
        }
        let kept = self.plan_keep_or_write(&place, &target, there, present);
        if linked {
            self.leaders.insert(place.ino, (place.dir, place.name, kept));
        }
        Ok(())
    }

    /// Plans a file; gives the present inode if that stays.
    fn plan_keep_or_write(
        &mut self,
        place: &TargetEntry,
        target: &InodeRecord,
        there: Option<ScanEntryRef<'_>>,
        present: Option<(Ino, InodeRecord)>,
    ) -> Option<Ino> {
        let aspects = present.as_ref().map(|(_, inode)| compare_inodes(inode, target));
        let same_content = aspects.is_some_and(|aspects| !aspects.content && !aspects.kind);
        let shared = present.as_ref().filter(|(_, inode)| inode.attr.nlink > 1).map(|(ino, _)| *ino);
        // A file that already stays as another inode of the target cannot be this one too.
        let taken = shared.is_some_and(|ino| *self.kept.entry(ino).or_insert(place.ino) != place.ino);
        let elsewhere = self.planner.elsewhere;
        if same_content && !taken && !elsewhere {
            if let Some(there) = there.filter(|_| aspects.is_some_and(|aspects| aspects.has_change())) {
                self.steps.metas.push((place.clone(), there.id()));
            }
            return present.map(|(ino, _)| ino);
        }
        self.mark_dir_changed(place.dir);
        let there = there.map(|there| there.id());
        let replaces = there.filter(|_| !elsewhere);
        let same_content = there.filter(|_| same_content);
        self.steps.writes.push(FileWrite { place: place.clone(), replaces, overwrites: false, same_content });
        None
    }

    fn find_present_inode(&self, there: Option<&ScanEntryRef<'_>>) -> Result<Option<(Ino, InodeRecord)>> {
        let (Some(there), Some(now)) = (there, &self.planner.now) else { return Ok(None) };
        let ino = now.captured.number_of_entry(there.id());
        // An entry that could not be read has no inode in the state.
        Ok(match now.state.inode_attr(ino)? {
            Some(_) => Some((ino, now.state.read_inode(ino)?)),
            None => None,
        })
    }

    fn differs_as_dir(&self, target: &InodeRecord, view: &ScanDir<'_>) -> Result<bool> {
        let Some(now) = &self.planner.now else { return Ok(true) };
        let ino = view.own_entry().map_or(Ino::ROOT, |entry| now.captured.number_of_entry(entry.id()));
        let Some(attr) = now.state.inode_attr(ino)? else { return Ok(true) };
        let aspects = compare_inodes(&now.state.read_inode(ino)?, target);
        // `compare_inodes` ignores the times of directories, which are not changes to a user, but a restore
        // sets them.
        Ok(aspects.has_change() || attr.mtime != target.attr.mtime)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlannedPart {
    Whole,
    OnTheWay,
}
