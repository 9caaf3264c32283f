//! What is to be pinned: snapshots, or content at paths. A word that could be both is refused.

use std::ffi::{OsStr, OsString};

use vellum_host::escape::format_path;
use vellum_types::ErrorKind;
use vellum_volume::history::HistoryEntry;
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::error::{CliError, Result};

/// What is to be pinned.
pub enum PinTarget {
    /// Snapshots, in the store.
    Snapshots {
        /// Their volume.
        volume: Box<Volume>,
        /// Each once.
        entries: Vec<HistoryEntry>,
    },
    /// Content, on this machine.
    Content,
}

impl PinTarget {
    /// What the typed words mean together. Fails if one of them could be a snapshot and a path, and if some are the one and
    /// some the other.
    pub fn find_target(context: &CommandContext, typed: &[OsString], is_snapshot: bool) -> Result<Self> {
        if !is_snapshot && typed.iter().all(|word| is_only_path(word)) {
            // A word that can only be a path needs no look into the store.
            return Ok(Self::Content);
        }
        let has_paths = !is_snapshot && typed.iter().all(|word| has_path(context, word));
        let volume = if has_paths {
            match open_unsettled_volume(context) {
                Ok(volume) => volume,
                // What the words are called in a store that does not answer is not known, and paths they are.
                Err(error) if error.is_store_failure() => return Ok(Self::Content),
                Err(error) => return Err(error),
            }
        } else {
            context.open_volume()?
        };
        let mut entries: Vec<HistoryEntry> = Vec::new();
        let mut path = None;
        for word in typed {
            let has_path = !is_snapshot && has_path(context, word);
            match find_named_snapshot(&volume, word, !has_path)? {
                Some(_) if has_path => return Err(ambiguous_target_error(word)),
                Some(entry) if !entries.contains(&entry) => entries.push(entry),
                Some(_) => {}
                None => path = Some(word),
            }
        }
        match path {
            None => Ok(Self::Snapshots { volume: volume.into(), entries }),
            Some(_) if entries.is_empty() => Ok(Self::Content),
            Some(path) => Err(CliError::usage_error(
                format!("'{}' is a path, and others are snapshots", format_path(path.as_encoded_bytes())),
                "pin paths and snapshots with two commands",
            )),
        }
    }
}

/// Reports a word that names both.
pub fn ambiguous_target_error(word: &OsStr) -> CliError {
    let word = format_path(word.as_encoded_bytes());
    CliError::usage_error(
        format!("'{word}' is a snapshot and a path"),
        format!("'./{word}' is the path, '--snapshot {word}' is the snapshot"),
    )
}

/// Whether a word can be nothing but a path.
pub fn is_only_path(word: &OsStr) -> bool {
    let word = word.as_encoded_bytes();
    word == b"." || word == b".." || [&b"./"[..], b"../", b"/"].iter().any(|start| word.starts_with(start))
}

fn has_path(context: &CommandContext, word: &OsStr) -> bool {
    is_only_path(word) || context.resolve_local_path(word.as_ref()).symlink_metadata().is_ok()
}

/// The volume as the store has it: snapshots of a mount may wait to be published.
pub fn open_unsettled_volume(context: &CommandContext) -> Result<Volume> {
    match context.open_mounted_worktree()? {
        Some(mounted) => Ok(mounted.volume),
        None => Ok(Volume::open(&context.open_state_dir()?)?),
    }
}

/// The snapshot that a word names. With `must_name`, an error if it names none; a name that is ambiguous among snapshots is
/// an error only then, too.
fn find_named_snapshot(volume: &Volume, word: &OsStr, must_name: bool) -> Result<Option<HistoryEntry>> {
    let Some(text) = word.to_str().filter(|_| !is_only_path(word)) else { return Ok(None) };
    match volume.resolve_snapshot(text) {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if must_name => Err(error.into()),
        Err(VolumeError::Ambiguous { .. } | VolumeError::SeveralNamed { .. }) => {
            Err(ambiguous_target_error(word))
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Usage) => Ok(None),
        Err(error) => {
            let error = CliError::from(error);
            if error.is_store_failure() { Ok(None) } else { Err(error) }
        }
    }
}
