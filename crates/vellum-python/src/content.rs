//! The content of files as objects `bytes`, which several threads fill.
//!
//! Invariant: memory that Python sees was written before.

use std::mem::MaybeUninit;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vellum_library::File;

use crate::error::run_detached;

/// Bytes that one thread reads at once. Signals are looked at when each thread has read one part: an interrupt waits for that.
const PART: usize = 8 << 20;
/// Threads that read parts of a large range, which are decrypted and decompressed independently of each other.
const READERS: usize = 4;
/// Bytes that are asked for at once: what is copied on the way stays in the processor's cache.
const STEP: usize = 1 << 20;

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
    // All empty objects are one, which is not to be written to.
    if length == 0 {
        return Ok(PyBytes::new(py, &[]));
    }
    // Read into the object that Python gets, so that nothing is copied.
    let content = UnwrittenBytes::allocate(py, length)?;
    let mut filled = 0;
    // SAFETY: the object is new, so nobody else has its memory.
    let room = unsafe { content.room() };
    for part in room.chunks_mut(PART * READERS) {
        let at = offset + filled as u64;
        let wanted = part.len();
        let count = run_detached(py, || fill_buffer(file, part, at))?;
        filled += count;
        py.check_signals()?;
        if count < wanted {
            break;
        }
    }
    if filled == length {
        // SAFETY: each part was filled to its end.
        return Ok(unsafe { content.finish() });
    }
    // The file became shorter meanwhile. An object `bytes` keeps its length, so that the part has to be copied.
    let written = room.get(..filled).unwrap_or_default();
    // SAFETY: `fill_buffer` counts bytes that it has written, without a gap.
    Ok(PyBytes::new(py, unsafe { written.assume_init_ref() }))
}

/// An object `bytes` whose memory was not written to.
struct UnwrittenBytes<'py> {
    object: Bound<'py, PyBytes>,
    length: usize,
}

impl<'py> UnwrittenBytes<'py> {
    fn allocate(py: Python<'py>, length: usize) -> PyResult<Self> {
        let signed = ffi::Py_ssize_t::try_from(length)?;
        // SAFETY: without content, Python allocates an object of this length, or sets an exception.
        let object = unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), signed);
            Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
        };
        Ok(Self { object, length })
    }

    /// The memory of the content.
    ///
    /// # Safety
    ///
    /// It must not be used for anything else at the same time, also not by another call of this.
    unsafe fn room(&self) -> &'py mut [MaybeUninit<u8>] {
        // SAFETY: the object has so many bytes there, for as long as it exists, and the caller has them for itself.
        unsafe {
            let start = ffi::PyBytes_AsString(self.object.as_ptr());
            std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), self.length)
        }
    }

    /// The object.
    ///
    /// # Safety
    ///
    /// All of its memory must have been written to.
    unsafe fn finish(self) -> Bound<'py, PyBytes> {
        self.object
    }
}

/// Fills a buffer from an offset; returns how many bytes there were, without a gap.
fn fill_buffer(file: &File, buffer: &mut [MaybeUninit<u8>], offset: u64) -> vellum_library::Result<usize> {
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

fn fill_part(file: &File, buffer: &mut [MaybeUninit<u8>], offset: u64) -> vellum_library::Result<usize> {
    let mut filled = 0;
    for step in buffer.chunks_mut(STEP) {
        // Reading takes memory that was written. By the thread that fills it: the kernel gives the memory with the first write.
        step.fill(MaybeUninit::new(0));
        // SAFETY: it was just written.
        let step = unsafe { step.assume_init_mut() };
        let count = fill_step(file, step, offset + filled as u64)?;
        filled += count;
        if count < step.len() {
            break;
        }
    }
    Ok(filled)
}

fn fill_step(file: &File, buffer: &mut [u8], offset: u64) -> vellum_library::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}
