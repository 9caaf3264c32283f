//! A filesystem as a test thinks of it: changed by names, stored as a map, and compared with what is read back.

use std::collections::{BTreeMap, BTreeSet};

use vellum_map::{MapBuilder, MapError, MapRoot, NodeSink};
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobId, BlobKind, Dentry, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, UnixTime,
};
use vellum_volume::tree::FileReader;
use vellum_volume::{Result, Volume, WriteSession};

/// Longest content that stands inline, bytes: small, so that small files have chunks.
const INLINE: usize = 100;
/// Length of a chunk, bytes.
const CHUNK: usize = 700;

pub type Link = (Ino, Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub mtime: i64,
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub links: BTreeSet<Link>,
}

#[derive(Debug, Clone)]
pub struct Tree {
    pub nodes: BTreeMap<Ino, Node>,
    pub next: u64,
}

/// Bytes that do not compress and differ from seed to seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node {
            kind: FileKind::Dir,
            mode: 0o755,
            uid: 0,
            mtime: 0,
            content: Vec::new(),
            xattrs: BTreeMap::new(),
            links: BTreeSet::new(),
        };
        Self { nodes: BTreeMap::from([(Ino::ROOT, root)]), next: Ino::ROOT.0 + 1 }
    }
}

impl Tree {
    /// A new inode named `name` in `dir`. The content of a symlink is its target.
    pub fn add(&mut self, dir: Ino, name: &str, kind: FileKind, content: Vec<u8>) -> Ino {
        let ino = Ino(self.next);
        self.next += 1;
        let links = BTreeSet::from([(dir, name.as_bytes().to_vec())]);
        let root = self.nodes[&Ino::ROOT].clone();
        self.nodes.insert(ino, Node { kind, mode: 0o644, mtime: 1000, content, links, ..root });
        ino
    }

    pub fn file(&mut self, dir: Ino, name: &str, content: Vec<u8>) -> Ino {
        self.add(dir, name, FileKind::File, content)
    }

    pub fn dir(&mut self, dir: Ino, name: &str) -> Ino {
        self.add(dir, name, FileKind::Dir, Vec::new())
    }

    pub fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    /// Removes a name; an inode without names goes, with what it holds.
    pub fn unlink(&mut self, dir: Ino, name: &[u8]) {
        let Some(ino) = self.lookup(dir, name) else { return };
        self.node(ino).links.remove(&(dir, name.to_vec()));
        if !self.nodes[&ino].links.is_empty() {
            return;
        }
        for (_, (_, name)) in self.children(ino) {
            self.unlink(ino, &name);
        }
        self.nodes.remove(&ino);
    }

    pub fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        let ino = self.lookup(from.0, from.1).unwrap();
        self.unlink(to.0, to.1);
        let links = &mut self.node(ino).links;
        links.remove(&(from.0, from.1.to_vec()));
        links.insert((to.0, to.1.to_vec()));
    }

    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let link = (dir, name.to_vec());
        self.nodes.iter().find(|(_, node)| node.links.contains(&link)).map(|(ino, _)| *ino)
    }

    fn children(&self, dir: Ino) -> Vec<(Ino, Link)> {
        let links = |(ino, node): (&Ino, &Node)| {
            let ino = *ino;
            node.links
                .iter()
                .filter(|link| link.0 == dir)
                .map(move |link| (ino, link.clone()))
                .collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(links).collect()
    }

    /// The path of a link, from the root.
    pub fn path(&self, (dir, name): &Link) -> Vec<u8> {
        let mut path = match self.nodes[dir].links.first() {
            None => Vec::new(),
            Some(link) => [&*self.path(link), b"/"].concat(),
        };
        path.extend_from_slice(name);
        path
    }

    /// All paths.
    pub fn paths(&self) -> BTreeMap<Vec<u8>, Ino> {
        let links = |(ino, node): (&Ino, &Node)| {
            let ino = *ino;
            node.links.iter().map(move |link| (self.path(link), ino)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(links).collect()
    }

    /// Whether `dir` is `ino` or lies below it.
    pub fn is_below(&self, dir: Ino, ino: Ino) -> bool {
        dir == ino || self.nodes[&dir].links.first().is_some_and(|(parent, _)| self.is_below(*parent, ino))
    }

    /// The stored form: chunks and nodes go to the session.
    pub fn store(&self, volume: &Volume, session: &WriteSession) -> Result<MapRoot> {
        let mut entries: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let next_ino = Ino(self.next);
        entries.insert(MapKey::for_attr(Ino::SUPER).into_bytes(), SuperBlock { next_ino }.encode());
        for (ino, node) in &self.nodes {
            entries.insert(MapKey::for_attr(*ino).into_bytes(), self.attr(*ino).encode());
            for (name, value) in &node.xattrs {
                entries.insert(MapKey::for_xattr(*ino, name).into_bytes(), value.clone());
            }
            for (dir, name) in &node.links {
                let dentry = Dentry { ino: *ino, kind: node.kind };
                entries.insert(MapKey::for_dentry(*dir, name).into_bytes(), dentry.encode());
            }
            if node.kind != FileKind::File || node.content.len() <= INLINE {
                continue;
            }
            for (number, piece) in node.content.chunks(CHUNK).enumerate() {
                let id = session.put_blob(BlobKind::Chunk, piece)?;
                let source = ExtentSource::Chunk { id, skip: 0 };
                let extent = Extent { len: piece.len() as u64, source };
                entries
                    .insert(MapKey::for_extent(*ino, (number * CHUNK) as u64).into_bytes(), extent.encode());
            }
        }
        let sink = Nodes(session);
        let mut builder = MapBuilder::new(volume.map_shape(), &sink);
        for (key, value) in &entries {
            builder.push_entry(key, value)?;
        }
        Ok(builder.finish_tree()?)
    }

    fn attr(&self, ino: Ino) -> InodeAttr {
        let node = &self.nodes[&ino];
        let mut attr = InodeAttr::new(node.kind, node.mode);
        attr.uid = node.uid;
        attr.set_all_times(UnixTime { secs: node.mtime, nanos: 0 });
        attr.nlink = u32::try_from(node.links.len()).unwrap().max(1);
        if let Some((parent, name)) = node.links.first() {
            (attr.parent, attr.name) = (*parent, name.clone());
        }
        match node.kind {
            FileKind::File => {
                attr.size = node.content.len() as u64;
                attr.inline = (node.content.len() <= INLINE).then(|| node.content.clone());
            }
            FileKind::Symlink => {
                attr.size = node.content.len() as u64;
                attr.target = node.content.clone();
            }
            _ => {}
        }
        attr
    }

    /// Reads every file and lists every directory. What is read must be right; how much could not be read is told.
    pub fn compare(&self, volume: &Volume, root: MapRoot) -> usize {
        let tree = volume.open_tree(root);
        let mut failed = 0;
        for (path, ino) in &self.paths() {
            let read = || -> Result<Node> {
                let (found, _) = tree.find_path(path, "the snapshot")?;
                assert_eq!(found, *ino, "{path:?} is another file");
                let inode = tree.read_inode(found)?;
                let mut content = inode.attr.target.clone();
                if inode.attr.kind == FileKind::File {
                    content.extend(FileReader::new(volume, &inode)?.read_to_end()?);
                }
                Ok(Node {
                    kind: inode.attr.kind,
                    mode: inode.attr.mode,
                    uid: inode.attr.uid,
                    mtime: inode.attr.mtime.secs,
                    content,
                    xattrs: inode.xattrs.into_iter().collect(),
                    links: self.nodes[ino].links.clone(),
                })
            };
            match read() {
                Ok(found) => assert_eq!(found, self.nodes[ino], "{path:?}"),
                Err(_) => failed += 1,
            }
        }
        for dir in self.nodes.iter().filter(|(_, node)| node.kind == FileKind::Dir).map(|(ino, _)| *ino) {
            let Ok(entries) = tree.list_entries(dir) else {
                failed += 1;
                continue;
            };
            let found: BTreeSet<_> =
                entries.into_iter().map(|(name, dentry)| (dentry.ino, (dir, name))).collect();
            assert_eq!(found, self.children(dir).into_iter().collect());
        }
        failed
    }

    pub fn assert_readable(&self, volume: &Volume, root: MapRoot) {
        assert_eq!(self.compare(volume, root), 0);
    }
}

struct Nodes<'a>(&'a WriteSession);

impl NodeSink for Nodes<'_> {
    fn store_node(&self, bytes: &[u8]) -> std::result::Result<BlobId, MapError> {
        self.0
            .put_blob(BlobKind::Node, bytes)
            .map_err(|error| MapError::from_store_failure(error.kind(), error))
    }
}

/// One of each kind: inline and chunked files, a hard link, an xattr, a symlink, a directory, a fifo.
pub fn small(seed: u64) -> Tree {
    let mut tree = Tree::default();
    let dir = tree.dir(Ino::ROOT, "dir");
    tree.file(Ino::ROOT, "inline", b"short".to_vec());
    let big = tree.file(dir, "chunked", noise(seed, 2000));
    tree.node(big).links.insert((Ino::ROOT, b"linked".to_vec()));
    tree.node(big).xattrs.insert(b"user.note".to_vec(), b"value".to_vec());
    tree.file(dir, "text", b"compressible ".repeat(60));
    tree.file(dir, "empty", Vec::new());
    tree.add(dir, "symlink", FileKind::Symlink, b"../inline".to_vec());
    tree.add(dir, "fifo", FileKind::Fifo, Vec::new());
    tree
}
