//! A transaction on a live worktree: reads through all layers, writes into the top one.

use vellum_live::Transaction;
use vellum_map::{Span, Value};
use vellum_types::{Attr, Dentry, Ino, Key};

use super::merge::{Merged, encode_change, get_merged, layer_key};
use super::resident::Resident;
use super::{Reading, VisitEntry};
use crate::error::Result;
use crate::head::{Head, orphan_key};

/// A transaction under way.
pub struct Txn<'a> {
    live: &'a mut dyn Transaction,
    head: &'a Head,
    nodes: &'a Resident<'a>,
    changed: Vec<Key>,
}

impl<'a> Txn<'a> {
    pub(super) fn new(live: &'a mut dyn Transaction, head: &'a Head, nodes: &'a Resident<'a>) -> Self {
        Self { live, head, nodes, changed: Vec::new() }
    }

    pub(super) fn into_changed(self) -> Vec<Key> {
        self.changed
    }

    /// Sets a key.
    pub fn put(&mut self, key: Key, value: &[u8]) {
        let stored = encode_change(key.as_bytes(), Some(value));
        self.live.put(&layer_key(self.head.top(), key.as_bytes()), stored);
        self.changed.push(key);
    }

    /// Removes a key.
    pub fn delete(&mut self, key: Key) {
        let stored = encode_change(key.as_bytes(), None);
        self.live.put(&layer_key(self.head.top(), key.as_bytes()), stored);
        self.changed.push(key);
    }

    /// Sets the attributes of an inode.
    pub fn put_attr(&mut self, ino: Ino, attr: &Attr) {
        self.put(Key::attr(ino), &attr.encode());
    }

    /// Sets an entry of a directory.
    pub fn put_dentry(&mut self, dir: Ino, name: &[u8], dentry: Dentry) {
        self.put(Key::dentry(dir, name), &dentry.encode());
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

impl Reading for Txn<'_> {
    fn value(&self, key: &Key) -> Result<Option<Value>> {
        get_merged(&&*self.live, &self.head.state, self.nodes, key)
    }

    fn scan(&self, span: Span, visit: &mut VisitEntry<'_>) -> Result<()> {
        let live = &&*self.live;
        let mut merged = Merged::new(live, &self.head.state, self.nodes, span)?;
        while let Some((key, value)) = merged.next()? {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
