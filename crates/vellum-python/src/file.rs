//! An open file.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vellum_library::File;

use crate::content::read_file_range;
use crate::error::run_detached;
use crate::handle::Handle;
use crate::rows::StatRow;

/// An open file. Positions are kept by `vellum.files`.
#[pyclass(frozen)]
pub struct NativeFile {
    // Shared with calls that other threads have under way: closing the handle does not end these.
    handle: Handle<Arc<File>>,
}

impl NativeFile {
    /// Hands a file to Python.
    pub fn new(file: File) -> Self {
        Self { handle: Handle::new("file", Arc::new(file)) }
    }
}

#[pymethods]
impl NativeFile {
    /// Returns the bytes at an offset, fewer only at the end of the file.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        read_file_range(py, &self.handle.get(py)?, offset, length)
    }

    /// Writes at an offset, or at the end if the file was opened for appending; returns how many bytes.
    fn write_at(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<usize> {
        let file = self.handle.get(py)?;
        // The bytes belong to an object `bytes`, which no other thread can change meanwhile. A `bytearray` is not accepted for
        // this reason.
        run_detached(py, || file.write_at(data, offset))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.handle.get(py)?;
        run_detached(py, || file.truncate(size))
    }

    /// Waits until what was written survives a power cut.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.handle.get(py)?;
        run_detached(py, || file.sync())
    }

    fn stat(&self, py: Python<'_>) -> PyResult<StatRow> {
        let file = self.handle.get(py)?;
        Ok(StatRow::new(&run_detached(py, || file.stat())?))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.handle.close(py)?;
        // Dropping may wait for a restore in progress, in a thread that may want the interpreter.
        py.detach(|| drop(file));
        Ok(())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }
}
