//! The invariants of a whole map: every entry has its inode, links are counted, places are real, nothing is left over.

use std::collections::HashMap;
use std::ops::ControlFlow;

use vellum_fs::LiveFilesystem;
use vellum_fs::tree::UsageAmount;
use vellum_map::KeySpan;
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, Extent, FileKind, Ino, InodeAttr, MapKey, MapKeyRef};

/// Checks a worktree in which nothing is open.
#[track_caller]
pub fn check(fs: &LiveFilesystem) {
    check_usage(fs);
    check_content(fs);
    let (attrs, dentries) = collect(fs);
    let mut links: HashMap<Ino, u32> = HashMap::new();
    for ((dir, name), dentry) in &dentries {
        let attr = attrs.get(&dentry.ino).unwrap_or_else(|| panic!("{name:?} in {dir} names nothing"));
        assert_eq!(attr.kind, dentry.kind, "kind of {name:?} in {dir}");
        assert_eq!(attrs.get(dir).map(|dir| dir.kind), Some(FileKind::Dir), "{name:?} lies in no directory");
        *links.entry(if dentry.kind == FileKind::Dir { *dir } else { dentry.ino }).or_default() += 1;
    }
    for (ino, attr) in &attrs {
        let counted = links.get(ino).copied().unwrap_or(0);
        let expected = if attr.kind == FileKind::Dir { counted + 2 } else { counted };
        assert_eq!(attr.nlink, expected, "links of inode {ino}");
        if *ino == Ino::ROOT {
            continue;
        }
        let place = dentries.get(&(attr.parent, attr.name.clone()));
        assert_eq!(place.map(|dentry| dentry.ino), Some(*ino), "place of inode {ino}");
        assert!(leads_to_root(&attrs, *ino), "inode {ino} hangs in the air");
    }
}

/// Checks what is counted against what there is, whatever is open.
#[track_caller]
pub fn check_usage(fs: &LiveFilesystem) {
    let (attrs, _) = collect(fs);
    let sum =
        attrs.values().map(UsageAmount::from_attr).fold(UsageAmount::default(), UsageAmount::add_amount);
    assert_eq!(fs.live_map().worktree_usage().used_amount(), sum);
    assert_eq!(fs.live_map().measure_usage().unwrap(), sum, "measured anew");
}

/// Checks that extents do not overlap, lie within their file's size, and are not there where content is inline.
#[track_caller]
pub fn check_content(fs: &LiveFilesystem) {
    let mut file = (Ino::ROOT, InodeAttr::new(FileKind::Dir, 0), 0);
    let visit = &mut |key: &[u8], value: &[u8]| {
        match MapKeyRef::parse(key).unwrap() {
            MapKeyRef::Attr(ino) if ino != Ino::SUPER => file = (ino, InodeAttr::decode(value).unwrap(), 0),
            MapKeyRef::Extent(ino, start) => {
                let (owner, attr, end) = &mut file;
                let len = Extent::decode(value).unwrap().len;
                assert_eq!(ino, *owner);
                assert!(attr.inline.is_none(), "inode {ino} is inline and has an extent at {start}");
                assert!(start >= *end && start + len <= attr.size, "inode {ino} at {start}, {len} long");
                *end = start + len;
            }
            _ => {}
        }
        ControlFlow::Continue(())
    };
    fs.live_map()
        .read_head_state(|view| {
            view.scan(KeySpan::from_start(MapKey::for_attr(Ino::SUPER).as_bytes()), visit)
        })
        .unwrap();
}

fn leads_to_root(attrs: &HashMap<Ino, InodeAttr>, ino: Ino) -> bool {
    let parent = |ino: &Ino| attrs.get(ino).map(|attr| attr.parent);
    std::iter::successors(Some(ino), parent).take(attrs.len() + 1).any(|ino| ino == Ino::ROOT)
}

type Dentries = HashMap<(Ino, Vec<u8>), Dentry>;

fn collect(fs: &LiveFilesystem) -> (HashMap<Ino, InodeAttr>, Dentries) {
    let mut attrs = HashMap::new();
    let mut dentries = Dentries::new();
    let mut others = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        match MapKeyRef::parse(key).unwrap() {
            MapKeyRef::Attr(Ino::SUPER) => drop(SuperBlock::decode(value).unwrap()),
            MapKeyRef::Attr(ino) => drop(attrs.insert(ino, InodeAttr::decode(value).unwrap())),
            MapKeyRef::Dentry(dir, name) => {
                dentries.insert((dir, name.to_vec()), Dentry::decode(value).unwrap());
            }
            MapKeyRef::Xattr(ino, _) | MapKeyRef::Extent(ino, _) => others.push(ino),
        }
        ControlFlow::Continue(())
    };
    fs.live_map()
        .read_head_state(|view| {
            view.scan(KeySpan::from_start(MapKey::for_attr(Ino::SUPER).as_bytes()), visit)
        })
        .unwrap();
    assert!(others.iter().all(|ino| attrs.contains_key(ino)), "something is left of an inode that is gone");
    (attrs, dentries)
}
