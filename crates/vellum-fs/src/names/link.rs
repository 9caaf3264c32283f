//! Hard links.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::{Dentry, FileKind, Ino};

use super::{LiveNames, NameInDir, add_link_count, read_dir_attr, update_dir};
use crate::attributes::clock::advance_change_time;
use crate::error::Result;
use crate::fs::InodeAttributes;
use crate::tree::MapReader;

impl LiveNames {
    /// Adds a name to an inode. An inode without a name (`O_TMPFILE`) gets its first.
    pub fn link(&self, ino: Ino, newdir: Ino, newname: &[u8]) -> Result<InodeAttributes> {
        let place = NameInDir::new(newdir, newname)?;
        let kind = self.map.inode_attr(ino)?.kind;
        // With two names a directory could come to lie within itself. `link(2)` refuses it with this error.
        if kind == FileKind::Dir {
            return Err(Errno::PERM.into());
        }
        place.check_name_allowed(kind)?;
        self.check_name_free(&place)?;
        let node = self.map.apply_change(|txn| {
            let mut dir = read_dir_attr(txn, newdir)?;
            let mut attr = txn.expect_inode_attr(ino)?;
            if txn.lookup_dentry(newdir, newname)?.is_some() {
                return Err(Errno::EXIST.into());
            }
            // A file without a name (`O_TMPFILE`), or one whose last name was removed while it was open: this name is
            // its first.
            if attr.nlink == 0 {
                txn.remove_orphan(ino);
                (attr.parent, attr.name) = (newdir, newname.to_vec());
            }
            add_link_count(&mut attr, 1)?;
            let time = current_time();
            advance_change_time(&mut attr, time);
            update_dir(&mut dir, time);
            txn.set_inode_attr(ino, &attr);
            txn.set_dentry(newdir, newname, Dentry { ino, kind });
            txn.set_inode_attr(newdir, &dir);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })?;
        // Both links are remembered: when the first one is removed, the other is found without a walk over
        // the map.
        if node.attr.nlink > 1 {
            self.links.add_link(ino, &NameInDir { dir: node.attr.parent, name: &node.attr.name });
            self.links.add_link(ino, &place);
        }
        Ok(node)
    }
}
