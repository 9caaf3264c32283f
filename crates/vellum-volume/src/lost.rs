//! What was found missing or damaged, remembered in the state directory until it is stored again; and which files of a
//! state need it.
//!
//! Invariant: the file is a note to later writers. Without it, or with an old one, a writer stores something twice or
//! finds out by itself; nothing is believed to be stored because of it.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use vellum_map::{MapNode, MapRoot, walk};
use vellum_types::{BlobId, ErrorKind, Extent, ExtentSource, Ino, MapKeyRef, PackId};

use crate::error::{Result, VolumeError};
use crate::volume::Volume;

const LOST_FILE: &str = "lost.json";

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LostBlobsFile {
    /// Blobs that a verification found missing or damaged, in hexadecimal.
    blobs: Vec<String>,
    /// The last tree that was made whole here, and the packs that were missing then.
    #[serde(default)]
    renewed: Option<RenewedTree>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RenewedTree {
    root: String,
    packs: Vec<String>,
}

/// What a new snapshot has to read and store again, since the store has lost it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostContent {
    /// Nothing that the last snapshot needs is known to be lost.
    Nothing,
    /// The content of these inodes.
    Files(BTreeSet<Ino>),
    /// Nodes of the tree: it must be made from the directory alone.
    Tree,
}

impl Volume {
    /// Remembers what a verification found; `all` says that it looked at everything, so that earlier notes are over.
    /// Where the note cannot be written, later writers do without.
    pub(crate) fn note_lost(&self, found: impl Iterator<Item = BlobId>, all: bool) {
        let mut blobs = if all { BTreeSet::new() } else { self.noted_lost() };
        blobs.extend(found);
        let _ = self.write_lost(&blobs, None);
    }

    fn read_lost(&self) -> LostBlobsFile {
        let read = self.state.read(LOST_FILE).ok().flatten();
        read.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// The blobs that verifications found missing or damaged, and that were not stored again since.
    #[must_use]
    pub fn noted_lost(&self) -> BTreeSet<BlobId> {
        self.read_lost().blobs.iter().filter_map(|text| text.parse().ok()).collect()
    }

    fn write_lost(&self, blobs: &BTreeSet<BlobId>, renewed: Option<RenewedTree>) -> Result<()> {
        if blobs.is_empty() && renewed.is_none() {
            return match self.state.read(LOST_FILE)? {
                Some(_) => self.state.remove(LOST_FILE),
                None => Ok(()),
            };
        }
        let blobs = blobs.iter().map(ToString::to_string).collect();
        self.state.write_json(LOST_FILE, &LostBlobsFile { blobs, renewed })
    }

    /// What a snapshot on top of the state at `root` has to store again. Looks at the whole tree only if packs are
    /// missing, or a verification found something, since the last tree was made whole.
    pub fn plan_renewal(&self, root: MapRoot) -> Result<LostContent> {
        let missing = self.blobs.find_missing_packs()?;
        let note = self.read_lost();
        let noted: BTreeSet<BlobId> = note.blobs.iter().filter_map(|text| text.parse().ok()).collect();
        if root == self.empty_root() || (missing.is_empty() && noted.is_empty()) {
            return Ok(LostContent::Nothing);
        }
        self.blobs.note_lost_blobs(noted);
        let is_renewed = note.renewed.is_some_and(|tree| {
            tree.root == root.0.to_string()
                && missing.iter().all(|pack| tree.packs.contains(&pack.to_string()))
        });
        if is_renewed {
            return Ok(LostContent::Nothing);
        }
        let mut files = BTreeSet::new();
        let seen = walk(
            &*self.nodes,
            &root,
            |_, _| true,
            |id, node| {
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
            Err(error) if is_damage(&error) => Ok(LostContent::Tree),
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

    /// A snapshot was made of everything that could be read: what was lost of the state at `root` is stored again.
    pub fn note_renewed(&self, root: MapRoot) {
        let note = self.read_lost();
        let missing: HashSet<PackId> = self.blobs.find_missing_packs().unwrap_or_default();
        if note.blobs.is_empty() && missing.is_empty() && note.renewed.is_none() {
            return;
        }
        let noted = note.blobs.iter().filter_map(|text| text.parse().ok());
        let left: BTreeSet<BlobId> = noted.filter(|id| self.blobs.is_lost(id)).collect();
        let packs: Vec<_> = missing.iter().map(ToString::to_string).collect();
        let renewed = RenewedTree { root: root.0.to_string(), packs };
        let is_whole = left.is_empty() && missing.is_empty();
        // Without it, the next snapshot looks again.
        let _ = self.write_lost(&left, (!is_whole).then_some(renewed));
    }
}

/// Whether an error says that something stored is damaged or missing.
#[must_use]
pub fn is_damage(error: &VolumeError) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}
