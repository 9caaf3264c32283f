//! `vellum cat`: the content of a file in a snapshot.

use std::ffi::OsString;
use std::io::{self, Write};

use vellum_types::FileKind;
use vellum_volume::Volume;
use vellum_volume::tree::{ContentPart, FileReader, InodeRecord};

use crate::context::CommandContext;
use crate::context::place::SnapshotPath;
use crate::error::{CliError, CommandOutcome, Result};

/// Print a file as it was in a snapshot
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// The file
    path: OsString,
}

/// Bytes of a hole that are written at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Prints the content.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let place = SnapshotPath::find_path(context, &volume, &args.snapshot, Some(&args.path))?;
    place.expect_kind(FileKind::File)?;
    write_file_content(
        &volume,
        &place.tree.read_inode(place.ino)?,
        &mut *context.ui.output_writer(),
        CliError::Output,
    )?;
    Ok(CommandOutcome::Done)
}

/// Writes the content of a file, holes as zeros.
pub fn write_file_content(
    volume: &Volume,
    inode: &InodeRecord,
    out: &mut impl Write,
    blame: impl Fn(io::Error) -> CliError,
) -> Result<()> {
    let mut reader = FileReader::new(volume, inode)?;
    while let Some(part) = reader.next_part()? {
        match part {
            ContentPart::Data(bytes) => out.write_all(bytes),
            ContentPart::Hole(len) => write_zeros(out, len),
        }
        .map_err(&blame)?;
    }
    Ok(())
}

fn write_zeros(out: &mut impl Write, mut left: u64) -> io::Result<()> {
    while left > 0 {
        // A sparse file can have a hole of terabytes: zeros are written in blocks, and not made at once.
        let now = usize::try_from(left).unwrap_or(ZEROS.len()).min(ZEROS.len());
        out.write_all(ZEROS.get(..now).unwrap_or_default())?;
        left -= now as u64;
    }
    Ok(())
}
