//! All that can be seen of a directory: the strongest comparison of two trees, made with system calls of its own.
//!
//! Not compared: what no program can set (change and creation times, link counts of directories) and access times.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};

/// Size of the blocks in which content is compared, bytes: no hole is smaller.
const BLOCK: u64 = 4096;

/// A directory's whole tree, by path.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Picture(pub BTreeMap<Vec<u8>, Seen>);

/// One file of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub kind: String,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, u32),
    pub size: u64,
    pub device: (u32, u32),
    pub target: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of all blocks that are not zero, with where they stand.
    pub content: String,
    /// Where a sparse file has data.
    pub data: Vec<(u64, u64)>,
    /// The first path of a file that has several.
    pub first: Option<Vec<u8>>,
}

impl Picture {
    pub fn of(path: &Path) -> Self {
        vellum_host::beneath::raise_open_files_limit();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).unwrap();
        let mut painter = Painter { picture: Self::default(), links: HashMap::new() };
        let stat = statx(&root, b"", AtFlags::EMPTY_PATH);
        let seen = painter.see(b".", &root, b".", &stat);
        painter.picture.0.insert(b".".to_vec(), seen);
        painter.directory(&root, b"");
        painter.link();
        painter.picture
    }

    /// The part at and below `path`, with paths relative to it.
    pub fn below(&self, path: &str) -> Self {
        let path = path.as_bytes();
        let part = self.0.iter().filter_map(|(at, seen)| {
            let rest = at.strip_prefix(path)?;
            match rest.strip_prefix(b"/") {
                Some(rest) => Some((rest.to_vec(), seen.clone())),
                None => rest.is_empty().then(|| (b".".to_vec(), seen.clone())),
            }
        });
        Self(part.collect())
    }

    /// The same without one respect in which trees of two places may differ.
    pub fn without(mut self, forget: impl Fn(&mut Seen)) -> Self {
        self.0.values_mut().for_each(forget);
        self
    }

    /// Fails with the differences, if there are any.
    #[track_caller]
    pub fn expect(&self, other: &Self, what: &str) {
        let mut differences = Vec::new();
        for path in self.0.keys().chain(other.0.keys()).collect::<std::collections::BTreeSet<_>>() {
            let here = self.0.get(path);
            let there = other.0.get(path);
            if here != there {
                let shown = vellum_host::escape::format_path(path);
                differences.push(format!("{shown}:\n  is     {here:?}\n  wanted {there:?}"));
            }
        }
        let count = differences.len();
        differences.truncate(8);
        assert!(count == 0, "{what}: {count} differences\n{}", differences.join("\n"));
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().map(vellum_host::escape::format_path)).finish()
    }
}

struct Painter {
    picture: Picture,
    links: HashMap<(u32, u32, u64), Vec<Vec<u8>>>,
}

impl Painter {
    fn directory(&mut self, dir: &OwnedFd, path: &[u8]) {
        let mut names: Vec<Vec<u8>> = fs::Dir::read_from(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_bytes().to_vec())
            .filter(|name| name != b"." && name != b".." && !(path.is_empty() && name == b".vellum"))
            .collect();
        names.sort();
        for name in names {
            let mut at = path.to_vec();
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(&name);
            let stat = statx(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
            let seen = self.see(&at, dir, &name, &stat);
            self.picture.0.insert(at.clone(), seen);
            if kind(&stat) == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let child = fs::openat(dir, name.as_slice(), flags, Mode::empty()).unwrap();
                self.directory(&child, &at);
            }
        }
    }

    fn see(&mut self, path: &[u8], dir: &OwnedFd, name: &[u8], stat: &Statx) -> Seen {
        let kind = kind(stat);
        if stat.stx_nlink > 1 && kind != FileType::Directory {
            let file = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
            self.links.entry(file).or_default().push(path.to_vec());
        }
        let target = match kind {
            FileType::Symlink => fs::readlinkat(dir, name, Vec::new()).unwrap().into_bytes(),
            _ => Vec::new(),
        };
        let (content, data) = match kind {
            FileType::RegularFile => content(dir, name, stat.stx_size),
            _ => Default::default(),
        };
        Seen {
            kind: format!("{kind:?}"),
            mode: u32::from(stat.stx_mode) & 0o7777,
            owner: (stat.stx_uid, stat.stx_gid),
            mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            size: if kind == FileType::Directory { 0 } else { stat.stx_size },
            device: (stat.stx_rdev_major, stat.stx_rdev_minor),
            target,
            xattrs: xattrs(dir, name),
            content,
            data,
            first: None,
        }
    }

    fn link(&mut self) {
        for paths in self.links.values() {
            let first = paths.iter().min().filter(|_| paths.len() > 1).cloned();
            for path in paths {
                self.picture.0.get_mut(path).unwrap().first.clone_from(&first);
            }
        }
    }
}

fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

fn statx(dir: &OwnedFd, name: &[u8], flags: AtFlags) -> Statx {
    fs::statx(dir, name, flags, StatxFlags::BASIC_STATS).unwrap()
}

fn content(dir: &OwnedFd, name: &[u8], size: u64) -> (String, Vec<(u64, u64)>) {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(fs::openat(dir, name, flags, Mode::empty()).unwrap());
    let data = segments(&file, size);
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK as usize];
    for (start, end) in &data {
        let mut at = start - start % BLOCK;
        while at < *end {
            let wanted = usize::try_from(BLOCK.min(size - at)).unwrap();
            file.read_exact_at(&mut block[..wanted], at).unwrap();
            if block[..wanted].iter().any(|byte| *byte != 0) {
                hasher.update(&at.to_le_bytes());
                hasher.update(&block[..wanted]);
            }
            at += BLOCK;
        }
    }
    let whole = data == [(0, size)] || size == 0;
    (hasher.finalize().to_hex()[..16].to_owned(), if whole { Vec::new() } else { data })
}

fn segments(file: &File, size: u64) -> Vec<(u64, u64)> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(start) = fs::seek(file, SeekFrom::Data(at)) else { break };
        let end = fs::seek(file, SeekFrom::Hole(start)).unwrap().min(size);
        segments.push((start, end));
        at = end;
    }
    if segments.is_empty() && size > 0 { vec![(0, 0)] } else { segments }
}

fn xattrs(dir: &OwnedFd, name: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    let mut names = vec![0; 64 << 10];
    let len = fs::llistxattr(path.as_slice(), &mut names[..]).unwrap();
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let len = fs::lgetxattr(path.as_slice(), name, &mut value[..]).unwrap();
        found.push((name.to_vec(), value[..len].to_vec()));
    }
    found.sort();
    found
}
