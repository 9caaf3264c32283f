//! A walk over a tree, handed over in batches: one call for each name would cost more than the walk.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use vellum_library::{TreeWalk, WalkEntry};

use crate::error::run_detached;
use crate::handle::Handle;
use crate::rows::EntryRow;

/// Entries of one batch.
const BATCH: usize = 1024;

/// The entries at and below a path, directories before their content.
#[pyclass(frozen)]
pub struct NativeScan {
    // Methods of a frozen class get shared references only, and a walk changes with each entry.
    handle: Handle<Arc<Mutex<TreeWalk>>>,
}

impl NativeScan {
    /// Begins a walk.
    pub fn new(walk: TreeWalk) -> Self {
        Self { handle: Handle::new("walk", Arc::new(Mutex::new(walk))) }
    }
}

#[pymethods]
impl NativeScan {
    /// Returns the next entries, paths with attributes; an empty list at the end.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Vec<EntryRow<'py>>> {
        // Before the walk is locked: another thread may have had that lock when this process was forked.
        let walk = self.handle.get(py)?;
        let entries = run_detached(py, || {
            // Threads that share a scan wait here without the interpreter's lock, so that others go on.
            walk.lock().by_ref().take(BATCH).collect::<vellum_library::Result<Vec<WalkEntry>>>()
        })?;
        let row = |entry: &WalkEntry| EntryRow::new(py, entry.path.as_os_str().as_bytes(), &entry.metadata);
        Ok(entries.iter().map(row).collect())
    }
}
