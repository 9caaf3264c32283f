//! The virtual directory `.vellum` at the root of a mount. It contains snapshots as read-only trees, statistics, and
//! the files by which commands find the serving process.
//!
//! Invariant: the directory is found by name, but is not listed, so that programs that copy or delete the whole tree do
//! not meet it.

mod snapshots;
mod texts;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use vellum_fs::{Epoch, Result};
use vellum_types::{FileKind, Ino, InodeAttr, UnixTime};
use vellum_volume::FsTree;

use crate::metrics::RequestMetrics;
use crate::node::{ListedDirName, NodePlace, SnapshotSlot};

pub(crate) use snapshots::SnapshotsDir;
use texts::VirtualTexts;

/// The name of the directory.
pub const NAME: &[u8] = b".vellum";

/// How long the kernel may cache names of the directory: tags and snapshots are created and deleted without the kernel.
pub const CACHE_TIMEOUT: Duration = Duration::from_secs(1);

/// The content of `.vellum/mount.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFile {
    /// The process that serves the mount.
    pub pid: u32,
    /// The name of the mounted worktree; None if a snapshot is mounted.
    pub worktree: Option<String>,
    /// The id of the mounted snapshot; None if a worktree is mounted.
    pub snapshot: Option<String>,
    /// The state directory through which the volume was opened.
    pub state: String,
    /// The socket on which the daemon receives commands.
    pub control: Option<String>,
    /// The address of the volume's store.
    pub store: String,
}

/// The virtual files that have fixed names and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FixedVirtualFile {
    Top,
    Snapshots,
    Stats,
    AccessLog,
    Mount,
    Paths,
}

const FIXED: [(FixedVirtualFile, &[u8]); 6] = [
    (FixedVirtualFile::Top, NAME),
    (FixedVirtualFile::Snapshots, b"snapshots"),
    (FixedVirtualFile::Stats, b"stats"),
    (FixedVirtualFile::AccessLog, b"accesslog"),
    (FixedVirtualFile::Mount, b"mount.json"),
    (FixedVirtualFile::Paths, b"paths"),
];

impl FixedVirtualFile {
    fn to_number(self) -> u64 {
        self as u64 + 1
    }

    fn from_number(number: u64) -> Option<Self> {
        FIXED.into_iter().map(|(file, _)| file).find(|file| file.to_number() == number)
    }
}

/// The virtual directory of a mount.
pub struct VirtualDir {
    metrics: Arc<RequestMetrics>,
    snapshots: SnapshotsDir,
    texts: VirtualTexts,
    mount_file: Arc<[u8]>,
    /// The path of the pipe from which the access log can be read.
    pipe: Vec<u8>,
    owner: (u32, u32),
    since: UnixTime,
}

/// A node of the directory.
#[derive(Debug)]
pub struct VirtualNode {
    /// What its node id stands for.
    pub place: NodePlace,
    /// Its attributes.
    pub attr: InodeAttr,
}

impl VirtualDir {
    /// Creates the directory. `access_log` is the pipe from which the access log can be read.
    #[must_use]
    pub(crate) fn new(
        snapshots: SnapshotsDir,
        mount_file: &MountFile,
        access_log: &Path,
        metrics: Arc<RequestMetrics>,
    ) -> Self {
        // It has only texts and numbers, which can always be written.
        let mut mount_file = serde_json::to_vec_pretty(mount_file).unwrap_or_default();
        mount_file.push(b'\n');
        Self {
            pipe: access_log.as_os_str().as_bytes().to_vec(),
            snapshots,
            texts: VirtualTexts::default(),
            metrics,
            mount_file: mount_file.into(),
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            since: vellum_volume::session::current_time(),
        }
    }

    /// The directory itself.
    pub fn dir_node(&self) -> Result<VirtualNode> {
        Ok(VirtualNode {
            place: NodePlace::Virtual(FixedVirtualFile::Top.to_number()),
            attr: self.file_attr(FixedVirtualFile::Top.to_number())?,
        })
    }

    /// Looks up a name in a virtual directory.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<VirtualNode> {
        match FixedVirtualFile::from_number(dir) {
            Some(FixedVirtualFile::Top) => {
                // The first entry is the directory itself, which has no name inside of it.
                let found = FIXED.into_iter().skip(1).find(|(_, known)| *known == name);
                let number = match found.ok_or(Errno::NOENT)?.0 {
                    FixedVirtualFile::Stats => {
                        // Made now: the kernel does not report when the file is opened.
                        self.texts.add_text(self.metrics.format_metrics().into_bytes().into())
                    }
                    file => file.to_number(),
                };
                Ok(VirtualNode { place: NodePlace::Virtual(number), attr: self.file_attr(number)? })
            }
            Some(FixedVirtualFile::Snapshots) => self.snapshots.lookup_snapshot(name, self.new_link_attr()),
            Some(
                FixedVirtualFile::Stats
                | FixedVirtualFile::AccessLog
                | FixedVirtualFile::Mount
                | FixedVirtualFile::Paths,
            )
            | None => Err(Errno::NOTDIR.into()),
        }
    }

    /// The attributes of the root while its own cannot be read: of a directory in which `.vellum` can be found, so that
    /// the mount can be ended.
    #[must_use]
    pub fn fallback_root_attr(&self) -> InodeAttr {
        let mut attr = InodeAttr::new(FileKind::Dir, 0o555);
        attr.nlink = 2;
        (attr.uid, attr.gid) = self.owner;
        attr.set_all_times(self.since);
        attr
    }

    /// The attributes of a virtual file.
    pub fn file_attr(&self, number: u64) -> Result<InodeAttr> {
        let mut attr = match FixedVirtualFile::from_number(number) {
            Some(FixedVirtualFile::Top | FixedVirtualFile::Snapshots) => InodeAttr::new(FileKind::Dir, 0o555),
            // Paths contain names of directories that other users may not be allowed to search.
            Some(FixedVirtualFile::Paths) => InodeAttr::new(FileKind::Dir, 0o500),
            Some(FixedVirtualFile::AccessLog) => {
                InodeAttr { size: self.pipe.len() as u64, ..self.new_link_attr() }
            }
            Some(FixedVirtualFile::Stats) => InodeAttr::new(FileKind::File, 0o444),
            Some(FixedVirtualFile::Mount) => {
                InodeAttr { size: self.mount_file.len() as u64, ..InodeAttr::new(FileKind::File, 0o444) }
            }
            None => match self.texts.get_text(number) {
                Some(text) => InodeAttr { size: text.len() as u64, ..InodeAttr::new(FileKind::File, 0o444) },
                None => InodeAttr {
                    size: self.snapshots.link_target(number)?.len() as u64,
                    ..self.new_link_attr()
                },
            },
        };
        attr.nlink = if attr.kind == FileKind::Dir { 2 } else { 1 };
        (attr.uid, attr.gid) = self.owner;
        attr.set_all_times(self.since);
        if self.has_changing_entries(number) {
            // The kernel drops a cached listing only if the modification time changes.
            attr.mtime = vellum_volume::session::current_time();
        }
        Ok(attr)
    }

    /// Whether a virtual directory is `.vellum/paths`: its files are named by node ids, and contain the paths of the
    /// nodes.
    #[must_use]
    pub fn is_paths_dir(number: u64) -> bool {
        number == FixedVirtualFile::Paths.to_number()
    }

    /// Creates a file that contains a path.
    pub fn add_path_text(&self, path: Vec<u8>) -> Result<VirtualNode> {
        let number = self.texts.add_text(path.into());
        Ok(VirtualNode { place: NodePlace::Virtual(number), attr: self.file_attr(number)? })
    }

    /// The path of a virtual file from the mountpoint; None if it has no fixed name.
    #[must_use]
    pub fn file_path(&self, number: u64) -> Option<Vec<u8>> {
        match FixedVirtualFile::from_number(number)? {
            FixedVirtualFile::Top => Some(NAME.to_vec()),
            file => {
                let (_, name) = FIXED.into_iter().find(|(fixed, _)| *fixed == file)?;
                Some([NAME, name].join(&b'/'))
            }
        }
    }

    /// The path of a snapshot's directory from the mountpoint, with the name by which it was looked up.
    #[must_use]
    pub fn snapshot_path(&self, slot: SnapshotSlot) -> Option<Vec<u8>> {
        let name = self.snapshots.snapshot_name(slot)?;
        Some([NAME, b"snapshots", name.as_slice()].join(&b'/'))
    }

    /// Whether the names of a virtual directory change without the kernel: with each new snapshot or tag.
    #[must_use]
    pub fn has_changing_entries(&self, number: u64) -> bool {
        number == FixedVirtualFile::Snapshots.to_number()
    }

    /// The attributes that a listing has of a snapshot or tag, of which nothing is read.
    #[must_use]
    pub fn unread_snapshot_attr(&self, kind: FileKind) -> InodeAttr {
        InodeAttr { kind, mode: 0o555, ..self.new_link_attr() }
    }

    fn new_link_attr(&self) -> InodeAttr {
        let mut attr = InodeAttr::new(FileKind::Symlink, 0o777);
        (attr.uid, attr.gid) = self.owner;
        attr.set_all_times(self.since);
        attr
    }

    /// The names of a virtual directory.
    pub fn list_entries(&self, dir: u64) -> Result<Vec<ListedDirName>> {
        match FixedVirtualFile::from_number(dir) {
            Some(FixedVirtualFile::Top) => {
                Ok(FIXED.into_iter().skip(1).map(|(file, name)| new_listed_name(file, name)).collect())
            }
            Some(FixedVirtualFile::Snapshots) => self.snapshots.list_entries(),
            // Any node id is a name; none is listed.
            Some(FixedVirtualFile::Paths) => Ok(Vec::new()),
            Some(FixedVirtualFile::Stats | FixedVirtualFile::AccessLog | FixedVirtualFile::Mount) | None => {
                Err(Errno::NOTDIR.into())
            }
        }
    }

    /// The directory that contains a virtual directory.
    #[must_use]
    pub fn parent_dir(&self, dir: u64) -> NodePlace {
        if dir == FixedVirtualFile::Top.to_number() {
            NodePlace::Main(Epoch(0), Ino::ROOT)
        } else {
            NodePlace::Virtual(FixedVirtualFile::Top.to_number())
        }
    }

    /// The directory that contains the snapshots.
    #[must_use]
    pub fn snapshots_dir(&self) -> NodePlace {
        NodePlace::Virtual(FixedVirtualFile::Snapshots.to_number())
    }

    /// The target of a symlink.
    pub fn readlink(&self, number: u64) -> Result<Vec<u8>> {
        match FixedVirtualFile::from_number(number) {
            Some(FixedVirtualFile::AccessLog) => Ok(self.pipe.clone()),
            Some(_) | None => self.snapshots.link_target(number),
        }
    }

    /// The tree of a snapshot that was looked up.
    pub fn snapshot_tree(&self, slot: SnapshotSlot) -> Result<Arc<FsTree>> {
        self.snapshots.snapshot_tree(slot)
    }

    /// Reads a virtual file.
    pub fn read_file(&self, number: u64, offset: u64, len: usize) -> Result<Vec<u8>> {
        let text = match FixedVirtualFile::from_number(number) {
            Some(FixedVirtualFile::Mount) => self.mount_file.clone(),
            Some(FixedVirtualFile::Top | FixedVirtualFile::Snapshots | FixedVirtualFile::Paths) => {
                return Err(Errno::ISDIR.into());
            }
            // Each lookup of `stats` gives a text of its own, and `accesslog` is a symlink.
            Some(FixedVirtualFile::Stats | FixedVirtualFile::AccessLog) => return Err(Errno::INVAL.into()),
            None => self.texts.get_text(number).ok_or(Errno::STALE)?,
        };
        let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..)).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest).to_vec())
    }

    /// The kernel has forgotten a virtual file.
    pub fn forget_file(&self, number: u64) {
        self.texts.remove_text(number);
    }
}

fn new_listed_name(file: FixedVirtualFile, name: &[u8]) -> ListedDirName {
    let kind = match file {
        FixedVirtualFile::Top | FixedVirtualFile::Snapshots | FixedVirtualFile::Paths => FileKind::Dir,
        FixedVirtualFile::AccessLog => FileKind::Symlink,
        FixedVirtualFile::Stats | FixedVirtualFile::Mount => FileKind::File,
    };
    let node = NodePlace::Virtual(file.to_number()).to_node().unwrap_or(0);
    ListedDirName { name: name.to_vec(), node, kind }
}
