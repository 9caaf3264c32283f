//! A transaction on a live worktree: reads through all layers, writes into the top one.

use std::cell::RefCell;

use vellum_live::{StoreTransaction, ValueBytes};
use vellum_map::{KeySpan, MapValue};
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, MapKeyRef};

use super::accesses::AccessTimes;
use super::inline::{content_key, split};
use super::merge::{MergedEntries, encode_change, get_merged, layer_key};
use super::resident::ResidentNodes;
use super::usage::UsageAmount;
use super::{MapReader, VisitEntry, damaged};
use crate::error::{FsError, Result};
use crate::head::{LiveHead, orphan_key};

/// A transaction under way.
pub struct LiveTransaction<'a> {
    live: &'a mut dyn StoreTransaction,
    head: &'a LiveHead,
    nodes: &'a ResidentNodes<'a>,
    accesses: &'a AccessTimes,
    changed: Vec<MapKey>,
    /// What inodes count for at this point of the transaction, as far as it has met them.
    weights: RefCell<Vec<(Ino, UsageAmount)>>,
    grown: UsageAmount,
    /// Why it could not be told what an inode counted for.
    failed: Option<FsError>,
}

impl<'a> LiveTransaction<'a> {
    pub(super) fn new(
        live: &'a mut dyn StoreTransaction,
        head: &'a LiveHead,
        nodes: &'a ResidentNodes<'a>,
        accesses: &'a AccessTimes,
    ) -> Self {
        let (changed, weights) = (Vec::new(), RefCell::default());
        Self { live, head, nodes, accesses, changed, weights, grown: UsageAmount::default(), failed: None }
    }

    /// The keys that were changed, and by how much that makes the worktree larger.
    pub(super) fn finish(self) -> Result<(Vec<MapKey>, UsageAmount)> {
        self.failed.map_or(Ok((self.changed, self.grown)), Err)
    }

    /// Sets a key.
    pub fn put(&mut self, key: MapKey, value: &[u8]) {
        let stored = encode_change(key.as_bytes(), Some(value));
        self.put_stored(key, stored);
    }

    fn put_stored(&mut self, key: MapKey, stored: ValueBytes) {
        self.live.put(&layer_key(self.head.top(), key.as_bytes()), stored);
        self.changed.push(key);
    }

    /// Removes a key.
    pub fn delete(&mut self, key: MapKey) {
        if let Ok(MapKeyRef::Attr(ino)) = MapKeyRef::parse(key.as_bytes()) {
            self.weigh(ino, UsageAmount::default());
            self.keep_content(&key, None);
        }
        let stored = encode_change(key.as_bytes(), None);
        self.put_stored(key, stored);
    }

    /// Sets the attributes of an inode.
    pub fn put_attr(&mut self, ino: Ino, attr: &InodeAttr) {
        self.weigh(ino, UsageAmount::of(attr));
        let key = MapKey::attr(ino);
        match split(attr) {
            Some((bare, content)) => {
                self.keep_content(&key, Some(content));
                self.put_stored(key, bare);
            }
            None => {
                if attr.kind == FileKind::File {
                    self.keep_content(&key, None);
                }
                self.put(key, &attr.encode());
            }
        }
    }

    /// Lets the top layer have this content apart from the attributes under a key, or none. What it has is not written
    /// again.
    fn keep_content(&mut self, attributes: &MapKey, content: Option<&[u8]>) {
        let key = content_key(self.head.top(), attributes);
        match (self.live.get(&key), content) {
            (Ok(held), content) if held.as_deref() == content => {}
            (Ok(_), Some(content)) => self.live.put(&key, content.into()),
            (Ok(_), None) => self.live.delete(&key),
            (Err(error), _) => self.failed = Some(error.into()),
        }
    }

    /// Sets the attributes of an inode that did not exist.
    pub fn put_new_attr(&mut self, ino: Ino, attr: &InodeAttr) {
        self.is_met(ino, UsageAmount::default());
        self.put_attr(ino, attr);
    }

    /// Counts what an inode is about to count for.
    fn weigh(&mut self, ino: Ino, after: UsageAmount) {
        let met = self.weights.borrow().iter().find(|(met, _)| *met == ino).map(|(_, weight)| *weight);
        let before = met.map_or_else(
            || Ok(self.attr(ino)?.as_ref().map_or_else(UsageAmount::default, UsageAmount::of)),
            Ok,
        );
        match before {
            Ok(before) => {
                self.grown = self.grown.plus(after).minus(before);
                self.is_met(ino, after);
            }
            Err(error) => self.failed = Some(error),
        }
    }

    fn is_met(&self, ino: Ino, weight: UsageAmount) {
        let mut weights = self.weights.borrow_mut();
        match weights.iter_mut().find(|(met, _)| *met == ino) {
            Some((_, known)) => *known = weight,
            None => weights.push((ino, weight)),
        }
    }

    /// Sets an entry of a directory.
    pub fn put_dentry(&mut self, dir: Ino, name: &[u8], dentry: Dentry) {
        self.put(MapKey::dentry(dir, name), &dentry.encode());
    }

    /// Notes that an inode has no name any more but is open: it goes at the last close, or when the worktree is
    /// opened the next time.
    pub fn put_orphan(&mut self, ino: Ino) {
        self.live.put(&orphan_key(ino), [].into());
    }

    /// The inode is an orphan no more: it is gone, or has a name again.
    pub fn delete_orphan(&mut self, ino: Ino) {
        self.live.delete(&orphan_key(ino));
    }
}

impl MapReader for LiveTransaction<'_> {
    fn attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        let value = self.value(&MapKey::attr(ino))?;
        let mut attr =
            value.map(|value| InodeAttr::decode(&value).map_err(damaged("an inode"))).transpose()?;
        self.is_met(ino, attr.as_ref().map_or_else(UsageAmount::default, UsageAmount::of));
        if let Some(attr) = &mut attr {
            self.accesses.apply(ino, attr);
        }
        Ok(attr)
    }

    fn value(&self, key: &MapKey) -> Result<Option<MapValue>> {
        get_merged(&&*self.live, &self.head.state, self.nodes, key)
    }

    fn scan(&self, span: KeySpan, visit: &mut VisitEntry<'_>) -> Result<()> {
        let live = &&*self.live;
        let mut merged = MergedEntries::new(live, &self.head.state, self.nodes, span)?;
        while let Some((key, value)) = merged.next()? {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
