//! Listings of which only a part is kept: a bucket may hold millions of objects that are nobody's business.
//!
//! Invariant: memory is taken for the objects that are wanted, and for a few names of the others.

use super::{ObjectInfo, ObjectKey};

/// Names of other objects that are kept, a count: enough to find out whose they are.
const EXAMPLES_MAX: usize = 8;
/// Longest part of such a name that is kept, bytes: services allow names that are longer than any of Vellum's.
const EXAMPLE_LEN_MAX: usize = 200;

/// Which objects are wanted, by their keys.
pub type KeyFilter = fn(&ObjectKey) -> bool;

/// A part of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectSelection {
    /// The objects that are wanted, sorted by key.
    pub objects: Vec<ObjectInfo>,
    /// The others.
    pub others: OtherObjects,
}

/// Objects of a listing that are not wanted, or whose names cannot be keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherObjects {
    /// How many there are.
    pub count: u64,
    /// The names of the first ones, as the store has them: not fit for a terminal.
    pub examples: Vec<String>,
}

impl ObjectSelection {
    /// Adds an object of a listing: it is kept if it is wanted.
    pub(super) fn add_object(&mut self, info: ObjectInfo, is_wanted: KeyFilter) {
        if is_wanted(&info.key) {
            self.objects.push(info);
        } else {
            self.others.add_name(info.key.as_str());
        }
    }
}

impl OtherObjects {
    /// Counts an object.
    pub(super) fn add_name(&mut self, name: &str) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let end = (0..=name.len().min(EXAMPLE_LEN_MAX)).rev().find(|end| name.is_char_boundary(*end));
            self.examples.push(name.get(..end.unwrap_or(0)).unwrap_or_default().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_other_objects_few_short_names_are_kept() {
        let mut others = OtherObjects::default();
        for _ in 0..1000 {
            others.add_name(&"é".repeat(600));
        }
        assert_eq!((others.count, others.examples.len()), (1000, EXAMPLES_MAX));
        assert_eq!(others.examples[0], "é".repeat(EXAMPLE_LEN_MAX / 2));
    }
}
