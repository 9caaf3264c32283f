//! Lost blobs: blobs that a verification or a failed read found missing or damaged, recorded in the state directory
//! until they are stored again; and the files of a state that need them.
//!
//! Invariant: the file is only a hint for later writers. If it is missing or outdated, a writer stores something
//! twice or detects the loss itself; nothing counts as stored because of it.

use std::collections::{BTreeSet, HashSet};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use vellum_map::{MapNode, MapRoot, walk_nodes};
use vellum_store::blob::UnreadableBlob;
use vellum_types::{BlobId, BlobKind, ErrorKind, Extent, ExtentSource, Ino, MapKeyRef, PackId};

use crate::error::{Result, VolumeError};
use crate::state::StateDir;
use crate::volume::Volume;

const LOST_FILE: &str = "lost.json";

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LostBlobsFile {
    /// Blobs that a verification or a reading found missing or damaged, in hexadecimal.
    blobs: Vec<String>,
    /// Packs with chunks that a reading found damaged: no writer relies on their other chunks, which nobody has read,
    /// until a tree was made whole or everything was verified.
    #[serde(default)]
    damaged_packs: Vec<String>,
    /// The last tree that was made whole here, and the packs that were missing then.
    #[serde(default)]
    renewed: Option<RenewedTree>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RenewedTree {
    root: String,
    packs: Vec<String>,
}

/// What a new snapshot has to read and store again, because the store has lost it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostContent {
    /// Nothing that the last snapshot needs is known to be lost.
    Nothing,
    /// The content of these inodes.
    Files(BTreeSet<Ino>),
    /// Nodes of the tree: it must be made from the directory alone.
    Tree,
}

impl LostBlobsFile {
    fn read_from_state(state: &StateDir) -> Self {
        // The file is a hint: one that cannot be read counts as one that says nothing.
        let read = state.read_file(LOST_FILE).ok().flatten();
        read.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.damaged_packs.is_empty() && self.renewed.is_none()
    }

    fn blobs(&self) -> impl Iterator<Item = BlobId> {
        self.blobs.iter().filter_map(|text| text.parse().ok())
    }

    fn damaged_packs(&self) -> impl Iterator<Item = PackId> {
        self.damaged_packs.iter().filter_map(|text| text.parse().ok())
    }

    /// Adds what is not known yet; false if all was.
    fn add_damage(&mut self, found: UnwrittenDamage) -> bool {
        let known: BTreeSet<BlobId> = self.blobs().collect();
        let blobs = found.blobs.difference(&known).map(ToString::to_string);
        let known: BTreeSet<PackId> = self.damaged_packs().collect();
        let packs = found.packs.difference(&known).map(ToString::to_string);
        let before = self.blobs.len() + self.damaged_packs.len();
        self.blobs.extend(blobs);
        self.damaged_packs.extend(packs);
        self.blobs.len() + self.damaged_packs.len() > before
    }

    fn write_to_state(&self, state: &StateDir) -> Result<()> {
        if self.is_empty() {
            // Removed only if it is there: a removal syncs the directory in any case, and most often there is no such file.
            return match state.read_file(LOST_FILE)? {
                Some(_) => state.remove_file(LOST_FILE),
                None => Ok(()),
            };
        }
        state.write_json_file(LOST_FILE, self)
    }
}

/// What this process could not read, on its way into the file. That is written after the first failure, then whenever
/// the number of failures has doubled, and when the volume is closed: a lost pack of many blobs costs few writes.
pub(crate) struct DamageRecorder {
    state: StateDir,
    recorded: Mutex<RecordedDamage>,
}

#[derive(Default)]
struct RecordedDamage {
    found: UnwrittenDamage,
    /// Readings that failed so far.
    failures: u64,
}

/// What is not in the file yet.
#[derive(Default)]
struct UnwrittenDamage {
    blobs: BTreeSet<BlobId>,
    packs: BTreeSet<PackId>,
}

impl DamageRecorder {
    pub(crate) fn new(state: StateDir) -> Self {
        Self { state, recorded: Mutex::default() }
    }

    pub(crate) fn record_unreadable(&self, unreadable: &UnreadableBlob) {
        let mut recorded = self.recorded.lock();
        recorded.found.blobs.extend(&unreadable.blobs);
        match unreadable.kind {
            BlobKind::Chunk => recorded.found.packs.extend(&unreadable.packs),
            // A tree is read whole before it is relied on: its other nodes need no suspicion.
            BlobKind::Node => {}
        }
        recorded.failures += 1;
        if recorded.failures.is_power_of_two() {
            self.write_damage(&mut recorded.found);
        }
    }

    /// Writes what is not in the file yet.
    fn flush_damage(&self) {
        self.write_damage(&mut self.recorded.lock().found);
    }

    /// Forgets what is not in the file yet: a verification of everything has found it, or found it intact.
    fn discard_damage(&self) {
        self.recorded.lock().found = UnwrittenDamage::default();
    }

    /// Removes the blobs from the file that were stored again. The packs stay noted: a chunk in one of them is stored
    /// again once, and its new copy is relied on.
    pub(crate) fn remove_stored_blobs(&self, is_lost: impl Fn(&BlobId) -> bool) {
        let mut file = LostBlobsFile::read_from_state(&self.state);
        let before = file.blobs.len();
        file.blobs.retain(|text| text.parse().is_ok_and(|id| is_lost(&id)));
        if file.blobs.len() < before {
            // Where it cannot be written, they are stored once more.
            let _ = file.write_to_state(&self.state);
        }
    }

    /// Where the file cannot be written, later writers do without.
    fn write_damage(&self, found: &mut UnwrittenDamage) {
        if found.blobs.is_empty() {
            return;
        }
        let mut file = LostBlobsFile::read_from_state(&self.state);
        if file.add_damage(std::mem::take(found)) {
            // The tree that was made whole is not whole any more.
            file.renewed = None;
            let _ = file.write_to_state(&self.state);
        }
    }
}

impl Drop for DamageRecorder {
    fn drop(&mut self) {
        self.flush_damage();
    }
}

impl Volume {
    /// Remembers what a verification found; `all` says that it looked at everything, so that earlier notes are over.
    /// Where the note cannot be written, later writers do without.
    pub(crate) fn record_lost_blobs(&self, found: impl Iterator<Item = BlobId>, all: bool) {
        if all {
            self.damage.discard_damage();
        }
        let mut file = if all { LostBlobsFile::default() } else { self.read_lost_blobs() };
        file.renewed = None;
        file.add_damage(UnwrittenDamage { blobs: found.collect(), packs: BTreeSet::new() });
        let _ = file.write_to_state(&self.state);
    }

    fn read_lost_blobs(&self) -> LostBlobsFile {
        // What this process found comes first into the file, so that whoever reads it sees all of it.
        self.damage.flush_damage();
        LostBlobsFile::read_from_state(&self.state)
    }

    /// Lets no writer of this process rely on what was found missing or damaged, and was not stored again since.
    /// Returns whether blobs were.
    pub fn distrust_lost_blobs(&self) -> bool {
        let note = self.read_lost_blobs();
        self.blobs.record_lost_blobs(note.blobs());
        self.blobs.record_damaged_packs(note.damaged_packs());
        !note.blobs.is_empty()
    }

    fn write_lost_blobs(&self, blobs: &BTreeSet<BlobId>, renewed: Option<RenewedTree>) -> Result<()> {
        let blobs = blobs.iter().map(ToString::to_string).collect();
        // What is needed of the damaged packs was stored again, so that writers may rely on what else is in them.
        LostBlobsFile { blobs, damaged_packs: Vec::new(), renewed }.write_to_state(&self.state)
    }

    /// Returns what a snapshot on top of the state at `root` has to store again. Looks at the whole tree only if packs are
    /// missing, or something was found damaged, since the last tree was made whole. Whether packs are missing from a
    /// service is asked only if something was found.
    pub fn plan_renewal(&self, root: MapRoot) -> Result<LostContent> {
        let note = self.read_lost_blobs();
        // The list of a service's packs takes one request for each thousand of them. Services lose nothing unnoticed
        // as disks do; if something was noticed, the list is worth it.
        if self.objects.is_remote() && note.is_empty() {
            return Ok(LostContent::Nothing);
        }
        if self.objects.is_remote() {
            // A blob that the local index does not know yet must not count as lost.
            self.blobs.refresh_index()?;
        }
        let missing = self.blobs.find_missing_packs()?;
        let noted: BTreeSet<BlobId> = note.blobs().collect();
        if root == self.empty_root()
            || (missing.is_empty() && noted.is_empty() && note.damaged_packs.is_empty())
        {
            return Ok(LostContent::Nothing);
        }
        self.blobs.record_lost_blobs(noted);
        self.blobs.record_damaged_packs(note.damaged_packs());
        // The packs that were missing when this tree was made whole are missing still: to walk the tree after each
        // snapshot would find nothing new.
        let is_renewed = note.renewed.is_some_and(|tree| {
            tree.root == root.0.to_string()
                && missing.iter().all(|pack| tree.packs.contains(&pack.to_string()))
        });
        if is_renewed {
            return Ok(LostContent::Nothing);
        }
        let mut files = BTreeSet::new();
        let seen = walk_nodes(
            &*self.nodes,
            &root,
            |_, _| true,
            |id, node| {
                // Nobody knows which files there were below a node that is lost.
                if self.blobs.is_lost(id) {
                    return Err(VolumeError::BadTree(format!("node {id} is lost")));
                }
                self.find_lost_content(node, &mut files);
                Ok(())
            },
        );
        match seen {
            Ok(()) if files.is_empty() => Ok(LostContent::Nothing),
            Ok(()) => Ok(LostContent::Files(files)),
            Err(error) if is_damage_error(&error) => Ok(LostContent::Tree),
            Err(error) => Err(error),
        }
    }

    fn find_lost_content(&self, node: &MapNode, files: &mut BTreeSet<Ino>) {
        for (key, value) in node.entries() {
            if let Ok(MapKeyRef::Extent(ino, _)) = MapKeyRef::parse(key)
                && let Ok(ExtentSource::Chunk { id, .. }) = Extent::decode(value).map(|extent| extent.source)
                && self.blobs.is_lost(&id)
            {
                files.insert(ino);
            }
        }
    }

    /// Notes that a snapshot was made of everything that could be read: what was lost of the state at `root` is stored again.
    pub fn record_renewed_tree(&self, root: MapRoot) {
        let note = self.read_lost_blobs();
        // A store that does not answer now is asked again for the next snapshot.
        let missing: HashSet<PackId> = self.blobs.find_missing_packs().unwrap_or_default();
        if note.is_empty() && missing.is_empty() {
            return;
        }
        let left: BTreeSet<BlobId> = note.blobs().filter(|id| self.blobs.is_lost(id)).collect();
        let packs: Vec<_> = missing.iter().map(ToString::to_string).collect();
        let renewed = RenewedTree { root: root.0.to_string(), packs };
        let is_whole = left.is_empty() && missing.is_empty();
        // Without it, the next snapshot looks again.
        let _ = self.write_lost_blobs(&left, (!is_whole).then_some(renewed));
    }
}

/// Returns whether an error says that something stored is damaged or missing.
#[must_use]
pub fn is_damage_error(error: &VolumeError) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}
