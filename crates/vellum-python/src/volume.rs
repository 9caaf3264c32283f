//! An open volume.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pyo3::prelude::*;
use vellum_library::{HistoryQuery, HistoryRow, Volume, VolumeAddress, VolumeOptions};

use crate::error::{run_detached, to_opening_exception};
use crate::handle::Handle;
use crate::history::{ChangeListJson, HistoryPageJson, PathVersionJson, snapshot_json, to_json};
use crate::tree::{NativeTree, OpenTree};

/// A volume.
#[pyclass(frozen)]
pub struct NativeVolume {
    handle: Handle<Volume>,
}

impl NativeVolume {
    fn new(volume: Volume) -> Self {
        Self { handle: Handle::new("volume", volume) }
    }
}

/// Opens the volume of a directory, or of one of its parents.
#[pyfunction]
pub fn open_volume(py: Python<'_>, path: &[u8]) -> PyResult<NativeVolume> {
    Ok(NativeVolume::new(run_detached(py, || Volume::open(Path::new(OsStr::from_bytes(path))))?))
}

/// Opens the volume in the store at an address. The secret opens an encrypted one; a plain one is opened only if it is to be.
#[pyfunction]
pub fn open_address(
    py: Python<'_>,
    store: &str,
    secret: Option<&[u8]>,
    credentials: Option<&str>,
    plain: bool,
) -> PyResult<NativeVolume> {
    let address = VolumeAddress { store, credentials, secret, plain, state: None };
    let opened = py.detach(|| Volume::open_by_address(&address));
    opened.map(NativeVolume::new).map_err(|error| to_opening_exception(py, &error))
}

/// Creates a volume in a directory; returns it with its recovery code, which a plain one does not have.
#[pyfunction]
pub fn create_volume(
    py: Python<'_>,
    path: &[u8],
    store: Option<String>,
    credentials: Option<String>,
    plain: bool,
) -> PyResult<(NativeVolume, Option<String>)> {
    let options = VolumeOptions { store, credentials, plain, ..VolumeOptions::default() };
    let created = run_detached(py, || Volume::create_with(Path::new(OsStr::from_bytes(path)), &options))?;
    Ok((NativeVolume::new(created.volume), created.recovery_code))
}

#[pymethods]
impl NativeVolume {
    /// Returns a part of the history as JSON.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[pyo3(signature = (*, worktree=None, after=None, limit, path=None, grep=None, tag=None))]
    fn history(
        &self,
        py: Python<'_>,
        worktree: Option<String>,
        after: Option<&str>,
        limit: usize,
        path: Option<Vec<u8>>,
        grep: Option<String>,
        tag: Option<String>,
    ) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        let page = run_detached(py, || {
            // Here and not before, since resolving a name may ask the store: the interpreter's lock is released for that, too.
            let after = after.map(|text| volume.resolve_snapshot(text)).transpose()?;
            volume.history(&HistoryQuery { worktree, after, limit, path, grep, tag, from: None, to: None })
        })?;
        to_json(&HistoryPageJson::from(page))
    }

    /// Returns what is known of a snapshot as JSON.
    fn describe(&self, py: Python<'_>, snapshot: &str) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        let (entry, labels) = run_detached(py, || volume.find_snapshot(volume.resolve_snapshot(snapshot)?))?;
        to_json(&snapshot_json(HistoryRow { entry, labels, lane: None }))
    }

    /// Returns the versions of a path up to a snapshot as JSON, newest first, at most `limit`.
    fn versions(&self, py: Python<'_>, path: &[u8], newest: &str, limit: usize) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        let versions = run_detached(py, || {
            let newest = volume.resolve_snapshot(newest)?;
            let versions = volume.path_versions(path, newest)?.take(limit);
            versions
                .map(|version| Ok(PathVersionJson::from(version?)))
                .collect::<vellum_library::Result<Vec<_>>>()
        })?;
        to_json(&versions)
    }

    /// Returns the differences between two snapshots at and below a path as JSON.
    fn compare(&self, py: Python<'_>, old: &str, new: &str, path: &[u8]) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        let found = run_detached(py, || {
            volume.compare(volume.resolve_snapshot(old)?, volume.resolve_snapshot(new)?, path)
        })?;
        to_json(&ChangeListJson { changes: found.changes.iter().map(Into::into).collect() })
    }

    /// Returns what identifies the content of a path in a snapshot: equal contents have the same.
    fn content_id(&self, py: Python<'_>, snapshot: &str, path: &[u8]) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        let record = run_detached(py, || volume.read_path(volume.resolve_snapshot(snapshot)?, path))?;
        Ok(record.content.to_string())
    }

    /// Returns the id of a snapshot that is named in any of the ways of the command line.
    fn resolve(&self, py: Python<'_>, text: &str) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        Ok(run_detached(py, || volume.resolve_snapshot(text))?.to_string())
    }

    /// Opens a snapshot.
    fn open_snapshot(&self, py: Python<'_>, text: &str) -> PyResult<NativeTree> {
        let volume = self.handle.get(py)?;
        Ok(NativeTree::new(OpenTree::Snapshot(run_detached(py, || volume.open_snapshot(text))?)))
    }

    /// Creates a live worktree with the content of a snapshot, or empty, and opens it.
    fn create_worktree(&self, py: Python<'_>, name: &str, from: Option<&str>) -> PyResult<NativeTree> {
        let volume = self.handle.get(py)?;
        Ok(NativeTree::new(OpenTree::Worktree(run_detached(py, || volume.create_worktree(name, from))?)))
    }

    /// Opens a live worktree.
    fn open_worktree(&self, py: Python<'_>, name: &str) -> PyResult<NativeTree> {
        let volume = self.handle.get(py)?;
        Ok(NativeTree::new(OpenTree::Worktree(run_detached(py, || volume.open_worktree(name))?)))
    }

    /// Returns the names of all worktrees.
    fn worktrees(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let volume = self.handle.get(py)?;
        run_detached(py, || volume.list_worktrees())
    }

    fn tag(&self, py: Python<'_>, name: &str, snapshot: &str) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        run_detached(py, || volume.tag_snapshot(name, volume.resolve_snapshot(snapshot)?))
    }

    fn forget(&self, py: Python<'_>, snapshot: &str) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        run_detached(py, || volume.forget_snapshot(volume.resolve_snapshot(snapshot)?))
    }

    /// Deletes what nothing needs; returns how many bytes the store takes less.
    fn collect_garbage(&self, py: Python<'_>) -> PyResult<u64> {
        let volume = self.handle.get(py)?;
        Ok(run_detached(py, || volume.collect_garbage())?.freed_bytes)
    }

    /// The id of the volume.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<String> {
        let volume = self.handle.get(py)?;
        Ok(run_detached(py, || volume.facts())?.volume)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.handle.close(py)?;
        py.detach(|| drop(volume));
        Ok(())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }
}
