//! What a client may keep of answers, and which operations change that.
//!
//! Invariants: the matches over the operations have no wildcard arm, so that a new operation does not compile until it is
//! placed; client and server compute the same.

use rustix::io::Errno;
use vellum_fuse::wire::{FuseOperation, Opcode};
use vellum_fuse::{NodePlace, visit_named_nodes};

/// Flags of `open` by which a file is truncated.
const OPEN_TRUNCATES: u32 = rustix::fs::OFlags::TRUNC.bits();
/// Extended attributes that say how a file is stored, which changes without an operation.
const STORAGE_ATTRIBUTES: &[u8] = b"user.vellum.";

/// What is granted to a client: its answers from it are those that the server would give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lease {
    /// Of a node: its attributes, its extended attributes, and where a symbolic link leads.
    Node(u64),
    /// Of a directory: which names there are, and for which nodes they stand.
    Names(u64),
}

/// A request whose answer can be kept, without what makes no difference to the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnswerKey {
    opcode: u32,
    node: u64,
    detail: Box<[u8]>,
}

impl AnswerKey {
    /// The key of a request; None: its answer is never kept.
    #[must_use]
    pub fn of_request(opcode: u32, node: u64, operation: &FuseOperation<'_>) -> Option<Self> {
        use FuseOperation as Do;
        if !is_of_worktree(node) {
            return None;
        }
        let detail: Vec<u8> = match operation {
            Do::Lookup { name } if !matches!(*name, b"." | b"..") => name.to_vec(),
            Do::Getxattr { name, room } if !name.starts_with(STORAGE_ATTRIBUTES) => {
                [&room.to_le_bytes()[..], *name].concat()
            }
            // The room is part of the key: an answer for more room than the kernel has now would not fit.
            Do::Readdir { offset, room } | Do::Readdirplus { offset, room } => {
                [&offset.to_le_bytes()[..], &room.to_le_bytes()].concat()
            }
            Do::Getattr | Do::Statx | Do::Readlink | Do::Opendir => Vec::new(),
            Do::Lookup { .. }
            | Do::Getxattr { .. }
            | Do::Init(_)
            | Do::Destroy
            | Do::Forget { .. }
            | Do::BatchForget(_)
            | Do::Setattr(_)
            | Do::Symlink { .. }
            | Do::Mknod { .. }
            | Do::Mkdir { .. }
            | Do::Tmpfile { .. }
            | Do::Create { .. }
            | Do::Open { .. }
            | Do::Unlink { .. }
            | Do::Rmdir { .. }
            | Do::Rename { .. }
            | Do::Link { .. }
            | Do::Read { .. }
            | Do::Write { .. }
            | Do::WriteStored { .. }
            | Do::Flush { .. }
            | Do::Release { .. }
            | Do::Releasedir
            | Do::Getlk(_)
            | Do::Setlk { .. }
            | Do::Interrupt { .. }
            | Do::Statfs
            | Do::Fsync { .. }
            | Do::Fsyncdir { .. }
            | Do::Setxattr { .. }
            | Do::Listxattr { .. }
            | Do::Removexattr { .. }
            | Do::Fallocate { .. }
            | Do::Lseek { .. }
            | Do::Ioctl { .. }
            | Do::CopyFileRange { .. }
            | Do::Unknown => return None,
        };
        Some(Self { opcode, node, detail: detail.into() })
    }

    /// The keys by which the beginning of a listing may be kept that a request goes on with; None: it goes on with nothing.
    #[must_use]
    pub fn of_beginning(dir: u64, operation: &FuseOperation<'_>) -> Option<[Self; 2]> {
        let (FuseOperation::Readdir { offset, room } | FuseOperation::Readdirplus { offset, room }) =
            operation
        else {
            return None;
        };
        let detail = [&0u64.to_le_bytes()[..], &room.to_le_bytes()].concat();
        // Kernels begin with attributes, and go on without them if nobody looks at them.
        let key =
            |opcode: Opcode| Self { opcode: opcode.number(), node: dir, detail: detail.as_slice().into() };
        (*offset != 0).then(|| [Opcode::Readdirplus, Opcode::Readdir].map(key))
    }

    /// The key of the same part of a listing with entries, or without them; None: the request is for no listing.
    #[must_use]
    pub fn of_other_listing(&self) -> Option<Self> {
        let opcode = match Opcode::from_number(self.opcode)? {
            Opcode::Readdir => Opcode::Readdirplus,
            Opcode::Readdirplus => Opcode::Readdir,
            _ => return None,
        };
        Some(Self { opcode: opcode.number(), ..self.clone() })
    }

    /// The key by which it is kept for what a name stands.
    #[must_use]
    pub fn of_name(dir: u64, name: &[u8]) -> Self {
        Self { opcode: Opcode::Lookup.number(), node: dir, detail: name.into() }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.detail.len()
    }

    /// Of which request it is the key.
    #[must_use]
    pub fn opcode(&self) -> u32 {
        self.opcode
    }

    /// The node of the request.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.node
    }

    /// What an answer to the request depends on; None: this one is not kept.
    #[must_use]
    pub fn list_leases(&self, errno: i32, body: &[u8]) -> Option<Vec<Lease>> {
        let opcode = Opcode::from_number(self.opcode)?;
        let mut leases = match opcode {
            Opcode::Lookup | Opcode::Readdir | Opcode::Readdirplus => vec![Lease::Names(self.node)],
            _ => vec![Lease::Node(self.node)],
        };
        // That something does not exist follows from what is granted. Other errors may be of the moment (I/O, memory) or of
        // the user who asked.
        let is_kept_failure = match opcode {
            Opcode::Lookup => errno == Errno::NOENT.raw_os_error(),
            Opcode::Getxattr => errno == Errno::NODATA.raw_os_error(),
            _ => false,
        };
        if errno != 0 {
            return is_kept_failure.then_some(leases);
        }
        let mut is_of_one_worktree = true;
        visit_named_nodes(self.opcode, body, |node| {
            // What a name leads to outside of the worktree (.vellum, a snapshot) changes without an operation that recalls
            // it.
            is_of_one_worktree &= is_of_worktree(node);
            leases.push(Lease::Node(node));
        });
        is_of_one_worktree.then_some(leases)
    }
}

/// Whether a node is of the mounted state, and neither virtual nor of a snapshot.
fn is_of_worktree(node: u64) -> bool {
    matches!(NodePlace::from_node(node), NodePlace::Main(..))
}

/// What an operation changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChangedPlaces<'a> {
    /// What the request names by node.
    pub leases: Vec<Lease>,
    /// Names that it changes.
    pub names: Vec<ChangedName<'a>>,
}

/// A name that an operation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedName<'a> {
    /// The directory.
    pub dir: u64,
    /// The name.
    pub name: &'a [u8],
    /// Whether what it stands for changes, too.
    pub changes_node: bool,
}

impl<'a> ChangedPlaces<'a> {
    /// What an operation on `node` changes. Nothing: it changes nothing that is granted.
    #[must_use]
    pub fn of_operation(node: u64, operation: &FuseOperation<'a>) -> Self {
        use FuseOperation as Do;
        match *operation {
            Do::Symlink { name, .. }
            | Do::Mknod { name, .. }
            | Do::Mkdir { name, .. }
            | Do::Create { name, .. } => Self::default().with_name(node, name, false),
            Do::Unlink { name } | Do::Rmdir { name } => Self::default().with_name(node, name, true),
            Do::Rename { name, to_dir, to_name, .. } => {
                // The target changes, too: it is replaced, or with RENAME_EXCHANGE it moves to the other name.
                Self::default().with_name(node, name, true).with_name(to_dir, to_name, true)
            }
            Do::Link { node: linked, name } => {
                // The linked file has one more link, and with it another time of change.
                Self::default().with_node(linked).with_name(node, name, false)
            }
            // A file that is made without a name changes no directory; but that is nothing to rely on.
            Do::Tmpfile { .. } => Self::default().with_node(node),
            Do::Open { flags } if flags & OPEN_TRUNCATES != 0 => Self::default().with_node(node),
            Do::CopyFileRange { to, .. } => Self::default().with_node(to),
            Do::Setattr(_)
            | Do::Write { .. }
            | Do::WriteStored { .. }
            | Do::Setxattr { .. }
            | Do::Removexattr { .. }
            | Do::Fallocate { .. } => Self::default().with_node(node),
            // Flags of files can only be read, and set to none: whoever runs 'lsattr' has changed nothing.
            Do::Ioctl { .. } => Self::default(),
            // Times of access are not granted.
            Do::Read { .. } | Do::Readdir { .. } | Do::Readdirplus { .. } | Do::Readlink => Self::default(),
            Do::Init(_)
            | Do::Destroy
            | Do::Lookup { .. }
            | Do::Forget { .. }
            | Do::BatchForget(_)
            | Do::Getattr
            | Do::Statx
            | Do::Open { .. }
            | Do::Opendir
            | Do::Flush { .. }
            | Do::Release { .. }
            | Do::Releasedir
            | Do::Getlk(_)
            | Do::Setlk { .. }
            | Do::Interrupt { .. }
            | Do::Statfs
            | Do::Fsync { .. }
            | Do::Fsyncdir { .. }
            | Do::Getxattr { .. }
            | Do::Listxattr { .. }
            | Do::Lseek { .. }
            | Do::Unknown => Self::default(),
        }
    }

    fn with_node(mut self, node: u64) -> Self {
        self.leases.push(Lease::Node(node));
        self
    }

    /// The directory's times and links change with its names.
    fn with_name(mut self, dir: u64, name: &'a [u8], changes_node: bool) -> Self {
        self.leases.extend([Lease::Names(dir), Lease::Node(dir)]);
        self.names.push(ChangedName { dir, name, changes_node });
        self
    }

    /// Adds what a name stands for. If it is a directory, it is one in another place then, or none.
    pub fn add_named_node(&mut self, node: u64) {
        self.leases.extend([Lease::Node(node), Lease::Names(node)]);
    }

    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: u32 = 1;

    #[test]
    fn a_rename_changes_both_directories_and_what_both_names_stand_for() {
        let rename = FuseOperation::Rename { name: b"a", to_dir: 2, to_name: b"b", flags: 0 };
        let changed = ChangedPlaces::of_operation(1, &rename);
        assert_eq!(changed.leases, [Lease::Names(1), Lease::Node(1), Lease::Names(2), Lease::Node(2)]);
        assert!(changed.names.iter().all(|name| name.changes_node));
        assert_eq!(changed.names.iter().map(|name| name.dir).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn opening_changes_a_file_only_if_it_is_truncated() {
        let open = |flags| ChangedPlaces::of_operation(7, &FuseOperation::Open { flags });
        assert!(open(0).is_empty());
        assert_eq!(open(OPEN_TRUNCATES | 1).leases, [Lease::Node(7)]);
    }

    #[test]
    fn looking_at_the_flags_of_a_file_changes_nothing() {
        let ioctl = FuseOperation::Ioctl { command: 0x8008_6601, input: &[], room: 8 };
        assert!(ChangedPlaces::of_operation(7, &ioctl).is_empty());
    }

    #[test]
    fn a_name_depends_on_its_directory_and_on_what_it_stands_for() {
        let key = AnswerKey::of_request(LOOKUP, 1, &FuseOperation::Lookup { name: b"a" }).unwrap();
        assert_eq!(key, AnswerKey::of_name(1, b"a"));
        let mut entry = [0; 128];
        entry[0] = 9;
        assert_eq!(key.list_leases(0, &entry), Some(vec![Lease::Names(1), Lease::Node(9)]));
        assert_eq!(key.list_leases(Errno::NOENT.raw_os_error(), &[]), Some(vec![Lease::Names(1)]));
        assert_eq!(key.list_leases(Errno::IO.raw_os_error(), &[]), None);
    }

    #[test]
    fn what_is_not_of_the_mounted_state_is_not_kept() {
        let elsewhere = 5 << 48 | 9;
        assert_eq!(AnswerKey::of_request(3, elsewhere, &FuseOperation::Getattr), None);
        let key = AnswerKey::of_name(1, b".vellum");
        let mut entry = [0; 128];
        entry[..8].copy_from_slice(&elsewhere.to_le_bytes());
        assert_eq!(key.list_leases(0, &entry), None);
        let state = FuseOperation::Getxattr { name: b"user.vellum.state", room: 10 };
        assert_eq!(AnswerKey::of_request(22, 1, &state), None);
    }
}
