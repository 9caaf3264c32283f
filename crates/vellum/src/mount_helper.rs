//! `mount.vellum`, the helper that mount(8) runs for `mount -t vellum` and for lines of fstab: this program under another
//! name.
//!
//! Invariant: it ends with the exit codes of mount(8), asks nothing, and needs no environment.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use vellum_types::ErrorKind;

use crate::commands::mount;
use crate::commands::mount::options::MountOption;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;
use crate::ui::{OutputOptions, UserInterface};

/// Names by which mount(8) looks for the helper: for `-t vellum`, and for the type that the kernel shows.
const NAMES: [&str; 2] = ["mount.vellum", "mount.fuse.vellum"];

/// Incorrect invocation.
const EXIT_INVOCATION: u8 = 1;
/// The system cannot start a process.
const EXIT_SYSTEM: u8 = 2;
/// The mount failed.
const EXIT_MOUNT: u8 = 32;

/// Mount a Vellum volume, as mount(8) and fstab(5) do
///
/// mount(8) runs this program for 'mount -t vellum DIR MOUNTPOINT' and for lines of /etc/fstab with the type 'vellum'. It
/// mounts a worktree of the volume in DIR as 'vellum mount DIR MOUNTPOINT' does, and returns when the mount is ready.
#[derive(Debug, Parser)]
#[command(name = "mount.vellum", version, max_term_width = 100, after_help = OPTIONS_HELP)]
pub struct MountHelper {
    /// A directory of the volume
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// The directory to mount on, which must exist and be empty
    mountpoint: PathBuf,
    /// Options of the mount, separated by commas
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Ignore options that are not known
    #[arg(short)]
    sloppy: bool,
    /// Check the options, and mount nothing
    #[arg(short)]
    fake: bool,
    /// Report what was mounted
    #[arg(short)]
    verbose: bool,
    /// Ignored: there is no /etc/mtab to write
    #[arg(short)]
    no_mtab: bool,
    /// Ignored: the type of the filesystem, which is 'vellum' or 'fuse.vellum'
    #[arg(short, value_name = "TYPE")]
    type_name: Option<String>,
}

const OPTIONS_HELP: &str = "\
OPTIONS are:
  ro, rw          Mount read-only, or for writing (default)
  worktree=NAME   The worktree to mount; by default named after the mountpoint
  snapshot=SNAP   Mount this snapshot, read-only
  allow_other     Allow access by other users, subject to permissions
  noexec          Let no program be executed from the mount
  key-file=FILE   If the volume's directory has no key: a file with the passphrase, the key or the
                  recovery code; the key stays in the memory of the mount's process
  noatime         Let reading change no access times
  nofail          End with 0 and a warning if the volume or its store cannot be reached
  rpo=TIME        Put changes into the store at most TIME after they were made, such as 10s
  timeout=TIME    Fail if the mount is not ready within TIME, such as 30s
Every mount is 'nosuid' and 'nodev'. Options for mount(8), systemd and people are accepted: defaults,
auto, noauto, user, users, owner, group, _netdev, x-*, comment=. All others are errors.

Exit codes: 0 mounted; 1 wrong arguments or options; 2 the system cannot start a process; 32 the
mount failed.";

/// Whether this program was called by one of the names of the helper.
pub fn is_helper_name(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| NAMES.iter().any(|helper| name == *helper))
}

/// Mounts as the process's arguments tell. Returns the exit code.
pub fn run_mount_helper() -> u8 {
    let helper = match MountHelper::try_parse() {
        Ok(helper) => helper,
        Err(error) => return crate::ui::report_usage_error(error, EXIT_INVOCATION, None),
    };
    // mount(8) prints nothing if all is well.
    let ui = UserInterface::new(OutputOptions { quiet: !helper.verbose, ..OutputOptions::default() });
    let result = CommandContext::resolve_dir(None).and_then(|directory| {
        let context = CommandContext::new(ui, directory);
        helper.mount(&context)?;
        context.ui.flush_output()
    });
    match result {
        Ok(()) => 0,
        Err(error) => {
            UserInterface::new(OutputOptions::default()).print_error(&error);
            exit_code(&error)
        }
    }
}

impl MountHelper {
    fn mount(&self, context: &CommandContext) -> Result<CommandOutcome> {
        let request = self.as_mount_args()?;
        // With -f, mount(8) wants everything done but the mount itself: wrong options fail.
        if self.fake { Ok(CommandOutcome::Done) } else { mount::run(&request, context) }
    }

    fn as_mount_args(&self) -> Result<mount::Args> {
        let mut options = Vec::new();
        for typed in &self.options {
            let refused = |reason: String| {
                let usage = MountHelper::command().render_usage().to_string();
                CliError::usage_error(format!("the mount option '{typed}' is not valid: {reason}"), usage)
            };
            let option =
                // Automounters pass -s: their maps may have options that only other systems know.
                if self.sloppy { MountOption::recognize(typed) } else { MountOption::parse(typed).map(Some) };
            options.extend(option.map_err(refused)?);
        }
        let mut request = mount::Args::for_volume(&self.source, &self.mountpoint);
        request.options = options;
        // As in fstab: this is how 'mount -a' finds out what is mounted already.
        request.table_name = self.source.to_str().map(String::from);
        Ok(request)
    }
}

/// As mount(8) means them.
fn exit_code(error: &CliError) -> u8 {
    match (error, error.kind()) {
        (CliError::Mounting(MountingError::NotStarted(_)), _) => EXIT_SYSTEM,
        (_, ErrorKind::Usage) => EXIT_INVOCATION,
        _ => EXIT_MOUNT,
    }
}
