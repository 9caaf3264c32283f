//! What a store keeps of the promises of [`super::ObjectStore`], found by trying.
//!
//! Deliberately absent: proof. Trying shows that a promise is broken, never that it always holds.

use serde::{Deserialize, Serialize};

/// The promises that a server may break without saying so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreGuarantees {
    /// Of several who create an object, one succeeds.
    pub creates: bool,
    /// Of several who replace a ref, one succeeds, and nobody who expected other bytes.
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

    /// Whether several writers can share the store.
    #[must_use]
    pub fn is_fit_for_sharing(&self) -> bool {
        let Self { creates, replaces, deletes: _, ranges, lists } = *self;
        creates && replaces && ranges && lists
    }

    /// What is missing for several writers, in words.
    #[must_use]
    pub fn describe_missing(&self) -> Vec<&'static str> {
        let Self { creates, replaces, deletes, ranges, lists } = *self;
        let all = [
            (creates, "it lets several writers create the same object (If-None-Match is ignored)"),
            (replaces, "it lets several writers replace the same object (If-Match is ignored)"),
            (deletes, "it deletes objects whatever the condition says"),
            (ranges, "it does not answer ranges exactly"),
            (lists, "its listings are out of date"),
        ];
        all.into_iter().filter(|(kept, _)| !kept).map(|(_, missing)| missing).collect()
    }
}
