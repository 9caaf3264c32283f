//! Options for opening a file.

use rustix::io::Errno;
use vellum_fs::Result;

/// Default permissions of new files.
const MODE: u32 = 0o644;

/// Options for opening a file, like [`std::fs::OpenOptions`].
///
/// ```
/// use vellum_library::OpenOptions;
///
/// let log = OpenOptions::new().append(true).create(true).mode(0o600);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: MODE,
        }
    }
}

impl OpenOptions {
    /// Creates options that allow nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the file for reading.
    pub fn read(self, read: bool) -> Self {
        Self { read, ..self }
    }

    /// Opens the file for writing.
    pub fn write(self, write: bool) -> Self {
        Self { write, ..self }
    }

    /// Makes every write append at the current end of the file.
    pub fn append(self, append: bool) -> Self {
        Self { append, ..self }
    }

    /// Removes the file's content when it is opened.
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Creates the file if it does not exist.
    pub fn create(self, create: bool) -> Self {
        Self { create, ..self }
    }

    /// Creates the file, and fails if it exists.
    pub fn create_new(self, create_new: bool) -> Self {
        Self { create_new, ..self }
    }

    /// Sets the permissions of a new file. The umask is not applied.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.write || self.append
    }

    /// Fails if the options contradict each other.
    pub(crate) fn validate(&self) -> Result<()> {
        let makes = self.truncate || self.create || self.create_new;
        let aimless = !self.read && !self.is_writable();
        // As in the standard library: of a file that has to be new, there is nothing to truncate.
        let truncates_and_appends = self.append && self.truncate && !self.create_new;
        if aimless || makes && !self.is_writable() || truncates_and_appends {
            return Err(Errno::INVAL.into());
        }
        Ok(())
    }
}
