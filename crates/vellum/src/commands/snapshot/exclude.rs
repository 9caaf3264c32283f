//! What a snapshot leaves out: the options, and how they are told.

use vellum_checkout::{CheckoutError, SnapshotExclusions};
use vellum_host::exclusions::parse_exclude_patterns;

use crate::context::CommandContext;
use crate::error::Result;

/// What a snapshot leaves out, beside what ignore files say.
#[derive(Debug, clap::Args)]
pub struct ExcludeArgs {
    /// Leave out what PATTERN matches, in the syntax of .gitignore; can be repeated
    ///
    /// Such patterns decide before all ignore files: '!PATTERN' records what these leave out.
    #[arg(long = "exclude", value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Leave out what is mounted in the directory; the mount points are recorded as empty directories
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Leave out what is in directories marked as caches by a CACHEDIR.TAG, but for that file
    #[arg(long)]
    exclude_caches: bool,
}

impl ExcludeArgs {
    /// What they leave out.
    pub fn to_exclusions(&self) -> SnapshotExclusions {
        SnapshotExclusions {
            patterns: self.patterns.clone(),
            other_file_systems: self.one_file_system,
            caches: self.exclude_caches,
        }
    }

    /// What they leave out of a mount, whose snapshots hold nothing that is mounted on a directory in it. Fails if a pattern
    /// is none: before anything else is done, and not by the process of the mount.
    pub fn to_mount_exclusions(&self) -> Result<SnapshotExclusions> {
        let exclusions = SnapshotExclusions { other_file_systems: false, ..self.to_exclusions() };
        parse_exclude_patterns(&exclusions.patterns).map_err(CheckoutError::BadPattern)?;
        Ok(exclusions)
    }
}

/// Says what the last snapshot left out, if it did.
pub fn print_exclusions(context: &CommandContext, exclusions: &SnapshotExclusions) -> Result<()> {
    if exclusions.is_empty() {
        return Ok(());
    }
    context.ui.print_note(format!("left out, as from the last snapshot: {}", format_exclusions(exclusions)))
}

/// The options that leave this out, as they would be typed.
fn format_exclusions(exclusions: &SnapshotExclusions) -> String {
    let patterns = exclusions.patterns.iter().map(|it| format!("--exclude '{}'", it.escape_debug()));
    let flags =
        [(exclusions.other_file_systems, "--one-file-system"), (exclusions.caches, "--exclude-caches")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
    patterns.chain(flags).collect::<Vec<_>>().join(" ")
}
