//! What a store keeps of the promises of [`super::ObjectStore`], found by trying.
//!
//! Deliberately absent: proof. Trying shows that a promise is broken, never that it always holds.

use serde::{Deserialize, Serialize};

/// How the writers of a store change refs. All that write to one store use the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreMode {
    /// A ref is one object, which is replaced on the condition that it has not changed.
    Shared,
    /// A ref is a folder of numbered versions, of which the next is created; see [`super::NumberedRefStore`].
    NumberedRefs,
}

/// The promises that a server may break without saying so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreGuarantees {
    /// Of several who create an object, one succeeds.
    pub creates: bool,
    /// Of several writers that replace a ref, one succeeds, and none that expected other bytes.
    pub replaces: bool,
    /// A ref is deleted only by who expected its bytes. Where this is missing, a marker is stored instead.
    pub deletes: bool,
    /// Ranges are exact.
    pub ranges: bool,
    /// Listings show what was stored, and not what was deleted, at once.
    pub lists: bool,
}

impl StoreGuarantees {
    /// All promises are kept.
    pub const ALL: Self = Self { creates: true, replaces: true, deletes: true, ranges: true, lists: true };

    /// Whether several writers can share the store in a mode.
    #[must_use]
    pub fn is_fit_for(&self, mode: StoreMode) -> bool {
        // Deletions may ignore their conditions: then a marker takes the place of a deleted ref.
        let Self { creates, replaces, deletes: _, ranges, lists } = *self;
        let keeps_refs = match mode {
            StoreMode::Shared => replaces,
            StoreMode::NumberedRefs => true,
        };
        keeps_refs && creates && ranges && lists
    }

    /// The mode in which several writers can share the store; none if they cannot.
    #[must_use]
    pub fn best_mode(&self) -> Option<StoreMode> {
        [StoreMode::Shared, StoreMode::NumberedRefs].into_iter().find(|mode| self.is_fit_for(*mode))
    }

    /// What is missing for several writers, in words.
    #[must_use]
    pub fn describe_missing(&self) -> Vec<&'static str> {
        let Self { creates, replaces, deletes, ranges, lists } = *self;
        let all = [
            (creates, "it does not create objects on a condition (If-None-Match is ignored or refused)"),
            (replaces, "it does not replace objects on a condition (If-Match is ignored or refused)"),
            (deletes, "it deletes objects whatever the condition says"),
            (ranges, "it does not answer ranges exactly"),
            (lists, "its listings are out of date"),
        ];
        all.into_iter().filter(|(kept, _)| !kept).map(|(_, missing)| missing).collect()
    }
}
