//! Seeking to data and holes in a file that somebody writes: the kernel may have pages that we have not been given, and
//! it does not write them back before it asks. So it is told to, and only then looked.
//!
//! That waits for requests that our own threads answer; so a thread of its own does it, one file after the other.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fuser::{INodeNo, Notifier};
use vellum_types::Ino;

/// The way to the kernel, once the mount is there.
pub type ToKernel = Arc<OnceLock<Notifier>>;

/// What is done once the kernel's pages are here.
type Look = Box<dyn FnOnce() + Send>;

/// Files that are open for writing, and the way to the thread that fetches their pages.
pub struct Seeking {
    writers: Mutex<HashMap<Ino, u32>>,
    wanted: Sender<(Ino, Look)>,
}

impl Seeking {
    /// Starts the thread. It ends when this is dropped.
    pub fn start(kernel: ToKernel) -> io::Result<Self> {
        let (wanted, received) = channel();
        std::thread::Builder::new().name("vellum-seek".into()).spawn(move || fetch(&kernel, &received))?;
        Ok(Self { writers: Mutex::default(), wanted })
    }

    /// Somebody opened a file for writing.
    pub fn opened(&self, ino: Ino) {
        *self.lock().entry(ino).or_default() += 1;
    }

    /// Somebody closed a file that was open for writing.
    pub fn closed(&self, ino: Ino) {
        let mut writers = self.lock();
        if let Some(count) = writers.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                writers.remove(&ino);
            }
        }
    }

    /// Whether the kernel may have pages of this file that we have not been given. Who closes a file writes it back.
    pub fn is_written(&self, ino: Ino) -> bool {
        self.lock().contains_key(&ino)
    }

    /// Looks once the kernel's pages are here.
    pub fn look(&self, ino: Ino, look: impl FnOnce() + Send + 'static) {
        // The thread lives as long as this does.
        let _ = self.wanted.send((ino, Box::new(look)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, u32>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fetch(kernel: &ToKernel, received: &Receiver<(Ino, Look)>) {
    for (ino, look) in received {
        if let Some(kernel) = kernel.get() {
            // All pages of the file, changed ones written back first. If that fails, so does the program's `fsync`.
            let _ = kernel.inval_inode(INodeNo(ino.0), 0, 0);
        }
        look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_counted_and_looks_are_made() {
        let seeking = Seeking::start(ToKernel::default()).unwrap();
        let ino = Ino(7);
        assert!(!seeking.is_written(ino));
        seeking.opened(ino);
        seeking.opened(ino);
        seeking.closed(ino);
        assert!(seeking.is_written(ino));
        seeking.closed(ino);
        assert!(!seeking.is_written(ino));
        let (tell, told) = channel();
        seeking.look(ino, move || tell.send(()).unwrap());
        told.recv().unwrap();
    }
}
