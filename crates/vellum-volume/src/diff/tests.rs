//! Tests of what a comparison keeps in memory, and of the order of keys.

use std::sync::Arc;

use vellum_map::{ChangeLayer, MapRoot};
use vellum_types::BlobId;

use super::*;

#[test]
fn a_million_deleted_files_take_no_attributes_in_memory() {
    assert!(size_of::<TouchedInode>() <= 8, "{} bytes for each changed inode", size_of::<TouchedInode>());
    let gone = InodeAttr { inline: Some(vec![0; 4096]), ..InodeAttr::new(FileKind::File, 0o644) };
    let mut touched = TouchedInode::default();
    touched.record_attr(Some(&gone), None);
    assert!(!touched.is_in_both());
}

#[test]
fn keys_of_two_views_come_once_and_in_order() {
    let layer = |keys: &[&str]| {
        let mut layer = ChangeLayer::new();
        keys.iter().for_each(|key| layer.delete_key(key));
        Arc::new(layer)
    };
    let view = |layers| MapView { layers, base: MapRoot(BlobId([0; 32])) };
    let from = view(vec![layer(&["b", "d"]), layer(&["a", "d"])]);
    let to = view(vec![layer(&["b", "c", "e"])]);
    let keys: Vec<_> = merge_layer_keys(&from, &to).collect();
    assert_eq!(keys, [b"a", b"b", b"c", b"d", b"e"]);
}
