//! Extended attributes.

use std::sync::Arc;

use rustix::fs::XattrFlags as LinuxXattrFlags;
use rustix::io::Errno;
use vellum_fs::{Result, StateReader, XattrFlags};

use super::{FuseAdapter, InodeOwner};
use crate::metrics::ServedRequest;
use crate::wire::{FuseAnswer, SmallAnswer};

/// The attribute that shows where the content of a file is. No listing has it, and it cannot be set or removed: copies
/// of a file are files whose content is somewhere else.
const CONTENT_STATE: &[u8] = b"user.vellum.state";

impl FuseAdapter {
    pub(super) fn answer_getxattr(&self, call: ServedRequest<'_>, name: &[u8], room: u32) -> FuseAnswer {
        build_xattr_answer(room, self.serve_request(call, || self.getxattr(call.head.node, name)))
    }

    pub(super) fn answer_listxattr(&self, call: ServedRequest<'_>, room: u32) -> FuseAnswer {
        build_xattr_answer(room, self.serve_request(call, || self.listxattr(call.head.node)))
    }

    pub(super) fn answer_setxattr(
        &self,
        call: ServedRequest<'_>,
        name: &[u8],
        value: &[u8],
        flags: u32,
        drops_set_gid: bool,
    ) -> FuseAnswer {
        self.answer_unit(call, || {
            check_settable(name)?;
            let (fs, ino) = self.live_inode(call.head.node)?;
            let flags = LinuxXattrFlags::from_bits_retain(flags);
            let flags = XattrFlags {
                create: flags.contains(LinuxXattrFlags::CREATE),
                replace: flags.contains(LinuxXattrFlags::REPLACE),
                drops_set_gid,
            };
            fs.attributes().setxattr(ino, name, value, flags)
        })
    }

    pub(super) fn answer_removexattr(&self, call: ServedRequest<'_>, name: &[u8]) -> FuseAnswer {
        self.answer_unit(call, || {
            check_settable(name)?;
            let (fs, ino) = self.live_inode(call.head.node)?;
            fs.attributes().removexattr(ino, name)
        })
    }

    fn getxattr(&self, node: u64, name: &[u8]) -> Result<Arc<[u8]>> {
        let owner = self.inode_owner(node)?;
        if name == CONTENT_STATE {
            let state = match &owner {
                InodeOwner::Live(fs, ino) => fs.content_state(*ino)?,
                InodeOwner::Frozen(tree, ino) => tree.content_state(*ino)?,
                InodeOwner::Past(..) | InodeOwner::Virtual(_) | InodeOwner::Removed(_) => None,
            };
            // `ENODATA` is how `getxattr` reports a missing attribute.
            return Ok(state.ok_or(Errno::NODATA)?.to_string().into_bytes().into());
        }
        match owner {
            InodeOwner::Live(fs, ino) => fs.getxattr(ino, name),
            InodeOwner::Past(view, ino) => view.getxattr(ino, name),
            InodeOwner::Frozen(tree, ino) => tree.getxattr(ino, name),
            InodeOwner::Virtual(_) | InodeOwner::Removed(_) => Err(Errno::NODATA.into()),
        }
    }

    /// The names of a node's extended attributes, each terminated by a zero byte.
    fn listxattr(&self, node: u64) -> Result<Arc<[u8]>> {
        let names = match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => fs.listxattr(ino),
            InodeOwner::Past(view, ino) => view.listxattr(ino),
            InodeOwner::Frozen(tree, ino) => tree.listxattr(ino),
            InodeOwner::Virtual(_) | InodeOwner::Removed(_) => Ok(Vec::new()),
        };
        Ok(names?.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }
}

fn check_settable(name: &[u8]) -> Result<()> {
    if name == CONTENT_STATE { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// The answer with a value, or with its length if the caller has no room (`room` is 0) and only asks for that.
fn build_xattr_answer(room: u32, done: Result<Arc<[u8]>, Errno>) -> FuseAnswer {
    let value = match done {
        Ok(value) => value,
        Err(error) => return FuseAnswer::Failed(error),
    };
    match u32::try_from(value.len()) {
        // A room of 0 asks for the length only, as `getxattr(2)` describes.
        Ok(len) if room == 0 => FuseAnswer::Small(SmallAnswer::for_byte_count(len)),
        Ok(len) if len <= room => FuseAnswer::Shared(value),
        Ok(_) => FuseAnswer::Failed(Errno::RANGE),
        Err(_) => FuseAnswer::Failed(Errno::TOOBIG),
    }
}
