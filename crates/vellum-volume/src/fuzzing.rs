//! A door for fuzz targets to the reading of trees, and of the object `store`: what whoever holds the key could write. Not
//! for anybody else.
//!
//! Invariant: each function accepts any bytes, and panics only where the reading of a tree broke a promise of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use vellum_map::{ChangeLayer, KeySpan};
use vellum_types::codec::FieldReader;
use vellum_types::limits::{KEY_MAX, VALUE_MAX};
use vellum_types::{DecodeError, Dentry, FileKind, Ino, InodeAttr, MapKey};

use crate::diff::StateComparison;
use crate::store_identity::parse_identity;
use crate::tree::{FsTree, collect_file_pieces};
use crate::verify::structure;
use crate::volume::Volume;

/// Entries of one tree: enough for each thing that can go wrong in one, few enough for thousands of trees a second.
const ENTRIES_MAX: usize = 256;

/// Bit of a step that concerns the first tree.
const FIRST: u8 = 0x40;
/// Bit of a step that concerns the second.
const SECOND: u8 = 0x80;

/// The refs of a service that are kept in a state directory.
///
/// # Panics
/// When refs that decode encode to other ones.
pub fn fuzz_known_refs(bytes: &[u8]) {
    crate::refs::fuzz_known_decoder(bytes);
}

/// The identity of a store, behind its seal.
///
/// # Panics
/// When an identity that is read has another form.
pub fn fuzz_store_identity(bytes: &[u8]) {
    if let Ok(identity) = parse_identity(bytes) {
        assert_eq!(identity.encode(), bytes, "one identity has one form");
    }
}

/// Two trees that these bytes describe, step by step: walked, looked up, compared, and checked as `verify` does. The
/// entries lie over the empty tree of `volume`, which is not changed.
///
/// # Panics
/// When a walk meets a directory twice, or a path does not lead to what it is the path of.
pub fn fuzz_trees(volume: &Volume, bytes: &[u8]) {
    let mut first = ChangeLayer::new();
    let mut second = ChangeLayer::new();
    let mut reader = FieldReader::new(bytes);
    for _ in 0..ENTRIES_MAX {
        let Ok((step, entries)) = read_step(&mut reader) else { break };
        for (key, value) in entries {
            if step & FIRST != 0 {
                first.set_key(&key, value.clone());
            }
            if step & SECOND != 0 {
                second.set_key(&key, value);
            }
        }
    }
    let [first, second] =
        [first, second].map(|layer| volume.open_tree_with_layers(volume.empty_root(), vec![Arc::new(layer)]));
    for tree in [&first, &second] {
        walk(tree);
        look_up(tree);
        // Any finding is a right answer for such a tree. Only a panic is a failure.
        let _ = structure::check_whole(
            volume,
            volume.open_tree_with_layers(tree.map_view().base, tree.map_view().layers.clone()),
        );
    }
    let comparison = StateComparison { from: &first, to: &second };
    // Without a bound, and with bounds by which no number, some, and all numbers stand for the same file in both trees.
    for shared in [None, Some(Ino(1)), Some(Ino(8)), Some(Ino(u64::MAX))] {
        let _ = comparison.find_changes_sharing(shared);
    }
    let _ = comparison.find_touched_inodes();
}

type MapEntries = Vec<(Vec<u8>, Vec<u8>)>;

/// One step: any key and value; or an inode that is an entry of a directory, or says so, or is said to be one.
fn read_step(reader: &mut FieldReader<'_>) -> Result<(u8, MapEntries), DecodeError> {
    let step = reader.read_u8()?;
    if step & 3 == 0 {
        let key = reader.read_bytes(KEY_MAX)?.to_vec();
        return Ok((step, vec![(key, reader.read_bytes(VALUE_MAX)?.to_vec())]));
    }
    // One byte each: of 64-bit numbers, hardly two steps would ever name the same inode.
    let dir = Ino(reader.read_u8()?.into());
    let ino = Ino(reader.read_u8()?.into());
    let kind = if reader.read_u8()? % 4 == 0 { FileKind::File } else { FileKind::Dir };
    let name = reader.read_bytes(vellum_types::limits::NAME_MAX)?;
    let mut entries = Vec::new();
    if step & 1 != 0 {
        let mut attr = InodeAttr::new(kind, 0o755);
        (attr.parent, attr.name) = (dir, name.to_vec());
        entries.push((MapKey::for_attr(ino).into_bytes(), attr.encode()));
    }
    if step & 2 != 0 {
        entries.push((MapKey::for_dentry(dir, name).into_bytes(), Dentry { ino, kind }.encode()));
    }
    Ok((step, entries))
}

/// Goes down from the root, as every command does.
fn walk(tree: &FsTree) {
    let mut met = BTreeSet::from([Ino::ROOT]);
    let mut pending = vec![Ino::ROOT];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = tree.list_entries(dir) else { continue };
        for (name, dentry) in entries {
            assert_eq!(
                tree.lookup_dentry(dir, &name).ok().flatten(),
                Some(dentry),
                "an entry that is listed is found"
            );
            if dentry.kind != FileKind::Dir {
                continue;
            }
            assert!(met.insert(dentry.ino), "directory {} is met twice", dentry.ino);
            if let Ok(path) = tree.inode_path(dentry.ino) {
                let found = tree.find_path(&path, "the tree").map(|(ino, _)| ino);
                assert_eq!(found.ok(), Some(dentry.ino), "the path of a directory leads to it");
            }
            pending.push(dentry.ino);
        }
    }
}

/// Asks for every inode that has entries in the map, wherever it lies.
fn look_up(tree: &FsTree) {
    let _ = tree.read_super_block();
    let Ok(entries) = tree.map_view().read_range(tree.nodes(), KeySpan::all_keys()) else { return };
    for entry in entries {
        let Ok(entry) = entry else { return };
        let Ok(key) = vellum_types::MapKeyRef::parse(&entry.key) else { continue };
        let _ = (tree.inode_attr(key.ino()), tree.inode_path(key.ino()));
        if let Ok(inode) = tree.read_inode(key.ino()) {
            let _ = collect_file_pieces(&inode);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use super::*;
    use crate::state::StateDir;
    use crate::volume::NewWorktree;

    fn volume(dir: &tempfile::TempDir) -> Volume {
        let new = NewWorktree {
            store: None,
            name: "main".into(),
            encrypted: false,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let state = StateDir::create(dir.path()).unwrap();
        Volume::init_volume(&state, &new, || unreachable!("a plain volume asks for nothing")).unwrap().volume
    }

    #[test]
    fn any_steps_end() {
        let dir = tempfile::tempdir().unwrap();
        let volume = volume(&dir);
        // splitmix64: a few thousand trees of a few small directories, circles and shared ones among them.
        let mut state = 20_261_122_u64;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ (mixed >> 27)).to_le_bytes()
        };
        for _ in 0..3000 {
            let mut bytes = Vec::new();
            for _ in 0..12 {
                let [step, dir, ino, kind, name, ..] = next();
                bytes.extend([step | 1, dir % 6, ino % 6, kind, 1, b'a' + name % 3]);
            }
            fuzz_trees(&volume, &bytes);
        }
    }
}
