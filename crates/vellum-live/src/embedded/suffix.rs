//! Keys cut in two: the first bytes, by which entries stand together, and the rest.
//!
//! Invariant: the order of (group, rest) is the order of whole keys. Short rests lie within the map's nodes: no
//! allocation for them, and no jump to compare them.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// Bytes of a key that name its group: a tag and a number, as all keys begin.
pub(crate) const GROUP_LEN: usize = 9;
/// Bytes of a rest that need no allocation: what makes a suffix as large as three words.
const INLINE_MAX: usize = 22;

/// The first bytes of a key. A key that is shorter is a group of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupKey {
    /// Padded with zeros.
    bytes: [u8; GROUP_LEN],
    len: u8,
}

impl GroupKey {
    /// The group that a key stands in.
    pub(crate) fn from_key(key: &[u8]) -> Self {
        let mut bytes = [0; GROUP_LEN];
        let len = key.len().min(GROUP_LEN);
        for (to, from) in bytes.iter_mut().zip(key) {
            *to = *from;
        }
        Self { bytes, len: len as u8 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// The group of a key and what follows.
pub(crate) fn split_key(key: &[u8]) -> (GroupKey, &[u8]) {
    (GroupKey::from_key(key), key.get(GROUP_LEN..).unwrap_or_default())
}

/// What follows the group in a key.
#[derive(Debug, Clone)]
pub(crate) enum KeySuffix {
    Inline { len: u8, bytes: [u8; INLINE_MAX] },
    Boxed(Box<[u8]>),
}

impl KeySuffix {
    pub(crate) fn new(rest: &[u8]) -> Self {
        let mut bytes = [0; INLINE_MAX];
        match bytes.get_mut(..rest.len()) {
            Some(start) => {
                start.copy_from_slice(rest);
                Self::Inline { len: rest.len() as u8, bytes }
            }
            None => Self::Boxed(rest.into()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Boxed(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for KeySuffix {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for KeySuffix {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeySuffix {}

impl PartialOrd for KeySuffix {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeySuffix {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_suffix_is_three_words() {
        assert_eq!(size_of::<KeySuffix>(), 24);
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_whole_keys(
            a in proptest::collection::vec(0_u8..3, 0..40),
            b in proptest::collection::vec(0_u8..3, 0..40),
        ) {
            let halves = |key: &[u8]| {
                let (group, rest) = split_key(key);
                assert_eq!([group.as_bytes(), rest].concat(), key);
                (group, KeySuffix::new(rest))
            };
            prop_assert_eq!(halves(&a).cmp(&halves(&b)), a.cmp(&b));
        }
    }
}
