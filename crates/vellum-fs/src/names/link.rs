//! Hard links.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino};

use super::{NameInDir, add_links, check_dir, dir_of, touch_dir};
use crate::clock::{now, stamp_change};
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem};
use crate::tree::MapReader;

impl LiveFilesystem {
    /// Gives an inode one more name; to one without any (`O_TMPFILE`), its first.
    pub fn link(&self, ino: Ino, newdir: Ino, newname: &[u8]) -> Result<InodeAttributes> {
        let place = NameInDir::new(newdir, newname)?;
        let kind = self.attr(ino)?.kind;
        if kind == FileKind::Dir {
            return Err(Errno::PERM.into());
        }
        place.check_free(kind)?;
        check_dir(&*self.attr(newdir)?)?;
        if self.dentry(&place)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let node = self.change(|txn| {
            let mut dir = dir_of(txn, newdir)?;
            let mut attr = txn.attr_of(ino)?;
            if txn.dentry(newdir, newname)?.is_some() {
                return Err(Errno::EXIST.into());
            }
            if attr.nlink == 0 {
                txn.delete_orphan(ino);
                (attr.parent, attr.name) = (newdir, newname.to_vec());
            }
            add_links(&mut attr, 1)?;
            let time = now();
            stamp_change(&mut attr, time);
            touch_dir(&mut dir, time);
            txn.put_attr(ino, &attr);
            txn.put_dentry(newdir, newname, Dentry { ino, kind });
            txn.put_attr(newdir, &dir);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })?;
        if node.attr.nlink > 1 {
            self.places.add(ino, &NameInDir { dir: node.attr.parent, name: &node.attr.name });
            self.places.add(ino, &place);
        }
        Ok(node)
    }
}
