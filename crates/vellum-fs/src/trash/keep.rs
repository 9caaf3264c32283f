//! Moving an inode into the trash, within the transaction that removes its last name.

use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_map::KeySpan;
use vellum_types::value::SuperBlock;
use vellum_types::{
    Dentry, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag, UnixTime,
};
use vellum_volume::trash::{TRASH_PATH_MAX, TRASH_RECORD_NAME};

use super::{TrashRecord, entry_name};
use crate::error::Result;
use crate::history::copy::is_hidden_name;
use crate::log::WriteLog;
use crate::names::NameInDir;
use crate::tree::{LiveMap, LiveTransaction, MapReader};

/// Deepest nesting of directories that is followed upwards; a hostile tree may hold a circle.
const DEPTH_MAX: usize = TRASH_PATH_MAX / 2;
/// Permissions of the root directory of the trash, which nobody sees.
const ROOT_MODE: u32 = 0o700;

/// What the trash is to know of a name that is about to be removed.
pub(crate) struct TrashedName {
    log: Arc<WriteLog>,
    path: Vec<u8>,
    uid: u32,
}

impl TrashedName {
    /// The origin of what a user is about to remove; `None` if it is not kept.
    pub fn find_origin(
        map: &LiveMap,
        log: &Arc<WriteLog>,
        place: &NameInDir<'_>,
        uid: u32,
    ) -> Result<Option<Self>> {
        if map.lock_head().trash.is_none() {
            return Ok(None);
        }
        Ok(find_path(map, place)?.map(|path| Self { log: log.clone(), path, uid }))
    }

    /// Adds an inode to the trash as it is at this point of the transaction. Its content is shared.
    pub fn keep_inode(&self, txn: &mut LiveTransaction<'_>, ino: Ino, removed: UnixTime) -> Result<()> {
        // It may have been switched off meanwhile.
        let Some(next) =
            txn.read_trash(|view| Ok((view.read_super_block()?.next_ino, view.inode_attr(Ino::ROOT)?)))?
        else {
            return Ok(());
        };
        let Some(mut attr) = txn.inode_attr(ino)? else { return Ok(()) };
        let (number, root) = next;
        match root {
            None => create_trash_root(txn, Ino(number.0 + 1)),
            Some(_) => set_next_number(txn, Ino(number.0 + 1)),
        }
        for (key, value) in self.collect_keys(txn, ino, number)? {
            txn.change_trash_key(&key, Some(&value));
        }
        let name = entry_name(number);
        txn.change_trash_key(
            &MapKey::for_dentry(Ino::ROOT, &name),
            Some(&Dentry { ino: number, kind: attr.kind }.encode()),
        );
        (attr.parent, attr.name) = (Ino::ROOT, name);
        // Its other links were elsewhere; a directory counts its own entry `.` as well.
        attr.nlink = if attr.kind == FileKind::Dir { 2 } else { 1 };
        txn.change_trash_key(&MapKey::for_attr(number), Some(&attr.encode()));
        let record = TrashRecord { path: self.path.clone(), uid: self.uid, removed };
        txn.change_trash_key(&MapKey::for_xattr(number, TRASH_RECORD_NAME), Some(&record.encode()));
        Ok(())
    }

    /// The extended attributes and extents of an inode, with the keys that they have under a number of the trash.
    fn collect_keys(
        &self,
        txn: &LiveTransaction<'_>,
        ino: Ino,
        number: Ino,
    ) -> Result<Vec<(MapKey, Vec<u8>)>> {
        let mut keys = Vec::new();
        let start = MapKey::first_for_tag(ino, MapKeyTag::Xattr);
        let end = MapKey::for_attr(Ino(ino.0.saturating_add(1)));
        txn.scan_keys(KeySpan::from_bounds(start.as_bytes(), end.as_bytes()), "a key", &mut |key, value| {
            match key {
                MapKeyRef::Xattr(_, name) => keys.push((MapKey::for_xattr(number, name), value.to_vec())),
                MapKeyRef::Extent(_, offset) => {
                    // Before the transaction is committed: publishing must not remove a segment that is named again by
                    // then.
                    if let ExtentSource::WriteLog { segment, .. } = Extent::decode(value)?.source {
                        self.log.record_reuse(segment);
                    }
                    keys.push((MapKey::for_extent(number, offset), value.to_vec()));
                }
                // The span begins behind these.
                MapKeyRef::Attr(_) | MapKeyRef::Dentry(..) => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(keys)
    }
}

/// Creates the root directory of the trash; the next entry gets the number `next`.
pub(super) fn create_trash_root(txn: &mut LiveTransaction<'_>, next: Ino) {
    let mut root = InodeAttr::new(FileKind::Dir, ROOT_MODE);
    root.nlink = 2;
    txn.change_trash_key(&MapKey::for_attr(Ino::ROOT), Some(&root.encode()));
    set_next_number(txn, next);
}

fn set_next_number(txn: &mut LiveTransaction<'_>, next_ino: Ino) {
    txn.change_trash_key(&MapKey::for_attr(Ino::SUPER), Some(&SuperBlock { next_ino }.encode()));
}

/// The path of a place. `None` if nothing that is removed there is kept: what copies are made of, and what no record can
/// name.
fn find_path(map: &LiveMap, place: &NameInDir<'_>) -> Result<Option<Vec<u8>>> {
    let mut names = vec![place.name.to_vec()];
    let mut dir = place.dir;
    let mut len = place.name.len();
    while dir != Ino::ROOT {
        let attr = map.inode_attr(dir)?;
        // A directory without a name has been removed: no path leads to it.
        if attr.name.is_empty() || len > TRASH_PATH_MAX || names.len() > DEPTH_MAX {
            return Ok(None);
        }
        len += attr.name.len() + 1;
        names.push(attr.name.clone());
        dir = attr.parent;
    }
    if len > TRASH_PATH_MAX || names.iter().any(|name| is_hidden_name(name)) {
        return Ok(None);
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}
