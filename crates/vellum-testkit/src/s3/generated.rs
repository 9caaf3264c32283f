//! Objects of which only the names exist: a bucket with millions of them takes no memory.

/// Objects in one folder, with names that are made when they are listed. They have no content: nothing reads them.
#[derive(Debug, Clone)]
pub struct GeneratedObjects {
    /// What all keys begin with.
    pub prefix: String,
    /// What all keys end with.
    pub suffix: String,
    /// How many there are.
    pub count: u64,
}

impl GeneratedObjects {
    fn key(&self, number: u64) -> String {
        // As many digits for all: their order is that of their numbers.
        format!("{}{number:010}{}", self.prefix, self.suffix)
    }

    /// The keys that sort behind another, in their order.
    pub(super) fn keys_behind(&self, after: &str) -> impl Iterator<Item = String> {
        // By halving: to go through millions of names for each page would take too long.
        let mut passed = 0;
        let mut left = self.count;
        while left > 0 {
            let half = left / 2;
            if *self.key(passed + half) <= *after {
                passed += half + 1;
                left -= half + 1;
            } else {
                left = half;
            }
        }
        (passed..self.count).map(move |number| self.key(number))
    }
}
