//! The destination of changes of the map: a new tree, or a layer in memory.

use vellum_map::{ChangeLayer, MapApplier, MapBuilder, MapRoot, NodeCache};
use vellum_volume::tree::NodeLoader;
use vellum_volume::{Volume, WriteSession};

use crate::error::Result;

/// Receives changes in ascending order of their keys.
pub trait ChangeSink {
    /// Sets a key, or removes it.
    fn apply_change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()>;
}

/// Stores the changes in memory, for a comparison.
#[derive(Default)]
pub struct LayerSink {
    /// The changes so far.
    pub layer: ChangeLayer,
}

impl ChangeSink for LayerSink {
    fn apply_change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.layer.set_key(key, value),
            None => self.layer.delete_key(key),
        }
        Ok(())
    }
}

/// Writes the changed tree to the volume.
pub enum TreeSink<'a> {
    /// A new tree.
    New(MapBuilder<'a, WriteSession>),
    /// A tree that is derived from the base.
    Changed(MapApplier<'a, NodeCache<NodeLoader>, WriteSession>),
}

impl<'a> TreeSink<'a> {
    /// Starts with the map at `base`, or with an empty one.
    pub fn new(volume: &'a Volume, session: &'a WriteSession, base: Option<&MapRoot>) -> Result<Self> {
        Ok(match base {
            None => Self::New(MapBuilder::new(volume.map_shape(), session)),
            Some(root) => Self::Changed(MapApplier::new(&*volume.nodes, session, volume.map_shape(), root)?),
        })
    }

    /// Completes the tree.
    pub fn finish_tree(self) -> Result<MapRoot> {
        Ok(match self {
            Self::New(builder) => builder.finish_tree()?,
            Self::Changed(applier) => applier.finish_tree()?,
        })
    }
}

impl ChangeSink for TreeSink<'_> {
    fn apply_change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match (self, value) {
            (Self::New(builder), Some(value)) => builder.push_entry(key, value)?,
            // There is no base from which a key could be removed.
            (Self::New(_), None) => {}
            (Self::Changed(applier), Some(value)) => applier.set_key(key, value)?,
            (Self::Changed(applier), None) => applier.delete_key(key)?,
        }
        Ok(())
    }
}
