//! Extended attributes (including POSIX ACLs) of an open file.

use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;
use vellum_types::limits::XATTR_VALUE_MAX;

use super::dir::system_error;
use super::{HeldNode, Result};

/// Longest list of names, bytes: Linux's `XATTR_LIST_MAX`.
const XATTR_LIST_MAX: usize = 64 << 10;
/// Initial size of the buffer for a list or value, bytes: an ACL or a label fits, so that one call is enough.
const FIRST_GUESS: usize = 512;

/// Names under which XFS shows root its internal form of the ACLs, in addition to the usual one: they are not
/// attributes of the file, and mean nothing elsewhere.
const XFS_ACL_PREFIX: &[u8] = b"trusted.SGI_ACL_";

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtendedAttribute {
    /// Its name with the namespace: `user.x`, `system.posix_acl_access`.
    pub name: Vec<u8>,
    /// Its value in the form of the kernel.
    pub value: Vec<u8>,
}

impl HeldNode<'_> {
    /// The names of all attributes that the caller may see; none if the filesystem does not support attributes.
    pub fn list_xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let list = read_growing(XATTR_LIST_MAX, |buffer| match self.usable_fd() {
            Some(fd) => fs::flistxattr(fd, buffer),
            // `flistxattr` fails with EBADF on an O_PATH descriptor. The link of procfs leads to the same
            // inode.
            None => fs::listxattr(self.proc_path(), buffer),
        });
        match list {
            Ok(list) => {
                let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                Ok(names.filter(|name| !name.starts_with(XFS_ACL_PREFIX)).map(<[u8]>::to_vec).collect())
            }
            Err(errno) if is_unsupported(errno) => Ok(Vec::new()),
            Err(errno) => Err(system_error("list the extended attributes of", b".", errno)),
        }
    }

    /// The value of one attribute; None if it does not exist.
    pub fn read_xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = read_growing(XATTR_VALUE_MAX, |buffer| match self.usable_fd() {
            Some(fd) => fs::fgetxattr(fd, name, buffer),
            None => fs::getxattr(self.proc_path(), name, buffer),
        });
        match value {
            Ok(value) => Ok(Some(value)),
            // The attribute was removed after the names were listed.
            Err(Errno::NODATA) => Ok(None),
            Err(errno) if is_unsupported(errno) => Ok(None),
            Err(errno) => Err(system_error("read the extended attribute", name, errno)),
        }
    }

    /// All attributes, sorted by name.
    pub fn read_xattrs(&self) -> Result<Vec<ExtendedAttribute>> {
        let mut xattrs = Vec::new();
        for name in self.list_xattr_names()? {
            // One that is gone since it was listed is no error.
            if let Some(value) = self.read_xattr(&name)? {
                xattrs.push(ExtendedAttribute { name, value });
            }
        }
        xattrs.sort_unstable();
        Ok(xattrs)
    }

    /// Creates or replaces an attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        match self.usable_fd() {
            Some(fd) => fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            None => fs::setxattr(self.proc_path(), name, value, XattrFlags::empty()),
        }
        .map_err(|errno| system_error("set the extended attribute", name, errno))
    }

    /// Removes an attribute; one that does not exist is no error.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let outcome = match self.usable_fd() {
            Some(fd) => fs::fremovexattr(fd, name),
            None => fs::removexattr(self.proc_path(), name),
        };
        match outcome {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(errno) => Err(system_error("remove the extended attribute", name, errno)),
        }
    }
}

fn is_unsupported(errno: Errno) -> bool {
    errno == Errno::NOTSUP || errno == Errno::OPNOTSUPP || errno == Errno::NOSYS
}

/// Reads into a buffer that grows up to `max` until the result fits.
fn read_growing(
    max: usize,
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; FIRST_GUESS];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            // The value is longer than the buffer. It is not asked for its length first: it could grow
            // between the two calls.
            Err(Errno::RANGE) if buffer.len() < max => buffer.resize(max, 0),
            Err(errno) => return Err(errno),
        }
    }
}
