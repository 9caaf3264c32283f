//! Finds the files that damaged blobs affect.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vellum_host::escape::format_path;
use vellum_map::{LEVEL_MAX, MapNode, MapRoot};
use vellum_types::{BlobId, BlobKind, Dentry, Extent, ExtentSource, Ino, MapKeyRef};

use super::{AffectedTree, FoundDamage, TreeOwner, VerifiedTree, VerifyFinding};
use crate::error::Result;
use crate::trash::read_trash_record;
use crate::tree::FsTree;
use crate::volume::Volume;

/// Paths that one finding names for one tree: more would hide the other findings.
const PATHS_SHOWN: usize = 100;

/// What a damaged blob hits in one tree.
#[derive(Default)]
struct DamageHit {
    /// Inodes known to be hit.
    inodes: BTreeSet<Ino>,
    /// All inodes from the first to the last are hit, as far as they exist: they were in a node that is lost.
    range: Option<(Ino, Ino)>,
}

/// A damaged blob, the paths that it hits, and how many there are where that can be known.
type DamagedPaths = (BlobId, Vec<String>, Option<u64>);

/// Returns the damage as findings, sorted by object, each with the files that it affects.
pub fn name_findings(
    volume: &Volume,
    trees: &[VerifiedTree],
    damage: &FoundDamage,
) -> Result<Vec<VerifyFinding>> {
    let mut affected: BTreeMap<BlobId, Vec<AffectedTree>> = BTreeMap::new();
    if !damage.blobs.is_empty() {
        // Snapshots that changed nothing share one tree, which is searched once.
        let mut of_root: HashMap<MapRoot, Vec<DamagedPaths>> = HashMap::new();
        for tree in trees {
            if let Entry::Vacant(entry) = of_root.entry(tree.root) {
                entry.insert(find_damaged_paths(volume, tree, damage)?);
            }
            for (blob, paths, count) in of_root.get(&tree.root).into_iter().flatten() {
                let owner = tree.owner.clone();
                let paths = paths.clone();
                let count = *count;
                affected.entry(*blob).or_default().push(AffectedTree { owner, paths, count });
            }
        }
    }
    let objects = damage.objects.iter().map(|(object, problem)| VerifyFinding {
        object: object.clone(),
        problem: problem.clone(),
        affected: Vec::new(),
    });
    let blobs = damage.blobs.iter().map(|(id, (kind, problem))| {
        let packs: Vec<_> = damage.packs.get(id).into_iter().flatten().map(String::as_str).collect();
        let place = if packs.is_empty() { String::new() } else { format!(" in {}", packs.join(", ")) };
        VerifyFinding {
            object: format!("{kind} {id}{place}"),
            problem: problem.clone(),
            affected: affected.remove(id).unwrap_or_default(),
        }
    });
    let mut findings: Vec<_> = objects.chain(blobs).collect();
    findings.sort();
    Ok(findings)
}

fn find_damaged_paths(
    volume: &Volume,
    searched: &VerifiedTree,
    damage: &FoundDamage,
) -> Result<Vec<DamagedPaths>> {
    let mut search =
        DamageSearch { volume, damage, hits: BTreeMap::new(), names: BTreeMap::new(), met: HashSet::new() };
    // All numbers that there are, so that a lost root hits everything.
    search.search_node(searched.root.0, LEVEL_MAX, Ino::SUPER, Ino(u64::MAX));
    let tree = volume.open_tree(searched.root);
    let name_inode = |ino: &Ino| match searched.owner {
        TreeOwner::Snapshot(_) | TreeOwner::Worktree(_) => damaged_path(&tree, *ino, &search.names),
        TreeOwner::Trash(_) => trashed_path(&tree, *ino),
    };
    let named = search.hits.iter().map(|(blob, hit)| {
        // Of a lost node only the range of its inodes is known; directories elsewhere name those that exist.
        let in_range = hit.range.into_iter().flat_map(|(from, to)| search.names.range(from..=to));
        let inodes: BTreeSet<Ino> = hit.inodes.iter().copied().chain(in_range.map(|(ino, _)| *ino)).collect();
        let mut paths: Vec<String> = inodes.iter().take(PATHS_SHOWN).map(name_inode).collect();
        paths.sort();
        // Nobody knows how many inodes were in a node that is lost.
        (*blob, paths, hit.range.is_none().then_some(inodes.len() as u64))
    });
    Ok(named.collect())
}

/// The path that an entry of the trash had, as far as the damage leaves it readable.
fn trashed_path(tree: &FsTree, number: Ino) -> String {
    match read_trash_record(tree, number) {
        Ok(Some(record)) => format_path(&record.path),
        Ok(None) | Err(_) => format!("entry {number}"),
    }
}

/// The path of an inode, as far as the damage leaves it readable.
fn damaged_path(tree: &FsTree, ino: Ino, names: &BTreeMap<Ino, (Ino, Vec<u8>)>) -> String {
    if let Ok(path) = tree.inode_path(ino) {
        return format_path(&path);
    }
    let Some((dir, name)) = names.get(&ino) else { return format!("inode {ino}") };
    match tree.entry_path(*dir, name) {
        Ok(path) => format_path(&path),
        // The directories above are lost, too: the last name is still more than a number.
        Err(_) => format!("…/{}", format_path(name)),
    }
}

struct DamageSearch<'a> {
    volume: &'a Volume,
    damage: &'a FoundDamage,
    hits: BTreeMap<BlobId, DamageHit>,
    /// Where inodes are named: what lies in a lost node is known from its directory, if that is elsewhere.
    names: BTreeMap<Ino, (Ino, Vec<u8>)>,
    /// Nodes that were looked through: a hostile tree may name one again and again.
    met: HashSet<BlobId>,
}

impl DamageSearch<'_> {
    /// Looks through the tree below a node that covers these inodes. A node above `level` is as good as lost: levels
    /// go down, so that a hostile tree ends.
    fn search_node(&mut self, id: BlobId, level: u8, from: Ino, to: Ino) {
        if !self.met.insert(id) {
            return;
        }
        let read = |id| {
            self.volume.blobs.read_blob(BlobKind::Node, id).ok().and_then(|bytes| MapNode::decode(bytes).ok())
        };
        // Not through the cache of nodes, which may have what the store has lost.
        let node = if self.damage.is_blob_lost(&id) { None } else { read(&id) };
        let Some(node) = node.filter(|node| node.level() <= level) else {
            self.hits.entry(id).or_default().range = Some((from, to));
            return;
        };
        if node.is_leaf() {
            return self.search_leaf(&node);
        }
        // A child covers the inodes from its left neighbour's last key to its own: both ends may be shared with a neighbour.
        let mut start = from;
        for child in node.children() {
            let end = MapKeyRef::parse(child.last_key).map_or(to, |key| key.ino());
            // An inner node that decodes has a level of at least 1.
            self.search_node(child.id, node.level() - 1, start, end);
            start = end;
        }
    }

    fn search_leaf(&mut self, node: &MapNode) {
        for (key, value) in node.entries() {
            match MapKeyRef::parse(key) {
                Ok(MapKeyRef::Extent(ino, _)) => {
                    let source = Extent::decode(value).map(|extent| extent.source);
                    if let Ok(ExtentSource::Chunk { id, .. }) = source
                        && self.damage.is_blob_lost(&id)
                    {
                        self.hits.entry(id).or_default().inodes.insert(ino);
                    }
                }
                Ok(MapKeyRef::Dentry(dir, name)) => {
                    if let Ok(dentry) = Dentry::decode(value) {
                        // One name is enough to find the file by.
                        self.names.entry(dentry.ino).or_insert_with(|| (dir, name.to_vec()));
                    }
                }
                Ok(MapKeyRef::Attr(_) | MapKeyRef::Xattr(..)) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use vellum_types::FieldWriter;

    use super::*;
    use crate::state::StateDir;
    use crate::volume::NewWorktree;

    /// An inner node of level 1 that names one node twice, whatever that is.
    fn inner(child: BlobId) -> Vec<u8> {
        let mut node = FieldWriter::new();
        node.write_raw(b"VmNd").write_u8(1).write_u8(1).write_u32(2);
        for ino in [Ino(1), Ino(2)] {
            let mut value = FieldWriter::new();
            value.write_raw(child.as_bytes()).write_varint(1);
            let key = vellum_types::MapKey::for_attr(ino);
            node.write_varint(key.as_bytes().len() as u64).write_varint(value.as_slice().len() as u64);
            node.write_raw(key.as_bytes()).write_raw(value.as_slice());
        }
        node.into_vec()
    }

    #[test]
    fn a_chain_of_nodes_that_lie_about_their_level_ends() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::create(dir.path()).unwrap();
        let new = NewWorktree {
            store: None,
            name: "main".into(),
            encrypted: false,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let volume = Volume::init_volume(&state, &new, || unreachable!("a plain volume asks for nothing"))
            .unwrap()
            .volume;
        let lost = BlobId([7; 32]);
        let mut session = volume.begin_write_session().unwrap();
        let links = 20_000;
        let top = (0..links).fold(lost, |below, _| session.put_blob(BlobKind::Node, &inner(below)).unwrap());
        session.flush_blobs().unwrap();
        let mut damage = FoundDamage::default();
        damage.add_blob(BlobKind::Node, lost, "it is missing");
        let tree = VerifiedTree { owner: TreeOwner::Worktree("main".into()), root: MapRoot(top) };
        let findings = name_findings(&volume, &[tree], &damage).unwrap();
        assert_eq!(findings.len(), 1);
    }
}
