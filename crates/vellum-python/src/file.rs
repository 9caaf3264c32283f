//! An open file.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vellum_library::File;

use crate::error::run_detached;
use crate::handle::Handle;
use crate::rows::StatRow;

/// Bytes that are read before signals are looked at: an interrupt waits for one part at most.
const PART: usize = 8 << 20;
/// Threads that read parts of a large range, which are decrypted and decompressed independently of each other.
const READERS: usize = 4;

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

/// Reads a range of a file, as far as the file reaches.
pub fn read_file_range<'py>(
    py: Python<'py>,
    file: &Arc<File>,
    offset: u64,
    length: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    // The buffer is allocated at once, and a caller that wants all of a file asks for the largest length there is.
    let size = run_detached(py, || file.stat())?.size();
    let length = usize::try_from(size.saturating_sub(offset)).map_or(length, |left| left.min(length));
    let mut filled = 0;
    // Read into the object that Python gets, so that nothing is copied.
    let content = PyBytes::new_with(py, length, |buffer| {
        for part in buffer.chunks_mut(PART * READERS) {
            let at = offset + filled as u64;
            let count = run_detached(py, || fill_buffer(file, part, at))?;
            filled += count;
            py.check_signals()?;
            if count < part.len() {
                break;
            }
        }
        Ok(())
    })?;
    if filled == length {
        return Ok(content);
    }
    // The file became shorter meanwhile.
    // An object `bytes` keeps its length, so that the part has to be copied.
    Ok(PyBytes::new(py, content.as_bytes().get(..filled).unwrap_or_default()))
}

/// Fills a buffer from an offset; returns how many bytes there were, without a gap.
fn fill_buffer(file: &File, buffer: &mut [u8], offset: u64) -> vellum_library::Result<usize> {
    if buffer.len() <= PART {
        // One part gives other threads nothing to do.
        return fill_part(file, buffer, offset);
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = buffer
            .chunks_mut(PART)
            .enumerate()
            .map(|(number, part)| {
                let wanted = part.len();
                let at = offset + (number * PART) as u64;
                (wanted, scope.spawn(move || fill_part(file, part, at)))
            })
            .collect();
        let mut filled = 0;
        let mut is_whole = true;
        for (wanted, reader) in readers {
            // A failure can return at once: the scope waits for the others, which still write into the buffer. A panic goes on in
            // this thread, where it becomes an exception.
            let count = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            // What follows a part that is not full lies behind the end of the file.
            if is_whole {
                filled += count;
                is_whole = count == wanted;
            }
        }
        Ok(filled)
    })
}

fn fill_part(file: &File, buffer: &mut [u8], offset: u64) -> vellum_library::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}
