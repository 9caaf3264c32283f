//! The object `config`: the configuration of a volume. Written once by `init`, authenticated with the volume's key.
//!
//! Layout: magic, version, volume id, flags, chunker parameters, compression level in the clear (they are needed
//! before a key is at hand, and tell nothing of the content), then the seal of the same bytes as an authenticator.

pub use vellum_chunker::ChunkSizes;
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_types::{DecodeError, FieldReader, FieldWriter, VolumeId};

use crate::error::{Result, VolumeError};

/// Name of the object.
pub const CONFIG_OBJECT: &str = "config";

/// How the object begins.
pub(crate) const MAGIC: &[u8; 8] = b"VLMCONF\0";
const VERSION: u32 = 1;

/// Highest compression level that zstd has.
const LEVEL_MAX: u8 = 22;

/// Most bytes of authenticator that are read: the seal of a config of this version is far shorter.
const SEAL_MAX: usize = 4096;

/// Longest object, bytes: the clear part has less than 60, and the seal has its own limit.
pub const OBJECT_MAX: u64 = 2 * SEAL_MAX as u64;

/// What a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The volume's identity.
    pub volume: VolumeId,
    /// Whether blobs and records are sealed.
    pub encrypted: bool,
    /// How content is cut.
    pub chunker: ChunkSizes,
    /// zstd level for new blobs.
    pub level: u8,
}

impl VolumeConfig {
    /// The object, authenticated with `keys`.
    #[must_use]
    pub fn encode(&self, keys: &VolumeKeys) -> Vec<u8> {
        let head = self.encode_head();
        let mut seal = Vec::new();
        keys.seal_record(RecordDomain::Config, b"", &head, &mut seal);
        let mut writer = FieldWriter::from_vec(head);
        // Sealed with the content in it: whoever has the key reads what was written, and compares it with the clear
        // part.
        writer.write_bytes(&seal);
        writer.into_vec()
    }

    fn encode_head(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer
            .write_raw(MAGIC)
            .write_u32(VERSION)
            .write_raw(self.volume.as_bytes())
            .write_u8(u8::from(self.encrypted));
        self.chunker.encode(&mut writer);
        writer.write_u8(self.level);
        writer.into_vec()
    }

    /// Reads the object; [`VolumeConfig::authenticate`] must follow as soon as the key is known.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        if reader.read_raw(MAGIC.len())? != MAGIC {
            return Err(DecodeError::Magic);
        }
        let version = reader.read_u32()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let volume = VolumeId(reader.read_array()?);
        let encrypted = match reader.read_u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Invalid("flags")),
        };
        let chunker = ChunkSizes::decode(&mut reader)?;
        let level = reader.read_u8()?;
        if level > LEVEL_MAX {
            return Err(DecodeError::Invalid("compression level"));
        }
        // Only its length is checked: nothing can be said of a seal before the key is at hand.
        reader.read_bytes(SEAL_MAX)?;
        reader.expect_end()?;
        Ok(Self { volume, encrypted, chunker, level })
    }

    /// Checks that `bytes` were written by a holder of the key.
    pub fn authenticate(&self, bytes: &[u8], keys: &VolumeKeys) -> Result<()> {
        let damaged =
            |reason: &str| VolumeError::Damaged { object: CONFIG_OBJECT.into(), reason: reason.into() };
        let head = self.encode_head();
        let mut reader = FieldReader::new(bytes);
        // Bytes that are too short for the head have no valid seal either, which the next steps report.
        let _ = reader.read_raw(head.len());
        let seal =
            reader.read_bytes(SEAL_MAX).map_err(VolumeError::wrap_decode_error("the volume's config"))?;
        let mut sealed_head = Vec::new();
        keys.open_record(RecordDomain::Config, b"", seal, &mut sealed_head)
            .map_err(|_| damaged("it is not authenticated by this volume's key"))?;
        // The clear part can be changed by whoever writes to the store: a weaker chunker or no encryption at all.
        if sealed_head == head { Ok(()) } else { Err(damaged("it differs from what its authenticator says")) }
    }
}
