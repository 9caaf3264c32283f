//! Random edits on both sides, round after round, under every rule.
//!
//! The model knows which versions both sides had agreed on. Every other version that a side had before a run is, after
//! it, on both sides, or in the trash of one.

use std::collections::BTreeSet;
use std::fs;

use proptest::prelude::*;

use super::world::{World, show};
use crate::two_way::*;

#[derive(Debug, Clone)]
enum Edit {
    Write(String),
    Remove(String),
    Directory(String),
    Symlink(String),
    Mode(String, u32),
    Move(String, String),
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["a", "b", "c"], 1..4).prop_map(|names| names.join("/"))
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        5 => path().prop_map(Edit::Write),
        2 => path().prop_map(Edit::Remove),
        1 => path().prop_map(Edit::Directory),
        1 => path().prop_map(Edit::Symlink),
        1 => (path(), prop_oneof![Just(0o700), Just(0o750)]).prop_map(|(path, mode)| Edit::Mode(path, mode)),
        1 => (path(), path()).prop_map(|(from, to)| Edit::Move(from, to)),
    ]
}

fn which() -> impl Strategy<Value = TwoWaySide> {
    prop_oneof![Just(TwoWaySide::First), Just(TwoWaySide::Second)]
}

fn rule() -> impl Strategy<Value = ConflictRule> {
    prop_oneof![
        Just(ConflictRule::Newer),
        Just(ConflictRule::Larger),
        Just(ConflictRule::Source),
        Just(ConflictRule::Dest),
        Just(ConflictRule::KeepBoth),
    ]
}

impl World {
    /// Does what can be done of an edit.
    fn edit(&mut self, which: TwoWaySide, edit: &Edit) {
        let free = |world: &Self, path: &str| {
            let whole = world.path(which, path);
            let above = whole
                .ancestors()
                .skip(1)
                .filter_map(|dir| fs::symlink_metadata(dir).ok())
                .all(|meta| meta.is_dir());
            above && fs::symlink_metadata(whole).is_err()
        };
        match edit {
            Edit::Write(path) => {
                if !free(self, path) {
                    self.remove_way(which, path);
                }
                self.write(which, path);
            }
            Edit::Remove(path) => self.remove(which, path),
            Edit::Directory(path) if free(self, path) => {
                fs::create_dir_all(self.path(which, path)).unwrap();
            }
            Edit::Symlink(path) if free(self, path) => {
                let to = self.path(which, path);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                self.clock += 1;
                std::os::unix::fs::symlink(format!("nowhere/{}", self.clock), to).unwrap();
            }
            Edit::Mode(path, mode) => {
                let is_there = fs::symlink_metadata(self.path(which, path));
                if is_there.is_ok_and(|meta| !meta.is_symlink()) {
                    self.chmod(which, path, *mode);
                }
            }
            Edit::Move(from, to) if free(self, to) && !to.starts_with(from.as_str()) => {
                let from = self.path(which, from);
                let to = self.path(which, to);
                if fs::symlink_metadata(&from).is_ok() {
                    fs::create_dir_all(to.parent().unwrap()).unwrap();
                    fs::rename(from, to).unwrap();
                }
            }
            Edit::Directory(_) | Edit::Symlink(_) | Edit::Move(..) => {}
        }
    }

    /// Makes room for a file: what stands at its path or in its way goes.
    fn remove_way(&self, which: TwoWaySide, path: &str) {
        let mut so_far = String::new();
        for name in path.split('/') {
            so_far = if so_far.is_empty() { name.to_owned() } else { format!("{so_far}/{name}") };
            let meta = fs::symlink_metadata(self.path(which, &so_far));
            let is_last = so_far == path;
            if meta.is_ok_and(|meta| meta.is_dir() == is_last || meta.is_symlink()) {
                self.remove(which, &so_far);
            }
        }
    }

    fn all_versions(&self) -> BTreeSet<String> {
        TwoWaySide::BOTH.into_iter().flat_map(|which| self.versions(which, false)).collect()
    }

    fn assert_kept(&self, before: &BTreeSet<String>, agreed: &BTreeSet<String>) {
        let now = TwoWaySide::BOTH.map(|which| self.versions(which, false));
        let trash = TwoWaySide::BOTH.map(|which| self.versions(which, true));
        for version in before.difference(agreed) {
            let on_both = now.iter().all(|versions| versions.contains(version));
            let in_trash = trash.iter().any(|versions| versions.contains(version));
            assert!(on_both || in_trash, "version {version} is lost");
        }
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn no_edit_is_lost_and_both_sides_agree(
        rounds in proptest::collection::vec(
            (proptest::collection::vec((which(), edit()), 0..8), rule(), proptest::bool::weighted(0.1)),
            1..5,
        )
    ) {
        let mut world = World::new();
        let mut agreed = BTreeSet::new();
        for (edits, rule, lost) in rounds {
            for (which, edit) in &edits {
                world.edit(*which, edit);
            }
            if lost {
                world.forget();
                agreed.clear();
            }
            let before = world.all_versions();
            let (shown, report) = world.sync(rule);
            for part in report.reports.iter().chain(&report.renamed) {
                prop_assert!(part.problems.is_empty(), "{:?} {:?}", part.problems, shown);
            }
            let steps: u64 = report.reports.iter().chain(&report.renamed).map(|part| part.steps).sum();
            prop_assert_eq!(steps, shown.len() as u64, "a dry run says {:?}", shown);
            world.assert_kept(&before, &agreed);
            world.assert_settled(rule);
            agreed = world.all_versions();
        }
    }

    #[test]
    fn a_run_that_was_killed_anywhere_is_done_by_the_next(
        first in proptest::collection::vec((which(), edit()), 0..8),
        second in proptest::collection::vec((which(), edit()), 1..8),
        rule in rule(),
        cut in 0_usize..12,
    ) {
        let mut world = World::new();
        for (which, edit) in &first {
            world.edit(*which, edit);
        }
        world.sync(rule);
        let agreed = world.all_versions();
        for (which, edit) in &second {
            world.edit(*which, edit);
        }
        let before = world.all_versions();
        world.sync_in_part(rule, cut);
        world.assert_kept_somewhere(&before, &agreed);
        world.sync(rule);
        world.assert_kept_somewhere(&before, &agreed);
        world.assert_settled(rule);
    }
}

impl World {
    /// Takes some steps of a plan and leaves, as if killed: without an archive.
    fn sync_in_part(&self, rule: ConflictRule, mut steps: usize) {
        let ends = self.ends();
        let request = self.new_request(rule);
        let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: self.rules.clone(), request };
        let meter = vellum_host::ProgressMeter::default();
        let sight = two_way.collect_listings(&self.archive, &meter).unwrap();
        let mut plan = two_way.build_plan(&self.archive, &sight).unwrap();
        let _ = show(&plan, &sight);
        if plan.renamings.iter().any(|renamings| !renamings.is_empty()) {
            // The names are given first, all of them; the rest comes with the next run.
            two_way.execute_renames(&plan, &sight, &meter).unwrap();
            return;
        }
        for part in &mut plan.plans {
            part.steps.truncate(steps);
            steps -= part.steps.len();
        }
        two_way.execute_transfers(&plan, &sight, &meter).unwrap();
    }

    fn assert_kept_somewhere(&self, before: &BTreeSet<String>, agreed: &BTreeSet<String>) {
        let all: BTreeSet<String> = TwoWaySide::BOTH
            .into_iter()
            .flat_map(|which| [self.versions(which, false), self.versions(which, true)])
            .flatten()
            .collect();
        for version in before.difference(agreed) {
            assert!(all.contains(version), "version {version} is lost");
        }
    }
}
