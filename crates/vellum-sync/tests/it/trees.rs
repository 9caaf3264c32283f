//! Random trees with every kind of file, and all that can be seen of a tree.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};

/// So many cases, the same each time; unless the environment asks for more, which are others each time.
pub fn cases(cases: u32) -> ProptestConfig {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let rng_seed = match requested {
        Some(_) => RngSeed::Random,
        None => RngSeed::Fixed(20_260_501),
    };
    let cases = requested.unwrap_or(cases);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum FrameKind {
    Dir(BTreeMap<usize, Node>),
    File {
        size: u32,
        sparse: bool,
    },
    Symlink(u8),
    Fifo,
    Socket,
    Device(u8),
    /// Another name of the file of this number, if there is one when it is made.
    Link(u8),
}

/// One entry of a random tree.
#[derive(Debug, Clone)]
pub struct Node {
    kind: FrameKind,
    mode: u32,
    owner: u32,
    /// Seconds, and nanoseconds.
    mtime: (i64, u32),
    xattr: Option<u8>,
}

/// Names that are few, so that two trees share some, and odd.
fn names() -> Vec<OsString> {
    let mut names: Vec<OsString> =
        ["a", "b", "c", "-n", "ü", "x y", "*", "a~"].iter().map(OsString::from).collect();
    names.push(OsString::from_vec(b"\xff\xfe\n".to_vec()));
    names.push(OsString::from_vec(vec![b'l'; 255]));
    names
}

const NAMES: usize = 10;
const TARGETS: [&str; 4] = ["a", "../b", "/nowhere/at all", "x"];
/// Before 1970, now, after 2106.
const SECONDS: [i64; 4] = [-1_000_000, 0, 1_700_000_000, 4_500_000_000];
const SIZES: [u32; 6] = [0, 1, 5000, 70_000, 140_000, 300_000];

fn leaf() -> impl Strategy<Value = FrameKind> {
    prop_oneof![
        6 => (proptest::sample::select(&SIZES[..]), any::<bool>())
            .prop_map(|(size, sparse)| FrameKind::File { size, sparse }),
        2 => (0..TARGETS.len() as u8).prop_map(FrameKind::Symlink),
        1 => Just(FrameKind::Fifo),
        1 => Just(FrameKind::Socket),
        1 => (1..4u8).prop_map(FrameKind::Device),
        2 => any::<u8>().prop_map(FrameKind::Link),
    ]
}

fn node(kind: impl Strategy<Value = FrameKind>, nanos: u32) -> impl Strategy<Value = Node> {
    let modes = vec![0o644, 0o600, 0o755, 0o4755, 0o2711, 0o000, 0o1777];
    let mode = proptest::sample::select(modes);
    let owner = proptest::sample::select(vec![0, 0, 1000, 12345]);
    // Few nanoseconds: times of two trees meet, with one content.
    let mtime = (proptest::sample::select(&SECONDS[..]), 0..nanos);
    (kind, mode, owner, mtime, proptest::option::weighted(0.2, 0..3u8))
        .prop_map(|(kind, mode, owner, mtime, xattr)| Node { kind, mode, owner, mtime, xattr })
}

/// A random tree.
pub fn tree() -> impl Strategy<Value = Node> {
    tree_with(3)
}

/// A random tree whose times have so many different nanoseconds.
pub fn tree_with(nanos: u32) -> impl Strategy<Value = Node> {
    let entries = |inner| proptest::collection::btree_map(0..NAMES, inner, 0..6);
    let inner = node(leaf(), nanos)
        .prop_recursive(3, 40, 6, move |inner| node(entries(inner).prop_map(FrameKind::Dir), nanos));
    node(proptest::collection::btree_map(0..NAMES, inner, 0..7).prop_map(FrameKind::Dir), nanos)
}

/// Makes the tree in an empty directory.
pub fn build(root: &Node, at: &Path) {
    let names = names();
    let mut files = Vec::new();
    make(root, at, &names, &mut files);
    dress(root, at, &names);
}

fn make(node: &Node, at: &Path, names: &[OsString], files: &mut Vec<PathBuf>) {
    match &node.kind {
        FrameKind::Dir(entries) => {
            if !at.is_dir() {
                fs::create_dir(at).unwrap();
            }
            for (name, entry) in entries {
                make(entry, &at.join(&names[*name]), names, files);
            }
        }
        FrameKind::File { size, sparse } => {
            fill(at, node, *size, *sparse);
            files.push(at.to_path_buf());
        }
        FrameKind::Symlink(target) => symlink(TARGETS[usize::from(*target)], at).unwrap(),
        FrameKind::Fifo => mknodat(CWD, at, FileType::Fifo, Mode::RUSR, 0).unwrap(),
        FrameKind::Socket => mknodat(CWD, at, FileType::Socket, Mode::RUSR, 0).unwrap(),
        FrameKind::Device(minor) => {
            mknodat(CWD, at, FileType::CharacterDevice, Mode::RUSR, makedev(1, u32::from(*minor))).unwrap();
        }
        FrameKind::Link(number) if !files.is_empty() => {
            fs::hard_link(&files[usize::from(*number) % files.len()], at).unwrap();
        }
        FrameKind::Link(_) => fill(at, node, 1, false),
    }
}

/// Content depends on size and time alone: what the quick check takes for equal is equal.
fn fill(at: &Path, node: &Node, size: u32, sparse: bool) {
    let file = File::create(at).unwrap();
    file.set_len(u64::from(size)).unwrap();
    let seed = u64::from(size) ^ (node.mtime.0 as u64) << 20 ^ u64::from(node.mtime.1) << 50 | 1;
    let mut state = seed;
    let mut bytes: Vec<u8> = (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    // Zeros in the middle, always: whether they are stored is what `sparse` says.
    let middle = bytes.len() / 4..bytes.len() / 2;
    bytes[middle.clone()].fill(0);
    if sparse {
        file.write_all_at(&bytes[..middle.start], 0).unwrap();
        file.write_all_at(&bytes[middle.end..], middle.end as u64).unwrap();
    } else {
        file.write_all_at(&bytes, 0).unwrap();
    }
}

/// Attributes, children first. Other names of a file have those of the last.
fn dress(node: &Node, at: &Path, names: &[OsString]) {
    if let FrameKind::Dir(entries) = &node.kind {
        for (name, entry) in entries {
            dress(entry, &at.join(&names[*name]), names);
        }
    }
    if matches!(node.kind, FrameKind::Link(_)) && fs::symlink_metadata(at).unwrap().nlink() > 1 {
        return;
    }
    let is_link = matches!(node.kind, FrameKind::Symlink(_));
    std::os::unix::fs::lchown(at, Some(node.owner), Some(node.owner)).unwrap();
    if let (Some(value), FrameKind::File { .. } | FrameKind::Dir(_)) = (node.xattr, &node.kind) {
        rustix::fs::lsetxattr(at, "user.test", &[value], rustix::fs::XattrFlags::empty()).unwrap();
    }
    if !is_link {
        let mode = if matches!(node.kind, FrameKind::Dir(_)) { node.mode | 0o700 } else { node.mode };
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
    }
    let time = Timespec { tv_sec: node.mtime.0, tv_nsec: i64::from(node.mtime.1) * 7 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// All that can be seen of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub kind: char,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub content: Vec<u8>,
    pub rdev: u64,
    pub xattrs: Vec<(CString, Vec<u8>)>,
    /// The first path of the same file.
    pub first: PathBuf,
}

/// All that can be seen of a tree, but of Vellum's own.
pub fn facts(root: &Path) -> BTreeMap<PathBuf, Facts> {
    let mut found = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut paths = vec![PathBuf::new()];
    while let Some(path) = paths.pop() {
        let full = root.join(&path);
        if fs::symlink_metadata(&full).unwrap().is_dir() {
            for entry in fs::read_dir(&full).unwrap() {
                let name = entry.unwrap().file_name();
                if name != OsStr::new(".vellum-trash") {
                    paths.push(path.join(name));
                }
            }
        }
        found.insert(path, ());
    }
    let paths: Vec<PathBuf> = found.into_keys().collect();
    paths
        .into_iter()
        .map(|path| {
            let facts = look(root, &path, &mut firsts);
            (path, facts)
        })
        .collect()
}

fn look(root: &Path, path: &Path, firsts: &mut BTreeMap<u64, PathBuf>) -> Facts {
    let full = root.join(path);
    let found = fs::symlink_metadata(&full).unwrap();
    let kind = found.file_type();
    let (letter, content) = if kind.is_dir() {
        ('d', Vec::new())
    } else if kind.is_symlink() {
        ('l', fs::read_link(&full).unwrap().into_os_string().into_vec())
    } else if kind.is_file() {
        ('f', fs::read(&full).unwrap())
    } else if kind.is_fifo() {
        ('p', Vec::new())
    } else if kind.is_socket() {
        ('s', Vec::new())
    } else {
        ('c', Vec::new())
    };
    let first = match found.nlink() > 1 && !kind.is_dir() {
        true => firsts.entry(found.ino()).or_insert_with(|| path.to_path_buf()).clone(),
        false => path.to_path_buf(),
    };
    Facts {
        kind: letter,
        mode: if kind.is_symlink() { 0 } else { found.mode() & 0o7777 },
        owner: (found.uid(), found.gid()),
        mtime: (found.mtime(), found.mtime_nsec()),
        content,
        rdev: found.rdev(),
        xattrs: xattrs(&full),
        first,
    }
}

fn xattrs(path: &Path) -> Vec<(CString, Vec<u8>)> {
    let mut list = vec![0; 4096];
    let Ok(len) = rustix::fs::llistxattr(path, &mut list) else { return Vec::new() };
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 65_536];
            let name = CString::new(name).unwrap();
            let len = rustix::fs::lgetxattr(path, &name, &mut value).unwrap();
            value.truncate(len);
            (name, value)
        })
        .collect();
    found.sort();
    found
}

/// The first difference between two trees, for a message that can be read.
pub fn difference(a: &BTreeMap<PathBuf, Facts>, b: &BTreeMap<PathBuf, Facts>) -> Option<String> {
    let paths = a.keys().chain(b.keys().filter(|path| !a.contains_key(*path)));
    for path in paths {
        let a = a.get(path);
        let b = b.get(path);
        if a != b {
            let short = |facts: Option<&Facts>| {
                facts.map(|facts| {
                    let content = blake3::hash(&facts.content).to_hex().get(..8).unwrap().to_string();
                    format!(
                        "{:?} {content}",
                        Facts { content: vec![facts.content.len() as u8], ..facts.clone() }
                    )
                })
            };
            let shown = OsStr::from_bytes(path.as_os_str().as_bytes());
            return Some(format!("{shown:?}:\n  {:?}\n  {:?}", short(a), short(b)));
        }
    }
    None
}
