//! Walks both listings, directory by directory, side by side.

use std::collections::{HashMap, HashSet};

use vellum_types::FileKind;

use super::basis::BasisMatch;
use super::links::LinkLeaders;
use super::{
    Differences, PlanRefusal, PlanRemark, StepAction, StepCounts, StepPhase, SyncPlan, SyncStep, WriteMethod,
    compare, compare_attributes,
};
use crate::model::listing::{EntryFlags, ListingEntry, ListingEntryId, TreeListing};
use crate::model::options::{DeletePhase, SyncOptions};

/// A directory of the source with its counterpart at the destination.
struct PlannedDirectory {
    source: ListingEntryId,
    old: Option<ListingEntryId>,
    what: Differences,
    /// Steps change entries in it, and with them its modification time.
    touched: bool,
}

/// A file that the destination lacks.
pub(super) struct NewFile {
    pub source: ListingEntryId,
    pub pair: usize,
    step: SyncStep,
}

/// A name whose step depends on that of its leading name.
pub(super) struct DependentName {
    pub source: ListingEntryId,
    pub old: Option<ListingEntryId>,
    pub pair: usize,
}

/// A plan in progress.
pub(super) struct SyncPlanner<'a> {
    pub source: &'a TreeListing,
    pub destination: &'a TreeListing,
    /// The listings of the basis directories.
    pub basis: &'a [TreeListing],
    /// Paths that were named and do not exist at the source.
    pub missing: &'a [Vec<u8>],
    pub options: &'a SyncOptions,
    pub counts: StepCounts,
    pub remarks: Vec<PlanRemark>,
    pub deletes: Vec<SyncStep>,
    /// A Vellum store at the destination that would be written to or deleted.
    pub store: Option<Vec<u8>>,
    pub renames: Vec<SyncStep>,
    pub links: Vec<SyncStep>,
    pub fresh_files: Vec<NewFile>,
    pub followers: Vec<DependentName>,
    pub leaders: LinkLeaders,
    /// For each link group of the destination the source file that keeps it: its link group, or its number.
    pub claims: HashMap<u32, (bool, u32)>,
    /// Leading names whose content stays, with the destination's entries.
    pub stayed: HashMap<ListingEntryId, ListingEntryId>,
    /// The entries that the destination will have, if entries are moved.
    pub moved: Vec<ListingEntryId>,
    /// Leading names that are created.
    pub made: HashSet<ListingEntryId>,
    /// Directories of the source that are treated as absent, because they contain no files.
    bare: HashSet<ListingEntryId>,
    clear: Vec<SyncStep>,
    dirs: Vec<SyncStep>,
    files: Vec<SyncStep>,
    pairs: Vec<PlannedDirectory>,
    touched_roots: HashSet<ListingEntryId>,
}

impl<'a> SyncPlanner<'a> {
    pub fn new(source: &'a TreeListing, destination: &'a TreeListing, options: &'a SyncOptions) -> Self {
        let parent = |path: &Vec<u8>| {
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            destination.find_path(path.get(..end).unwrap_or_default()).map(|dir| dir.id())
        };
        let (files, bytes) = source.count_files();
        let mut planner = Self {
            source,
            destination,
            basis: &[],
            missing: &[],
            options,
            counts: StepCounts { entries: source.len() as u64 - 1, files, bytes, ..StepCounts::default() },
            remarks: source.shadowed.iter().map(|path| PlanRemark::Shadowed { path: path.clone() }).collect(),
            deletes: Vec::new(),
            store: None,
            renames: Vec::new(),
            links: Vec::new(),
            fresh_files: Vec::new(),
            followers: Vec::new(),
            leaders: LinkLeaders::new(),
            claims: HashMap::new(),
            stayed: HashMap::new(),
            moved: Vec::new(),
            made: HashSet::new(),
            bare: if options.preserve.prune_empty { find_bare_dirs(source) } else { HashSet::new() },
            clear: Vec::new(),
            dirs: Vec::new(),
            files: Vec::new(),
            pairs: Vec::new(),
            // Temporary files of a killed run are removed there, which changes the directory's time.
            touched_roots: destination.leftovers.iter().filter_map(parent).collect(),
        };
        // Leaders depend on both listings and are needed by every comparison below.
        if options.preserve.hard_links {
            planner.leaders = planner.choose_leaders();
        }
        planner
    }

    /// Adds paths that were named and do not exist at the source.
    pub fn with_missing(self, missing: &'a [Vec<u8>]) -> Self {
        Self { missing, ..self }
    }

    /// Adds the listings of the basis directories.
    pub fn with_basis(self, basis: &'a [TreeListing]) -> Self {
        Self { basis, ..self }
    }

    pub fn build_plan(mut self) -> SyncPlan {
        let root = self.source.root();
        if self.options.compare.existing && self.destination.root().flags().contains(EntryFlags::IMPLIED) {
            // The directory itself is not there.
            return SyncPlan { counts: self.counts, ..SyncPlan::default() };
        }
        // If only some entries were named, the directory above them is not the user's subject, and its
        // attributes stay.
        let what = match root.flags().contains(EntryFlags::IMPLIED) {
            true => Differences::default(),
            false => {
                let there = self.destination.root();
                let is_new = there.flags().contains(EntryFlags::IMPLIED);
                compare_attributes(&root, &there, self.options).union_if(Differences::NEW, is_new)
            }
        };
        self.add_dir(ListingEntryId::ROOT, Some(ListingEntryId::ROOT), what);
        let mut next = vec![0];
        while let Some(pair) = next.pop() {
            let first = self.pairs.len();
            self.plan_dir(pair);
            // A stack in reverse: directories are planned in the order of a walk by name, which is the order
            // of a dry run's output.
            next.extend((first..self.pairs.len()).rev());
        }
        self.finish_plan()
    }

    fn add_dir(&mut self, source: ListingEntryId, old: Option<ListingEntryId>, what: Differences) {
        let touched = old.is_some_and(|old| self.touched_roots.contains(&old));
        self.pairs.push(PlannedDirectory { source, old, what, touched });
    }

    /// Records that entries of a directory change.
    pub fn mark_touched(&mut self, pair: usize) {
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.touched = true;
        }
    }

    /// The pair of each directory of the destination that has one.
    pub fn index_pairs(&self) -> HashMap<ListingEntryId, usize> {
        self.pairs.iter().enumerate().filter_map(|(pair, dir)| Some((dir.old?, pair))).collect()
    }

    /// The source's directory of a pair.
    pub fn source_dir(&self, pair: usize) -> Option<ListingEntry<'a>> {
        self.pairs.get(pair).map(|pair| self.source.entry(pair.source))
    }

    fn plan_dir(&mut self, pair: usize) {
        let Some(PlannedDirectory { source, old, .. }) = self.pairs.get(pair) else { return };
        let dir = self.source.entry(*source);
        let old_dir = old.map(|old| self.destination.entry(old));
        if let Some(old) = old_dir.filter(|old| old.flags().contains(EntryFlags::STORE)) {
            self.store.get_or_insert(old.path());
            return;
        }
        // What the destination has in this directory is unknown. Writing into it could replace entries that
        // nobody has seen.
        if old_dir.is_some_and(|old| old.flags().contains(EntryFlags::UNREAD)) {
            return;
        }
        let mut ours = dir.children().peekable();
        let mut theirs = old_dir.into_iter().flat_map(|old| old.children()).peekable();
        loop {
            // Both lists are sorted by the bytes of names, so one pass pairs them.
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(a), Some(b)) => a.name().cmp(b.name()),
            };
            let ours = if order.is_le() { ours.next() } else { None };
            let theirs = if order.is_ge() { theirs.next() } else { None };
            match (ours, theirs) {
                (Some(source), old) => self.plan_entry(source, old, pair),
                (None, Some(old)) => self.plan_extra_entry(&old, pair),
                (None, None) => {}
            }
        }
    }

    /// Plans for an entry of the source and the destination's entry of the same path.
    fn plan_entry(&mut self, source: ListingEntry<'a>, old: Option<ListingEntry<'a>>, pair: usize) {
        let compare = &self.options.compare;
        if !compare::is_requested_kind(&source, self.options) {
            return self.remarks.push(PlanRemark::Skipped { path: source.path() });
        }
        // A directory in its place would replace the symlink.
        if old.is_none() && source.is_dir() && self.is_unlisted_link(&source) {
            return;
        }
        // With `--prune-empty-dirs` the directory counts as absent at the source, so what has its path may be
        // deleted.
        if self.bare.contains(&source.id()) {
            old.iter().for_each(|old| self.plan_extra_entry(old, pair));
            return;
        }
        // Directories are entered in any case: `--ignore-existing` is about what they contain.
        let is_existing = old.is_some_and(|old| !(old.is_dir() && source.is_dir()));
        if source.flags().contains(EntryFlags::WITHHELD)
            || old.is_none() && compare.existing
            || compare.ignore_existing && is_existing
        {
            return;
        }
        match old {
            None => self.plan_creation(&source, None, Differences::NEW, pair),
            Some(old) if old.kind() != source.kind() => self.plan_replacement(&source, &old, pair),
            Some(old) if source.is_dir() => {
                let what = compare_attributes(&source, &old, self.options);
                self.add_dir(source.id(), Some(old.id()), what);
            }
            Some(old) => self.plan_same_kind(&source, &old, pair),
        }
    }

    /// Whether the destination has a symlink at the path that cannot be treated as a directory; its listing reports
    /// that.
    fn is_unlisted_link(&self, source: &ListingEntry<'_>) -> bool {
        let links = &self.options.preserve.dir_links;
        !links.is_empty() && links.contains(&source.path())
    }

    /// Plans for an entry whose path has an entry of another type.
    fn plan_replacement(&mut self, source: &ListingEntry<'a>, old: &ListingEntry<'a>, pair: usize) {
        let what = Differences::NEW.union(Differences::KIND);
        // `rename` replaces one by the other in one step, so nothing has to be removed first.
        if !old.is_dir() && !source.is_dir() {
            return self.plan_creation(
                source,
                Some(*old),
                Differences::KIND.union(Differences::CONTENT),
                pair,
            );
        }
        let (steps, gone) = self.plan_removal(old, StepPhase::Clear);
        let may = steps.len() <= 1
            || self.options.delete.when != DeletePhase::Never
            || self.options.delete.obstacles;
        if !gone || !may {
            return self.remarks.push(PlanRemark::InTheWay { path: source.path() });
        }
        // A single thing that is replaced is not gone.
        self.counts.deleted += steps.len() as u64 - 1;
        self.clear.extend(steps);
        self.plan_creation(source, None, what, pair);
    }

    /// Whether the destination's file stays although its content differs: it is newer, or longer.
    pub fn is_left_unchanged(&self, source: &ListingEntry<'_>, old: &ListingEntry<'_>) -> bool {
        self.should_skip_write(source, old) && !compare::compare_content(source, old, self.options).is_empty()
    }

    /// Whether the options exclude writing to the destination's file.
    fn should_skip_write(&self, source: &ListingEntry<'_>, old: &ListingEntry<'_>) -> bool {
        let options = self.options;
        let newer = options.compare.update && compare::is_newer(old.mtime(), source.mtime(), options);
        let longer = options.writing.append && old.size() >= source.size();
        source.is_file() && old.is_file() && (newer || longer)
    }

    pub fn plan_same_kind(&mut self, source: &ListingEntry<'a>, old: &ListingEntry<'a>, pair: usize) {
        if self.is_left_unchanged(source, old) {
            return;
        }
        if self.find_leader(source).is_some() {
            let source = source.id();
            let old = Some(old.id());
            return self.followers.push(DependentName { source, old, pair });
        }
        let options = self.options;
        let mut content = compare::compare_content(source, old, options);
        if self.is_wrongly_shared(source, old) {
            // The names should not be one file, but the options forbid to write this one.
            if self.should_skip_write(source, old) {
                self.stayed.insert(source.id(), old.id());
                return;
            }
            content = content.union(Differences::CONTENT);
        }
        let what = compare_attributes(source, old, options);
        // A new file is written instead of changing the attributes of one that a backup may share.
        let content = content.union_if(Differences::CONTENT, !what.is_empty() && self.can_be_in_basis(old));
        if !content.is_empty() {
            return self.plan_creation(source, Some(*old), content.union(what), pair);
        }
        self.stayed.insert(source.id(), old.id());
        self.record_moved_entry(source, Some(old));
        if !what.is_empty() {
            self.counts.attributes += 1;
            self.add_step(StepPhase::Files, StepAction::Attributes, what, source, Some(*old));
        }
    }

    /// Creates an entry. `old` is replaced atomically.
    pub fn plan_creation(
        &mut self,
        source: &ListingEntry<'a>,
        old: Option<ListingEntry<'a>>,
        what: Differences,
        pair: usize,
    ) {
        if source.is_dir() {
            self.mark_touched(pair);
            self.counts.made += 1;
            self.add_step(StepPhase::Dirs, StepAction::MakeDir, what, source, None);
            return self.add_dir(source.id(), None, what);
        }
        if self.find_leader(source).is_some() {
            let source = source.id();
            let old = old.map(|old| old.id());
            return self.followers.push(DependentName { source, old, pair });
        }
        // An entry that the destination has is compared with that one only.
        let found = if old.is_none() { self.find_basis_match(source) } else { None };
        let taken = match found {
            Some(BasisMatch::LeftOut) => return,
            Some(BasisMatch::Taken(action)) => Some(action),
            None => None,
        };
        self.mark_touched(pair);
        if source.link_group().is_some() {
            self.made.insert(source.id());
        }
        self.record_moved_entry(source, old.as_ref());
        match old {
            Some(_) => self.counts.updated += 1,
            None => self.counts.made += 1,
        }
        let action = taken.unwrap_or_else(|| match source.kind() {
            FileKind::File => StepAction::Write(self.choose_write_method(source, old.as_ref())),
            FileKind::Symlink => StepAction::Symlink,
            _ => StepAction::Special,
        });
        if source.is_file() && !matches!(action, StepAction::LinkBasis(_)) {
            self.counts.writes += 1;
            self.counts.write_bytes += source.size();
        }
        let renames = self.options.detect_renames && taken.is_none();
        // Whether the file is written or an old one is renamed is decided when all deletions are known.
        if renames && old.is_none() && source.is_file() && source.link_group().is_none() {
            let step = create_step(StepPhase::Files, action, what, source, None);
            return self.fresh_files.push(NewFile { source: source.id(), pair, step });
        }
        self.add_step(StepPhase::Files, action, what, source, old);
    }

    /// Records that the destination will have an entry.
    pub fn record_moved_entry(&mut self, source: &ListingEntry<'_>, old: Option<&ListingEntry<'_>>) {
        if !self.options.moves {
            return;
        }
        let stamp = |entry: &ListingEntry<'_>| entry.listing().change_stamp(entry.id());
        let looks = |entry: &ListingEntry<'_>| (entry.kind(), entry.size(), entry.mtime());
        let is_itself = |old: &&ListingEntry<'_>| looks(source) == looks(old) && stamp(source) == stamp(old);
        // When entries are moved, a stamp mixes the change time and the inode number. If both are equal,
        // source and destination are one file under two paths, and removing it would lose it.
        match old.filter(is_itself) {
            Some(_) => self.remarks.push(PlanRemark::Itself { path: source.path() }),
            None => self.moved.push(source.id()),
        }
    }

    fn choose_write_method(&self, source: &ListingEntry<'_>, old: Option<&ListingEntry<'_>>) -> WriteMethod {
        use crate::model::options::DeltaMode;
        let writing = &self.options.writing;
        let Some(old) = old.filter(|old| old.is_file()) else { return WriteMethod::Whole };
        // Another name of the same file, a backup perhaps, would change with it.
        let alone = !old.flags().contains(EntryFlags::LINKED);
        match (writing.append, writing.in_place, writing.delta) {
            (true, _, _) if alone && old.size() < source.size() => match writing.append_compared {
                true => WriteMethod::InPlace,
                false => WriteMethod::Append,
            },
            (_, true, _) if alone => WriteMethod::InPlace,
            (_, _, DeltaMode::Never) => WriteMethod::Whole,
            // There are no blocks to reuse.
            _ if old.size() == 0 || source.size() == 0 => WriteMethod::Whole,
            _ => WriteMethod::Delta,
        }
    }

    fn add_step(
        &mut self,
        phase: StepPhase,
        action: StepAction,
        what: Differences,
        source: &ListingEntry<'_>,
        old: Option<ListingEntry<'_>>,
    ) {
        let step = create_step(phase, action, what, source, old.map(|old| old.id()));
        match phase {
            StepPhase::Dirs => self.dirs.push(step),
            _ => self.files.push(step),
        }
    }

    fn finish_plan(mut self) -> SyncPlan {
        self.link_followers();
        self.delete_missing();
        // What was not listed at the source would look deleted there, and what was not listed at the
        // destination could be removed with a directory.
        let hold = !self.source.is_complete() || !self.destination.is_complete();
        if hold && !self.deletes.is_empty() {
            self.remarks.push(PlanRemark::DeletesHeld { deletes: self.deletes.len() as u64 });
            self.counts.deleted -= self.deletes.len() as u64;
            self.deletes.clear();
        }
        if self.options.detect_renames {
            self.find_renames();
        }
        // These files were counted as created before the renames were found.
        for renamed in &self.renames {
            if let Some(entry) = renamed.source.map(|id| self.source.entry(id)) {
                self.counts.writes -= 1;
                self.counts.write_bytes -= entry.size();
                self.counts.made -= 1;
            }
        }
        let mut refusal = self.check_delete_limit();
        // Steps other than deletions are carried out, unless entries have to be deleted to make room for
        // them.
        if !matches!(refusal, Some(PlanRefusal::Store { .. }))
            && self.clear.is_empty()
            && self.has_other_steps()
            && let Some(refusal) = refusal.take()
        {
            self.counts.deleted -= self.deletes.len() as u64;
            self.deletes.clear();
            self.remarks.push(PlanRemark::DeletesRefused { refusal });
        }
        self.files.extend(self.fresh_files.iter().map(|fresh| fresh.step));
        let finish = self.finish_dirs();
        // Deletions stand at one of two places in the order of phases.
        let (before, after) = match self.choose_delete_phase() {
            StepPhase::Clear => (self.deletes, Vec::new()),
            _ => (Vec::new(), self.deletes),
        };
        let mut steps = before;
        for more in [self.clear, self.dirs, self.renames, self.files, self.links, after, finish] {
            steps.extend(more);
        }
        SyncPlan { steps, refusal, remarks: self.remarks, counts: self.counts, moved: self.moved }
    }

    /// Whether there are steps other than deletions.
    fn has_other_steps(&self) -> bool {
        let groups = [&self.dirs, &self.files, &self.renames, &self.links];
        groups.iter().any(|steps| !steps.is_empty()) || !self.fresh_files.is_empty()
    }

    /// Plans the attributes of directories that are new, differ, or get another time because entries in them change.
    fn finish_dirs(&mut self) -> Vec<SyncStep> {
        let times = self.options.preserve.times && !self.options.preserve.omit_dir_times;
        let mut finish = Vec::new();
        // Directories were added before their subdirectories, so this order visits the deepest first. A
        // directory above may lose the permission to enter it.
        for pair in self.pairs.iter().rev() {
            let source = self.source.entry(pair.source);
            if source.flags().contains(EntryFlags::IMPLIED)
                || pair.what.is_empty() && !(pair.touched && times)
            {
                continue;
            }
            self.counts.attributes +=
                u64::from(!pair.what.is_empty() && !pair.what.contains(Differences::NEW));
            finish.push(create_step(StepPhase::Finish, StepAction::Attributes, pair.what, &source, pair.old));
        }
        finish
    }
}

/// Directories whose subtrees consist of directories only, none of which a rule protects.
pub(super) fn find_bare_dirs(source: &TreeListing) -> HashSet<ListingEntryId> {
    let mut bare: HashSet<ListingEntryId> =
        source.iter().filter(ListingEntry::is_dir).map(|dir| dir.id()).collect();
    let is_kept = |entry: &ListingEntry<'_>| match entry.is_dir() {
        true => entry.flags().contains(EntryFlags::PROTECTED),
        false => !entry.flags().contains(EntryFlags::WITHHELD),
    };
    for entry in source.iter().filter(is_kept) {
        let mut next = if entry.is_dir() { Some(entry) } else { entry.parent() };
        while let Some(dir) = next.filter(|dir| bare.remove(&dir.id())) {
            next = dir.parent();
        }
    }
    bare.remove(&ListingEntryId::ROOT);
    bare
}

fn create_step(
    phase: StepPhase,
    action: StepAction,
    what: Differences,
    source: &ListingEntry<'_>,
    old: Option<ListingEntryId>,
) -> SyncStep {
    SyncStep { phase, action, what, source: Some(source.id()), old, other: None }
}
