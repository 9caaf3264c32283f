//! Seeking to data and holes in a file that somebody may write: the kernel may have pages that we have not been given,
//! and it does not write them back before it asks. So it is told to, and only then looked.
//!
//! That waits for requests that our own threads answer; so a thread of its own does it, one file after the other.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use crate::connection::Notifier;
use crate::wire::{Answer, Notice, Small};

/// The way to the kernel, once the mount is there.
pub type ToKernel = Arc<OnceLock<Notifier>>;

/// What is done once the kernel's pages are here.
type Look = Box<dyn FnOnce() + Send>;

/// The way to the thread that fetches the kernel's pages.
pub struct Seeking {
    wanted: Sender<(u64, Look)>,
}

impl Seeking {
    /// Starts the thread. It ends when this is dropped.
    pub fn start(kernel: ToKernel) -> io::Result<Self> {
        let (wanted, received) = channel();
        std::thread::Builder::new().name("vellum-seek".into()).spawn(move || fetch(&kernel, &received))?;
        Ok(Self { wanted })
    }

    /// Looks once the kernel's pages are here.
    pub fn look(&self, node: u64, look: impl FnOnce() + Send + 'static) {
        // The thread lives as long as this does.
        let _ = self.wanted.send((node, Box::new(look)));
    }
}

/// What answers that data or a hole was found, or not.
pub(super) fn seek_answer(done: std::result::Result<u64, Errno>) -> Answer {
    Answer::of(done, |&offset| Small::offset(offset))
}

fn fetch(kernel: &ToKernel, received: &Receiver<(u64, Look)>) {
    for (node, look) in received {
        if let Some(kernel) = kernel.get() {
            // All pages of the file, changed ones written back first. If that fails, so does the program's `fsync`.
            let _ = kernel.tell(Notice::Inode(node));
        }
        look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_made() {
        let seeking = Seeking::start(ToKernel::default()).unwrap();
        let (tell, told) = channel();
        seeking.look(7, move || tell.send(()).unwrap());
        told.recv().unwrap();
    }
}
