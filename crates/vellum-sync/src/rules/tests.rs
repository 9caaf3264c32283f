//! Rules against rsync itself: random rules, random trees, and which files arrive and stay.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

/// Where a rule comes from.
#[derive(Debug, Clone)]
enum Typed {
    Filter(String),
    Include(String),
    Exclude(String),
}

/// Paths of files and directories (which end in a slash).
type Paths = BTreeSet<String>;

const RULES_FILE: &str = ".rules";

fn walk(root: &Path, below: &str, found: &mut Paths) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            found.insert(format!("{path}/"));
            walk(root, &format!("{path}/"), found);
        } else {
            found.insert(path);
        }
    }
}

fn paths_of(root: &Path) -> Paths {
    let mut found = Paths::new();
    walk(root, "", &mut found);
    found
}

fn make(root: &Path, paths: &Paths, rules: &[(String, String)]) {
    fs::create_dir_all(root).unwrap();
    for path in paths {
        let full = root.join(path);
        if path.ends_with('/') {
            fs::create_dir_all(full).unwrap();
        } else {
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, "").unwrap();
        }
    }
    for (dir, text) in rules {
        if root.join(dir).is_dir() {
            fs::write(root.join(dir).join(RULES_FILE), text).unwrap();
        }
    }
}

/// Our side of the bargain.
struct Ours<'t> {
    rules: &'t SyncRules,
    root: PathBuf,
    /// A directory's rules were not understood.
    refused: Cell<bool>,
}

impl Ours<'_> {
    fn enter(&self, outer: &RuleScope, dir: &str) -> RuleScope {
        let dir = dir.strip_suffix('/').unwrap_or(dir);
        let mut read = |name: &[u8]| {
            let path = self.root.join(dir).join(std::str::from_utf8(name).unwrap());
            Ok(fs::read(path).ok())
        };
        self.rules.enter_dir(outer, dir.as_bytes(), &mut read).unwrap_or_else(|_| {
            self.refused.set(true);
            outer.clone()
        })
    }

    fn children<'p>(dir: &'p str, paths: &'p Paths) -> impl Iterator<Item = &'p String> {
        let below = move |path: &&String| {
            path.strip_prefix(dir)
                .is_some_and(|rest| !rest.is_empty() && !rest.trim_end_matches('/').contains('/'))
        };
        paths.iter().filter(below)
    }

    fn judge(&self, scope: &RuleScope, path: &str) -> RuleVerdict {
        let bare = path.strip_suffix('/');
        self.rules.evaluate_entry(scope, bare.unwrap_or(path).as_bytes(), bare.is_some())
    }

    /// What of the source is transferred.
    fn sent(&self, dir: &str, outer: &RuleScope, source: &Paths, sent: &mut Paths) {
        let scope = self.enter(outer, dir);
        for path in Self::children(dir, source) {
            if self.judge(&scope, path).transfer {
                sent.insert(path.clone());
                if path.ends_with('/') {
                    self.sent(path, &scope, source, sent);
                }
            }
        }
    }

    /// What of the destination stays. `removed`: the directory itself is not at the source.
    fn kept(
        &self,
        dir: &str,
        outer: &RuleScope,
        removed: bool,
        there: &Paths,
        sent: &Paths,
        kept: &mut Paths,
    ) {
        let scope = self.enter(outer, dir);
        for path in Self::children(dir, there) {
            let verdict = self.judge(&scope, path);
            let protected = if removed { verdict.protect_in_removed } else { verdict.protect_from_delete };
            if sent.contains(path) || protected {
                kept.insert(path.clone());
                if path.ends_with('/') && sent.contains(path) {
                    self.kept(path, &scope, false, there, sent, kept);
                } else if path.ends_with('/') {
                    kept.extend(there.iter().filter(|inner| inner.starts_with(path.as_str())).cloned());
                }
            } else if path.ends_with('/') {
                let before = kept.len();
                self.kept(path, &scope, true, there, sent, kept);
                if kept.len() > before {
                    kept.insert(path.clone());
                }
            }
        }
    }
}

fn names() -> impl Strategy<Value = String> {
    let dirs = prop_oneof![Just("a"), Just("b"), Just("dir")];
    let files = prop_oneof![Just("f"), Just("g.o"), Just("h.c"), Just("[x]"), Just("f*")];
    (prop::collection::vec(dirs, 0..4), prop::option::of(files)).prop_map(|(dirs, file)| {
        let mut path: String = dirs.iter().map(|dir| format!("{dir}/")).collect();
        path.push_str(file.unwrap_or_default());
        path
    })
}

fn trees() -> impl Strategy<Value = Paths> {
    prop::collection::btree_set(names(), 0..24).prop_map(|names| {
        let mut all = Paths::new();
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            for (at, _) in name.match_indices('/') {
                all.insert(name[..=at].to_owned());
            }
            all.insert(name);
        }
        all
    })
}

fn patterns() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "dir", "f", "g.o", "h.c", "[x]", "f*"]),
        5 => prop::sample::select(vec!["*", "**", "***", "?", "*.o", "*.[ch]", "[a-c]", "d*r", "[!a]", "[[:alpha:]]"]),
        1 => prop::sample::select(vec!["\\f", "\\[x\\]", "f\\*", "[]x]", "[", "[a", "\\", "a?", "*i*"]),
    ];
    let joined = prop::collection::vec((pieces, prop_oneof![2 => Just("/"), 1 => Just("")]), 1..4);
    (prop::bool::weighted(0.3), joined, prop::bool::weighted(0.25)).prop_map(
        |(anchored, pieces, dir_only)| {
            let last = pieces.len() - 1;
            let mut text = if anchored { "/".to_owned() } else { String::new() };
            for (at, (piece, slash)) in pieces.into_iter().enumerate() {
                text.push_str(piece);
                text.push_str(if at == last { "" } else { slash });
            }
            text.push_str(if dir_only { "/" } else { "" });
            text
        },
    )
}

fn filter_lines() -> impl Strategy<Value = String> {
    let kinds = prop_oneof![
        4 => prop::sample::select(vec!["-", "+"]),
        2 => prop::sample::select(vec!["H", "S", "P", "R", "-s", "-r", "+s", "+r", "-p", "-!", "+!", "P,p", "-,sr"]),
        1 => prop::sample::select(vec!["exclude", "include", "hide", "show", "protect", "risk", "exclude,!p"]),
    ];
    (kinds, prop_oneof![Just(" "), Just("_")], patterns())
        .prop_map(|(kind, gap, text)| format!("{kind}{gap}{text}"))
}

fn typed() -> impl Strategy<Value = Typed> {
    prop_oneof![
        8 => filter_lines().prop_map(Typed::Filter),
        2 => patterns().prop_map(Typed::Exclude),
        2 => patterns().prop_map(Typed::Include),
        1 => patterns().prop_map(|text| Typed::Exclude(format!("+ {text}"))),
        1 => Just(Typed::Filter("!".to_owned())),
        3 => prop::sample::select(vec![": .rules", ":n .rules", ":e .rules", ":s .rules", ":p .rules", "dir-merge,w .rules"])
            .prop_map(|text| Typed::Filter(text.to_owned())),
    ]
}

fn rule_files() -> impl Strategy<Value = Vec<(String, String)>> {
    let dirs = prop::sample::select(vec!["", "a/", "b/", "a/b/", "dir/", "a/dir/"]);
    // Sides are left out: a rule that merges may name them, and then these must not.
    let line = (prop::sample::select(vec!["-", "+", "-p", "-!"]), patterns())
        .prop_map(|(kind, text)| format!("{kind} {text}"));
    let line = prop_oneof![8 => line, 1 => Just("!".to_owned()), 1 => Just("# no".to_owned())];
    let text = prop::collection::vec(line, 1..4).prop_map(|lines| lines.join("\n") + "\n");
    prop::collection::vec((dirs.prop_map(str::to_owned), text), 0..3)
}

/// What rsync makes of it; nothing if it does not take the rules.
fn rsync(typed: &[Typed], excluded: bool, from: &Path, to: &Path) -> Option<Paths> {
    let mut command = Command::new("rsync");
    command.args(["-r", "--ignore-times", "--delete-after"]);
    command.args(excluded.then_some("--delete-excluded"));
    for typed in typed {
        match typed {
            Typed::Filter(text) => command.arg(format!("--filter={text}")),
            Typed::Include(text) => command.arg(format!("--include={text}")),
            Typed::Exclude(text) => command.arg(format!("--exclude={text}")),
        };
    }
    command.arg(format!("{}/", from.display())).arg(format!("{}/", to.display()));
    let output = command.output().expect("rsync is installed by `make tools`");
    // 25 and 23 do not happen here: what cannot be removed for its content is a mere warning.
    match output.status.code() {
        Some(0) => Some(paths_of(to)),
        Some(1) => None,
        other => panic!("rsync ended with {other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn args_of(typed: &[Typed]) -> Vec<RuleArg> {
    let arg = |typed: &Typed| match typed {
        Typed::Filter(text) => RuleArg::Filter(text.clone().into_bytes()),
        Typed::Include(text) => RuleArg::Include(text.clone().into_bytes()),
        Typed::Exclude(text) => RuleArg::Exclude(text.clone().into_bytes()),
    };
    typed.iter().map(arg).collect()
}

fn compare(
    typed: &[Typed],
    excluded: bool,
    source: &Paths,
    there: &Paths,
    files: &[(String, String)],
) -> Result<(), TestCaseError> {
    let temp = tempfile::tempdir().unwrap();
    let from = temp.path().join("from");
    let to = temp.path().join("to");
    make(&from, source, files);
    make(&to, there, files);
    let source = paths_of(&from);
    let there = paths_of(&to);

    let compiled = RuleSet::compile_args(&args_of(typed), false, &mut |_| Err("no files".to_owned()));
    let set = RuleSet { delete_excluded: excluded, ..compiled.unwrap() };
    let rules = SyncRules::new(&set, from.to_str().unwrap().as_bytes()).unwrap();
    let mut sent = Paths::new();
    let ours = Ours { rules: &rules, root: from.clone(), refused: Cell::new(false) };
    ours.sent("", &rules.top_scope(), &source, &mut sent);
    // Rules of directories are those that the destination has once everything is transferred.
    let after = temp.path().join("after");
    make(&after, &there, files);
    for path in &sent {
        make(&after, &Paths::from([path.clone()]), &[]);
        if path.ends_with(RULES_FILE) {
            fs::copy(from.join(path), after.join(path)).unwrap();
        }
    }
    let mut kept = Paths::new();
    let ours = Ours { rules: &rules, root: after, refused: ours.refused };
    ours.kept("", &rules.top_scope(), false, &there, &sent, &mut kept);
    kept.extend(sent);

    let Some(theirs) = rsync(typed, excluded, &from, &to) else { return Ok(()) };
    prop_assert!(!ours.refused.get(), "rsync takes rules that we refuse");
    prop_assert_eq!(kept, theirs);
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn rules_mean_what_rsync_means(
        typed in prop::collection::vec(typed(), 0..6),
        excluded in prop::bool::weighted(0.2),
        source in trees(),
        there in trees(),
        files in rule_files(),
    ) {
        compare(&typed, excluded, &source, &there, &files)?;
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let args = [RuleArg::Filter(text.clone()), RuleArg::Exclude(text)];
        for arg in args {
            if let Ok(set) = RuleSet::compile_args(&[arg], false, &mut |_| Err("no".to_owned())) {
                let rules = SyncRules::new(&set, b"/root").unwrap();
                let _ = rules.evaluate_entry(&rules.top_scope(), b"a/b", true);
            }
        }
    }
}

/// A call of rsync takes as long as everything else together, so there are few, always the same; `PROPTEST_CASES` asks
/// for as many as there is time for, which differ each time.
fn config() -> ProptestConfig {
    match std::env::var("PROPTEST_CASES") {
        Ok(_) => ProptestConfig::default(),
        Err(_) => ProptestConfig { cases: 60, rng_seed: RngSeed::Fixed(4), ..ProptestConfig::default() },
    }
}
