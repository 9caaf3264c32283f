//! Opening and closing files, and removing orphans.

use std::ops::ControlFlow;

use vellum_host::clock::current_time;
use vellum_map::KeySpan;
use vellum_types::{FileKind, Ino, MapKey};

use super::released::remove_if_nameless;
use super::update_change_times;
use crate::content::opened::{FileHandle, OpenFlags};
use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::tree::head::{ORPHANS, orphan_key};
use crate::tree::{LiveMap, LiveTransaction, MapReader};

impl LiveFilesystem {
    /// Opens an inode. While it is open, it exists even without a name.
    pub fn open_file(&self, ino: Ino, flags: OpenFlags) -> Result<FileHandle> {
        // Counted first: from here on nobody removes the inode, and if it is gone already the next look says so.
        let handle = self.opened.add_handle(ino);
        let opened = self.tree.read_head_state(|view| view.expect_inode_attr(ino)).and_then(|attr| {
            if flags.truncate && attr.kind == FileKind::File { self.truncate_opened(ino) } else { Ok(()) }
        });
        match opened {
            Ok(()) => Ok(handle),
            Err(error) => {
                self.close_handle(handle)?;
                Err(error)
            }
        }
    }

    fn truncate_opened(&self, ino: Ino) -> Result<()> {
        let now = current_time();
        self.apply_change(|txn| {
            let mut attr = txn.expect_inode_attr(ino)?;
            self.truncate_in_transaction(txn, ino, &mut attr, 0)?;
            update_change_times(&mut attr, now);
            txn.set_inode_attr(ino, &attr);
            Ok(())
        })
    }

    /// Closes a handle. Removes the inode if it has no name and no other handle or holder.
    pub fn close_handle(&self, handle: FileHandle) -> Result<()> {
        self.opened.close_handle(handle).map_or(Ok(()), |ino| self.remove_if_unused(ino))
    }

    /// Removes an inode that has no name and that nobody has open. For who took its last name away while it was
    /// open, too: it may have been closed meanwhile.
    pub(crate) fn remove_if_unused(&self, ino: Ino) -> Result<()> {
        if !self.tree.is_nameless_inode(ino)? {
            return Ok(());
        }
        // Somebody has opened it again, and removes it later.
        let Some(_claim) = self.opened.claim_removal(ino) else { return Ok(()) };
        self.apply_change(|txn| remove_if_nameless(txn, ino))
    }

    /// Removes what an earlier run left open and nameless.
    pub(crate) fn remove_orphans(&self) -> Result<()> {
        let mut orphans = Vec::new();
        self.tree.live_store().scan(&KeySpan::from_prefix(ORPHANS), &mut |key, _| {
            orphans.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for key in orphans {
            let number = key.strip_prefix(ORPHANS).and_then(|digits| digits.try_into().ok());
            let ino = number.map(|digits| Ino(u64::from_be_bytes(digits)));
            let ino = ino.ok_or_else(|| FsError::BadTree("the record of an open file is none".into()))?;
            debug_assert_eq!(key, orphan_key(ino));
            self.apply_change(|txn| {
                // It may have got a name again, or be gone.
                if txn.bare_inode_attr(ino)?.is_some_and(|bare| bare.attr.nlink == 0) {
                    remove_inode(txn, ino)?;
                }
                txn.remove_orphan(ino);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl LiveMap {
    /// Returns whether an inode exists and has no name.
    pub(super) fn is_nameless_inode(&self, ino: Ino) -> Result<bool> {
        self.read_head_state(|view| Ok(view.bare_inode_attr(ino)?.is_some_and(|bare| bare.attr.nlink == 0)))
    }
}

/// Removes all that the map holds of an inode that is there, and that no name leads to.
pub(crate) fn remove_inode(txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<()> {
    let mut keys = vec![MapKey::for_attr(ino)];
    txn.collect_inode_keys(ino, &mut keys)?;
    keys.into_iter().for_each(|key| txn.delete_key(key));
    Ok(())
}
