//! Objects that get other keys without being copied.

use super::ObjectKey;
use crate::error::StoreError;

/// An object that gets another key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRename {
    /// The key that it has.
    pub from: ObjectKey,
    /// The key that it gets. An object that has it already is replaced.
    pub to: ObjectKey,
}

/// A store that gives objects other keys at little cost.
pub trait RenameObjects {
    /// Renames objects. At each moment, also in a power cut, an object has one of its keys or both; on return the new ones are
    /// durable. Returns for each whether it was there. After an error some may have been renamed.
    fn rename_objects(&self, renames: &[ObjectRename]) -> Result<Vec<bool>, StoreError>;
}
