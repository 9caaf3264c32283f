//! Pins: lists of pieces that stay in the cache, whatever room is needed for.
//!
//! A file for each pin, named after the hash of the pin's name. Layout: magic (8) ‖ name, worktree, and what was pinned
//! (each with its length, varint) ‖ when (u64, seconds since 1970) ‖ number of packs (varint) ‖ for each pack its id (32),
//! the number of its pieces (varint), and for each piece its number and wanted bytes (varints) ‖ BLAKE3 of all before (32).
//! Invariant: a file is whole or not there, since it is renamed into place. One that is damaged pins nothing, and its name
//! is not known: it is listed as damaged until it is removed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use vellum_host::private_dir::create_private_dir;
use vellum_types::{DecodeError, FieldReader, FieldWriter, LookupResult, PackId};

use super::PIECES_MAX;
use crate::object::PieceSet;

const MAGIC: &[u8; 8] = b"VLMPIN\0\x01";
/// The folder of pins within the cache.
const PINS_FOLDER: &str = "pins";
const HASH_LEN: usize = 32;
/// Longest text of a pin, bytes.
const TEXT_MAX: usize = 64 << 10;
/// Most packs of a pin.
const PACKS_MAX: usize = 1 << 24;
/// Longest file, bytes: beyond that a file is no pin.
const FILE_MAX: u64 = 1 << 30;
/// How the name of a file that is being written ends.
const NEW_SUFFIX: &str = ".new";

/// What is to stay in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CachePin {
    /// Its name.
    pub name: String,
    /// The worktree whose content it is, for display.
    pub worktree: String,
    /// What was pinned, for display: paths.
    pub content: String,
    /// When, in seconds since 1970.
    pub created: u64,
    /// The pieces.
    pub pieces: PieceSet,
}

/// The pins of a cache.
#[derive(Debug, Default)]
pub struct PinListing {
    /// Those that can be read, by name.
    pub pins: Vec<CachePin>,
    /// Files that are damaged.
    pub damaged: Vec<PathBuf>,
}

impl PinListing {
    /// Everything that is pinned.
    pub(super) fn pieces(&self) -> PieceSet {
        let mut pieces = PieceSet::default();
        self.pins.iter().for_each(|pin| pieces.add_all(&pin.pieces));
        pieces
    }
}

impl CachePin {
    fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::new();
        out.write_raw(MAGIC);
        for text in [&self.name, &self.worktree, &self.content] {
            out.write_bytes(text.as_bytes());
        }
        out.write_u64(self.created).write_varint(self.pieces.iter_packs().count() as u64);
        for (pack, pieces) in self.pieces.iter_packs() {
            out.write_raw(&pack.0).write_varint(pieces.len() as u64);
            for (number, bytes) in pieces {
                out.write_varint((*number).into()).write_varint((*bytes).into());
            }
        }
        let hash = blake3::hash(out.as_slice());
        out.write_raw(hash.as_bytes());
        out.into_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let body = bytes.len().checked_sub(HASH_LEN).and_then(|end| bytes.split_at_checked(end));
        let (body, hash) = body.ok_or(DecodeError::Truncated)?;
        // First of all: a file that was cut off or changed is not decoded as far as it goes.
        if blake3::hash(body).as_bytes() != hash {
            return Err(DecodeError::Invalid("checksum of a pin"));
        }
        let mut reader = FieldReader::new(body);
        if reader.read_array::<8>()? != *MAGIC {
            return Err(DecodeError::Invalid("magic of a pin"));
        }
        let name = reader.read_string(TEXT_MAX)?.to_owned();
        let worktree = reader.read_string(TEXT_MAX)?.to_owned();
        let content = reader.read_string(TEXT_MAX)?.to_owned();
        let created = reader.read_u64()?;
        let mut pieces = PieceSet::default();
        for _ in 0..reader.read_count(PACKS_MAX)? {
            let pack = PackId(reader.read_array()?);
            for _ in 0..reader.read_count(usize::try_from(PIECES_MAX).unwrap_or_default())? {
                let number = reader.read_varint()?;
                if number >= PIECES_MAX {
                    return Err(DecodeError::Invalid("number of a piece"));
                }
                pieces.add_piece(&pack, number, reader.read_varint()?);
            }
        }
        reader.expect_end()?;
        Ok(Self { name, worktree, content, created, pieces })
    }
}

fn pin_path(cache: &Path, name: &str) -> PathBuf {
    // Pins have any name that a user likes; the hash makes a file name of it.
    let name = blake3::hash(name.as_bytes()).to_hex();
    cache.join(PINS_FOLDER).join(name.get(..32).unwrap_or_default())
}

/// All pins. Files that are being written are none yet.
pub(super) fn list_pins(cache: &Path) -> PinListing {
    let mut listing = PinListing::default();
    for entry in fs::read_dir(cache.join(PINS_FOLDER)).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.as_os_str().as_encoded_bytes().ends_with(NEW_SUFFIX.as_bytes()) {
            continue;
        }
        // A larger file was not written by this program, and would fill the memory.
        let is_short = entry.metadata().is_ok_and(|metadata| metadata.len() <= FILE_MAX);
        let read = if is_short { fs::read(&path).ok() } else { None };
        match read.and_then(|bytes| CachePin::decode(&bytes).ok()) {
            Some(pin) => listing.pins.push(pin),
            // It may have been removed meanwhile.
            None if path.exists() => listing.damaged.push(path),
            None => {}
        }
    }
    listing.pins.sort_by(|one, other| one.name.cmp(&other.name));
    listing
}

/// Writes a pin in the place of one with the same name.
pub(super) fn write_pin(cache: &Path, pin: &CachePin) -> io::Result<()> {
    let path = pin_path(cache, &pin.name);
    create_private_dir(path.parent().unwrap_or(cache))?;
    let mut new = path.clone().into_os_string();
    new.push(NEW_SUFFIX);
    // Synced before the rename, since a pin, unlike a piece, cannot be fetched again. The folder is not synced: after
    // a power cut the pin may be missing, but it is never cut off.
    let written = write_new_file(Path::new(&new), &pin.encode()).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        // A file that stays has the ending of an unfinished one: it pins nothing, and the next attempt writes over it.
        let _ = fs::remove_file(&new);
    }
    written
}

fn write_new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a pin; false if there is none with this name.
pub(super) fn remove_pin(cache: &Path, name: &str) -> io::Result<bool> {
    Ok(fs::remove_file(pin_path(cache, name)).none_if_missing()?.is_some())
}

/// The decoder on any bytes; see [`crate::fuzzing`].
pub(super) fn fuzz_pin(bytes: &[u8]) {
    let sealed = [bytes, blake3::hash(bytes).as_bytes()].concat();
    for bytes in [bytes, &sealed] {
        if let Ok(pin) = CachePin::decode(bytes) {
            assert!(CachePin::decode(&pin.encode()).as_ref() == Ok(&pin), "what is decoded can be written");
        }
    }
}
