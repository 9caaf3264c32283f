//! Opening and closing, and the end of files that lost their last name.

use std::ops::ControlFlow;

use vellum_map::KeySpan;
use vellum_types::{FileKind, Ino};

use super::released::remove_nameless;
use super::touch;
use crate::clock::now;
use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::head::{ORPHANS, orphan_key};
use crate::opened::{FileHandle, OpenFlags};
use crate::tree::{LiveTransaction, MapReader};

impl LiveFilesystem {
    /// Opens an inode.
    pub fn open_file(&self, ino: Ino, flags: OpenFlags) -> Result<FileHandle> {
        let handle = self.opened.add(ino);
        let opened = self.tree.read(|view| view.attr_of(ino)).and_then(|attr| {
            if flags.truncate && attr.kind == FileKind::File { self.empty(ino) } else { Ok(()) }
        });
        match opened {
            Ok(()) => Ok(handle),
            Err(error) => {
                self.release(handle)?;
                Err(error)
            }
        }
    }

    fn empty(&self, ino: Ino) -> Result<()> {
        let now = now();
        self.change(|txn| {
            let mut attr = txn.attr_of(ino)?;
            self.truncate_in(txn, ino, &mut attr, 0)?;
            touch(&mut attr, now);
            txn.put_attr(ino, &attr);
            Ok(())
        })
    }

    /// Closes an open inode. If it has no name and nobody else has it open, it goes.
    pub fn release(&self, handle: FileHandle) -> Result<()> {
        self.opened.remove(handle).map_or(Ok(()), |ino| self.reap(ino))
    }

    /// Removes an inode that has no name and that nobody has open. For who took its last name away while it was
    /// open, too: it may have been closed meanwhile.
    pub(crate) fn reap(&self, ino: Ino) -> Result<()> {
        if !self.is_nameless(ino)? {
            return Ok(());
        }
        let Some(_claim) = self.opened.claim(ino) else { return Ok(()) };
        self.change(|txn| remove_nameless(txn, ino))
    }

    pub(super) fn is_nameless(&self, ino: Ino) -> Result<bool> {
        self.tree.read(|view| Ok(view.attr(ino)?.is_some_and(|attr| attr.nlink == 0)))
    }

    /// Removes what an earlier run left open and nameless.
    pub(crate) fn remove_orphans(&self) -> Result<()> {
        let mut orphans = Vec::new();
        self.tree.live().scan(&KeySpan::prefix(ORPHANS), &mut |key, _| {
            orphans.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for key in orphans {
            let number = key.strip_prefix(ORPHANS).and_then(|digits| digits.try_into().ok());
            let ino = number.map(|digits| Ino(u64::from_be_bytes(digits)));
            let ino = ino.ok_or_else(|| FsError::BadTree("the record of an open file is none".into()))?;
            debug_assert_eq!(key, orphan_key(ino));
            self.change(|txn| {
                // It may have got a name again, or be gone.
                if txn.attr(ino)?.is_some_and(|attr| attr.nlink == 0) {
                    remove_inode(txn, ino)?;
                }
                txn.delete_orphan(ino);
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Removes all that the map holds of an inode that no name leads to.
pub(crate) fn remove_inode(txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<()> {
    let mut keys = Vec::new();
    txn.inode_keys(ino, &mut keys)?;
    keys.into_iter().for_each(|key| txn.delete(key));
    Ok(())
}
