//! Renaming without replacing, on any filesystem.
//!
//! Invariant: an existing entry is never replaced, and the call fails with `EEXIST`. Three methods are tried in this
//! order until the filesystem supports one: `RENAME_NOREPLACE`; a hard link, and removal of the old name; exclusive
//! creation of an empty file or directory, which is replaced at once. A process that is killed between the two steps of
//! the last method leaves an empty entry under the name. Deliberately absent: removal of such entries, which cannot be
//! distinguished from a user's.

use rustix::io::Errno;
use vellum_types::FileKind;

use super::dir::HeldDir;
use super::{BeneathError, Result};

/// Permissions of the placeholder until it is replaced.
const PRIVATE: u32 = 0o700;

impl HeldDir {
    /// Renames an entry, unless `new_name` exists.
    pub fn rename_no_replace(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        match self.rename_exclusively(name, to, new_name) {
            // Some filesystems do not know RENAME_NOREPLACE (EINVAL), among them NFS and older FUSE servers.
            Err(error) if is_unsupported(&error) => {}
            other => return other,
        }
        if self.stat(name)?.kind == FileKind::Dir {
            return self.rename_over_empty_dir(name, to, new_name);
        }
        match self.link_file(name, to, new_name) {
            // Filesystems without hard links answer EPERM.
            Err(error) if is_unsupported(&error) || error.errno() == Some(Errno::PERM) => {
                self.rename_over_empty_file(name, to, new_name)
            }
            // A crash between the two calls leaves the file under both names.
            linked => linked.and_then(|()| self.unlink(name)),
        }
    }

    /// Creates an empty file under the name, and replaces it.
    pub(super) fn rename_over_empty_file(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        drop(to.create_file(new_name, PRIVATE & 0o666)?);
        self.rename(name, to, new_name).inspect_err(|_| {
            // The placeholder must not be taken for the file. If it stays, the error of the rename says more than this one.
            let _ = to.unlink(new_name);
        })
    }

    /// Creates an empty directory under the name, and replaces it: `rename` replaces only empty directories.
    pub(super) fn rename_over_empty_dir(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        to.create_dir(new_name, PRIVATE)?;
        self.rename(name, to, new_name).or_else(|_| {
            // Some filesystems replace no directory at all.
            to.remove_dir(new_name)?;
            self.rename(name, to, new_name)
        })
    }
}

/// Whether the filesystem does not support the call.
fn is_unsupported(error: &BeneathError) -> bool {
    matches!(error.errno(), Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}
