//! Snapshots of some paths, against what they must be made of: these names as they are now, the others as the last
//! snapshot has them.

use std::collections::BTreeMap;

use vellum_fs::history::exclusions::ExclusionChoice;
use vellum_fs::{AttributeChanges, LiveView, TimeChange, XattrFlags};
use vellum_types::{FileKind, UnixTime};

use crate::check::check;
use crate::stand::{CALLER, EXCHANGE, MOVE, ROOT, Stand, request};
use vellum_fs::StateReader;
use vellum_testkit::random::{TestRandom, choose_seed, scale_rounds};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// What a view has below each name of the root, by path: everything but numbers, counts of links, and times of change.
pub fn render(view: &LiveView) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(ROOT, String::new())];
    while let Some((dir, above)) = waiting.pop() {
        for entry in view.list_entries(dir).unwrap() {
            let path = format!("{above}{}", String::from_utf8(entry.name).unwrap());
            let attr = view.inode_attr(entry.ino).unwrap();
            let mut content = Vec::new();
            let mut xattrs = Vec::new();
            if attr.kind == FileKind::File {
                content = view.read(entry.ino, 0, 1 << 20).unwrap();
            } else if attr.kind == FileKind::Dir {
                waiting.push((entry.ino, format!("{path}/")));
            }
            for name in view.listxattr(entry.ino).unwrap() {
                xattrs.push((name.clone(), view.getxattr(entry.ino, &name).unwrap()));
            }
            let times = (attr.mtime, attr.btime);
            let content = (
                content.len(),
                content.iter().fold(7u64, |sum, byte| sum * 31 % 1_000_003 + u64::from(*byte)),
            );
            let text =
                format!("{:?} {:o} {} {times:?} {content:?} {xattrs:?}", attr.kind, attr.mode, attr.uid);
            found.insert(path, text);
        }
    }
    found
}

fn path(random: &mut TestRandom) -> String {
    let depth = 1 + random.next_below(3);
    (0..depth).map(|_| random.pick_item(&NAMES)).collect::<Vec<_>>().join("/")
}

/// Does something somewhere, if it can be done there.
pub fn act(stand: &Stand, random: &mut TestRandom) {
    let one = path(random);
    let other = path(random);
    let is_dir = |path: &str| stand.exists(path) && stand.attr(path).kind == FileKind::Dir;
    // What POSIX refuses is refused.
    match random.next_below(12) {
        0..=2 if stand.has_place(&one) => drop(stand.mkdir(&one)),
        3..=4 if stand.has_place(&one) => drop(stand.create(&one)),
        5..=6 if stand.exists(&one) && !is_dir(&one) => {
            let bytes = vec![random.next_below(250) as u8 + 1; 1 + random.next_below(90_000) as usize];
            stand.content().write(stand.at(&one).ino, random.next_below(50_000), &bytes, false).unwrap();
        }
        7 if stand.exists(&one) && stand.has_place(&other) => drop(stand.rename(&one, &other, MOVE)),
        8 if stand.exists(&one) && stand.exists(&other) => drop(stand.rename(&one, &other, EXCHANGE)),
        9 if stand.exists(&one) && stand.has_place(&other) => drop(stand.link(&one, &other)),
        10 if stand.exists(&one) => {
            let (dir, name) = stand.split(&one);
            stand.names().remove_tree(dir, name, 0).unwrap();
        }
        11 if stand.exists(&one) => {
            let ino = stand.at(&one).ino;
            let mode = Some(0o700 + random.next_below(64) as u32);
            let mtime = Some(TimeChange::At(UnixTime { secs: random.next_below(1000) as i64, nanos: 3 }));
            stand
                .attributes()
                .setattr(ino, &AttributeChanges { mode, mtime, ..AttributeChanges::default() }, CALLER)
                .unwrap();
            let value = [random.next_below(9) as u8];
            stand.attributes().setxattr(ino, b"user.mark", &value, XattrFlags::default()).unwrap();
        }
        _ => {}
    }
}

impl Stand {
    /// Whether the directory of a path is one.
    fn has_place(&self, path: &str) -> bool {
        path.rsplit_once('/').is_none_or(|(dir, _)| self.exists(dir) && self.attr(dir).kind == FileKind::Dir)
    }
}

#[test]
fn it_holds_the_named_as_they_are_and_the_rest_as_it_was() {
    let mut random = TestRandom::new(choose_seed());
    for _ in 0..scale_rounds(12) {
        let stand = Stand::new();
        for _ in 0..200 {
            act(&stand, &mut random);
        }
        let mut last = stand.create_snapshot(&request()).unwrap();
        for _ in 0..4 {
            for _ in 0..60 {
                act(&stand, &mut random);
            }
            let before = stand.fs.open_snapshot_view(last).unwrap();
            let now = stand.fs.open_view().unwrap();
            let old = render(&before);
            let new = render(&now);
            let there = |name: &&str| {
                before.find_dentry(ROOT, name.as_bytes()).is_ok()
                    || now.find_dentry(ROOT, name.as_bytes()).is_ok()
            };
            let chosen: Vec<&str> = NAMES.into_iter().filter(there).filter(|_| random.is_one_in(2)).collect();
            if chosen.is_empty() {
                continue;
            }
            let paths: Vec<Vec<u8>> = chosen.iter().map(|name| name.as_bytes().to_vec()).collect();
            last = stand.fs.snapshot_paths(&request(), &paths, ExclusionChoice::Kept).unwrap();
            let is_chosen = |path: &String| chosen.iter().any(|name| path.split('/').next() == Some(name));
            let expected: BTreeMap<_, _> = old
                .into_iter()
                .filter(|(path, _)| !is_chosen(path))
                .chain(new.clone().into_iter().filter(|(path, _)| is_chosen(path)))
                .collect();
            let made = stand.fs.open_snapshot_view(last).unwrap();
            assert_eq!(render(&made), expected, "{chosen:?}");
            assert_eq!(render(&stand.fs.open_view().unwrap()), new, "the worktree itself stays");
        }
        // The worktree goes on from there.
        stand.publisher().publish_all().unwrap();
        let whole = stand.create_snapshot(&request()).unwrap();
        stand.publisher().publish_all().unwrap();
        let now = stand.fs.open_view().unwrap();
        let whole = stand.fs.open_snapshot_view(whole).unwrap();
        assert_eq!(render(&now), render(&whole));
        // It is a whole map, and what is counted of it is right.
        let expected = render(&stand.fs.open_snapshot_view(last).unwrap());
        stand.restore_snapshot(last, true).unwrap();
        check(&stand);
        assert_eq!(render(&stand.fs.open_view().unwrap()), expected);
    }
}
