//! Node ids: the numbers by which the kernel knows inodes, and what they stand for.
//!
//! The upper 16 bits are a space: 0 is the mounted state, and 0x8000 and above are the states that it was restored to,
//! by epoch; 0x7fff are the virtual files; any other is the slot of a snapshot below `.vellum/snapshots`. The lower 48
//! bits are the number within the space.
//!
//! Invariant: the root of the mounted state is 1 in every epoch, since the kernel uses this number without a lookup.

use vellum_fs::Epoch;
use vellum_types::{FileKind, Ino};

/// Bits of the number within its space.
const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The space of the virtual files.
const VIRTUAL: u16 = FIRST_EPOCH - 1;
/// The space of an epoch is this plus its number, except that epoch 0 has space 0.
const FIRST_EPOCH: u16 = 1 << 15;

/// The number of snapshot slots: all spaces below the virtual files but that of the mounted state.
pub const SLOTS: usize = VIRTUAL as usize - 1;

/// A snapshot that was looked up below `.vellum/snapshots`, by its number from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SnapshotSlot(pub u16);

/// What a node id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodePlace {
    /// An inode of the mounted state, in one of its epochs.
    Main(Epoch, Ino),
    /// An inode of a snapshot.
    Snapshot(SnapshotSlot, Ino),
    /// A virtual file.
    Virtual(u64),
}

impl NodePlace {
    /// What a node id stands for.
    #[must_use]
    pub fn from_node(node: u64) -> Self {
        let number = node & NUMBER_MASK;
        match u16::try_from(node >> NUMBER_BITS) {
            // The root has node id 1 in all epochs, and is decoded as that of epoch 0.
            Ok(0) => Self::Main(Epoch(0), Ino(number)),
            // The shift leaves 16 bits, so that the conversion never fails.
            Ok(VIRTUAL) | Err(_) => Self::Virtual(number),
            Ok(slot) if slot < VIRTUAL => Self::Snapshot(SnapshotSlot(slot), Ino(number)),
            Ok(space) => Self::Main(Epoch(space - FIRST_EPOCH), Ino(number)),
        }
    }

    /// The node id; None if the number of the inode has more than 48 bits.
    #[must_use]
    pub fn to_node(self) -> Option<u64> {
        let (space, number) = match self {
            Self::Main(Epoch(0), ino) | Self::Main(_, ino @ Ino::ROOT) => (0, ino.0),
            Self::Main(epoch, ino) => (FIRST_EPOCH | epoch.0, ino.0),
            Self::Snapshot(slot, ino) => (slot.0, ino.0),
            Self::Virtual(number) => (VIRTUAL, number),
        };
        (number <= NUMBER_MASK).then_some(u64::from(space) << NUMBER_BITS | number)
    }
}

/// A name of a directory, as a listing has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDirName {
    /// The name.
    pub name: Vec<u8>,
    /// The node id of what it stands for; 0 if it has none.
    pub node: u64,
    /// Its kind.
    pub kind: FileKind,
}

impl ListedDirName {
    /// Whether it is `.` or `..`.
    pub fn is_dot_name(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_and_node_ids_correspond(node: u64) {
            let place = NodePlace::from_node(node);
            let id = place.to_node().unwrap();
            prop_assert_eq!(NodePlace::from_node(id).to_node(), Some(id));
            // The first epoch has a space of its own, and the root is the same in all.
            let is_twin = matches!(place, NodePlace::Main(Epoch(0), _) | NodePlace::Main(_, Ino::ROOT));
            prop_assert!(id == node || is_twin, "{:?}", place);
        }
    }

    #[test]
    fn the_root_is_the_kernels() {
        assert_eq!(NodePlace::Main(Epoch(0), Ino::ROOT).to_node(), Some(1));
        assert_eq!(NodePlace::Main(Epoch(7), Ino::ROOT).to_node(), Some(1));
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        assert_eq!(NodePlace::Snapshot(SnapshotSlot(1), Ino(1 << 48)).to_node(), None);
        assert_eq!(NodePlace::Main(Epoch(0), Ino(1 << 48)).to_node(), None);
    }
}
