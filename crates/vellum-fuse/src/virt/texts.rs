//! Virtual files whose text is made when they are looked up.
//!
//! Invariant: each lookup creates a file of its own, whose text and length do not change. The kernel does not report
//! when a file is opened, so a text could not be made then.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The first number of a text; those below are for fixed files and symlinks.
const FIRST: u64 = 1 << 40;

/// The texts that the kernel knows.
#[derive(Debug, Default)]
pub struct VirtualTexts(Mutex<VirtualTextTable>);

#[derive(Debug, Default)]
struct VirtualTextTable {
    texts: HashMap<u64, Arc<[u8]>>,
    made: u64,
}

impl VirtualTexts {
    /// Adds a text, and returns its number.
    pub fn add_text(&self, text: Arc<[u8]>) -> u64 {
        let mut table = self.0.lock();
        // Numbers are not used again: the kernel may still have an entry of an earlier text.
        let number = FIRST + table.made;
        table.made += 1;
        table.texts.insert(number, text);
        number
    }

    /// The text with this number; None if it was removed.
    pub fn get_text(&self, number: u64) -> Option<Arc<[u8]>> {
        self.0.lock().texts.get(&number).cloned()
    }

    /// Removes a text that the kernel has forgotten.
    pub fn remove_text(&self, number: u64) {
        self.0.lock().texts.remove(&number);
    }
}
