//! From a secret to a wrapping key: Argon2id (RFC 9106) for what people choose, BLAKE3 for what is random.
//!
//! Invariant: parameters from a slot are within floor and ceiling before memory is taken; failing to get the memory
//! is an error. The memory is wiped.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use vellum_types::ErrorKind;
use zeroize::{Zeroize, Zeroizing};

use super::{KeySlotKind, SALT_LEN};

const CONTEXT_PASSPHRASE: &str = "vellum 2026-11-21 v1 slot passphrase";
const CONTEXT_KEY_FILE: &str = "vellum 2026-11-21 v1 slot key-file";
const CONTEXT_RECOVERY: &str = "vellum 2026-11-21 v1 slot recovery";

/// Least memory, KiB: 8 MiB, about what OWASP's weakest accepted set of parameters takes.
const MEMORY_MIN: u32 = 8 << 10;
/// Most memory, KiB: 2 GiB, the first recommendation of RFC 9106.
const MEMORY_MAX: u32 = 2 << 20;
/// Most passes: beyond it, more memory is the better defence.
const ITERATIONS_MAX: u32 = 64;
/// Most lanes: the cores of a big desk machine.
const LANES_MAX: u32 = 16;
/// Most work of one try, KiB filled over all passes: 16 GiB, some twenty seconds, lest a hostile slot hang us.
const WORK_MAX: u64 = 16 << 20;

/// The cost of trying one passphrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KdfParams {
    /// Memory, KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub iterations: u32,
    /// Independent lanes.
    pub lanes: u32,
}

/// Why a key could not be derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KdfError {
    /// Below the minimum: somebody made guessing cheap.
    #[error(
        "the key derivation costs too little to be safe ({memory_kib} KiB, {iterations} passes, {lanes} lanes; \
         at least {MEMORY_MIN} KiB, 1 pass, 1 lane)"
    )]
    Weak {
        /// Memory, KiB.
        memory_kib: u32,
        /// Passes.
        iterations: u32,
        /// Lanes.
        lanes: u32,
    },
    /// Above the maximum: somebody wants to exhaust this machine.
    #[error(
        "the key derivation costs too much ({memory_kib} KiB, {iterations} passes, {lanes} lanes; at most \
         {MEMORY_MAX} KiB, {ITERATIONS_MAX} passes, {LANES_MAX} lanes, and {WORK_MAX} KiB over all passes)"
    )]
    Excessive {
        /// Memory, KiB.
        memory_kib: u32,
        /// Passes.
        iterations: u32,
        /// Lanes.
        lanes: u32,
    },
    /// The memory that the parameters ask for cannot be had.
    #[error("the key derivation needs {memory_kib} KiB of memory, which this machine cannot provide")]
    Memory {
        /// Memory, KiB.
        memory_kib: u32,
    },
}

impl KdfError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Weak { .. } | Self::Excessive { .. } => ErrorKind::Denied,
            Self::Memory { .. } => ErrorKind::Io,
        }
    }
}

impl KdfParams {
    /// For new slots: 64 MiB, 3 passes and 4 lanes, the second recommendation of RFC 9106: under half a second.
    pub const DEFAULT: Self = Self { memory_kib: 64 << 10, iterations: 3, lanes: 4 };
    /// The least that is accepted; for tests.
    pub const FLOOR: Self = Self { memory_kib: MEMORY_MIN, iterations: 1, lanes: 1 };

    /// The parameters, if they lie within the limits.
    pub(super) fn check_limits(self) -> Result<Self, KdfError> {
        let Self { memory_kib, iterations, lanes } = self;
        if memory_kib < MEMORY_MIN || iterations == 0 || lanes == 0 {
            return Err(KdfError::Weak { memory_kib, iterations, lanes });
        }
        let work = u64::from(memory_kib) * u64::from(iterations);
        if memory_kib > MEMORY_MAX || iterations > ITERATIONS_MAX || lanes > LANES_MAX || work > WORK_MAX {
            return Err(KdfError::Excessive { memory_kib, iterations, lanes });
        }
        Ok(self)
    }
}

/// The wrapping key of a secret that a person chose.
pub(super) fn stretch_secret(
    params: KdfParams,
    kind: KeySlotKind,
    secret: &[u8],
    salt: &[u8; SALT_LEN],
) -> Result<Zeroizing<[u8; 32]>, KdfError> {
    // Checked again although decoding does: this is the only place that takes the memory.
    let KdfParams { memory_kib, iterations, lanes } = params.check_limits()?;
    let excessive = KdfError::Excessive { memory_kib, iterations, lanes };
    let argon_params = Params::new(memory_kib, iterations, lanes, Some(32)).map_err(|_| excessive)?;
    let mut memory =
        KdfMemory::allocate_blocks(argon_params.block_count()).ok_or(KdfError::Memory { memory_kib })?;
    let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, argon_params);
    let mut stretched = Zeroizing::new([0; 32]);
    argon
        .hash_password_into_with_memory(secret, salt, stretched.as_mut_slice(), memory.0.as_mut_slice())
        .map_err(|_| excessive)?;
    Ok(derive_wrapping_key(kind, stretched.as_slice(), salt))
}

/// The wrapping key of a secret that is random already.
pub(super) fn derive_wrapping_key(
    kind: KeySlotKind,
    secret: &[u8],
    salt: &[u8; SALT_LEN],
) -> Zeroizing<[u8; 32]> {
    let context = match kind {
        KeySlotKind::Passphrase => CONTEXT_PASSPHRASE,
        KeySlotKind::KeyFile => CONTEXT_KEY_FILE,
        KeySlotKind::Recovery => CONTEXT_RECOVERY,
    };
    // The salt has a fixed length and stands first, so that no salt and secret give the bytes of another pair.
    let mut material = Zeroizing::new(Vec::with_capacity(salt.len() + secret.len()));
    material.extend_from_slice(salt);
    material.extend_from_slice(secret);
    Zeroizing::new(blake3::derive_key(context, &material))
}

// Argon2's blocks: asked for so that a refusal is an error, wiped since the secret can be told from them.
struct KdfMemory(Vec<Block>);

impl KdfMemory {
    fn allocate_blocks(blocks: usize) -> Option<Self> {
        let mut memory = Vec::new();
        // The usual allocation ends the whole process when it fails, which a hostile slot could then bring about.
        memory.try_reserve_exact(blocks).ok()?;
        memory.resize(blocks, Block::new());
        Some(Self(memory))
    }
}

impl Drop for KdfMemory {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(Zeroize::zeroize);
    }
}
