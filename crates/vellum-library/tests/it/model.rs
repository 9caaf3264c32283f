//! Random operations here and in a directory of this machine, which must come to the same: results, error numbers,
//! and trees. Among them snapshots, restores, views, publishing, closing and opening again.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::Mode;
use tempfile::TempDir;
use vellum_library::{FileKind, OpenOptions, Result, Tree, WorktreeView};

use crate::stand::Stand;
use vellum_testkit::random::{TestRandom, choose_seed};

const OPERATIONS: usize = 4000;
/// Operations between two comparisons of the whole trees.
const COMPARED: usize = 50;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const LENGTHS: [usize; 6] = [0, 1, 100, 4096, 5000, 70_000];

struct World {
    stand: Stand,
    real: TempDir,
    random: TestRandom,
    /// Snapshots, each with a copy of the real directory.
    saved: Vec<(String, TempDir)>,
    /// Views, each with what it showed.
    views: Vec<(WorktreeView, Vec<String>)>,
}

#[test]
fn a_worktree_is_like_a_directory() {
    let seed = choose_seed();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let real = tempfile::tempdir().unwrap();
    fs::create_dir(real.path().join("root")).unwrap();
    let random = TestRandom::new(seed);
    let mut world = World { stand: Stand::new(), real, random, saved: Vec::new(), views: Vec::new() };
    for number in 0..OPERATIONS {
        let what = world.operate();
        if number % COMPARED == 0 {
            let ours = world.ours();
            let theirs = theirs(&world.root());
            assert_eq!(ours, theirs, "after operation {number}, {what}");
        }
    }
    for (view, shown) in &world.views {
        assert_eq!(&render(view), shown, "a view changed");
    }
}

impl World {
    fn root(&self) -> PathBuf {
        self.real.path().join("root")
    }

    fn ours(&self) -> Vec<String> {
        render(self.stand.root())
    }

    /// A path of up to three names.
    fn path(&mut self) -> String {
        let mut path = self.random.pick_item(&NAMES).to_owned();
        for _ in 0..self.random.next_below(3) {
            if self.random.is_one_in(10) {
                path += self.random.pick_item(&["/.", "//", "/../"]);
                if path.ends_with("/.") || path.ends_with("..") {
                    path.push('/');
                }
            } else {
                path.push('/');
            }
            path += self.random.pick_item(&NAMES);
        }
        path
    }

    fn data(&mut self) -> Vec<u8> {
        let byte = self.random.next_number() as u8;
        vec![byte; self.random.pick_item(&LENGTHS)]
    }

    fn operate(&mut self) -> String {
        let path = self.path();
        match self.random.next_below(26) {
            0..=8 => self.change_content(&path),
            9..=18 => self.change_names(&path),
            19..=22 => self.change_attributes(&path),
            23 => self.read(&path),
            24 => self.copy(&path),
            _ if self.random.is_one_in(3) => self.keep(&path),
            _ => self.read(&path),
        }
    }

    fn change_content(&mut self, path: &str) -> String {
        let data = self.data();
        let real = self.root().join(path);
        let work = &self.stand;
        let at = self.random.pick_item(&[0, 10, 4090, 100_000]);
        match self.random.next_below(4) {
            0 | 1 => same(format!("write {path}"), work.write(path, &data), fs::write(&real, &data)),
            2 => {
                let options = OpenOptions::new().append(true).create(true);
                let ours = work.open_with(path, options).map(|file| file.write_at(&data, 0).unwrap());
                let theirs = fs::OpenOptions::new().append(true).create(true).open(&real);
                let theirs = theirs.and_then(|mut file| io::Write::write_all(&mut file, &data));
                same(format!("append to {path}"), ours.map(drop), theirs)
            }
            _ => {
                let options = OpenOptions::new().write(true);
                let ours = work.open_with(path, options).map(|file| {
                    file.write_at(&data, at).unwrap();
                    file.truncate(at + 5000).unwrap();
                });
                let theirs = fs::OpenOptions::new().write(true).open(&real).map(|file| {
                    file.write_all_at(&data, at).unwrap();
                    file.set_len(at + 5000).unwrap();
                });
                same(format!("write {path} at {at}"), ours, theirs)
            }
        }
    }

    fn change_names(&mut self, path: &str) -> String {
        let other = self.path();
        let real = self.root().join(path);
        let real_other = self.root().join(&other);
        let work = &self.stand;
        match self.random.next_below(12) {
            0 | 1 => {
                let theirs = fs::DirBuilder::new().mode(0o755).create(&real);
                same(format!("mkdir {path}"), work.mkdir(path), theirs)
            }
            2 | 3 => {
                let theirs = fs::DirBuilder::new().recursive(true).mode(0o755).create(&real);
                same(format!("mkdir_all {path}"), work.mkdir_all(path), theirs)
            }
            4 => {
                let theirs = fs::symlink_metadata(&real).and_then(|meta| {
                    if meta.is_dir() { fs::remove_dir(&real) } else { fs::remove_file(&real) }
                });
                same(format!("remove {path}"), work.remove(path), theirs)
            }
            5 if self.random.is_one_in(3) => {
                let theirs = match fs::symlink_metadata(&real) {
                    Ok(meta) if meta.is_dir() => fs::remove_dir_all(&real),
                    Ok(_) => fs::remove_file(&real),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    Err(error) => Err(error),
                };
                same(format!("remove_all {path}"), work.remove_all(path), theirs)
            }
            5..=7 => {
                let ours = work.rename(path, &other);
                let theirs = fs::rename(&real, &real_other);
                same(format!("rename {path} {other}"), ours, theirs)
            }
            8 | 9 => {
                let ours = work.symlink(&other, path);
                let theirs = symlink(&other, &real);
                // It must not lead out of the real directory.
                if other.contains("..") && theirs.is_ok() {
                    fs::remove_file(&real).unwrap();
                    work.remove(path).unwrap();
                }
                same(format!("symlink {other} {path}"), ours, theirs)
            }
            _ => {
                let ours = work.link(path, &other);
                let theirs = fs::hard_link(&real, &real_other);
                same(format!("link {path} {other}"), ours, theirs)
            }
        }
    }

    fn change_attributes(&mut self, path: &str) -> String {
        let real = self.root().join(path);
        let work = &self.stand;
        if self.random.is_one_in(2) {
            let mode = self.random.pick_item(&[0o755, 0o700, 0o1777, 0o4711, 0o750]);
            let theirs = fs::set_permissions(&real, Permissions::from_mode(mode));
            return same(format!("chmod {path}"), work.chmod(path, mode), theirs);
        }
        let moment = SystemTime::UNIX_EPOCH + Duration::new(self.random.next_below(1 << 32), 5);
        let ours = work.set_times(path, None, Some(moment));
        let theirs = fs::File::open(&real).and_then(|file| file.set_modified(moment));
        if ours.is_ok() {
            assert_eq!(work.stat(path).unwrap().modified(), moment);
            assert_eq!(fs::metadata(&real).unwrap().modified().unwrap(), moment);
        }
        same(format!("set the times of {path}"), ours, theirs)
    }

    fn read(&mut self, path: &str) -> String {
        let work = &self.stand;
        let real = self.root().join(path);
        let what = format!("read {path}");
        let ours = work.read(path);
        let theirs = fs::read(&real);
        if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
            assert!(ours == theirs, "content of {path}");
        }
        same(what.clone(), ours.map(drop), theirs.map(drop));
        let names = |dir: fs::ReadDir| {
            let mut names: Vec<_> = dir.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let ours =
            work.read_dir(path).map(|list| list.into_iter().map(|entry| entry.name).collect::<Vec<_>>());
        let theirs = fs::read_dir(&real).map(names);
        if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
            assert_eq!(ours, theirs, "names in {path}");
        }
        same(what.clone(), ours.map(drop), theirs.map(drop));
        same(what.clone(), work.read_link(path).map(drop), fs::read_link(&real).map(drop));
        same(what, work.lstat(path).map(drop), fs::symlink_metadata(&real).map(drop))
    }

    fn copy(&mut self, path: &str) -> String {
        let other = self.path();
        let what = format!("copy {path} {other}");
        let real = self.root().join(path);
        let real_other = self.root().join(&other);
        let inode = |path: &Path| fs::metadata(path).ok().map(|meta| meta.ino());
        // The standard library empties a file that is copied to itself, and has errors of its own for directories.
        let is_file = fs::metadata(&real).is_ok_and(|meta| meta.is_file());
        if !is_file || inode(&real) == inode(&real_other) {
            return what;
        }
        same(what, self.stand.copy(path, &other).map(drop), fs::copy(&real, &real_other).map(drop))
    }

    /// Snapshots, views, and what is done with them.
    fn keep(&mut self, path: &str) -> String {
        let at = self.random.next_below(self.saved.len().max(1) as u64) as usize;
        match (self.random.next_below(7), self.saved.get(at)) {
            (0, _) => {
                let copy = tempfile::tempdir().unwrap();
                copy_tree(&self.root(), &copy.path().join("root"));
                self.saved.push((self.stand.create_snapshot("kept").unwrap().to_string(), copy));
            }
            (1, Some((id, copy))) => {
                self.stand.restore_snapshot(id).unwrap();
                fs::remove_dir_all(self.root()).unwrap();
                copy_tree(&copy.path().join("root"), &self.root());
            }
            (2, Some((id, copy))) => {
                let snapshot = self.stand.open_snapshot(id).unwrap();
                let to = NAMES[4];
                // Not `exists`: that follows symlinks, and some of them in circles.
                let free = self.stand.lstat(to).is_err();
                let copied = self.stand.copy_from(&snapshot, path, to).is_ok();
                let real = copy.path().join("root").join(path);
                assert_eq!(copied, free && fs::symlink_metadata(&real).is_ok(), "copy {path} back");
                if copied {
                    copy_tree(&real, &self.root().join(to));
                }
            }
            (3, _) => self.stand.flush().unwrap(),
            (4, _) => {
                let view = self.stand.open_view().unwrap();
                let shown = render(&view);
                self.views.push((view, shown));
            }
            (5, _) => {
                for (view, shown) in self.views.drain(..) {
                    assert_eq!(render(&view), shown, "a view changed");
                }
                let there = std::mem::replace(&mut self.stand, Stand::new());
                self.stand = there.again();
            }
            _ => {}
        }
        "keep".into()
    }
}

/// Both must do it, or both refuse it with the same error number.
#[track_caller]
fn same(what: String, ours: Result<()>, theirs: io::Result<()>) -> String {
    match (&ours, &theirs) {
        (Ok(()), Ok(())) => {}
        (Err(our), Err(their)) => assert_eq!(our.errno(), their.raw_os_error(), "{what}: {our} / {their}"),
        _ => panic!("{what}: {ours:?} / {theirs:?}"),
    }
    what
}

fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp").args(["-a", "--no-target-directory"]).args([from, to]).status().unwrap();
    assert!(status.success());
}

/// A line of each thing in a tree. Links of one file have the same number.
fn render(tree: &impl Tree) -> Vec<String> {
    let mut numbers = HashMap::new();
    let mut lines = Vec::new();
    for found in tree.walk("/") {
        let found = found.unwrap();
        let meta = &found.metadata;
        let path = found.path.strip_prefix("/").unwrap().to_owned();
        let content = match meta.kind() {
            FileKind::File => digest(&tree.read(&found.path).unwrap()),
            FileKind::Symlink => tree.read_link(&found.path).unwrap().display().to_string(),
            _ => String::new(),
        };
        lines.push(line(
            &path,
            meta.mode(),
            (meta.ino(), meta.links()),
            content,
            &mut numbers,
            meta.is_dir(),
        ));
    }
    lines
}

fn theirs(root: &Path) -> Vec<String> {
    let mut numbers = HashMap::new();
    let mut lines = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(at) = waiting.pop() {
        let meta = fs::symlink_metadata(&at).unwrap();
        let mut content = String::new();
        if meta.is_dir() {
            let mut below: Vec<_> = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()).collect();
            below.sort();
            waiting.extend(below.into_iter().rev());
        } else if meta.is_symlink() {
            content = fs::read_link(&at).unwrap().display().to_string();
        } else {
            content = digest(&fs::read(&at).unwrap());
        }
        let path = at.strip_prefix(root).unwrap().to_owned();
        let number = (meta.ino(), meta.nlink() as u32);
        lines.push(line(&path, meta.mode() & 0o7777, number, content, &mut numbers, meta.is_dir()));
    }
    lines
}

fn line(
    path: &Path,
    mode: u32,
    (ino, links): (u64, u32),
    content: String,
    numbers: &mut HashMap<u64, usize>,
    is_dir: bool,
) -> String {
    let new = numbers.len();
    let number = numbers.entry(ino).or_insert(new);
    // Not every filesystem counts the links of directories.
    let links = if is_dir { 0 } else { links };
    format!("{} {mode:o} {number} {links} {content}", path.display())
}

/// The length, and what changes where.
fn digest(content: &[u8]) -> String {
    let mut text = content.len().to_string();
    let mut last = None;
    for (at, byte) in content.iter().enumerate().filter(|(at, byte)| *at == 0 || content[at - 1] != **byte) {
        if last != Some(byte) {
            text += &format!(" {at}:{byte}");
        }
        last = Some(byte);
    }
    text
}
