//! Open directories: each is listed when it is first read, and again when it is rewound, so that names which come and
//! go meanwhile neither show twice nor hide others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vellum_types::FileKind;

/// A name in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The kernel's number of what it stands for.
    pub node: u64,
    /// Its kind.
    pub kind: FileKind,
}

/// A listing, with `.` and `..` in front.
pub type Listing = Arc<Vec<Listed>>;

/// The table of open directories.
#[derive(Debug, Default)]
pub struct Dirs {
    open: Mutex<HashMap<u64, Option<Listing>>>,
    next: AtomicU64,
}

impl Dirs {
    /// Opens a directory; gives its handle.
    pub fn open(&self) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(handle, None);
        handle
    }

    /// The listing that a handle reads, from `offset` on: made anew at the beginning.
    pub fn listing<E>(
        &self,
        handle: u64,
        offset: u64,
        list: impl FnOnce() -> Result<Vec<Listed>, E>,
    ) -> Result<Listing, E> {
        if offset > 0
            && let Some(Some(listing)) = self.lock().get(&handle)
        {
            return Ok(listing.clone());
        }
        let listing = Arc::new(list()?);
        self.lock().insert(handle, Some(listing.clone()));
        Ok(listing)
    }

    /// Closes a directory.
    pub fn close(&self, handle: u64) {
        self.lock().remove(&handle);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Option<Listing>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str) -> Result<Vec<Listed>, ()> {
        Ok(vec![Listed { name: name.into(), node: 2, kind: FileKind::File }])
    }

    #[test]
    fn a_listing_stays_until_the_directory_is_rewound() {
        let dirs = Dirs::default();
        let handle = dirs.open();
        assert_eq!(dirs.listing(handle, 0, || one("a")).unwrap()[0].name, b"a");
        assert_eq!(dirs.listing(handle, 1, || one("b")).unwrap()[0].name, b"a");
        assert_eq!(dirs.listing(handle, 0, || one("c")).unwrap()[0].name, b"c");
        dirs.close(handle);
        assert!(dirs.lock().is_empty());
    }
}
