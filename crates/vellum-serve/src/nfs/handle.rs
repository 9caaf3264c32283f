//! Handles: what clients hold instead of numbers of inodes. They stay the same when the gateway is started again.

use vellum_library::{Metadata, Volume};

use super::protocol::NfsStatus;

/// Bytes of the authentication.
const MAC_LEN: usize = 16;
/// Bytes of a handle: the number of the inode, its birth, and the authentication.
pub const HANDLE_LEN: usize = 8 + 8 + MAC_LEN;

/// Makes and checks the handles of one tree.
pub struct HandleKey {
    key: [u8; 32],
}

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldInode {
    /// Its number.
    pub ino: u64,
    birth: u64,
}

impl HeldInode {
    /// The inode with these attributes.
    #[must_use]
    pub fn of(found: &Metadata) -> Self {
        let attr = found.attributes();
        // After a restore, a number may be given out again. It then has another moment of creation, or another name.
        let nanos = attr.btime.secs.wrapping_mul(1_000_000_000).wrapping_add(i64::from(attr.btime.nanos));
        Self { ino: found.ino(), birth: nanos.cast_unsigned() ^ attr.generation.rotate_left(48) }
    }
}

impl HandleKey {
    /// That of a tree, which `tree` describes: a snapshot by its id, a worktree by its name.
    #[must_use]
    pub fn new(volume: &Volume, tree: &str) -> Self {
        Self { key: volume.derive_key(&format!("handles of NFS for {tree}")) }
    }

    /// A number that tells the tree from others: clients keep apart by it what they have in memory.
    #[must_use]
    pub fn tree_number(&self) -> u64 {
        let hash = blake3::keyed_hash(&self.key, b"filesystem");
        hash.as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes)
    }

    /// The handle of an inode.
    #[must_use]
    pub fn seal(&self, inode: HeldInode) -> [u8; HANDLE_LEN] {
        let mut handle = [0; HANDLE_LEN];
        let parts = handle.split_at_mut(HANDLE_LEN - MAC_LEN);
        for (place, byte) in parts.0.iter_mut().zip(numbers(inode)) {
            *place = byte;
        }
        parts.1.copy_from_slice(&self.authenticate(inode));
        handle
    }

    /// The inode of a handle that was given out for this tree.
    pub fn open(&self, handle: &[u8]) -> Result<HeldInode, NfsStatus> {
        let handle: &[u8; HANDLE_LEN] = handle.try_into().map_err(|_| NfsStatus::BadHandle)?;
        let [ino, birth] = [0, 8].map(|at| {
            handle.get(at..at + 8).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
        });
        let inode = HeldInode { ino, birth };
        // Whoever could guess it by its time could ask for the handle itself.
        if handle.ends_with(&self.authenticate(inode)) { Ok(inode) } else { Err(NfsStatus::BadHandle) }
    }

    fn authenticate(&self, inode: HeldInode) -> [u8; MAC_LEN] {
        let numbers: Vec<u8> = numbers(inode).collect();
        let hash = blake3::keyed_hash(&self.key, &numbers);
        hash.as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

fn numbers(inode: HeldInode) -> impl Iterator<Item = u8> {
    inode.ino.to_le_bytes().into_iter().chain(inode.birth.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handles_of_the_tree_are_opened() {
        let key = HandleKey { key: [1; 32] };
        let inode = HeldInode { ino: 7, birth: 9 };
        let handle = key.seal(inode);
        assert_eq!(key.open(&handle), Ok(inode));
        assert_eq!(HandleKey { key: [2; 32] }.open(&handle), Err(NfsStatus::BadHandle));
        for at in 0..HANDLE_LEN {
            let mut forged = handle;
            forged[at] ^= 1;
            assert_eq!(key.open(&forged), Err(NfsStatus::BadHandle), "{at}");
            assert_eq!(key.open(&handle[..at]), Err(NfsStatus::BadHandle), "{at}");
        }
        assert_ne!(key.seal(HeldInode { ino: 7, birth: 10 }), handle);
    }
}
