//! Options that have no meaning with a service.
//!
//! Invariant: each is refused by its name, rather than ignored: the user would rely on it. What `-a` stands for is
//! not refused, as people give it out of habit.

use super::super::args::{Args, DeltaArg};
use super::super::line_format::SyncDirection;
use crate::error::{CliError, Result};

const NOT_STORED: &str =
    "an object has the content of a file and the time of its last change, and nothing else of it";
const OTHER_DIRECTION: &str = "objects are whole or not there, and an old one cannot be kept or reused";
const ONE_DIRECTORY: &str = "a run with a service has one directory on this host and one prefix";
const OTHER_HOST: &str = "services are not reached over ssh";

/// Options that were given and have no meaning, each with why.
fn list_refused(args: &Args, direction: SyncDirection) -> Vec<(&'static str, &'static str)> {
    let Args { places, preserve, which, delete, writing, effort, two_way, watch, .. } = args;
    // Towards this host, files are written as in every other run: backups and delayed updates work there.
    let sends = direction == SyncDirection::Send;
    let backs_up = delete.backup || delete.backup_dir.is_some() || delete.suffix.is_some();
    let always = writing.delta == Some(DeltaArg::Always) || writing.no_whole_file;
    // Modes, owners and the like are not refused, because -a is the default and contains them: they are left out.
    let all = [
        (two_way.two_way, "--two-way", "a service does not say what changed since the last run"),
        (
            watch.watch && !sends,
            "--watch",
            "a service does not report changes: run the command again and again",
        ),
        (places.relative, "--relative", ONE_DIRECTORY),
        (places.iconv.is_some(), "--iconv", "keys are UTF-8"),
        (places.mkpath && sends, "--mkpath", "a service has no directories"),
        (preserve.hard_links, "--hard-links", NOT_STORED),
        (preserve.xattrs, "--xattrs", NOT_STORED),
        (preserve.acls, "--acls", NOT_STORED),
        (preserve.atimes, "--atimes", NOT_STORED),
        (preserve.executability, "--executability", NOT_STORED),
        (preserve.fake_super, "--fake-super", NOT_STORED),
        (!preserve.remote_option.is_empty(), "--remote-option", OTHER_HOST),
        (!preserve.chmod.is_empty(), "--chmod", NOT_STORED),
        (preserve.chown.is_some(), "--chown", NOT_STORED),
        (preserve.usermap.is_some(), "--usermap", NOT_STORED),
        (preserve.groupmap.is_some(), "--groupmap", NOT_STORED),
        (preserve.keep_dirlinks, "--keep-dirlinks", NOT_STORED),
        (which.detect_renames, "--detect-renames", "objects cannot be renamed"),
        (which.ignore_missing_args, "--ignore-missing-args", ONE_DIRECTORY),
        (delete.delete_missing_args, "--delete-missing-args", ONE_DIRECTORY),
        (backs_up && sends, "--backup", OTHER_DIRECTION),
        (delete.trash && sends, "--trash", OTHER_DIRECTION),
        (writing.in_place, "--in-place", "files and objects appear whole"),
        (writing.append, "--append", "files and objects appear whole"),
        (writing.append_verify, "--append-verify", "files and objects appear whole"),
        (always, "--delta always", "differences cannot be sent to a service, nor asked of it"),
        (writing.temp_dir.is_some(), "--temp-dir", "files are written beside their places"),
        (writing.delay_updates && sends, "--delay-updates", OTHER_DIRECTION),
        (writing.partial_dir.is_some(), "--partial-dir", "incomplete files are not kept"),
        (
            writing.resume,
            "--resume",
            "incomplete files are not kept: the next run goes on with the next file",
        ),
        (!writing.link_dest.is_empty(), "--link-dest", ONE_DIRECTORY),
        (!writing.copy_dest.is_empty(), "--copy-dest", ONE_DIRECTORY),
        (!writing.compare_dest.is_empty(), "--compare-dest", ONE_DIRECTORY),
        (writing.verify && sends, "--verify", "the service answers for what it stored; '-n -c' compares it"),
        (effort.compress.is_some(), "--compress", "objects are stored as they are"),
        (effort.timeout.is_some(), "--timeout", "requests to a service have deadlines of their own"),
        (effort.rsh.is_some(), "--rsh", OTHER_HOST),
        (effort.remote_program.is_some(), "--remote-program", OTHER_HOST),
    ];
    all.into_iter().filter(|(is_given, ..)| *is_given).map(|(_, name, why)| (name, why)).collect()
}

/// Refuses options that have no meaning with a service.
pub fn refuse_options(args: &Args, direction: SyncDirection) -> Result<()> {
    match list_refused(args, direction).first() {
        None => Ok(()),
        Some((name, why)) => {
            let message = format!("{name} has no meaning with a service: {why}");
            Err(CliError::usage_error(message, "leave it out"))
        }
    }
}
