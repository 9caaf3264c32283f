//! What the words behind `history` mean: a snapshot or a range first, and files. A word that could be both is refused.

use std::ffi::{OsStr, OsString};

use vellum_host::escape::format_path;
use vellum_volume::revision_range::RevisionRange;
use vellum_volume::{Volume, VolumeError};

use super::Args;
use crate::commands::pin::target::is_only_path;
use crate::context::CommandContext;
use crate::error::{CliError, Result};

/// What is listed.
pub struct HistoryOperands {
    /// The snapshots; None: the ancestors of the worktree's state, or all.
    pub range: Option<RevisionRange>,
    /// The range as it was typed.
    pub typed_range: Option<String>,
    /// Files whose versions are listed, as they were typed.
    pub files: Vec<OsString>,
    /// Why the first of these is no snapshot.
    pub no_snapshot: Option<VolumeError>,
}

impl HistoryOperands {
    /// Finds out what was typed.
    pub fn read_operands(args: &Args, volume: &Volume, context: &CommandContext) -> Result<Self> {
        let mut operands =
            Self { range: None, typed_range: None, files: args.operands.clone(), no_snapshot: None };
        if let Some(word) = args.operands.first() {
            match find_range(word, volume, context)? {
                FirstOperand::Range(range) => {
                    operands.range = Some(range);
                    operands.typed_range = Some(word.to_string_lossy().into_owned());
                    operands.files.remove(0);
                }
                FirstOperand::Path(error) => operands.no_snapshot = error,
            }
        }
        operands.files.extend(args.files.iter().cloned());
        let refuse_if = |is_typed: bool, message: &str, hint: &str| match is_typed {
            true => Err(CliError::usage_error(message, hint)),
            false => Ok(()),
        };
        refuse_if(
            operands.range.is_some() && (args.all || args.tag.is_some()),
            "a snapshot or range cannot be combined with --all or --tag",
            "leave one of them out",
        )?;
        refuse_if(
            !operands.files.is_empty() && (args.tag.is_some() || args.path.is_some() || args.graph),
            "the versions of files cannot be combined with --tag, --path or --graph",
            "'--path PATH' alone lists the snapshots that changed something at or under PATH",
        )?;
        Ok(operands)
    }
}

/// What the first word means.
enum FirstOperand {
    Range(RevisionRange),
    /// A path, and why it is no snapshot, if it could have been one.
    Path(Option<VolumeError>),
}

fn find_range(word: &OsStr, volume: &Volume, context: &CommandContext) -> Result<FirstOperand> {
    let text = word.to_str().filter(|text| *text == ".." || !(is_only_path(word) || text.contains("/..")));
    let Some(text) = text else { return Ok(FirstOperand::Path(None)) };
    // Two dots alone are a range without ends, and not the directory above.
    let has_path = text != ".." && context.resolve_local_path(word.as_ref()).symlink_metadata().is_ok();
    let is_range = text.contains("..");
    let found = if is_range {
        volume.resolve_range(text)
    } else {
        volume.resolve_snapshot(text).map(|entry| RevisionRange { first: None, last: Some(entry.id) })
    };
    match found {
        // A guess would list something else than what was meant, without a word.
        Ok(_) if has_path && !is_range => Err(ambiguous_operand_error(text)),
        Ok(range) => Ok(FirstOperand::Range(range)),
        Err(
            error @ (VolumeError::UnknownSnapshot(_)
            | VolumeError::NoSnapshotThere { .. }
            | VolumeError::BadExpression { .. }),
        ) if !is_range || has_path => Ok(FirstOperand::Path(Some(error).filter(|_| !has_path))),
        Err(error) => Err(error.into()),
    }
}

fn ambiguous_operand_error(word: &str) -> CliError {
    let word = format_path(word);
    CliError::usage_error(
        format!("'{word}' is a snapshot and a path"),
        format!("'./{word}' is the path, '{word}~0' is the snapshot"),
    )
}
