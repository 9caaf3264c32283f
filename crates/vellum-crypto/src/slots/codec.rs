//! The stored form of a slot. docs/format.md draws it.
//!
//! Invariant: what decodes has legal parameters, a printable label and no bytes left over, and encodes to the same
//! bytes again.

use vellum_types::{DecodeError, FieldReader, FieldWriter, VolumeId};

use super::{KdfParams, KeySlot, KeySlotError, KeySlotId, KeySlotKind};

/// Longest label, bytes: fits a line of a listing.
pub const LABEL_MAX: usize = 128;
/// Longest slot object, bytes: the fixed fields and the longest label, rounded up. More is not worth fetching.
pub const SLOT_MAX: usize = 512;

const MAGIC: &[u8; 8] = b"VLMSLOT\n";
const VERSION: u32 = 1;
// What stands for "no stretching" in the three cost fields.
const NO_KDF: KdfParams = KdfParams { memory_kib: 0, iterations: 0, lanes: 0 };

/// Refuses labels that could garble a terminal or a listing.
pub(super) fn check_label(label: &str) -> Result<(), DecodeError> {
    let legal = label.len() <= LABEL_MAX && !label.chars().any(is_unsafe_in_terminal);
    if legal { Ok(()) } else { Err(DecodeError::Invalid("label")) }
}

// Control characters, and those that reorder or hide the text around them.
fn is_unsafe_in_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || character == '\u{feff}'
}

impl KeySlot {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.encode_header();
        bytes.extend_from_slice(&self.wrapped);
        bytes
    }

    // All that precedes the wrapped key, and the associated data of the wrapping.
    pub(super) fn encode_header(&self) -> Vec<u8> {
        let KdfParams { memory_kib, iterations, lanes } = self.kdf.unwrap_or(NO_KDF);
        let mut writer = FieldWriter::from_vec(Vec::with_capacity(SLOT_MAX));
        // The order is that of docs/format.md; all of it authenticates the wrapped key, so that nobody can lower the
        // cost or swap the label without the secret.
        writer.write_raw(MAGIC).write_u32(VERSION);
        writer.write_raw(self.volume.as_bytes()).write_raw(&self.id.0).write_u8(self.kind.as_byte());
        writer.write_u32(memory_kib).write_u32(iterations).write_u32(lanes).write_raw(&self.salt);
        writer.write_bytes(self.label.as_bytes());
        writer.into_vec()
    }

    /// Reads the stored form, which may be hostile.
    pub fn decode(bytes: &[u8]) -> Result<Self, KeySlotError> {
        let mut reader = FieldReader::new(bytes);
        if reader.read_array()? != *MAGIC {
            return Err(DecodeError::Magic.into());
        }
        let version = reader.read_u32()?;
        if version != VERSION {
            return Err(DecodeError::Version(version).into());
        }
        let volume = VolumeId(reader.read_array()?);
        let id = KeySlotId(reader.read_array()?);
        let kind = KeySlotKind::from_byte(reader.read_u8()?)?;
        // Limits are checked while decoding already: whoever can write to the store can write a slot.
        let kdf = decode_kdf_params(kind, &mut reader)?;
        let salt = reader.read_array()?;
        let label = reader.read_string(LABEL_MAX)?;
        check_label(label)?;
        let slot =
            Self { id, volume, kind, label: label.to_owned(), kdf, salt, wrapped: reader.read_array()? };
        reader.expect_end()?;
        Ok(slot)
    }
}

fn decode_kdf_params(
    kind: KeySlotKind,
    reader: &mut FieldReader<'_>,
) -> Result<Option<KdfParams>, KeySlotError> {
    let params = KdfParams {
        memory_kib: reader.read_u32()?,
        iterations: reader.read_u32()?,
        lanes: reader.read_u32()?,
    };
    match kind {
        // Other numbers would be ignored, and the slot would not encode to its own bytes again.
        KeySlotKind::Recovery if params == NO_KDF => Ok(None),
        KeySlotKind::Recovery => Err(DecodeError::Invalid("key derivation of a recovery slot").into()),
        KeySlotKind::Passphrase | KeySlotKind::KeyFile => Ok(Some(params.check_limits()?)),
    }
}
