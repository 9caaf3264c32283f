//! Extended attributes.
//!
//! Invariant: the names of one inode's extended attributes fit into one `listxattr(2)`.

use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_map::KeySpan;
use vellum_types::limits::{NAME_MAX, XATTR_VALUE_MAX};
use vellum_types::{FileKind, Ino, MapKey, MapKeyRef, MapKeyTag};

use super::LiveAttributes;
use crate::attributes::acl;
use crate::attributes::clock::advance_change_time;
use crate::content::SET_GID;
use crate::error::Result;
use crate::tree::{LiveTransaction, MapReader};

/// Bytes of all names of an inode, with a NUL after each: `XATTR_LIST_MAX` of Linux, which lists no more.
const LIST_MAX: usize = 64 << 10;

/// What an executable may do beyond its user: gone when its owner or its content changes.
const CAPABILITY: &[u8] = b"security.capability";

/// Whether an extended attribute must be there before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XattrFlags {
    /// Fails with `EEXIST` if the attribute exists.
    pub create: bool,
    /// Fails with `ENODATA` if the attribute does not exist.
    pub replace: bool,
    /// Clears the set-group-id bit if the attribute is the access control list.
    pub drops_set_gid: bool,
}

impl LiveAttributes {
    /// The value of an extended attribute. Fails with `ENODATA` if there is none.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        check_value_len(name)?;
        Ok(self.map.find_xattr(ino, name)?.ok_or(Errno::NODATA)?)
    }

    /// The names of an inode's extended attributes, in order.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        // Without this, an inode that is gone would seem to have no attributes.
        self.map.inode_attr(ino)?;
        self.map.read_head_state(|view| list_xattr_names(view, ino))
    }

    /// Sets an extended attribute. An access control list changes the mode, too.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        check_value_len(name)?;
        let kind = self.map.inode_attr(ino)?.kind;
        check_xattr_namespace(name, kind)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        if self.map.find_xattr(ino, name)?.is_none() {
            // What the transaction will look through is fetched here.
            self.listxattr(ino)?;
        }
        self.log.wait_for_disk_space(value.len() as u64)?;
        self.map.apply_change(|txn| {
            let mut attr = txn.expect_inode_attr(ino)?;
            // Within the transaction: of two callers that create the same attribute, only one may succeed.
            check_xattr_presence(txn, ino, name, flags)?;
            if is_acl_name(name) {
                acl::set_acl(txn, ino, &mut attr, name, value)?;
                // The kernel asks for this if the caller is not in the owning group and has no privilege:
                // such a caller must not keep the bit by means of a list, since `chmod` would clear it.
                if flags.drops_set_gid && name == acl::ACCESS {
                    attr.mode &= !SET_GID;
                }
            } else {
                txn.set_key(MapKey::for_xattr(ino, name), value);
            }
            advance_change_time(&mut attr, current_time());
            txn.set_inode_attr(ino, &attr);
            Ok(())
        })
    }

    /// Removes an extended attribute. The mode stays as an access control list has made it.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_value_len(name)?;
        self.map.inode_attr(ino)?;
        if self.map.find_xattr(ino, name)?.is_none() {
            // Having no list is what removing one is asked for.
            return if is_acl_name(name) { Ok(()) } else { Err(Errno::NODATA.into()) };
        }
        self.map.apply_change(|txn| {
            let mut attr = txn.expect_inode_attr(ino)?;
            let key = MapKey::for_xattr(ino, name);
            // Another caller may have removed it since it was found above.
            if txn.get_value(&key)?.is_none() {
                return Err(Errno::NODATA.into());
            }
            txn.delete_key(key);
            advance_change_time(&mut attr, current_time());
            txn.set_inode_attr(ino, &attr);
            Ok(())
        })
    }
}

/// Takes away the privileges that a program gets from its file.
pub(crate) fn remove_capability(txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<()> {
    let key = MapKey::for_xattr(ino, CAPABILITY);
    // Hardly any file has one. A tombstone at each write would be one more key to publish.
    if txn.get_value(&key)?.is_some() {
        txn.delete_key(key);
    }
    Ok(())
}

fn check_xattr_presence(txn: &LiveTransaction<'_>, ino: Ino, name: &[u8], flags: XattrFlags) -> Result<()> {
    let is_there = txn.get_value(&MapKey::for_xattr(ino, name))?.is_some();
    if flags.create && is_there {
        return Err(Errno::EXIST.into());
    }
    if flags.replace && !is_there {
        return Err(Errno::NODATA.into());
    }
    let listed = |name: &[u8]| name.len() + 1;
    if !is_there
        && list_xattr_names(txn, ino)?.iter().map(|name| listed(name)).sum::<usize>() + listed(name)
            > LIST_MAX
    {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

/// The names of an inode's extended attributes, in order.
pub(crate) fn list_xattr_names(view: &(impl MapReader + ?Sized), ino: Ino) -> Result<Vec<Vec<u8>>> {
    let [start, end] = [MapKeyTag::Xattr, MapKeyTag::Extent].map(|tag| MapKey::first_for_tag(ino, tag));
    let mut names = Vec::new();
    let span = KeySpan::from_bounds(start.as_bytes(), end.as_bytes());
    view.scan_keys(span, "an extended attribute", &mut |key, _| {
        let MapKeyRef::Xattr(_, name) = key else { return Ok(ControlFlow::Break(())) };
        names.push(name.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(names)
}

fn is_acl_name(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

fn check_value_len(name: &[u8]) -> Result<()> {
    // The kernel cannot pass a NUL, but a program that uses the library can. In a list, names are separated
    // by it.
    if name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    // Linux answers an empty name and one that is too long with `ERANGE`.
    if (1..=NAME_MAX).contains(&name.len()) { Ok(()) } else { Err(Errno::RANGE.into()) }
}

/// Refuses names that Linux keeps for nothing, and users' attributes where Linux allows none.
fn check_xattr_namespace(name: &[u8], kind: FileKind) -> Result<()> {
    if is_acl_name(name) {
        return Ok(());
    }
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let Some(space) = spaces.into_iter().find(|space| name.starts_with(space)) else {
        return Err(Errno::OPNOTSUPP.into());
    };
    if name == space {
        return Err(Errno::INVAL.into());
    }
    // xattr(7): the permission bits of symlinks and of special files say nothing about who may store data
    // there.
    if space == b"user." && !matches!(kind, FileKind::File | FileKind::Dir) {
        return Err(Errno::PERM.into());
    }
    Ok(())
}
