//! Random edits of a directory, of every kind that programs make.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{self, RenameFlags, XattrFlags};

use crate::chance::Chance;
use crate::zoo::set_time;

/// Edits a directory at random.
pub struct Editor<'a> {
    root: &'a Path,
    chance: &'a mut Chance,
}

/// What there is in the directory.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    /// The root among them.
    dirs: Vec<PathBuf>,
    all: Vec<PathBuf>,
}

impl<'a> Editor<'a> {
    pub fn new(root: &'a Path, chance: &'a mut Chance) -> Self {
        Self { root, chance }
    }

    /// Makes one edit; gives what it was.
    pub fn edit(&mut self) -> String {
        let found = self.look();
        match self.chance.below(100) {
            0..15 => self.make_file(&found),
            15..22 => self.make_dir(&found),
            22..26 => self.make_symlink(&found),
            26..46 => self.write_to(&found),
            46..58 => self.rename(&found),
            58..63 => self.swap(&found),
            63..68 => self.replace_by_other_kind(&found),
            68..75 => self.link(&found),
            75..82 => self.remove(&found),
            82..94 => self.change_metadata(&found),
            94..97 => self.copy(&found),
            _ => self.remove_and_make_again(&found),
        }
    }

    fn look(&self) -> Found {
        let mut found = Found { dirs: vec![self.root.into()], ..Found::default() };
        let mut at = 0;
        while let Some(dir) = found.dirs.get(at).cloned() {
            at += 1;
            let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries.iter().filter(|entry| entry.file_name() != ".vellum") {
                let kind = entry.file_type().unwrap();
                found.all.push(entry.path());
                if kind.is_dir() {
                    found.dirs.push(entry.path());
                } else if kind.is_file() {
                    found.files.push(entry.path());
                }
            }
        }
        found
    }

    fn place(&mut self, found: &Found) -> PathBuf {
        let dir = self.chance.pick(&found.dirs).unwrap();
        // Few names, so that what was removed comes back.
        dir.join(format!("n{}", self.chance.below(12)))
    }

    fn content(&mut self) -> Vec<u8> {
        let len = match self.chance.below(10) {
            0 => 0,
            1..6 => self.chance.below(200),
            6..9 => self.chance.below(20_000),
            _ => self.chance.below(400_000),
        };
        self.chance.bytes(len)
    }

    fn make_file(&mut self, found: &Found) -> String {
        let path = self.place(found);
        let content = self.content();
        let done = File::options().write(true).create_new(true).open(&path);
        let done = done.and_then(|file| file.write_all_at(&content, 0));
        format!("file {path:?} of {} bytes: {done:?}", content.len())
    }

    fn make_dir(&mut self, found: &Found) -> String {
        let path = self.place(found);
        format!("directory {path:?}: {:?}", std::fs::create_dir(&path))
    }

    fn make_symlink(&mut self, found: &Found) -> String {
        let path = self.place(found);
        let target = format!("target {}", self.chance.below(5));
        format!("symlink {path:?}: {:?}", symlink(target, &path))
    }

    fn write_to(&mut self, found: &Found) -> String {
        let Some(path) = self.chance.pick(&found.files).cloned() else { return "nothing".into() };
        let file = File::options().write(true).open(&path).unwrap();
        let size = file.metadata().unwrap().len();
        let at = self.chance.below(size as usize + 1) as u64;
        let what = match self.chance.below(5) {
            0 => {
                file.write_all_at(&self.content(), size).unwrap();
                "appended"
            }
            1 => {
                file.set_len(at).unwrap();
                "truncated"
            }
            2 => {
                // A hole at the end, and sometimes data after it.
                file.set_len(size + 30_000).unwrap();
                if self.chance.below(2) == 0 {
                    file.write_all_at(b"island", size + 29_000).unwrap();
                }
                "extended"
            }
            3 => {
                let content = self.chance.bytes((size - at).min(3000) as usize);
                file.write_all_at(&content, at).unwrap();
                "overwritten in place"
            }
            _ => {
                let content = self.chance.bytes(size as usize);
                file.write_all_at(&content, 0).unwrap();
                "overwritten"
            }
        };
        format!("{what} {path:?}")
    }

    fn rename(&mut self, found: &Found) -> String {
        let Some(from) = self.chance.pick(&found.all).cloned() else { return "nothing".into() };
        let to = self.place(found);
        format!("rename {from:?} to {to:?}: {:?}", std::fs::rename(&from, &to))
    }

    fn swap(&mut self, found: &Found) -> String {
        let a = self.chance.pick(&found.all).cloned();
        let b = self.chance.pick(&found.all).cloned();
        let (Some(a), Some(b)) = (a, b) else { return "nothing".into() };
        let done = fs::renameat_with(fs::CWD, &a, fs::CWD, &b, RenameFlags::EXCHANGE);
        format!("swap {a:?} and {b:?}: {done:?}")
    }

    fn replace_by_other_kind(&mut self, found: &Found) -> String {
        let Some(path) = self.chance.pick(&found.all).cloned() else { return "nothing".into() };
        let was_dir = remove(&path);
        if was_dir {
            std::fs::write(&path, self.content()).unwrap();
        } else {
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("n1"), self.content()).unwrap();
        }
        format!("another kind at {path:?}")
    }

    fn link(&mut self, found: &Found) -> String {
        let Some(from) = self.chance.pick(&found.files).cloned() else { return "nothing".into() };
        let to = self.place(found);
        format!("link {from:?} as {to:?}: {:?}", std::fs::hard_link(&from, &to))
    }

    fn remove(&mut self, found: &Found) -> String {
        let Some(path) = self.chance.pick(&found.all).cloned() else { return "nothing".into() };
        // Whole trees only now and then, or little would be left.
        if path.is_dir() && !path.is_symlink() && self.chance.below(3) > 0 {
            return format!("remove if empty {path:?}: {:?}", std::fs::remove_dir(&path));
        }
        remove(&path);
        format!("remove {path:?}")
    }

    fn change_metadata(&mut self, found: &Found) -> String {
        let Some(path) = self.chance.pick(&found.all).cloned() else { return "nothing".into() };
        let number = self.chance.below(4) as u32;
        let what = self.chance.below(5);
        match what {
            0 if !path.is_symlink() => {
                let mode = [0o644, 0o755, 0o4711, 0o2770][number as usize];
                std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            }
            1 => std::os::unix::fs::lchown(&path, Some(number), Some(100 + number)).unwrap(),
            2 if !path.is_symlink() => {
                let name = format!("user.n{number}");
                let value = self.chance.bytes(number as usize * 20);
                fs::lsetxattr(&path, name, &value, XattrFlags::empty()).unwrap();
            }
            3 if !path.is_symlink() => {
                let _ = fs::lremovexattr(&path, format!("user.n{number}"));
            }
            _ => set_time(&path, i64::from(number) * 1_000_000_000, 123),
        }
        format!("metadata {what} of {path:?}")
    }

    fn copy(&mut self, found: &Found) -> String {
        let Some(from) = self.chance.pick(&found.files).cloned() else { return "nothing".into() };
        let to = self.place(found);
        if to.exists() || to.is_symlink() {
            return "nothing".into();
        }
        format!("copy {from:?} to {to:?}: {:?}", std::fs::copy(&from, &to))
    }

    fn remove_and_make_again(&mut self, found: &Found) -> String {
        let Some(path) = self.chance.pick(&found.files).cloned() else { return "nothing".into() };
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, content).unwrap();
        format!("made again {path:?}")
    }
}

/// Removes whatever is there; says whether it was a directory.
fn remove(path: &Path) -> bool {
    let is_dir = path.symlink_metadata().unwrap().is_dir();
    if is_dir { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    is_dir
}
