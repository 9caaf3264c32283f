//! What a restore gives back: entries of every kind that a filesystem may have, before and after.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr, lsetxattr,
    mknodat, utimensat,
};
use vellum_host::escape::format_path;

use super::checked_out::noise;
use super::ground::TrialGround;
use super::mounted::TrialMount;
use super::{PromiseSubject, TrialResult, TrialStop, TriedPromise, expect};

/// How these promises are tried.
const HOW: &str = "snapshot, everything deleted, restore; compared";
/// Levels of directories; a path of that many short names is below `PATH_MAX`.
const LEVELS: usize = 200;
/// Longest list or value of extended attributes that is looked at, bytes.
const ATTRIBUTES_MAX: usize = 64 << 10;
/// What a snapshot does not contain.
const STATE_DIR: &str = ".vellum";

/// What is given back, and how it is made in a directory of its own.
struct RestoredThing {
    name: &'static str,
    make: fn(&Path) -> TrialResult,
}

const THINGS: &[RestoredThing] = &[
    RestoredThing { name: "restored: content of files of any size", make: make_contents },
    RestoredThing { name: "restored: names of any bytes", make: make_byte_names },
    RestoredThing { name: "restored: names of 255 bytes", make: make_long_names },
    RestoredThing { name: "restored: names that differ in case only", make: make_case_names },
    RestoredThing { name: "restored: 200 levels of directories", make: make_levels },
    RestoredThing { name: "restored: permission bits", make: make_permissions },
    RestoredThing { name: "restored: owners", make: make_owners },
    RestoredThing { name: "restored: times in nanoseconds, of any year", make: make_times },
    RestoredThing { name: "restored: extended attributes", make: make_attributes },
    RestoredThing { name: "restored: hard links", make: make_hard_links },
    RestoredThing { name: "restored: holes in files", make: make_holes },
    RestoredThing { name: "restored: symlinks, pipes and sockets", make: make_special_files },
];

/// What is known of an entry.
#[derive(Debug, PartialEq, Eq)]
struct ComparedEntry {
    mode: u32,
    owner: u32,
    group: u32,
    seconds: i64,
    nanoseconds: i64,
    /// Of files and symlinks.
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Another name of the same file that comes first.
    same_as: Option<PathBuf>,
    has_holes: bool,
}

/// What is known of all entries below a directory, by path.
#[derive(Debug, Default)]
pub struct DirectoryFacts {
    entries: BTreeMap<PathBuf, ComparedEntry>,
}

impl DirectoryFacts {
    /// Says what is different in another one, if anything is.
    pub fn find_difference(&self, other: &Self) -> Option<String> {
        self.find_difference_below(Path::new(""), other)
    }

    fn find_difference_below(&self, dir: &Path, other: &Self) -> Option<String> {
        let paths = self.entries.keys().chain(other.entries.keys());
        paths.filter(|path| path.starts_with(dir)).find_map(|path| {
            let what = match (self.entries.get(path), other.entries.get(path)) {
                (Some(before), Some(after)) => before.name_difference(after)?.to_owned(),
                (Some(_), None) => "is missing".to_owned(),
                (None, _) => "was not there before".to_owned(),
            };
            Some(format!("{} {what}", format_path(path.as_os_str().as_bytes())))
        })
    }
}

impl ComparedEntry {
    fn read(path: &Path, known: &mut BTreeMap<(u64, u64), PathBuf>, name: &Path) -> TrialResult<Self> {
        let found = fs::symlink_metadata(path)?;
        let kind = found.file_type();
        let content = if kind.is_file() {
            fs::read(path)?
        } else if kind.is_symlink() {
            fs::read_link(path)?.as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let is_linked = found.nlink() > 1 && !kind.is_dir();
        let first = known.entry((found.dev(), found.ino())).or_insert_with(|| name.to_owned());
        Ok(Self {
            mode: found.mode(),
            owner: found.uid(),
            group: found.gid(),
            seconds: found.mtime(),
            nanoseconds: found.mtime_nsec(),
            content,
            attributes: read_attributes(path),
            same_as: (is_linked && first != name).then(|| first.clone()),
            has_holes: kind.is_file() && has_holes(path)?,
        })
    }

    fn name_difference(&self, other: &Self) -> Option<&'static str> {
        if self == other {
            return None;
        }
        Some(if self.mode & 0o170_000 != other.mode & 0o170_000 {
            "is of another kind"
        } else if self.content != other.content {
            "has other content"
        } else if self.mode != other.mode {
            "has other permission bits"
        } else if (self.owner, self.group) != (other.owner, other.group) {
            "has another owner"
        } else if (self.seconds, self.nanoseconds) != (other.seconds, other.nanoseconds) {
            "has another time"
        } else if self.attributes != other.attributes {
            "has other extended attributes"
        } else if self.same_as != other.same_as {
            "has other hard links"
        } else {
            "has other holes"
        })
    }
}

/// Attributes that users set; what cannot be read counts as not there.
fn read_attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; ATTRIBUTES_MAX];
    let len = llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names.get(..len).unwrap_or_default().split(|byte| *byte == 0);
    // Other namespaces, as security.selinux, are set by the system and not by the user.
    let own = names.filter(|name| name.starts_with(b"user."));
    own.filter_map(|name| {
        let mut value = vec![0; ATTRIBUTES_MAX];
        let len = lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).ok()?;
        value.truncate(len);
        Some((name.to_vec(), value))
    })
    .collect()
}

fn has_holes(path: &Path) -> std::io::Result<bool> {
    let found = fs::metadata(path)?;
    // Where nothing else is said, a block has 512 bytes. A file that is small may be stored without any.
    Ok(found.len() >= 1 << 20 && found.blocks() * 512 < found.len() / 2)
}

/// Reads all entries below a directory, but for a state directory.
pub fn describe_directory(root: &Path) -> TrialResult<DirectoryFacts> {
    let mut facts = DirectoryFacts::default();
    let mut known = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let mut names: Vec<_> = fs::read_dir(root.join(&dir))?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<std::io::Result<_>>()?;
        // In order, so that the first name of a file is always the same one.
        names.sort_unstable();
        for name in names.into_iter().filter(|name| name != STATE_DIR) {
            let name = dir.join(name);
            let path = root.join(&name);
            facts.entries.insert(name.clone(), ComparedEntry::read(&path, &mut known, &name)?);
            if fs::symlink_metadata(&path)?.is_dir() {
                pending.push(name);
            }
        }
    }
    Ok(facts)
}

/// Tries what a restore gives back, in a directory or in a mount.
pub fn try_restoring(subject: PromiseSubject, ground: &TrialGround) -> Vec<TriedPromise> {
    let start = Instant::now();
    let outcomes = restore_things(subject, ground);
    let finish = |(number, thing): (usize, &RestoredThing)| {
        let outcome = match &outcomes {
            Ok(outcomes) => {
                outcomes.get(number).and_then(Option::as_ref).map_or(Ok(()), |stop| Err(stop.copy()))
            }
            // Nothing could be restored.
            Err(stop) => Err(stop.copy()),
        };
        TriedPromise::new(subject, (thing.name, HOW), outcome, start)
    };
    THINGS.iter().enumerate().map(finish).collect()
}

impl TrialStop {
    fn copy(&self) -> Self {
        match self {
            Self::Broken(reason) => Self::Broken(reason.clone()),
            Self::Inapplicable(reason) => Self::Inapplicable(reason.clone()),
        }
    }
}

/// Makes all things, and restores them. Returns of each why it was not as before, if so.
fn restore_things(subject: PromiseSubject, ground: &TrialGround) -> TrialResult<Vec<Option<TrialStop>>> {
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = match subject {
        PromiseSubject::Mounted => Some(TrialMount::begin(&worktree, "mnt")?),
        PromiseSubject::CheckedOut | PromiseSubject::Store => None,
    };
    let root = mount.as_ref().map_or(worktree.tree.as_path(), |mount| mount.path.as_path());
    let mut outcomes = Vec::new();
    for (number, thing) in THINGS.iter().enumerate() {
        let dir = root.join(number.to_string());
        // A directory for each thing, so that one that the filesystem cannot have does not spoil the comparison of the
        // others.
        fs::create_dir(&dir)?;
        outcomes.push((thing.make)(&dir).err());
    }
    let before = describe_directory(root)?;
    worktree.program.run_ok(root, &["snapshot", "--quiet", "--tag", "all"])?;
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.file_name() != Some(OsStr::new(STATE_DIR)) {
            fs::remove_dir_all(path)?;
        }
    }
    worktree.program.run_ok(root, &["restore", "all"])?;
    let after = describe_directory(root)?;
    for (number, outcome) in outcomes.iter_mut().enumerate().filter(|(_, outcome)| outcome.is_none()) {
        let difference = before.find_difference_below(Path::new(&number.to_string()), &after);
        *outcome = difference.map(TrialStop::Broken);
    }
    drop(mount);
    Ok(outcomes)
}

fn make_contents(dir: &Path) -> TrialResult {
    for len in [0, 1, 2000, 70_000, 3_000_000] {
        fs::write(dir.join(len.to_string()), noise(len, 1))?;
    }
    fs::write(dir.join("text"), "line\n".repeat(50_000))?;
    Ok(fs::create_dir(dir.join("empty"))?)
}

fn make_byte_names(dir: &Path) -> TrialResult {
    for name in [
        &b"caf\xe9"[..],
        b"new\nline",
        b"tab\tand \x01",
        b"-rf",
        b" ",
        b"\\",
        b"\"'",
        "\u{202e}txt".as_bytes(),
    ] {
        fs::write(dir.join(OsStr::from_bytes(name)), name).map_err(|error| {
            TrialStop::Inapplicable(format!("the filesystem takes no name '{}': {error}", format_path(name)))
        })?;
    }
    Ok(())
}

fn make_long_names(dir: &Path) -> TrialResult {
    let name = "n".repeat(255);
    fs::create_dir(dir.join(&name))
        .map_err(|error| TrialStop::Inapplicable(format!("the filesystem takes none: {error}")))?;
    Ok(fs::write(dir.join(&name).join(&name), "content")?)
}

fn make_case_names(dir: &Path) -> TrialResult {
    fs::write(dir.join("name"), "lower")?;
    fs::write(dir.join("NAME"), "upper")?;
    if fs::read(dir.join("name"))? != b"lower" {
        return Err(TrialStop::Inapplicable("the filesystem does not tell them apart".into()));
    }
    Ok(())
}

fn make_levels(dir: &Path) -> TrialResult {
    let deep = dir.join(vec!["d"; LEVELS].join("/"));
    fs::create_dir_all(&deep)?;
    Ok(fs::write(deep.join("file"), "content")?)
}

fn make_permissions(dir: &Path) -> TrialResult {
    for mode in [0o400, 0o640, 0o777, 0o4755, 0o2711] {
        let path = dir.join(format!("{mode:o}"));
        fs::write(&path, "content")?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        if fs::metadata(&path)?.permissions().mode() & 0o7777 != mode {
            return Err(TrialStop::Inapplicable(format!("the filesystem does not keep mode {mode:04o}")));
        }
    }
    fs::create_dir(dir.join("sticky"))?;
    Ok(fs::set_permissions(dir.join("sticky"), Permissions::from_mode(0o1777))?)
}

fn make_owners(dir: &Path) -> TrialResult {
    if !rustix::process::geteuid().is_root() {
        return Err(TrialStop::Inapplicable("only root can set owners".into()));
    }
    let path = dir.join("file");
    fs::write(&path, "content")?;
    std::os::unix::fs::lchown(&path, Some(12_345), Some(54_321))
        .map_err(|error| TrialStop::Inapplicable(format!("the filesystem keeps no owners: {error}")))
}

fn make_times(dir: &Path) -> TrialResult {
    // Before 1970, after 2038 and after 2106.
    for seconds in [-1_000_000_000, 1, 3_000_000_000, 6_000_000_000] {
        let path = dir.join(seconds.to_string());
        fs::write(&path, "content")?;
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        let found = fs::metadata(&path)?;
        if (found.mtime(), found.mtime_nsec()) != (seconds, 123_456_789) {
            return Err(TrialStop::Inapplicable(format!("the filesystem keeps no time like {seconds} s")));
        }
    }
    Ok(())
}

fn make_attributes(dir: &Path) -> TrialResult {
    fs::write(dir.join("file"), "content")?;
    fs::create_dir(dir.join("dir"))?;
    for name in ["file", "dir"] {
        for (attribute, value) in
            [("user.short", &b"value"[..]), ("user.bytes", &[0, 255, 10]), ("user.empty", b"")]
        {
            lsetxattr(dir.join(name), attribute, value, XattrFlags::empty())
                .map_err(|error| TrialStop::Inapplicable(format!("the filesystem has none: {error}")))?;
        }
    }
    Ok(())
}

fn make_hard_links(dir: &Path) -> TrialResult {
    fs::create_dir(dir.join("dir"))?;
    fs::write(dir.join("first"), noise(5000, 3))?;
    for name in ["second", "dir/third"] {
        fs::hard_link(dir.join("first"), dir.join(name))
            .map_err(|error| TrialStop::Inapplicable(format!("the filesystem has none: {error}")))?;
    }
    Ok(())
}

fn make_holes(dir: &Path) -> TrialResult {
    let path = dir.join("sparse");
    let file = File::create(&path)?;
    file.set_len(8 << 20)?;
    file.write_all_at(&noise(65_536, 4), 4 << 20)?;
    // Blocks may be allocated only when the content is written back: before that, the count of blocks says nothing.
    file.sync_all()?;
    expect(has_holes(&path)?, String::new)
        .map_err(|_| TrialStop::Inapplicable("the filesystem keeps no holes".into()))
}

fn make_special_files(dir: &Path) -> TrialResult {
    symlink("nowhere", dir.join("symlink"))?;
    symlink(OsStr::from_bytes(b"caf\xe9"), dir.join("other"))?;
    for (name, kind) in [("pipe", FileType::Fifo), ("socket", FileType::Socket)] {
        mknodat(CWD, dir.join(name), kind, Mode::from_raw_mode(0o600), 0)
            .map_err(|error| TrialStop::Inapplicable(format!("the filesystem takes no {name}: {error}")))?;
    }
    Ok(())
}
