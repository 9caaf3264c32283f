//! Whether the map of a snapshot is sound in itself: every name leads to an inode, every inode has its names.

use std::collections::{BTreeMap, BTreeSet};

use vellum_map::KeySpan;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKeyRef};
use vellum_volume::tree::{ContentPart, FileReader};
use vellum_volume::{FsTree, Volume};

use crate::picture::{Picture, Seen};

/// Fails unless the map agrees with itself everywhere.
#[track_caller]
pub fn audit(tree: &FsTree) {
    let mut attrs: BTreeMap<Ino, InodeAttr> = BTreeMap::new();
    let mut links: BTreeMap<Ino, Vec<(Ino, Vec<u8>, FileKind)>> = BTreeMap::new();
    let mut owners = BTreeSet::new();
    for entry in tree.map_view().read_range(tree.nodes(), KeySpan::all_keys()).unwrap() {
        let entry = entry.unwrap();
        match MapKeyRef::parse(&entry.key).unwrap() {
            MapKeyRef::Attr(Ino::SUPER) => {}
            MapKeyRef::Attr(ino) => {
                attrs.insert(ino, InodeAttr::decode(&entry.value).unwrap());
            }
            MapKeyRef::Dentry(dir, name) => {
                let dentry = Dentry::decode(&entry.value).unwrap();
                links.entry(dentry.ino).or_default().push((dir, name.to_vec(), dentry.kind));
                owners.insert(dir);
            }
            MapKeyRef::Xattr(ino, _) | MapKeyRef::Extent(ino, _) => {
                owners.insert(ino);
            }
        }
    }
    for ino in &owners {
        assert!(attrs.contains_key(ino), "inode {ino} has entries and no attributes");
    }
    for (ino, names) in &links {
        let attr =
            attrs.get(ino).unwrap_or_else(|| panic!("{names:?} lead to inode {ino}, which is missing"));
        assert!(
            names.iter().all(|(_, _, kind)| *kind == attr.kind),
            "{names:?} have another kind than {attr:?}"
        );
    }
    let next = tree.read_super_block().unwrap().next_ino;
    for (ino, attr) in &attrs {
        assert!(*ino < next, "inode {ino} lies beyond the counter");
        let names = links.get(ino).map(Vec::as_slice).unwrap_or_default();
        if *ino != Ino::ROOT {
            let first = names.iter().any(|(dir, name, _)| *dir == attr.parent && *name == attr.name);
            assert!(
                first,
                "inode {ino} says it is {:?} in {}, but its names are {names:?}",
                attr.name, attr.parent
            );
        }
        let expected = if attr.kind == FileKind::Dir {
            let inside = links.values().flatten();
            inside.filter(|(dir, _, kind)| dir == ino && *kind == FileKind::Dir).count() + 2
        } else {
            names.len()
        };
        assert_eq!(attr.nlink as usize, expected, "inode {ino} ({names:?}) has a wrong link count");
        if attr.kind == FileKind::Dir {
            assert!(names.len() <= 1, "the directory {ino} has several names: {names:?}");
        }
    }
}

/// What a snapshot holds, read from its map and chunks, in the form of a look at a directory.
pub fn recorded(volume: &Volume, tree: &FsTree) -> Picture {
    let mut picture = Picture::default();
    let mut paths: BTreeMap<Ino, Vec<Vec<u8>>> = BTreeMap::new();
    picture.0.insert(b".".to_vec(), seen(volume, tree, Ino::ROOT));
    let mut stack = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = stack.pop() {
        for (name, dentry) in tree.list_entries(dir).unwrap() {
            let mut at: Vec<u8> = path.clone();
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(&name);
            if dentry.kind == FileKind::Dir {
                stack.push((dentry.ino, at.clone()));
            } else {
                paths.entry(dentry.ino).or_default().push(at.clone());
            }
            picture.0.insert(at, seen(volume, tree, dentry.ino));
        }
    }
    for names in paths.values().filter(|names| names.len() > 1) {
        for name in names {
            picture.0.get_mut(name).unwrap().first = names.iter().min().cloned();
        }
    }
    picture
}

fn seen(volume: &Volume, tree: &FsTree, ino: Ino) -> Seen {
    let inode = tree.read_inode(ino).unwrap();
    let attr = &inode.attr;
    let mut hasher = blake3::Hasher::new();
    let mut holes = Vec::new();
    if attr.kind == FileKind::File {
        let mut reader = FileReader::new(volume, &inode).unwrap();
        let mut offset = 0;
        while let Some(part) = reader.next_part().unwrap() {
            match part {
                ContentPart::Data(bytes) => {
                    hasher.update(bytes);
                    offset += bytes.len() as u64;
                }
                ContentPart::Hole(len) => {
                    hasher.update(&len.to_le_bytes());
                    holes.push((offset, offset + len));
                    offset += len;
                }
            }
        }
    }
    Seen {
        kind: format!("{:?}", attr.kind),
        mode: attr.mode,
        owner: (attr.uid, attr.gid),
        mtime: (attr.mtime.secs, attr.mtime.nanos),
        size: attr.size,
        device: (0, u32::try_from(attr.rdev).unwrap_or(u32::MAX)),
        target: attr.target.clone(),
        xattrs: inode.xattrs,
        content: hasher.finalize().to_hex()[..16].to_owned(),
        data: holes,
        first: None,
    }
}
