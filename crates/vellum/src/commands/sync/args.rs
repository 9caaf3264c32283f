//! What may be typed: rsync's letters and words where they mean the same, words of our own where they do not.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, ValueEnum};

use super::rsync::RsyncArgs;
use super::rules::RuleArgs;
use super::two_way::TwoWayArgs;
use super::watch::WatchArgs;

/// Make a directory what another one is: copy what differs, and no more
///
/// SRC and DST are paths, or HOST:PATH over ssh; SRC may be VOLUME@SNAP:/PATH, a place in a snapshot (VOLUME: a directory
/// in it). 'SRC/' means what is in SRC, 'SRC' the directory itself, as with rsync. Without any of the options of what to
/// copy, it is as with -a.
///
/// Files are written beside their places and named in one step. --delete refuses to delete more than half of DST, and
/// deletes nothing if part of SRC could not be read. Exits with 1 if something could not be done, with 4 if files
/// vanished while they were copied.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct Args {
    /// Where from, and last where to
    #[arg(value_name = "SRC... DST", num_args = 1..)]
    pub ends: Vec<OsString>,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,

    #[command(flatten)]
    pub show: DisplayArgs,
    #[command(flatten)]
    pub places: DestinationArgs,
    #[command(flatten)]
    pub preserve: PreserveArgs,
    #[command(flatten)]
    pub rules: RuleArgs,
    #[command(flatten)]
    pub which: SelectionArgs,
    #[command(flatten)]
    pub delete: DeleteArgs,
    #[command(flatten)]
    pub writing: WriteArgs,
    #[command(flatten)]
    pub effort: EffortArgs,
    #[command(flatten)]
    pub two_way: TwoWayArgs,
    #[command(flatten)]
    pub watch: WatchArgs,
    #[command(flatten)]
    pub rsync: RsyncArgs,
}

/// What is shown.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is shown")]
pub struct DisplayArgs {
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// A line for each change, in rsync's letters
    #[arg(short = 'i', long, visible_alias = "itemize-changes")]
    pub itemize: bool,
    /// List what SRC has instead of copying it; DST may be left out
    #[arg(long)]
    pub list_only: bool,
    /// A line for each change, as rsync's FORMAT says: %i %n %L %l %f %o %t %M %U %G %B %p
    #[arg(long, value_name = "FORMAT", alias = "log-format")]
    pub out_format: Option<String>,
    /// Append a line for each change to FILE, with the time
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<std::ffi::OsString>,
    /// The format of these lines instead of '%i %n%L'
    #[arg(long, value_name = "FORMAT")]
    pub log_file_format: Option<String>,
    /// Numbers at the end
    #[arg(long)]
    pub stats: bool,
    /// Show progress, also when standard error is not a terminal
    #[arg(long)]
    pub progress: bool,
    /// As with rsync: progress2 is --progress, stats is --stats; all else is ignored
    #[arg(long, value_name = "WORDS")]
    pub info: Vec<String>,
    /// As with rsync: --progress and --resume
    #[arg(short = 'P')]
    pub partial_progress: bool,
    /// Nothing: numbers are for people anyway
    #[arg(short = 'h', long = "human-readable")]
    pub human_readable: bool,
    /// Take options from the section NAME of ~/.config/vellum/config.toml too
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Say nothing of a run in which nothing was to be done.
    #[arg(skip)]
    pub only_changes: std::cell::Cell<bool>,
}

/// Where things go.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What goes where")]
pub struct DestinationArgs {
    /// The whole path of SRC goes into DST; of 'A/./B', B alone
    #[arg(short = 'R', long)]
    pub relative: bool,
    /// Directories on the way there (-R) get nothing of what they are at SRC
    #[arg(long, alias = "no-i-d")]
    pub no_implied_dirs: bool,
    /// Make all directories above DST that are not there
    #[arg(long)]
    pub mkpath: bool,
}

/// What is copied.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is copied")]
pub struct PreserveArgs {
    /// Archive: -rlptgoD
    #[arg(short = 'a', long)]
    pub archive: bool,
    /// What is in directories
    #[arg(short = 'r', long, overrides_with = "no_recursive")]
    pub recursive: bool,
    /// Symlinks, as symlinks
    #[arg(short = 'l', long, overrides_with = "no_links")]
    pub links: bool,
    /// Directories, without what is in them
    #[arg(short = 'd', long)]
    pub dirs: bool,
    /// What symlinks lead to, instead of symlinks
    #[arg(short = 'L', long)]
    pub copy_links: bool,
    /// The same of symlinks that lead to directories
    #[arg(short = 'k', long)]
    pub copy_dirlinks: bool,
    /// Take a symlink at DST for the directory that it leads to, if SRC has a directory there
    #[arg(short = 'K', long)]
    pub keep_dirlinks: bool,
    /// What symlinks that lead out of SRC lead to
    #[arg(long)]
    pub copy_unsafe_links: bool,
    /// Leave out symlinks that lead out of SRC
    #[arg(long)]
    pub safe_links: bool,
    /// Modes
    #[arg(short = 'p', long, overrides_with = "no_perms")]
    pub perms: bool,
    /// Times of last change
    #[arg(short = 't', long, overrides_with = "no_times")]
    pub times: bool,
    /// Groups
    #[arg(short = 'g', long, overrides_with = "no_group")]
    pub group: bool,
    /// Owners (needs root)
    #[arg(short = 'o', long, overrides_with = "no_owner")]
    pub owner: bool,
    /// Devices, fifos and sockets: --devices --specials
    #[arg(short = 'D')]
    pub devices_specials: bool,
    /// Device nodes (needs root)
    #[arg(long, overrides_with = "no_devices")]
    pub devices: bool,
    /// Fifos and sockets
    #[arg(long, overrides_with = "no_specials")]
    pub specials: bool,
    /// Hard links
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    /// Extended attributes
    #[arg(short = 'X', long)]
    pub xattrs: bool,
    /// ACLs (and modes)
    #[arg(short = 'A', long)]
    pub acls: bool,
    /// Make runs of zeros holes; holes stay holes without it
    #[arg(short = 'S', long)]
    pub sparse: bool,
    /// Times of last reading
    #[arg(short = 'U', long)]
    pub atimes: bool,
    /// Whether files can be executed, where modes are not copied
    #[arg(short = 'E', long)]
    pub executability: bool,
    /// Do not enter other filesystems
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// But not times of directories
    #[arg(short = 'O', long)]
    pub omit_dir_times: bool,
    /// But not times of symlinks
    #[arg(short = 'J', long)]
    pub omit_link_times: bool,
    /// Owners and groups by number, not by name
    #[arg(long)]
    pub numeric_ids: bool,
    /// Change modes: 'D755,F644', 'go-w', 'Dg+s,u=rwX'
    #[arg(long, value_name = "CHANGES")]
    pub chmod: Vec<String>,
    /// Give everything to USER, to :GROUP, or both
    #[arg(long, value_name = "USER:GROUP")]
    pub chown: Option<String>,
    /// Whom owners become: 'ann:bob,1000-1999:nobody,*:root' (needs root)
    #[arg(long, value_name = "FROM:TO,...")]
    pub usermap: Option<String>,
    /// The same of groups
    #[arg(long, value_name = "FROM:TO,...")]
    pub groupmap: Option<String>,
    /// Of what -a means: not this
    #[arg(long, alias = "no-r", overrides_with = "recursive")]
    pub no_recursive: bool,
    /// Of what -a means: not this
    #[arg(long, alias = "no-l", overrides_with = "links")]
    pub no_links: bool,
    /// Of what -a means: not this
    #[arg(long, alias = "no-p", overrides_with = "perms")]
    pub no_perms: bool,
    /// Of what -a means: not this
    #[arg(long, alias = "no-t", overrides_with = "times")]
    pub no_times: bool,
    /// Of what -a means: not this
    #[arg(long, alias = "no-g", overrides_with = "group")]
    pub no_group: bool,
    /// Of what -a means: not this
    #[arg(long, alias = "no-o", overrides_with = "owner")]
    pub no_owner: bool,
    /// Of what -a means: not this
    #[arg(long, overrides_with = "devices")]
    pub no_devices: bool,
    /// Of what -a means: not this
    #[arg(long, overrides_with = "specials")]
    pub no_specials: bool,
    /// Neither devices nor specials
    #[arg(long = "no-D", hide = true, overrides_with_all = ["devices_specials", "devices", "specials"])]
    pub no_devices_specials: bool,
}

/// Which files are copied.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which files are written")]
pub struct SelectionArgs {
    /// Compare content instead of times
    #[arg(short = 'c', long)]
    pub checksum: bool,
    /// Compare sizes alone
    #[arg(long)]
    pub size_only: bool,
    /// Compare nothing: write all
    #[arg(short = 'I', long)]
    pub ignore_times: bool,
    /// Leave alone what is newer at DST
    #[arg(short = 'u', long)]
    pub update: bool,
    /// Make nothing that is not at DST
    #[arg(long, visible_alias = "ignore-non-existing")]
    pub existing: bool,
    /// Leave alone what is at DST
    #[arg(long)]
    pub ignore_existing: bool,
    /// Pass over a SRC, or a path of --files-from, that is not there
    #[arg(long)]
    pub ignore_missing_args: bool,
    /// Times that differ by no more count as equal
    #[arg(short = '@', long, value_name = "SECONDS")]
    pub modify_window: Option<f64>,
    /// Leave out directories in which there would be no file
    #[arg(short = 'm', long)]
    pub prune_empty_dirs: bool,
    /// Rename at DST what was renamed at SRC (with --delete)
    #[arg(long)]
    pub detect_renames: bool,
}

/// What is deleted.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is deleted")]
pub struct DeleteArgs {
    /// Take away at SRC what DST has in the end, but no directories
    #[arg(long)]
    pub remove_source_files: bool,
    /// Delete at DST what is not at SRC, after all else
    #[arg(long, visible_alias = "del")]
    pub delete: bool,
    /// The same, before all else
    #[arg(long)]
    pub delete_before: bool,
    /// The same as --delete
    #[arg(long, aliases = ["delete-during", "delete-delay"])]
    pub delete_after: bool,
    /// Delete at DST what has the name of a SRC, or the path in --files-from, that is not there
    #[arg(long)]
    pub delete_missing_args: bool,
    /// Delete what rules leave out, too
    #[arg(long)]
    pub delete_excluded: bool,
    /// Refuse to delete more
    #[arg(long, value_name = "N|N%")]
    pub max_delete: Option<String>,
    /// Delete more than half of DST, or all if SRC is empty
    #[arg(long)]
    pub force_delete: bool,
    /// Let a directory go with all that is in it where SRC has something else
    #[arg(long)]
    pub force: bool,
    /// Keep what is replaced or deleted, as NAME~
    #[arg(short = 'b', long)]
    pub backup: bool,
    /// Keep it there, a path from DST
    #[arg(long, value_name = "DIR")]
    pub backup_dir: Option<OsString>,
    /// What is appended to its name [default: ~, with --backup-dir nothing]
    #[arg(long, value_name = "SUFFIX")]
    pub suffix: Option<OsString>,
    /// Keep it in DST/.vellum-trash/DATE
    #[arg(long)]
    pub trash: bool,
}

/// Whether old blocks are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeltaArg {
    /// Where it is faster
    Auto,
    /// Wherever there is an old file
    Always,
    /// Never
    Never,
}

/// How much is compressed on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// As does good
    Auto,
    /// All
    Zstd,
    /// Nothing
    None,
}

/// How files are written.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How files are written")]
pub struct WriteArgs {
    /// Use what the old file has
    #[arg(long, value_name = "WHEN")]
    pub delta: Option<DeltaArg>,
    /// The same as --delta never
    #[arg(short = 'W', long)]
    pub whole_file: bool,
    /// The same as --delta always
    #[arg(long, alias = "no-W", hide = true, overrides_with = "whole_file")]
    pub no_whole_file: bool,
    /// Over the old file: who reads it meanwhile, or after a crash, sees a mixture
    #[arg(long, visible_alias = "inplace")]
    pub in_place: bool,
    /// Append to files that are shorter at DST, in place; their beginning is not compared
    #[arg(long)]
    pub append: bool,
    /// The same, and compare their beginning: what differs there is written, too
    #[arg(long)]
    pub append_verify: bool,
    /// Write files in DIR, a path from DST, before they get their names
    #[arg(short = 'T', long, value_name = "DIR")]
    pub temp_dir: Option<OsString>,
    /// Give all new content its names at the end, at once
    #[arg(long)]
    pub delay_updates: bool,
    /// Keep what arrived of a file there when cut off: NAME beside it, or an absolute path
    #[arg(long, value_name = "DIR")]
    pub partial_dir: Option<OsString>,
    /// Keep what arrived of large files when cut off, and go on there
    #[arg(long, visible_alias = "partial")]
    pub resume: bool,
    /// Hard-link what DST lacks to unchanged files in DIR, a path from DST (can be given several times)
    #[arg(long, value_name = "DIR")]
    pub link_dest: Vec<OsString>,
    /// Copy what DST lacks from unchanged files in DIR, a path from DST (can be given several times)
    #[arg(long, value_name = "DIR", conflicts_with = "link_dest")]
    pub copy_dest: Vec<OsString>,
    /// Leave out what DST lacks and DIR, a path from DST, has unchanged (can be given several times)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["link_dest", "copy_dest"])]
    pub compare_dest: Vec<OsString>,
    /// Read again what was written, and compare
    #[arg(long)]
    pub verify: bool,
    /// Make everything durable
    #[arg(long)]
    pub fsync: bool,
}

/// How much is used.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How fast")]
pub struct EffortArgs {
    /// Bytes a second at most (1024 each: 500K, 1.5M)
    #[arg(long, value_name = "RATE")]
    pub bwlimit: Option<String>,
    /// Compress on the way
    #[arg(short = 'z', long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "zstd")]
    pub compress: Option<CompressArg>,
    /// Threads
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: Option<u32>,
    /// Tries of a file after the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub retries: Option<u32>,
    /// Without a byte for so long the other host counts as gone (300; 0: never); not for two ends on this host
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u32>,
    /// Reach other hosts through this [default: ssh]
    #[arg(short = 'e', long, value_name = "COMMAND")]
    pub rsh: Option<OsString>,
    /// What the other host's shell starts there [default: vellum]
    #[arg(long, value_name = "PROGRAM", visible_alias = "rsync-path")]
    pub remote_program: Option<OsString>,
    /// Be the other side of a run, on standard input and output
    #[arg(long, hide = true)]
    pub server: bool,
}

/// Where the options of a profile stand.
pub fn profile_config_path() -> Option<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(home.join("vellum/config.toml"))
}
