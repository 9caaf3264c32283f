//! What lies in a store and is none of the volume's.
//!
//! Invariant: nothing of it is read, and its amount does not matter: a bucket may be used for other things too.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::ObjectKey;
use vellum_store::index::is_index_key;
use vellum_store::pack::parse_pack_key;

use crate::catalog::is_record_key;
use crate::error::Result;
use crate::operations::{is_chain_folder, is_operation_key};
use crate::refs::is_ref_key;
use crate::volume::Volume;

/// Objects of a store that no part of a volume is named like.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ForeignObjects {
    /// How many there are.
    pub count: u64,
    /// The names of the first ones, escaped.
    pub examples: Vec<String>,
}

/// Counts the objects that are none of the volume's.
pub(super) fn count_foreign_objects(volume: &Volume) -> Result<ForeignObjects> {
    let others = volume.objects.select_objects("", is_own_key)?.others;
    Ok(ForeignObjects {
        count: others.count,
        examples: others.examples.iter().map(|name| format_path(name.as_bytes())).collect(),
    })
}

/// Whether an object is the volume's, as far as its name tells.
fn is_own_key(key: &ObjectKey) -> bool {
    let Some((folder, _)) = key.as_str().split_once('/') else {
        return matches!(key.as_str(), "config" | "store" | "store-check" | "listing" | "listing-packs");
    };
    match folder {
        "packs" => parse_pack_key(key).is_some(),
        "index" => is_index_key(key),
        "snapshots" | "forgotten" => is_record_key(key),
        "refs" => is_ref_key(key),
        // A directory shows the folder of a chain, whose name is an id, as objects that are no files.
        "operations" => is_operation_key(key) || is_chain_folder(key),
        // What is in them is looked at by itself, whatever its name is.
        "sessions" | "keys" | "removed-keys" | "key-epochs" | "slot-keys" | "devices" => true,
        // The logs of shared worktrees; see `vellum-shared-log`.
        "log-heads" | "live" => true,
        // What a probe that was killed has left is removed by a later one.
        "probe" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_kinds_case_and_places_are_foreign() {
        let id = "5f".repeat(32);
        let is_own = |key: &str| ObjectKey::new(key).is_ok_and(|key| is_own_key(&key));
        for folder in [
            "index",
            "snapshots",
            "forgotten",
            "refs/tag",
            "refs/worktree",
            "refs/pin",
            "refs/settings",
            "refs/annotation",
        ] {
            assert!(is_own(&format!("{folder}/{id}")), "{folder}");
            for name in [id.to_uppercase(), format!("{id}0"), "README".into(), format!("a/{id}")] {
                assert!(!is_own(&format!("{folder}/{name}")), "{folder}/{name}");
            }
        }
        for key in ["Snapshots", "refs", "refs/other", "packs", "packs/00", "photos"] {
            assert!(!is_own(&format!("{key}/{id}")), "{key}");
        }
        assert!(is_own(&format!("operations/{id}/{:016x}", 10)) && is_own(&format!("operations/{id}")));
        for name in [format!("{id}/a"), format!("{id}/{:016X}", 10), format!("README/{:016x}", 10)] {
            assert!(!is_own(&format!("operations/{name}")), "{name}");
        }
        assert!(is_own(&format!("packs/5f/{id}")) && is_own("config") && !is_own("CONFIG"));
    }
}
