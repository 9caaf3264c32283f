//! Repair of a volume: what a verification found missing or damaged is looked for in packs that the index does not know,
//! in copies on this machine, in remotes, in the files of this machine's worktrees, and where the caller says.
//!
//! Invariant: a file is only read. Whatever it holds, what is stored has the id of what was lost.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use vellum_chunker::Chunker;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, OpenedFile};
use vellum_host::escape::format_path;
use vellum_store::StoreLocation;
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobKind, ErrorKind, ExtentSource, FileKind};
use vellum_volume::repair::{BlobRepair, ChunkUse, RepairReport, find_chunk_uses};
use vellum_volume::state::STATE_DIR;
use vellum_volume::verify::{Verification, VerifyReport, VerifyScope};
use vellum_volume::{StateDir, Volume};

use crate::capture::{ChunkSink, ContentReader};
use crate::error::Result;

/// How often a scope is verified again because nodes were mended, below which more may be lost, a count: as many as a tree
/// has levels.
const ROUNDS_MAX: usize = 16;

/// What to repair, and from where.
#[derive(Debug)]
pub struct RepairRequest<'a> {
    /// What is verified first.
    pub scope: &'a VerifyScope,
    /// Whether the content of chunks is left out.
    pub metadata_only: bool,
    /// Places to look in beside those that are known.
    pub places: &'a [RepairPlace],
}

/// A place to look for lost content in.
#[derive(Debug, Clone)]
pub enum RepairPlace {
    /// A store of the volume.
    Store(StoreLocation),
    /// A directory: its files, and the store if it is a worktree of the volume or a store.
    Directory(PathBuf),
}

/// A volume after a repair.
pub struct RepairedVolume {
    /// What is still damaged.
    pub verified: VerifyReport,
    /// What was mended.
    pub repaired: RepairReport,
}

/// Verifies a scope, and mends what can be mended. Fails if the volume cannot be verified or written to; a place that cannot
/// be read is named in the report.
pub fn repair_volume(
    volume: &Volume,
    request: &RepairRequest<'_>,
    meter: &ProgressMeter,
) -> Result<RepairedVolume> {
    let mut repaired = RepairReport::default();
    for round in 1.. {
        let mut verification = Verification::run(volume, request.scope, request.metadata_only, meter)?;
        let lost = verification.lost_blobs();
        if lost.is_empty() && verification.damaged_packs().is_empty() {
            return Ok(RepairedVolume { verified: verification.into_report(volume)?, repaired });
        }
        let mut search = RepairSearch {
            volume,
            roots: verification.verified_roots(),
            repair: BlobRepair::begin(volume, &verification)?,
            searched: BTreeSet::new(),
            meter,
        };
        search.search_everywhere(request.places)?;
        let finished = search.repair.finish()?;
        repaired.add_report(finished.report);
        let has_node = finished.mended.iter().any(|id| lost.get(id) == Some(&BlobKind::Node));
        verification.remove_mended(&finished.mended, &finished.unused_packs);
        // What is below a node that was lost was not looked at.
        if !has_node || round == ROUNDS_MAX {
            return Ok(RepairedVolume { verified: verification.into_report(volume)?, repaired });
        }
    }
    unreachable!("the last round returns")
}

struct RepairSearch<'a> {
    volume: &'a Volume,
    roots: BTreeSet<vellum_map::MapRoot>,
    repair: BlobRepair<'a>,
    /// Directories whose files were looked at.
    searched: BTreeSet<PathBuf>,
    meter: &'a ProgressMeter,
}

impl RepairSearch<'_> {
    /// Looks in one place after the other, until nothing is lost any more.
    fn search_everywhere(&mut self, places: &[RepairPlace]) -> Result<()> {
        self.repair.search_local_copies(self.meter)?;
        for remote in self.volume.list_remotes()? {
            let name = format!("remote '{}'", remote.name);
            if self.repair.lost_blobs().is_empty() {
                return Ok(());
            }
            match self.volume.open_remote(&remote) {
                Ok(Some(there)) => self.repair.search_store(&name, &there.blobs, self.meter)?,
                Ok(None) => {}
                Err(error) => self.repair.refuse_copy(&name, error.to_string()),
            }
        }
        for directory in self.list_worktree_dirs()? {
            self.search_directory(&directory)?;
        }
        for place in places {
            match place {
                RepairPlace::Store(location) => self.search_other_store(location)?,
                RepairPlace::Directory(directory) => {
                    self.search_stores_of(directory)?;
                    self.search_directory(directory)?;
                }
            }
        }
        Ok(())
    }

    /// The directories of the volume's checked-out worktrees that are on this machine. Mounted ones read the same store.
    fn list_worktree_dirs(&self) -> Result<Vec<PathBuf>> {
        let mut directories = Vec::new();
        let (heads, _) = self.volume.list_readable_worktrees()?;
        for (name, head) in heads.into_iter().filter(|(_, head)| head.lease.is_none()) {
            // One whose state directory cannot be read is not known to be a worktree of this volume.
            if let Ok(Some(state)) = self.volume.find_worktree_state(&name, &head) {
                directories.push(state.root().to_owned());
            }
        }
        Ok(directories)
    }

    fn search_other_store(&mut self, location: &StoreLocation) -> Result<()> {
        let Self { volume, repair, meter, .. } = self;
        let found = volume
            .with_other_store(location, |there| repair.search_store(&location.url, &there.blobs, meter));
        match found {
            Ok(Some(())) => {}
            Ok(None) => self.repair.refuse_copy(&location.url, "it holds no volume"),
            // Writing to the own store failed, or the user stopped: a foreign store is only named.
            Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Interrupted) => {
                return Err(error.into());
            }
            Err(error) => self.repair.refuse_copy(&location.url, error.to_string()),
        }
        Ok(())
    }

    /// Looks in the store of a worktree's directory, or in a directory that is a store.
    fn search_stores_of(&mut self, directory: &Path) -> Result<()> {
        // That it cannot be read is said when its files are to be.
        let Ok(root) = HeldDir::open_root(directory) else { return Ok(()) };
        let has = |name: &str| root.stat(name.as_bytes()).is_ok();
        if has(STATE_DIR) {
            let opened = StateDir::find_enclosing(directory).and_then(|state| Volume::open(&state));
            let name = format!("the store of {}", directory.display());
            match opened {
                Ok(there) if there.config.volume == self.volume.config.volume => {
                    self.repair.search_store(&name, &there.blobs, self.meter)?;
                }
                // Its files may be of use all the same.
                Ok(_) => {}
                Err(error) => self.repair.refuse_copy(&name, error.to_string()),
            }
        } else if has("packs") && has("config") {
            self.search_other_store(&StoreLocation::new(directory.display().to_string()))?;
        }
        Ok(())
    }

    /// Looks in the files of a directory: first where the snapshots have the content, then everywhere.
    fn search_directory(&mut self, directory: &Path) -> Result<()> {
        // The caller may have named the directory of a worktree that was searched already.
        if !self.has_lost_chunks() || !self.searched.insert(directory.to_owned()) {
            return Ok(());
        }
        let root = match HeldDir::open_root(directory) {
            Ok(root) => root,
            Err(error) => {
                self.repair.refuse_copy(&directory.display().to_string(), error.to_string());
                return Ok(());
            }
        };
        let name = format!("files of {}", directory.display());
        let mut different = BTreeSet::new();
        let uses = find_chunk_uses(self.volume, &self.roots, self.repair.lost_blobs())?;
        for (path, uses) in uses {
            self.meter.check_stopped()?;
            self.repair.renew_if_due()?;
            if !self.offer_ranges(&name, &root, &path, &uses)? {
                different.insert(path);
            }
        }
        if self.has_lost_chunks() {
            self.offer_files_below(&name, &root)?;
        }
        // Another file may have had the content. Only what is lost still is worth a word.
        let still = find_chunk_uses(self.volume, &self.roots, self.repair.lost_blobs())?;
        for path in different.into_iter().filter(|path| still.contains_key(path)) {
            let file = format!("{}/{}", directory.display(), format_path(&path));
            self.repair.refuse_copy(&file, "its content is not what the snapshots have");
        }
        Ok(())
    }

    fn has_lost_chunks(&self) -> bool {
        self.repair.lost_blobs().values().any(|kind| *kind == BlobKind::Chunk)
    }

    /// Offers the ranges of one file. Returns false if the file is there and has something else.
    fn offer_ranges(
        &mut self,
        source: &str,
        root: &HeldDir,
        path: &[u8],
        uses: &BTreeSet<ChunkUse>,
    ) -> Result<bool> {
        let opened = root.resolve_parent(path).and_then(|(dir, name)| dir.open_file(name));
        // It is not there any more, or it is something else.
        let Ok(OpenedFile { file, .. }) = opened else { return Ok(true) };
        let mut is_same = true;
        for used in uses {
            is_same &= self.offer_range(source, &file, used)?;
        }
        Ok(is_same)
    }

    fn offer_range(&mut self, source: &str, file: &std::fs::File, used: &ChunkUse) -> Result<bool> {
        let Some(len) = usize::try_from(used.len).ok().filter(|len| *len <= BLOB_MAX) else {
            return Ok(false);
        };
        let mut content = vec![0; len];
        // A file that became shorter, or cannot be read, does not have it.
        if file.read_exact_at(&mut content, used.offset).is_err() {
            return Ok(false);
        }
        Ok(self.repair.offer_content(source, &used.chunk, &content)?)
    }

    /// Splits all files below a directory as a snapshot would, and offers what is lost.
    fn offer_files_below(&mut self, source: &str, root: &HeldDir) -> Result<()> {
        let chunker = Chunker::new(self.volume.config.chunker, &self.volume.keys.chunker_key());
        let Ok(device) = root.stat_self().map(|stat| stat.dev) else { return Ok(()) };
        let mut waiting = vec![root.clone()];
        while let Some(dir) = waiting.pop() {
            // What cannot be read is passed over: other files may have the content.
            let Ok(names) = dir.read_names() else { continue };
            for listed in names.iter().filter(|listed| listed.name != STATE_DIR.as_bytes()) {
                self.meter.check_stopped()?;
                self.repair.renew_if_due()?;
                if !self.has_lost_chunks() {
                    return Ok(());
                }
                let Ok(stat) = dir.stat(listed.name) else { continue };
                match stat.kind {
                    // Other filesystems are not the worktree's.
                    FileKind::Dir if stat.dev == device => {
                        waiting.extend(dir.open_dir_to_read(listed.name));
                    }
                    FileKind::File => self.offer_file(source, &chunker, dir.open_file(listed.name).ok())?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn offer_file(&mut self, source: &str, chunker: &Chunker, opened: Option<OpenedFile>) -> Result<()> {
        let Some(opened) = opened else { return Ok(()) };
        // `read_file` takes the file and keeps only ids: what is lost is read once more.
        let Ok(file) = opened.file.try_clone() else { return Ok(()) };
        let keys = self.volume.keys.clone();
        let reader = ContentReader { chunker, sink: ChunkSink::Identify(&keys), meter: self.meter };
        let Ok(content) = reader.read_file(opened, None) else { return Ok(()) };
        for (offset, extent) in content.extents {
            if let ExtentSource::Chunk { id: chunk, .. } = extent.source
                && self.repair.lost_blobs().contains_key(&chunk)
            {
                self.offer_range(source, &file, &ChunkUse { offset, len: extent.len, chunk })?;
            }
        }
        Ok(())
    }
}
