//! Two directories, their archive, and what a person does in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tempfile::TempDir;
use vellum_host::ProgressMeter;

use crate::ends::local::LocalEnd;
use crate::local::scan::{EntryFilter, NoFilter};
use crate::model::options::{PreserveOptions, SymlinkHandling, SyncOptions};
use crate::two_way::{
    ConflictRule, TwoWayArchive, TwoWayListings, TwoWayPair, TwoWayPlan, TwoWayReport, TwoWayRequest,
    TwoWaySide, TwoWaySync,
};

/// What stands under a path: kind, content, mode, time.
pub type Tree = BTreeMap<String, (char, String, u32, i64)>;

pub struct World {
    pub dir: TempDir,
    pub archive: TwoWayArchive,
    pub options: SyncOptions,
    pub rules: [Arc<dyn EntryFilter>; 2],
    /// The next moment, and the next version; no two are the same.
    pub clock: u64,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for which in TwoWaySide::BOTH {
            fs::create_dir(dir.path().join(name(which))).unwrap();
        }
        let preserve = PreserveOptions {
            recursive: true,
            times: true,
            modes: true,
            hard_links: true,
            symlinks: SymlinkHandling::Keep,
            ..PreserveOptions::default()
        };
        let mut options = SyncOptions { preserve, stamps: true, ..SyncOptions::default() };
        options.delete.force = true;
        let everything: Arc<dyn EntryFilter> = Arc::new(NoFilter);
        let rules = [everything.clone(), everything];
        Self { dir, archive: TwoWayArchive::new(TwoWayPair([7; 32])), options, rules, clock: 1_000_000_000 }
    }

    pub fn path(&self, which: TwoWaySide, path: &str) -> PathBuf {
        self.dir.path().join(name(which)).join(path)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Writes a new version, with a time of its own, making directories on the way; tells the version.
    pub fn write(&mut self, which: TwoWaySide, path: &str) -> String {
        let moment = self.tick();
        // Versions have different lengths: some.
        let version = format!("{moment}{}", "x".repeat((moment % 5) as usize));
        let to = self.path(which, path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(&to, &version).unwrap();
        let file = fs::File::options().write(true).open(&to).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(moment)).unwrap();
        version
    }

    pub fn read(&self, which: TwoWaySide, path: &str) -> Option<String> {
        fs::read_to_string(self.path(which, path)).ok()
    }

    pub fn remove(&self, which: TwoWaySide, path: &str) {
        let path = self.path(which, path);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(path).unwrap(),
            Ok(_) => fs::remove_file(path).unwrap(),
            Err(_) => {}
        }
    }

    pub fn new_request(&self, rule: ConflictRule) -> TwoWayRequest {
        TwoWayRequest {
            options: self.options.clone(),
            rule,
            answers: BTreeMap::new(),
            held: BTreeSet::new(),
            labels: ["one".into(), "two".into()],
            hidden: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    pub fn ends(&self) -> [LocalEnd; 2] {
        TwoWaySide::BOTH.map(|which| LocalEnd::open(&self.path(which, "")).unwrap())
    }

    /// A run; the plan that a dry run would have printed, and what became of it.
    pub fn sync(&mut self, rule: ConflictRule) -> (Vec<String>, TwoWayReport) {
        self.sync_asking(self.new_request(rule))
    }

    pub fn sync_asking(&mut self, request: TwoWayRequest) -> (Vec<String>, TwoWayReport) {
        let ends = self.ends();
        let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: self.rules.clone(), request };
        let meter = ProgressMeter::default();
        let sight = two_way.collect_listings(&self.archive, &meter).unwrap();
        let plan = two_way.build_plan(&self.archive, &sight).unwrap();
        let shown = show(&plan, &sight);
        let (report, archive) = two_way.execute_plan(&self.archive, &sight, &plan, &meter).unwrap();
        // Through its bytes, as between two runs.
        self.archive = TwoWayArchive::decode(&archive.unwrap().encode(), self.archive.pair).unwrap();
        (shown, report)
    }

    /// The plan that a dry run prints.
    pub fn dry(&self, rule: ConflictRule) -> Vec<String> {
        let ends = self.ends();
        let request = self.new_request(rule);
        let mut two_way = TwoWaySync { ends: [&ends[0], &ends[1]], rules: self.rules.clone(), request };
        let sight = two_way.collect_listings(&self.archive, &ProgressMeter::default()).unwrap();
        show(&two_way.build_plan(&self.archive, &sight).unwrap(), &sight)
    }

    pub fn forget(&mut self) {
        self.archive = TwoWayArchive::new(self.archive.pair);
    }

    /// What is on a side, the trash apart.
    pub fn tree(&self, which: TwoWaySide) -> Tree {
        let mut tree = Tree::new();
        let root = self.path(which, "");
        walk(&root, &mut |path, meta| {
            let shown = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            if shown.starts_with(".vellum-trash") {
                return;
            }
            let entry = match meta {
                meta if meta.is_dir() => ('d', String::new(), meta.mode() & 0o7777, 0),
                meta if meta.is_symlink() => {
                    ('l', fs::read_link(path).unwrap().to_str().unwrap().to_owned(), 0, 0)
                }
                meta => ('f', fs::read_to_string(path).unwrap(), meta.mode() & 0o7777, meta.mtime()),
            };
            tree.insert(shown, entry);
        });
        tree
    }

    /// Versions of files on a side: outside of the trash, or in it.
    pub fn versions(&self, which: TwoWaySide, in_trash: bool) -> BTreeSet<String> {
        let mut versions = BTreeSet::new();
        let root = self.path(which, "");
        walk(&root, &mut |path, meta| {
            if meta.is_file() && path.starts_with(root.join(".vellum-trash")) == in_trash {
                versions.insert(fs::read_to_string(path).unwrap());
            }
        });
        versions
    }

    pub fn chmod(&self, which: TwoWaySide, path: &str, mode: u32) {
        fs::set_permissions(self.path(which, path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Both sides have the same, and a further run has nothing to do.
    pub fn assert_settled(&self, rule: ConflictRule) {
        assert_eq!(self.tree(TwoWaySide::First), self.tree(TwoWaySide::Second));
        assert_eq!(self.dry(rule), Vec::<String>::new());
    }
}

fn name(which: TwoWaySide) -> &'static str {
    match which {
        TwoWaySide::First => "first",
        TwoWaySide::Second => "second",
    }
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        visit(&path, &meta);
        if meta.is_dir() {
            walk(&path, visit);
        }
    }
}

/// A plan as lines.
pub fn show(plan: &TwoWayPlan, sight: &TwoWayListings) -> Vec<String> {
    let mut lines = Vec::new();
    for which in TwoWaySide::BOTH {
        for one in which.select_from(&plan.renamings).iter() {
            let path = String::from_utf8(one.path).unwrap();
            let name = String::from_utf8(one.name).unwrap();
            lines.push(format!("{which:?} {path} becomes {name}"));
        }
    }
    let listings = plan.renamed_listings(sight.both_listings());
    for from in TwoWaySide::BOTH {
        for step in &from.select_from(&plan.plans).steps {
            let entry = match (step.source, step.old) {
                (Some(source), _) => from.select_from(&listings).entry(source),
                (None, Some(old)) => from.opposite().select_from(&listings).entry(old),
                (None, None) => continue,
            };
            lines.push(format!("{from:?} {:?} {}", step.action, String::from_utf8(entry.path()).unwrap()));
        }
    }
    lines
}
