//! Random trees, random options: afterwards both are equal in all that the options cover, a second run has nothing to
//! do, and what was planned is what was done.

use proptest::prelude::*;
use vellum_sync::model::options::{
    CompareMethod, DeleteOptions, DeletePhase, DeltaMode, EffortOptions, SyncOptions, WriteOptions,
};

use crate::run::{everything, plan};
use crate::trees::{Node, build, cases, difference, facts, tree};

/// Options under which the destination becomes what the source is.
fn options() -> impl Strategy<Value = SyncOptions> {
    let by = prop_oneof![
        Just(CompareMethod::SizeAndTime),
        Just(CompareMethod::Content),
        Just(CompareMethod::Nothing)
    ];
    let when = prop_oneof![Just(DeletePhase::Before), Just(DeletePhase::After)];
    let delta = prop_oneof![Just(DeltaMode::Auto), Just(DeltaMode::Always), Just(DeltaMode::Never)];
    let switches = proptest::collection::vec(any::<bool>(), 8);
    (by, when, delta, switches, 1..4u32).prop_map(|(by, when, delta, switches, jobs)| {
        let mut options = everything();
        options.compare.by = by;
        options.delete = DeleteOptions { when, force: true, obstacles: true, ..DeleteOptions::default() };
        options.writing = WriteOptions {
            delta,
            in_place: switches[0],
            trash: switches[1],
            verify: switches[2],
            resume: switches[3],
            ..WriteOptions::default()
        };
        options.preserve.sparse = switches[4];
        options.detect_renames = switches[5];
        options.preserve.hard_links = switches[6] || switches[7];
        options.effort = EffortOptions { jobs: Some(jobs), ..EffortOptions::default() };
        options
    })
}

/// Without -H, names of one file are files of their own.
fn without_links(
    options: &SyncOptions,
    root: &std::path::Path,
) -> std::collections::BTreeMap<std::path::PathBuf, crate::trees::Facts> {
    let mut found = facts(root);
    if !options.preserve.hard_links {
        for (path, facts) in &mut found {
            facts.first.clone_from(path);
        }
    }
    found
}

fn check(source: &Node, old: &Node, options: &SyncOptions) {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    build(source, &from);
    build(old, &to);
    let before = facts(&from);
    let planned = plan(&from, &to, options);
    assert_eq!(planned.plan.refusal, None);
    assert_eq!(planned.shown(), plan(&from, &to, options).shown(), "the same trees have the same plan");
    let report = planned.carry_out().unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.steps, planned.plan.steps.len() as u64, "all that was planned was done");
    if let Some(text) = difference(&before, &facts(&from)) {
        panic!("the source changed: {text}");
    }
    if let Some(text) = difference(&without_links(options, &from), &without_links(options, &to)) {
        panic!("{text}");
    }
    let mut second = options.clone();
    second.compare.by = if options.compare.by == CompareMethod::Nothing {
        CompareMethod::SizeAndTime
    } else {
        options.compare.by
    };
    let again = plan(&from, &to, &second);
    assert!(again.plan.is_empty(), "a second run would do {:?}", again.plan.steps);
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn afterwards_both_trees_are_equal(source in tree(), old in tree(), options in options()) {
        check(&source, &old, &options);
    }

    #[test]
    fn a_fresh_copy_is_equal(source in tree(), options in options()) {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let to = dir.path().join("to");
        build(&source, &from);
        std::fs::create_dir(&to).unwrap();
        let mut options = options;
        options.delete.when = DeletePhase::Never;
        let report = plan(&from, &to, &options).carry_out().unwrap();
        prop_assert_eq!(report.problems, []);
        if let Some(text) = difference(&without_links(&options, &from), &without_links(&options, &to)) {
            panic!("{text}");
        }
    }
}
