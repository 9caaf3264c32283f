//! One state of the map as it is read by key: that of one moment, below a transaction or a view.
//!
//! What reads by inode, through caches and with the content, is a [`vellum_volume::tree::StateReader`], of which the
//! implementations for live states read from here. Invariant: nothing here fetches content, since the caller holds the head.

use std::ops::ControlFlow;

use rustix::io::Errno;
use vellum_live::{LiveError, VisitScan};
use vellum_map::{KeySpan, NodeSource};
use vellum_types::value::SuperBlock;
use vellum_types::{BareInodeAttr, DecodeError, Dentry, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag};

use super::merge::{LiveRead, MergedEntries, get_merged_bare_attr, get_merged_value};
use crate::error::{FsError, Result};
use crate::tree::head::LayeredState;

/// Called with each key and value of a scan, until it breaks off.
pub type VisitEntry<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;
/// The same with the key decoded; fails if the value does not decode.
pub type VisitKey<'v> = dyn FnMut(MapKeyRef<'_>, &[u8]) -> Result<ControlFlow<()>, DecodeError> + 'v;
/// Called with each name and what it stands for, until it breaks off.
pub type VisitDentry<'v> = dyn FnMut(&[u8], Dentry) -> ControlFlow<()> + 'v;

/// Reads one state of the map. Bodies of [`super::LiveMap::read_head_state`],
/// [`super::LiveMap::read_sealed_state`] and [`super::LiveMap::apply_change`] get it.
pub trait MapReader {
    /// The value under a key.
    fn get_value(&self, key: &MapKey) -> Result<Option<vellum_map::MapValue>>;

    /// Visits the entries of a span in ascending order of their keys, until `visit` breaks off.
    fn scan(&self, span: KeySpan, visit: &mut VisitEntry<'_>) -> Result<()>;

    /// The same with keys decoded. What does not decode ends the visit; `what` names it.
    fn scan_keys(&self, span: KeySpan, what: &str, visit: &mut VisitKey<'_>) -> Result<()> {
        let mut failed = None;
        self.scan(span, &mut |key, value| {
            MapKeyRef::parse(key).and_then(|key| visit(key, value)).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            })
        })?;
        failed.map_or(Ok(()), |error| Err(wrap_decode_error(what)(error)))
    }

    /// The attributes of an inode, if it exists.
    fn inode_attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        let value = self.get_value(&MapKey::for_attr(ino))?;
        value.map(|value| InodeAttr::decode(&value).map_err(wrap_decode_error("an inode"))).transpose()
    }

    /// The attributes of an inode that somebody holds: stale if it is gone.
    fn expect_inode_attr(&self, ino: Ino) -> Result<InodeAttr> {
        self.inode_attr(ino)?.ok_or(FsError::Posix(Errno::STALE))
    }

    /// The attributes of an inode without its inline content, if it exists.
    fn bare_inode_attr(&self, ino: Ino) -> Result<Option<BareInodeAttr>>;

    /// The same of an inode that somebody holds: stale if it is gone.
    fn expect_bare_attr(&self, ino: Ino) -> Result<BareInodeAttr> {
        self.bare_inode_attr(ino)?.ok_or(FsError::Posix(Errno::STALE))
    }

    /// An entry of a directory.
    fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        let value = self.get_value(&MapKey::for_dentry(dir, name))?;
        value.map(|value| Dentry::decode(&value).map_err(wrap_decode_error("a directory entry"))).transpose()
    }

    /// Visits the entries of a directory whose names come after `after`, in order.
    fn visit_dentries(&self, dir: Ino, after: Option<&[u8]>, visit: &mut VisitDentry<'_>) -> Result<()> {
        // The keys of one inode are sorted by tag: the entries of a directory end where its extended
        // attributes begin.
        let end = MapKey::first_for_tag(dir, MapKeyTag::Xattr);
        let span = match after {
            None => {
                KeySpan::from_bounds(MapKey::first_for_tag(dir, MapKeyTag::Dentry).as_bytes(), end.as_bytes())
            }
            Some(name) => KeySpan::from_bounds(MapKey::for_dentry(dir, name).as_bytes(), end.as_bytes())
                .after_key(MapKey::for_dentry(dir, name).as_bytes()),
        };
        self.scan_keys(span, "a directory entry", &mut |key, value| match key {
            MapKeyRef::Dentry(_, name) => Ok(visit(name, Dentry::decode(value)?)),
            _ => Ok(ControlFlow::Break(())),
        })
    }

    /// All keys of an inode but that of its attributes, added to `keys`.
    fn collect_inode_keys(&self, ino: Ino, keys: &mut Vec<MapKey>) -> Result<()> {
        let start = MapKey::first_for_tag(ino, MapKeyTag::Dentry);
        let end = MapKey::for_attr(Ino(ino.0.saturating_add(1)));
        self.scan_keys(KeySpan::from_bounds(start.as_bytes(), end.as_bytes()), "a key", &mut |key, _| {
            keys.push(key.into());
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The filesystem's own record.
    fn read_super_block(&self) -> Result<SuperBlock> {
        match self.get_value(&MapKey::for_attr(Ino::SUPER))? {
            Some(value) => SuperBlock::decode(&value).map_err(wrap_decode_error("the filesystem's record")),
            None => Ok(SuperBlock { next_ino: Ino(Ino::ROOT.0 + 1) }),
        }
    }
}

/// Names what does not decode.
pub(crate) fn wrap_decode_error(what: &str) -> impl Fn(DecodeError) -> FsError + use<'_> {
    move |source| FsError::Decode { what: what.into(), source }
}

/// Returns the records under a prefix of the live store with the numbers in their keys, in order of these. `scan` is that
/// of a store or of a transaction.
pub(crate) fn read_numbered_records<T>(
    prefix: &[u8],
    what: &str,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    scan: impl FnOnce(&KeySpan, &mut VisitScan<'_>) -> Result<(), LiveError>,
) -> Result<Vec<(u64, T)>> {
    let mut found: Vec<Result<_>> = Vec::new();
    scan(&KeySpan::from_prefix(prefix), &mut |key, value| {
        let number = key.last_chunk().map_or(0, |digits| u64::from_be_bytes(*digits));
        found.push(decode(value).map(|record| (number, record)).map_err(wrap_decode_error(what)));
        ControlFlow::Continue(())
    })?;
    found.into_iter().collect()
}

/// Something to read from and the state to read.
pub(super) struct MapSnapshot<'a, N> {
    pub live: &'a dyn LiveRead,
    pub state: &'a LayeredState,
    pub nodes: &'a N,
}

impl<N: NodeSource> MapReader for MapSnapshot<'_, N> {
    fn bare_inode_attr(&self, ino: Ino) -> Result<Option<BareInodeAttr>> {
        get_merged_bare_attr(self.live, self.state, self.nodes, ino)
    }

    fn get_value(&self, key: &MapKey) -> Result<Option<vellum_map::MapValue>> {
        get_merged_value(self.live, self.state, self.nodes, key)
    }

    fn scan(&self, span: KeySpan, visit: &mut VisitEntry<'_>) -> Result<()> {
        MergedEntries::new(self.live, self.state, self.nodes, span)?.visit_entries(visit)
    }
}
