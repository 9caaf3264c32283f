//! Renaming without replacing, whatever the filesystem can.
//!
//! Invariant: what has the name already is never replaced, and the call fails with `EEXIST`. The three ways, the first
//! that the filesystem knows: `RENAME_NOREPLACE`; a hard link and the removal of the old name; the name itself made
//! exclusively, empty, and replaced at once. A process killed between the two steps of the last way leaves an empty file
//! under the name. Deliberately absent: the removal of such a file, which nobody can tell from a user's.

use rustix::io::Errno;
use vellum_types::FileKind;

use super::BeneathError;
use super::dir::HeldDir;

type Result<T> = std::result::Result<T, BeneathError>;

/// Permissions of what stands for a name until it is replaced.
const PRIVATE: u32 = 0o700;

impl HeldDir {
    /// Renames, unless `new_name` exists.
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
            Err(error) if is_unsupported(&error) || error.errno() == Some(Errno::PERM) => {
                self.rename_over_empty_file(name, to, new_name)
            }
            // A crash between the two calls leaves the file under both names.
            linked => linked.and_then(|()| self.unlink(name)),
        }
    }

    /// Makes the name as an empty file, and replaces it.
    pub(super) fn rename_over_empty_file(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        drop(to.create_file(new_name, PRIVATE & 0o666)?);
        self.rename(name, to, new_name).inspect_err(|_| {
            let _ = to.unlink(new_name);
        })
    }

    /// Makes the name as an empty directory, and replaces it: of a directory `rename` replaces nothing but an empty one.
    pub(super) fn rename_over_empty_dir(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        to.create_dir(new_name, PRIVATE)?;
        self.rename(name, to, new_name).or_else(|_| {
            // Some filesystems replace no directory at all.
            to.remove_dir(new_name)?;
            self.rename(name, to, new_name)
        })
    }
}

/// Whether the filesystem does not know what was asked for.
fn is_unsupported(error: &BeneathError) -> bool {
    matches!(error.errno(), Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}
