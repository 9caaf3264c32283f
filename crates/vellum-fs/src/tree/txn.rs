//! A transaction on a live worktree: reads through all layers, writes into the top one.

use std::cell::RefCell;

use vellum_live::{StoreTransaction, ValueBytes};
use vellum_map::{KeySpan, MapValue};
use vellum_types::{BareInodeAttr, Dentry, FileKind, Ino, InodeAttr, MapKey, MapKeyRef};

use super::accesses::AccessTimes;
use super::inline::{encode_bare_attr, inline_content_key, is_bare_value, split_inline_content};
use super::merge::{MergedEntries, encode_change, encode_layer_key, get_merged_bare_attr, get_merged_value};
use super::reader::MapSnapshot;
use super::resident::ResidentNodes;
use super::usage::UsageAmount;
use super::{MapReader, VisitEntry, wrap_decode_error};
use crate::error::{FsError, Result};
use crate::tree::head::{LiveHead, STORED_CHUNKS_KEY, orphan_key};

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
        let changed = Vec::new();
        let weights = RefCell::default();
        Self { live, head, nodes, accesses, changed, weights, grown: UsageAmount::default(), failed: None }
    }

    /// The keys that were changed, and by how much that makes the worktree larger.
    pub(super) fn into_changes(self) -> Result<(Vec<MapKey>, UsageAmount)> {
        // Setters return nothing. What one of them could not do makes the whole transaction fail here.
        self.failed.map_or(Ok((self.changed, self.grown)), Err)
    }

    /// Sets a key.
    pub fn set_key(&mut self, key: MapKey, value: &[u8]) {
        let stored = encode_change(key.as_bytes(), Some(value));
        self.set_stored_value(key, stored);
    }

    fn set_stored_value(&mut self, key: MapKey, stored: ValueBytes) {
        self.live.set_key(&encode_layer_key(self.head.top_layer(), key.as_bytes()), stored);
        self.changed.push(key);
    }

    /// Removes a key.
    pub fn delete_key(&mut self, key: MapKey) {
        if let Ok(MapKeyRef::Attr(ino)) = MapKeyRef::parse(key.as_bytes()) {
            self.record_usage(ino, UsageAmount::default());
            self.set_inline_content(&key, None);
        }
        let stored = encode_change(key.as_bytes(), None);
        self.set_stored_value(key, stored);
    }

    /// Sets the attributes of an inode.
    pub fn set_inode_attr(&mut self, ino: Ino, attr: &InodeAttr) {
        self.record_usage(ino, UsageAmount::from_attr(attr));
        let key = MapKey::for_attr(ino);
        match split_inline_content(attr) {
            Some((bare, content)) => {
                self.set_inline_content(&key, Some(content));
                self.set_stored_value(key, bare);
            }
            None => {
                // Only files have content apart, and no inode changes its kind.
                if attr.kind == FileKind::File {
                    self.set_inline_content(&key, None);
                }
                self.set_key(key, &attr.encode());
            }
        }
    }

    /// Sets the attributes of an inode that exists. Its content stays as it is: inline if and only if it was.
    pub fn set_bare_attr(&mut self, ino: Ino, attr: &BareInodeAttr) {
        let key = MapKey::for_attr(ino);
        // Attributes and no content is what the map has of such an inode.
        if !attr.has_inline || attr.attr.size == 0 {
            self.record_usage(ino, UsageAmount::from_attr(&attr.attr));
            self.set_key(key, &attr.encode());
            return;
        }
        match self.live.get(&encode_layer_key(self.head.top_layer(), key.as_bytes())) {
            // Content that stands apart in the top layer is not touched.
            Ok(Some(stored)) if is_bare_value(key.as_bytes(), &stored) => {
                self.record_usage(ino, UsageAmount::from_attr(&attr.attr));
                match encode_bare_attr(attr) {
                    Ok(stored) => self.set_stored_value(key, stored),
                    Err(error) => self.failed = Some(error),
                }
            }
            // Otherwise it comes along: from beside the attributes, or from a lower layer or the base.
            Ok(_) => match self.inode_attr(ino) {
                Ok(whole) => {
                    let content = whole.and_then(|whole| whole.inline);
                    self.set_inode_attr(ino, &attr.clone().with_inline(content));
                }
                Err(error) => self.failed = Some(error),
            },
            Err(error) => self.failed = Some(error.into()),
        }
    }

    /// Lets the top layer have this content apart from the attributes under a key, or none. What it has is not written
    /// again.
    fn set_inline_content(&mut self, attributes: &MapKey, content: Option<&[u8]>) {
        let key = inline_content_key(self.head.top_layer(), attributes);
        match (self.live.get(&key), content) {
            // Compared, though it may be 4 KiB: that costs less than to write the same content to the journal once
            // more.
            (Ok(held), content) if held.as_deref() == content => {}
            (Ok(_), Some(content)) => self.live.set_key(&key, content.into()),
            (Ok(_), None) => self.live.delete_key(&key),
            (Err(error), _) => self.failed = Some(error.into()),
        }
    }

    /// Sets the attributes of an inode that did not exist.
    pub fn set_new_inode_attr(&mut self, ino: Ino, attr: &InodeAttr) {
        // Otherwise the layers and the base would be searched for it.
        self.record_known_usage(ino, UsageAmount::default());
        self.set_inode_attr(ino, attr);
    }

    /// Counts what an inode is about to count for.
    fn record_usage(&mut self, ino: Ino, after: UsageAmount) {
        // A list is enough: a transaction rarely meets more than a few inodes.
        let met = self.weights.borrow().iter().find(|(met, _)| *met == ino).map(|(_, weight)| *weight);
        let before = met.map_or_else(
            || {
                let attr = self.bare_inode_attr(ino)?;
                Ok(attr.map_or_else(UsageAmount::default, |attr| UsageAmount::from_attr(&attr.attr)))
            },
            Ok,
        );
        match before {
            Ok(before) => {
                self.grown = self.grown.add_amount(after).subtract_amount(before);
                self.record_known_usage(ino, after);
            }
            Err(error) => self.failed = Some(error),
        }
    }

    fn record_known_usage(&self, ino: Ino, weight: UsageAmount) {
        let mut weights = self.weights.borrow_mut();
        match weights.iter_mut().find(|(met, _)| *met == ino) {
            Some((_, known)) => *known = weight,
            None => weights.push((ino, weight)),
        }
    }

    /// Sets an entry of a directory.
    pub fn set_dentry(&mut self, dir: Ino, name: &[u8], dentry: Dentry) {
        self.set_key(MapKey::for_dentry(dir, name), &dentry.encode());
    }

    /// Reads the trash; `None`: there is none.
    pub fn read_trash<T>(&self, body: impl FnOnce(&dyn MapReader) -> Result<T>) -> Result<Option<T>> {
        let Some(state) = &self.head.trash else { return Ok(None) };
        body(&MapSnapshot { live: &&*self.live, state, nodes: self.nodes }).map(Some)
    }

    /// Sets a key of the trash, if there is one, or removes it.
    pub fn change_trash_key(&mut self, key: &MapKey, value: Option<&[u8]>) {
        // Not among the changed keys: no cache has keys of the trash, and no quota counts them.
        if let Some(layer) = self.head.top_trash_layer() {
            let key = key.as_bytes();
            self.live.set_key(&encode_layer_key(layer, key), encode_change(key, value));
        }
    }

    /// Notes that an inode has no name any more but is open: it goes at the last close, or when the worktree is
    /// opened the next time.
    pub fn add_orphan(&mut self, ino: Ino) {
        self.live.set_key(&orphan_key(ino), [].into());
    }

    /// Notes that the top layer names chunks that a client has stored.
    pub fn note_stored_chunks(&mut self) {
        let top = self.head.top_layer().0.to_be_bytes();
        match self.live.get(STORED_CHUNKS_KEY) {
            // An amendment, which lies below, can have a higher number. Numbers are compared as they are written.
            Ok(Some(noted)) if noted[..] >= top[..] => {}
            Ok(_) => self.live.set_key(STORED_CHUNKS_KEY, top.as_slice().into()),
            Err(error) => self.failed = Some(error.into()),
        }
    }

    /// The inode is an orphan no more: it is gone, or has a name again.
    pub fn remove_orphan(&mut self, ino: Ino) {
        self.live.delete_key(&orphan_key(ino));
    }
}

impl MapReader for LiveTransaction<'_> {
    fn inode_attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        let value = self.get_value(&MapKey::for_attr(ino))?;
        let mut attr = value
            .map(|value| InodeAttr::decode(&value).map_err(wrap_decode_error("an inode")))
            .transpose()?;
        // Remembered, so that a change of this inode later in the transaction need not read it again.
        self.record_known_usage(ino, attr.as_ref().map_or_else(UsageAmount::default, UsageAmount::from_attr));
        if let Some(attr) = &mut attr {
            self.accesses.apply_access_time(ino, attr);
        }
        Ok(attr)
    }

    fn bare_inode_attr(&self, ino: Ino) -> Result<Option<BareInodeAttr>> {
        let mut bare = get_merged_bare_attr(&&*self.live, &self.head.state, self.nodes, ino)?;
        let weight = |bare: &BareInodeAttr| UsageAmount::from_attr(&bare.attr);
        self.record_known_usage(ino, bare.as_ref().map_or_else(UsageAmount::default, weight));
        if let Some(bare) = &mut bare {
            self.accesses.apply_access_time(ino, &mut bare.attr);
        }
        Ok(bare)
    }

    fn get_value(&self, key: &MapKey) -> Result<Option<MapValue>> {
        get_merged_value(&&*self.live, &self.head.state, self.nodes, key)
    }

    fn scan(&self, span: KeySpan, visit: &mut VisitEntry<'_>) -> Result<()> {
        let live = &&*self.live;
        MergedEntries::new(live, &self.head.state, self.nodes, span)?.visit_entries(visit)
    }
}
