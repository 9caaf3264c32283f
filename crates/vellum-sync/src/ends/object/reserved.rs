//! Whether a folder of an object store is a Vellum store, or is inside one.
//!
//! Invariant: only objects named `config` are read, in the folder and above it. Stores below it are found by its
//! listing.

use vellum_store::{PlainObjects, StoreError};
use vellum_types::ErrorKind;
use vellum_volume::config::CONFIG_OBJECT;
use vellum_volume::own_place::{CONFIG_HEAD_LEN, is_vellum_store};

use super::map_object_error;
use crate::error::{Result, SyncError};

/// Fails if a folder of a bucket is a Vellum store, or is inside one. `bucket` contains all objects of the bucket.
pub fn check_not_in_store(bucket: &PlainObjects, folder: &str, shown: &str) -> Result<()> {
    let ends = folder.match_indices('/').map(|(end, _)| end).chain([folder.len()]);
    let folders = std::iter::once("").chain(ends.filter_map(|end| folder.get(..end)));
    let mut checked = None;
    // Each folder above is asked for its `config`, from the bucket down, since a store can be at any level.
    for above in folders.filter(|above| checked.replace(*above) != Some(*above)) {
        let key =
            if above.is_empty() { CONFIG_OBJECT.to_owned() } else { format!("{above}/{CONFIG_OBJECT}") };
        if has_store_config(bucket, &key).map_err(map_object_error)? {
            let here = if above == folder { "it is" } else { "it lies in" };
            return Err(SyncError::End {
                what: "refused to write to or delete from",
                path: shown.as_bytes().to_vec(),
                why: format!("{here} a Vellum store, which only Vellum may change"),
            });
        }
    }
    Ok(())
}

fn has_store_config(bucket: &PlainObjects, key: &str) -> Result<bool, StoreError> {
    let head = match bucket.stat_object(key) {
        Ok(Some(head)) => head,
        Ok(None) => return Ok(false),
        // The credentials may only allow access to a part of the bucket. They cannot write to a store outside
        // of it.
        Err(error) if error.kind() == ErrorKind::Denied => return Ok(false),
        Err(error) => return Err(error),
    };
    let beginning = bucket.read_range(key, &head.tag, 0..head.size.min(CONFIG_HEAD_LEN as u64))?;
    Ok(is_vellum_store(Some(&beginning), |_| false))
}
