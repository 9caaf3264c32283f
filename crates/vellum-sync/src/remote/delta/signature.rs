//! The description of an old file that is sent: its length, the block length, and two hashes of each block.
//!
//! Bytes: block length (u32), file length (u64), then for each block the weak hash (u32) and the first 8 bytes of its
//! BLAKE3 hash; all little endian. The last block may be short.
//!
//! Invariant: a decoded signature has exactly as many blocks as its two lengths require, and at most [`BLOCKS_MAX`].

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;

use super::rolling::RollingSum;

/// Shortest block, bytes: the hashes of shorter ones cost more than they save.
const BLOCK_MIN: u32 = 1 << 10;
/// Longest block, bytes: with [`BLOCKS_MAX`] it covers a file of 4 TiB; longer files are sent whole.
const BLOCK_MAX: u32 = 16 << 20;
/// Most blocks of a signature: 3 MiB on the wire and about 10 MiB in memory.
pub(super) const BLOCKS_MAX: u64 = 1 << 18;
/// Bytes before the hashes.
const HEADER_LEN: usize = 12;
/// Bytes of the hashes of a block.
const BLOCK_HASHES_LEN: usize = 12;
/// Bytes of the longest signature.
pub const ENCODED_MAX: usize = HEADER_LEN + BLOCKS_MAX as usize * BLOCK_HASHES_LEN;

/// Fewest bytes for a thread of its own: starting one takes longer than hashing a fraction of it.
const SHARE_MIN: u64 = 4 << 20;
/// More threads than this mostly wait for reads of one file.
const THREADS_MAX: usize = 4;
/// Bytes that are read at once, unless blocks are longer.
const READ_LEN: usize = 128 << 10;

/// The hashes of a block.
type BlockHashes = (u32, StrongHash);

/// The first bytes of a block's BLAKE3 hash. The hash of the whole file detects collisions.
pub(super) type StrongHash = [u8; 8];

/// Why bytes are not a signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The block length is out of range, or the file is too long for it.
    #[error("a signature with blocks of {block} bytes for a file of {len} bytes")]
    Lengths {
        /// The block length.
        block: u32,
        /// The file length.
        len: u64,
    },
    /// The number of hashes does not match the lengths.
    #[error("a signature whose hashes do not cover its file")]
    Count,
}

/// Hashes of an old file's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSignature {
    pub(super) block: u32,
    pub(super) len: u64,
    pub(super) hashes: Vec<BlockHashes>,
}

/// The block length for a file of `len` bytes: about its square root, which balances the cost of hashes and that of a
/// change. None for a file that is too long.
#[must_use]
pub fn choose_block_size(len: u64) -> Option<u32> {
    /// The two hashes of a block cost about as much as twelve bytes of data.
    const BALANCE: u64 = 2;
    // Up to 128 KiB, blocks grow with the square root of the file's length; beyond that only as far as the
    // limit on their number requires.
    let balanced = (len.isqrt() * BALANCE).next_multiple_of(256);
    let covering = len.div_ceil(BLOCKS_MAX).next_multiple_of(256);
    let ideal = balanced.min(128 << 10).max(covering).max(u64::from(BLOCK_MIN));
    u32::try_from(ideal).ok().filter(|block| *block <= BLOCK_MAX)
}

pub(super) fn compute_strong_hash(block: &[u8]) -> StrongHash {
    let mut short = StrongHash::default();
    short.iter_mut().zip(blake3::hash(block).as_bytes()).for_each(|(to, from)| *to = *from);
    short
}

fn compute_hashes(block: &[u8]) -> BlockHashes {
    (RollingSum::from_window(block).hash_value(), compute_strong_hash(block))
}

/// Hashes the blocks of a file from `start` on, as many as fit into the slice.
fn hash_blocks(old: &File, start: u64, len: u64, block: u32, hashes: &mut [BlockHashes]) -> io::Result<()> {
    let block = block as usize;
    let at_once = (READ_LEN / block).max(1);
    let mut buffer = vec![0; at_once * block];
    let mut position = start;
    for some in hashes.chunks_mut(at_once) {
        let wanted = (len - position).min((some.len() * block) as u64);
        let window = buffer.get_mut(..wanted as usize).unwrap_or_default();
        // A file that became shorter fails here with UnexpectedEof. It is sent whole then.
        old.read_exact_at(window, position)?;
        some.iter_mut().zip(window.chunks(block)).for_each(|(hash, block)| *hash = compute_hashes(block));
        position += wanted;
    }
    Ok(())
}

impl FileSignature {
    /// Reads an old file. If it is longer or shorter than `len` by now, the receiver notices that later.
    pub fn from_reader(old: &mut dyn Read, len: u64) -> io::Result<Option<Self>> {
        let Some(block) = choose_block_size(len) else { return Ok(None) };
        let mut hashes = Vec::new();
        let mut buffer = vec![0; block as usize];
        let mut covered = 0;
        while covered < len {
            let wanted = u64::from(block).min(len - covered);
            let Some(place) = usize::try_from(wanted).ok().and_then(|wanted| buffer.get_mut(..wanted)) else {
                break;
            };
            match old.read_exact(place) {
                Ok(()) => {}
                // The old file became shorter. Without a signature the new one is sent whole.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
            hashes.push(compute_hashes(place));
            covered += wanted;
        }
        Ok(Some(Self { block, len, hashes }))
    }

    /// Reads an old file with several threads, since the other side waits for the signature.
    pub fn from_file(old: &File, len: u64) -> io::Result<Option<Self>> {
        let Some(block) = choose_block_size(len) else { return Ok(None) };
        let count = len.div_ceil(u64::from(block)) as usize;
        let machine = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
        // The other side does nothing for this file until the signature arrives, so a large one is worth
        // several threads.
        let threads = machine.min((len / SHARE_MIN) as usize).max(1);
        let mut hashes = vec![BlockHashes::default(); count];
        let share = count.div_ceil(threads).max(1);
        let outcomes = std::thread::scope(|scope| {
            let parts = hashes.chunks_mut(share).enumerate().map(|(number, part)| {
                let start = (number * share) as u64 * u64::from(block);
                scope.spawn(move || hash_blocks(old, start, len, block, part))
            });
            let parts = parts.collect::<Vec<_>>();
            parts.into_iter().map(|part| part.join()).collect::<Vec<_>>()
        });
        for outcome in outcomes {
            // A panic is passed on: half of a signature would look like blocks of zeros.
            match outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Self { block, len, hashes }))
    }

    /// Encodes it for the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.hashes.len() * BLOCK_HASHES_LEN);
        bytes.extend(self.block.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        for (weak, strong) in &self.hashes {
            bytes.extend(weak.to_le_bytes());
            bytes.extend(strong);
        }
        bytes
    }

    /// Decodes a signature. Memory is allocated only for hashes that are there.
    pub fn decode(bytes: &[u8]) -> Result<Self, SignatureError> {
        let (block, rest) = bytes.split_first_chunk().ok_or(SignatureError::Count)?;
        let (len, rest) = rest.split_first_chunk().ok_or(SignatureError::Count)?;
        let block = u32::from_le_bytes(*block);
        let len = u64::from_le_bytes(*len);
        // Both lengths are checked before anything is allocated. With a block length of 0 the division would
        // fail, and with a very small one there would be as many hashes as bytes.
        if !(BLOCK_MIN..=BLOCK_MAX).contains(&block) || len.div_ceil(u64::from(block)) > BLOCKS_MAX {
            return Err(SignatureError::Lengths { block, len });
        }
        let (hashes, spare) = rest.as_chunks::<BLOCK_HASHES_LEN>();
        if !spare.is_empty() || hashes.len() as u64 != len.div_ceil(u64::from(block)) {
            return Err(SignatureError::Count);
        }
        let hashes =
            hashes.iter().map(|[a, b, c, d, strong @ ..]| (u32::from_le_bytes([*a, *b, *c, *d]), *strong));
        Ok(Self { block, len, hashes: hashes.collect() })
    }

    /// The offset and the length of a block in the old file.
    pub(super) fn block_range(&self, number: u32) -> (u64, u64) {
        let offset = u64::from(number) * u64::from(self.block);
        (offset, u64::from(self.block).min(self.len.saturating_sub(offset)))
    }
}
