//! A tree of files: a snapshot, or a live worktree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::Errno;
use vellum_host::escape::format_path;
use vellum_library::{File, OpenOptions, Snapshot, Tree, Worktree};
use vellum_types::ErrorKind;

use crate::content::read_file_range;
use crate::error::{make_exception, run_detached, to_exception};
use crate::file::NativeFile;
use crate::handle::Handle;
use crate::rows::{EntryRow, StatRow};
use crate::scan::NativeScan;

/// Ranges that are read at the same time.
const READERS: usize = 8;

/// What is read.
#[derive(Clone)]
pub enum OpenTree {
    /// A snapshot, which never changes.
    Snapshot(Snapshot),
    /// A live worktree.
    Worktree(Worktree),
}

/// Calls a method that both kinds of trees have.
macro_rules! on_tree {
    ($open:expr, $tree:ident => $body:expr) => {
        // A macro and no trait object: methods of `Tree` are generic over their paths.
        match $open {
            OpenTree::Snapshot($tree) => $body,
            OpenTree::Worktree(worktree) => {
                let $tree = worktree.root();
                $body
            }
        }
    };
}

/// A tree of files. Paths are bytes, relative to its root.
#[pyclass(frozen)]
pub struct NativeTree {
    handle: Handle<OpenTree>,
}

impl NativeTree {
    /// Hands a tree to Python.
    pub fn new(tree: OpenTree) -> Self {
        let what = match tree {
            OpenTree::Snapshot(_) => "snapshot",
            OpenTree::Worktree(_) => "worktree",
        };
        Self { handle: Handle::new(what, tree) }
    }

    /// Returns the worktree. Fails if it is a snapshot, which cannot be changed.
    fn worktree(&self, py: Python<'_>) -> PyResult<Worktree> {
        match self.handle.get(py)? {
            OpenTree::Worktree(worktree) => Ok(worktree),
            OpenTree::Snapshot(snapshot) => {
                let message = format!("snapshot {} cannot be changed", snapshot.id());
                // With the number that the kernel would give for a snapshot: programs that know read-only filesystems look for
                // it.
                Err(make_exception(py, ErrorKind::Usage, Some(Errno::ROFS.raw_os_error()), message))
            }
        }
    }

    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&Worktree) -> vellum_library::Result<()> + Send,
    ) -> PyResult<()> {
        let worktree = self.worktree(py)?;
        run_detached(py, || change(&worktree))
    }
}

#[pymethods]
impl NativeTree {
    /// Returns the attributes at a path.
    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<StatRow> {
        let open = self.handle.get(py)?;
        let read = || on_tree!(&open, tree => if follow { tree.stat(to_path(path)) } else { tree.lstat(to_path(path)) });
        Ok(StatRow::new(&run_detached(py, read)?))
    }

    fn exists(&self, py: Python<'_>, path: &[u8]) -> PyResult<bool> {
        let open = self.handle.get(py)?;
        run_detached(py, || on_tree!(&open, tree => tree.exists(to_path(path))))
    }

    /// Returns the names of a directory with their attributes.
    fn list_dir<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Vec<EntryRow<'py>>> {
        let open = self.handle.get(py)?;
        // A single page of everything: `read_dir` gives no attributes, and asking for each entry by its path would resolve it
        // each time.
        let read = || on_tree!(&open, tree => tree.read_dir_page(to_path(path), None, usize::MAX));
        let page = run_detached(py, read)?;
        Ok(page
            .entries
            .iter()
            .map(|entry| EntryRow::new(py, entry.name.as_bytes(), &entry.metadata))
            .collect())
    }

    /// Begins a walk over what is at and below a path.
    fn scan(&self, py: Python<'_>, path: &[u8]) -> PyResult<NativeScan> {
        let open = self.handle.get(py)?;
        // With the interpreter's lock: nothing is read before the first batch is asked for.
        Ok(NativeScan::new(on_tree!(&open, tree => tree.walk(to_path(path)))))
    }

    fn read_link<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.handle.get(py)?;
        let target = run_detached(py, || on_tree!(&open, tree => tree.read_link(to_path(path))))?;
        Ok(PyBytes::new(py, target.as_os_str().as_bytes()))
    }

    /// Returns the extended attributes, names with values.
    fn xattrs<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let open = self.handle.get(py)?;
        let found = run_detached(py, || on_tree!(&open, tree => read_xattrs(tree, path)))?;
        Ok(found.iter().map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value))).collect())
    }

    /// Returns the whole content of a file.
    fn read<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let file = Arc::new(self.open_for_reading(py, path)?);
        read_file_range(py, &file, 0, usize::MAX)
    }

    /// Returns ranges of files, each a path, an offset and a length; those of large lists are read at the same time. An
    /// element is the exception instead if its range cannot be read.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(Vec<u8>, u64, usize)>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let open = self.handle.get(py)?;
        let read = |(path, offset, length): &(Vec<u8>, u64, usize)| on_tree!(&open, tree => read_range(tree, path, *offset, *length));
        // An empty list has a share of 0, of which `chunks` would panic.
        let share = ranges.len().div_ceil(READERS).max(1);
        let found: Vec<_> = py.detach(|| {
            std::thread::scope(|scope| {
                let readers: Vec<_> = ranges
                    .chunks(share)
                    .map(|part| scope.spawn(move || part.iter().map(read).collect::<Vec<_>>()))
                    .collect();
                let join = |reader: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
                    reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                readers.into_iter().flat_map(join).collect()
            })
        });
        // Only here, with the interpreter's lock again, objects of Python can be made.
        let value = |result: &vellum_library::Result<Vec<u8>>| match result {
            Ok(content) => PyBytes::new(py, content).into_any(),
            Err(error) => to_exception(py, error).into_value(py).into_bound(py).into_any(),
        };
        Ok(found.iter().map(value).collect())
    }

    /// Opens a file. The mode is `r`, `r+`, `w`, `w+`, `x`, `x+`, `a` or `a+`, as in `open()` of Python.
    fn open(&self, py: Python<'_>, path: &[u8], mode: &str) -> PyResult<NativeFile> {
        // Apart from the others, since it is the only mode in which a file of a snapshot can be opened.
        if mode == "r" {
            return Ok(NativeFile::new(self.open_for_reading(py, path)?));
        }
        let options = parse_mode(mode)?;
        let worktree = self.worktree(py)?;
        Ok(NativeFile::new(run_detached(py, || worktree.open_with(to_path(path), options))?))
    }

    /// Replaces the content of a file, or creates it.
    fn write(&self, py: Python<'_>, path: &[u8], content: &[u8]) -> PyResult<()> {
        self.change(py, |tree| tree.write(to_path(path), content))
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], parents: bool) -> PyResult<()> {
        self.change(
            py,
            |tree| if parents { tree.mkdir_all(to_path(path)) } else { tree.mkdir(to_path(path)) },
        )
    }

    /// Removes a file or an empty directory; with `recursive`, a directory with its content.
    fn remove(&self, py: Python<'_>, path: &[u8], recursive: bool) -> PyResult<()> {
        self.change(
            py,
            |tree| if recursive { tree.remove_all(to_path(path)) } else { tree.remove(to_path(path)) },
        )
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.change(py, |tree| tree.rename(to_path(from), to_path(to)))
    }

    /// Copies a file; its content is shared.
    fn copy(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.change(py, |tree| tree.copy(to_path(from), to_path(to)).map(drop))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        self.change(py, |tree| tree.symlink(to_path(target), to_path(path)))
    }

    fn link(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.change(py, |tree| tree.link(to_path(from), to_path(to)))
    }

    fn chmod(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        self.change(py, |tree| tree.chmod(to_path(path), mode))
    }

    fn set_xattr(&self, py: Python<'_>, path: &[u8], name: &[u8], value: &[u8]) -> PyResult<()> {
        self.change(py, |tree| tree.set_xattr(to_path(path), name, value))
    }

    /// Sets the times of access and of change of content, in nanoseconds since 1970.
    fn set_times(&self, py: Python<'_>, path: &[u8], accessed: i64, modified: i64) -> PyResult<()> {
        self.change(py, |tree| {
            tree.set_times(to_path(path), Some(to_system_time(accessed)), Some(to_system_time(modified)))
        })
    }

    /// Makes a snapshot of a worktree and returns its id.
    fn create_snapshot(&self, py: Python<'_>, note: &str, tags: Vec<String>) -> PyResult<String> {
        let worktree = self.worktree(py)?;
        let tags: Vec<_> = tags.iter().map(String::as_str).collect();
        Ok(run_detached(py, || worktree.create_snapshot_with_tags(note, &tags))?.to_string())
    }

    /// Opens a snapshot by its name as this worktree knows it, also one that is not published yet.
    fn open_snapshot(&self, py: Python<'_>, text: &str) -> PyResult<Self> {
        let worktree = self.worktree(py)?;
        Ok(Self::new(OpenTree::Snapshot(run_detached(py, || worktree.open_snapshot(text))?)))
    }

    /// Makes a worktree what a snapshot holds; returns the id of the safety snapshot of what no other one held.
    fn restore(&self, py: Python<'_>, text: &str, discard: bool) -> PyResult<Option<String>> {
        let worktree = self.worktree(py)?;
        let restore = || match discard {
            true => worktree.restore_discarding_changes(text).map(|()| None),
            false => worktree.restore_snapshot(text),
        };
        Ok(run_detached(py, restore)?.map(|id| id.to_string()))
    }

    /// Whether a worktree was changed since its last snapshot.
    fn is_changed(&self, py: Python<'_>) -> PyResult<bool> {
        let worktree = self.worktree(py)?;
        run_detached(py, || worktree.is_changed())
    }

    /// Waits until all changes survive a power cut; with `publish`, until they are in the store.
    fn sync(&self, py: Python<'_>, publish: bool) -> PyResult<()> {
        self.change(py, |tree| if publish { tree.flush() } else { tree.sync() })
    }

    /// The id of a snapshot; the name of a worktree.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match self.handle.get(py)? {
            OpenTree::Snapshot(snapshot) => snapshot.id().to_string(),
            OpenTree::Worktree(worktree) => worktree.name().into(),
        })
    }

    /// Removes a worktree and gives up what is not published; published snapshots stay.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, |tree| tree.discard())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.handle.close(py)?;
        // The last user of a worktree publishes what is left when it leaves, which may take long.
        py.detach(|| drop(open));
        Ok(())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }
}

impl NativeTree {
    fn open_for_reading(&self, py: Python<'_>, path: &[u8]) -> PyResult<File> {
        let open = self.handle.get(py)?;
        let file = run_detached(py, || on_tree!(&open, tree => tree.open(to_path(path))))?;
        expect_file(py, file, path)
    }
}

/// Fails for a directory: the library opens one, as the kernel does, and nothing can be read of it.
fn expect_file(py: Python<'_>, file: File, path: &[u8]) -> PyResult<File> {
    if run_detached(py, || file.stat())?.is_dir() {
        let message = format!("cannot open {}: it is a directory", format_path(path));
        return Err(make_exception(py, ErrorKind::Usage, Some(Errno::ISDIR.raw_os_error()), message));
    }
    Ok(file)
}

fn read_xattrs(tree: &impl Tree, path: &[u8]) -> vellum_library::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in tree.xattrs(to_path(path))? {
        // One that was removed meanwhile is left out.
        if let Some(value) = tree.xattr(to_path(path), &name)? {
            found.push((name, value));
        }
    }
    Ok(found)
}

/// Reads a part of a file, as far as the file reaches.
fn read_range(tree: &impl Tree, path: &[u8], offset: u64, length: usize) -> vellum_library::Result<Vec<u8>> {
    let file = tree.open(to_path(path))?;
    // As in `read_file_range`: the length may be far more than the file has, and the buffer is allocated at once.
    let left = file.stat()?.size().saturating_sub(offset);
    let mut content = vec![0; usize::try_from(left).map_or(length, |left| left.min(length))];
    let mut filled = 0;
    while let Some(rest) = content.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    content.truncate(filled);
    Ok(content)
}

fn to_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn to_system_time(nanoseconds: i64) -> SystemTime {
    // `unsigned_abs`, since the least number has no positive counterpart. 64 bits of nanoseconds are 292 years, so neither sum
    // overflows.
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    match nanoseconds {
        0.. => SystemTime::UNIX_EPOCH + distance,
        _ => SystemTime::UNIX_EPOCH - distance,
    }
}

/// The options of a mode that writes.
fn parse_mode(mode: &str) -> PyResult<OpenOptions> {
    let plain = mode.strip_suffix('+').unwrap_or(mode);
    let options = match plain {
        // Only "r+" comes here; "r" was dealt with before.
        "r" => OpenOptions::new().write(true),
        "w" => OpenOptions::new().write(true).create(true).truncate(true),
        "x" => OpenOptions::new().write(true).create_new(true),
        "a" => OpenOptions::new().append(true).create(true),
        _ => return Err(PyValueError::new_err(format!("invalid mode: '{mode}'"))),
    };
    Ok(options.read(plain.len() < mode.len()))
}
