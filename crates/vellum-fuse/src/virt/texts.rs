//! Virtual files whose text is made when they are looked up. Each look-up makes a file of its own, so that the kernel,
//! which asks for no opening, reads what is true now, and knows how long it is.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The first number of a text; those below belong to fixed files and symlinks.
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
    /// Adds a text; gives its number.
    pub fn add_text(&self, text: Arc<[u8]>) -> u64 {
        let mut table = self.0.lock();
        let number = FIRST + table.made;
        table.made += 1;
        table.texts.insert(number, text);
        number
    }

    /// The text of this number.
    pub fn get_text(&self, number: u64) -> Option<Arc<[u8]>> {
        self.0.lock().texts.get(&number).cloned()
    }

    /// The kernel does not know it any more.
    pub fn remove_text(&self, number: u64) {
        self.0.lock().texts.remove(&number);
    }
}
