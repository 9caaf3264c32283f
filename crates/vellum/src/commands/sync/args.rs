//! What may be typed: rsync's letters and words where they mean the same, words of our own where they do not.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, ValueEnum};

use super::rsync::RsyncArgs;
use super::rules::RuleArgs;
use super::two_way::TwoWayArgs;
use super::watch::WatchArgs;

/// Make DST an exact copy of SRC: copy only what differs
///
/// SRC and DST are paths, or HOST:PATH over ssh. SRC can be VOLUME@SNAP:/PATH, a path in a snapshot (VOLUME: a
/// directory of the volume). 'SRC/' means the content of SRC, 'SRC' the directory itself, as with rsync. Without
/// any of the options under "What is copied", -a is assumed.
///
/// Files are written under temporary names and renamed when they are complete. --delete refuses to delete more than
/// half of DST, and deletes nothing if part of SRC could not be read. Exits with 1 if something could not be done,
/// and with 4 if files vanished while they were copied.
#[derive(Debug, clap::Args)]
// With rsync, -h means human-readable sizes, so that the help has only its long name here. Of an option that is
// given several times the last one counts, as scripts that append options rely on.
#[command(disable_help_flag = true, args_override_self = true)]
pub struct Args {
    /// The sources, followed by the destination
    // One is enough for --list-only. All other runs need two, which is checked when the ends are split.
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
    /// Print what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print a line for each change, in rsync's letters
    #[arg(short = 'i', long, visible_alias = "itemize-changes")]
    pub itemize: bool,
    /// List the entries of SRC instead of copying them; DST can be omitted
    #[arg(long)]
    pub list_only: bool,
    /// Print a line for each change in rsync's FORMAT: %i %n %L %l %f %o %t %M %U %G %B %p
    // The alias is the name that older versions of rsync have for it.
    #[arg(long, value_name = "FORMAT", alias = "log-format")]
    pub out_format: Option<String>,
    /// Append a line with the time to FILE for each change
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<std::ffi::OsString>,
    /// The format of these lines instead of '%i %n%L'
    #[arg(long, value_name = "FORMAT")]
    pub log_file_format: Option<String>,
    /// Print statistics at the end
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
    /// Accepted for rsync compatibility; sizes are always human-readable
    #[arg(short = 'h', long = "human-readable")]
    pub human_readable: bool,
    /// Add the options of the section NAME of ~/.config/vellum/config.toml
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
}

impl DisplayArgs {
    /// Whether progress is shown wherever standard error goes.
    pub fn wants_progress(&self) -> bool {
        // rsync requests it with `--info=progress2`, too.
        let mut words = self.info.iter().flat_map(|words| words.split(','));
        self.progress || self.partial_progress || words.any(|word| word.starts_with("progress"))
    }
}

/// Where things go.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What goes where")]
pub struct DestinationArgs {
    /// Copy SRC with its whole path into DST; of 'A/./B', only B
    #[arg(short = 'R', long)]
    pub relative: bool,
    /// Do not copy the attributes of parent directories (-R)
    #[arg(long, alias = "no-i-d")]
    pub no_implied_dirs: bool,
    /// Create all missing parent directories of DST
    #[arg(long)]
    pub mkpath: bool,
    /// Convert names between the charsets of this host and of the other one, as in utf-8,iso-8859-1
    #[arg(long, value_name = "LOCAL,REMOTE")]
    pub iconv: Option<String>,
}

/// What is copied.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is copied")]
pub struct PreserveArgs {
    /// Archive: -rlptgoD
    #[arg(short = 'a', long)]
    pub archive: bool,
    /// Copy the contents of directories
    // Each option of this kind overrides its opposite and the other way round: as with rsync, the last one counts.
    #[arg(short = 'r', long, overrides_with = "no_recursive")]
    pub recursive: bool,
    /// Copy symlinks as symlinks
    #[arg(short = 'l', long, overrides_with = "no_links")]
    pub links: bool,
    /// Copy directories without their contents
    #[arg(short = 'd', long)]
    pub dirs: bool,
    /// Copy the targets of symlinks instead of symlinks
    #[arg(short = 'L', long)]
    pub copy_links: bool,
    /// Copy the targets of symlinks to directories
    #[arg(short = 'k', long)]
    pub copy_dirlinks: bool,
    /// Treat a symlink to a directory at DST as that directory, if SRC has a directory there
    #[arg(short = 'K', long)]
    pub keep_dirlinks: bool,
    /// Copy the targets of symlinks that lead out of SRC
    #[arg(long)]
    pub copy_unsafe_links: bool,
    /// Leave out symlinks that lead out of SRC
    #[arg(long)]
    pub safe_links: bool,
    /// Copy modes
    #[arg(short = 'p', long, overrides_with = "no_perms")]
    pub perms: bool,
    /// Copy modification times
    #[arg(short = 't', long, overrides_with = "no_times")]
    pub times: bool,
    /// Copy groups
    #[arg(short = 'g', long, overrides_with = "no_group")]
    pub group: bool,
    /// Copy owners (needs root)
    #[arg(short = 'o', long, overrides_with = "no_owner")]
    pub owner: bool,
    /// Copy devices, fifos and sockets: --devices --specials
    #[arg(short = 'D')]
    pub devices_specials: bool,
    /// Copy device nodes (needs root)
    #[arg(long, overrides_with = "no_devices")]
    pub devices: bool,
    /// Copy fifos and sockets
    #[arg(long, overrides_with = "no_specials")]
    pub specials: bool,
    /// Copy hard links
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    /// Copy extended attributes
    #[arg(short = 'X', long)]
    pub xattrs: bool,
    /// Copy ACLs (and modes)
    #[arg(short = 'A', long)]
    pub acls: bool,
    /// Keep owners, modes and special files in extended attributes, not in the files
    #[arg(long)]
    pub fake_super: bool,
    /// Pass an option to the other host only: --fake-super
    // The value is an option, and begins with a hyphen.
    #[arg(short = 'M', long, value_name = "OPTION", allow_hyphen_values = true)]
    pub remote_option: Vec<String>,
    /// Turn runs of zeros into holes (holes of SRC are always kept)
    #[arg(short = 'S', long)]
    pub sparse: bool,
    /// Copy access times
    #[arg(short = 'U', long)]
    pub atimes: bool,
    /// Copy whether files can be executed, if modes are not copied
    #[arg(short = 'E', long)]
    pub executability: bool,
    /// Do not enter other filesystems
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Leave out the times of directories
    #[arg(short = 'O', long)]
    pub omit_dir_times: bool,
    /// Leave out the times of symlinks
    #[arg(short = 'J', long)]
    pub omit_link_times: bool,
    /// Copy owners and groups by number, not by name
    #[arg(long)]
    pub numeric_ids: bool,
    /// Change modes: 'D755,F644', 'go-w', 'Dg+s,u=rwX'
    #[arg(long, value_name = "CHANGES")]
    pub chmod: Vec<String>,
    /// Set the owner to USER, the group to :GROUP, or both
    #[arg(long, value_name = "USER:GROUP")]
    pub chown: Option<String>,
    /// Map owners: 'ann:bob,1000-1999:nobody,*:root' (needs root)
    #[arg(long, value_name = "FROM:TO,...")]
    pub usermap: Option<String>,
    /// Map groups, in the same way
    #[arg(long, value_name = "FROM:TO,...")]
    pub groupmap: Option<String>,
    /// Turn off this part of -a
    #[arg(long, alias = "no-r", overrides_with = "recursive")]
    pub no_recursive: bool,
    /// Turn off this part of -a
    #[arg(long, alias = "no-l", overrides_with = "links")]
    pub no_links: bool,
    /// Turn off this part of -a
    #[arg(long, alias = "no-p", overrides_with = "perms")]
    pub no_perms: bool,
    /// Turn off this part of -a
    #[arg(long, alias = "no-t", overrides_with = "times")]
    pub no_times: bool,
    /// Turn off this part of -a
    #[arg(long, alias = "no-g", overrides_with = "group")]
    pub no_group: bool,
    /// Turn off this part of -a
    #[arg(long, alias = "no-o", overrides_with = "owner")]
    pub no_owner: bool,
    /// Turn off this part of -a
    #[arg(long, overrides_with = "devices")]
    pub no_devices: bool,
    /// Turn off this part of -a
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
    /// Compare only sizes
    #[arg(long)]
    pub size_only: bool,
    /// Write all files, without comparing
    #[arg(short = 'I', long)]
    pub ignore_times: bool,
    /// Skip files that are newer at DST
    #[arg(short = 'u', long)]
    pub update: bool,
    /// Create nothing that does not exist at DST
    #[arg(long, visible_alias = "ignore-non-existing")]
    pub existing: bool,
    /// Skip files that exist at DST
    #[arg(long)]
    pub ignore_existing: bool,
    /// Ignore a SRC, or a path in --files-from, that does not exist
    #[arg(long)]
    pub ignore_missing_args: bool,
    /// Treat times as equal if they differ by at most SECONDS
    #[arg(short = '@', long, value_name = "SECONDS")]
    pub modify_window: Option<f64>,
    /// Leave out directories that would hold no file
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
    /// Remove files from SRC once DST has them; directories stay
    #[arg(long)]
    pub remove_source_files: bool,
    /// Delete entries of DST that SRC does not have, after everything else
    #[arg(long, visible_alias = "del")]
    pub delete: bool,
    /// The same, before everything else
    #[arg(long)]
    pub delete_before: bool,
    /// The same as --delete
    // rsync deletes at another time with each of the aliases. Here everything is deleted either before or after the
    // rest.
    #[arg(long, aliases = ["delete-during", "delete-delay"])]
    pub delete_after: bool,
    /// Delete from DST the name of a SRC, or the path in --files-from, that does not exist
    #[arg(long)]
    pub delete_missing_args: bool,
    /// Also delete what rules leave out
    #[arg(long)]
    pub delete_excluded: bool,
    /// Refuse to delete more entries than this
    #[arg(long, value_name = "N|N%")]
    pub max_delete: Option<String>,
    /// Allow deleting more than half of DST, or everything if SRC is empty
    #[arg(long)]
    pub force_delete: bool,
    /// Delete a directory with its contents if SRC has something else there
    #[arg(long)]
    pub force: bool,
    /// Keep replaced and deleted files, as NAME~
    #[arg(short = 'b', long)]
    pub backup: bool,
    /// Keep them in DIR, relative to DST
    #[arg(long, value_name = "DIR")]
    pub backup_dir: Option<OsString>,
    /// Suffix of their names [default: ~; with --backup-dir none]
    #[arg(long, value_name = "SUFFIX")]
    pub suffix: Option<OsString>,
    /// Keep them in DST/.vellum-trash/DATE
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
    /// If it helps
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
    /// Reuse data of the old file
    #[arg(long, value_name = "WHEN")]
    pub delta: Option<DeltaArg>,
    /// The same as --delta never
    #[arg(short = 'W', long)]
    pub whole_file: bool,
    /// The same as --delta always
    #[arg(long, alias = "no-W", hide = true, overrides_with = "whole_file")]
    pub no_whole_file: bool,
    /// Write into the old file: readers during the run, or after a crash, see old and new data mixed
    #[arg(long, visible_alias = "inplace")]
    pub in_place: bool,
    /// Append to files that are shorter at DST, in place; their beginning is not compared
    #[arg(long)]
    pub append: bool,
    /// The same, but also compare their beginning and write what differs
    #[arg(long)]
    pub append_verify: bool,
    /// Write files in DIR, relative to DST, before they get their names
    #[arg(short = 'T', long, value_name = "DIR")]
    pub temp_dir: Option<OsString>,
    /// Rename all new files to their final names together, at the end
    #[arg(long)]
    pub delay_updates: bool,
    /// Keep partially transferred files in DIR: a name beside each file, or an absolute path
    #[arg(long, value_name = "DIR")]
    pub partial_dir: Option<OsString>,
    /// Keep partially transferred large files, and resume them
    #[arg(long, visible_alias = "partial")]
    pub resume: bool,
    /// Hard-link files that DST lacks to unchanged files in DIR, relative to DST (can be repeated)
    #[arg(long, value_name = "DIR")]
    pub link_dest: Vec<OsString>,
    /// Copy files that DST lacks from unchanged files in DIR, relative to DST (can be repeated)
    // A run makes one use of these directories, so that the three options exclude each other.
    #[arg(long, value_name = "DIR", conflicts_with = "link_dest")]
    pub copy_dest: Vec<OsString>,
    /// Leave out files that DST lacks and DIR, relative to DST, has unchanged (can be repeated)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["link_dest", "copy_dest"])]
    pub compare_dest: Vec<OsString>,
    /// Read what was written again, and compare it
    #[arg(long)]
    pub verify: bool,
    /// Flush everything to disk
    #[arg(long)]
    pub fsync: bool,
}

/// How much is used.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How fast")]
pub struct EffortArgs {
    /// Limit bytes per second (500K, 1.5M; K is 1024)
    #[arg(long, value_name = "RATE")]
    pub bwlimit: Option<String>,
    /// Compress the transfer
    // Only with an equals sign: in '-z SRC DST', SRC is not the value.
    #[arg(short = 'z', long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "zstd")]
    pub compress: Option<CompressArg>,
    /// Number of threads
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: Option<u32>,
    /// Number of retries of a file, and of a lost connection
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub retries: Option<u32>,
    /// Give up a connection after SECONDS without data (300; 0: never)
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u32>,
    /// Connect to other hosts with COMMAND [default: ssh]
    #[arg(short = 'e', long, value_name = "COMMAND")]
    pub rsh: Option<OsString>,
    /// The program to run on the other host [default: vellum]
    #[arg(long, value_name = "PROGRAM", visible_alias = "rsync-path")]
    pub remote_program: Option<OsString>,
    /// Credentials for s3://, gs:// and az://, from ~/.config/vellum/credentials/NAME
    #[arg(long, value_name = "NAME")]
    pub credentials: Option<String>,
    /// Be the other side of a run, on standard input and output
    // The other side of a run starts it, and nobody types it.
    #[arg(long, hide = true)]
    pub server: bool,
}

/// Where the options of a profile stand.
pub fn profile_config_path() -> Option<PathBuf> {
    // The XDG specification treats an empty variable as unset.
    let home = std::env::var_os("XDG_CONFIG_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(home.join("vellum/config.toml"))
}
