//! How a file is opened.

use rustix::io::Errno;
use vellum_fs::Result;

/// Permissions of new files, unless told otherwise.
const MODE: u32 = 0o644;

/// How a file is opened, as [`std::fs::OpenOptions`] has it.
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
    /// Nothing is allowed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// It can be read.
    pub fn read(self, read: bool) -> Self {
        Self { read, ..self }
    }

    /// It can be written.
    pub fn write(self, write: bool) -> Self {
        Self { write, ..self }
    }

    /// Everything that is written goes to its end, wherever that is by then.
    pub fn append(self, append: bool) -> Self {
        Self { append, ..self }
    }

    /// What it holds goes.
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// It is made if it is not there.
    pub fn create(self, create: bool) -> Self {
        Self { create, ..self }
    }

    /// It must not be there, and is made.
    pub fn create_new(self, create_new: bool) -> Self {
        Self { create_new, ..self }
    }

    /// The permissions that it gets if it is made. No umask takes any away.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.write || self.append
    }

    /// Refuses what makes no sense together.
    pub(crate) fn validate(&self) -> Result<()> {
        let makes = self.truncate || self.create || self.create_new;
        let aimless = !self.read && !self.is_writable();
        let truncates_and_appends = self.append && self.truncate && !self.create_new;
        if aimless || makes && !self.is_writable() || truncates_and_appends {
            return Err(Errno::INVAL.into());
        }
        Ok(())
    }
}
