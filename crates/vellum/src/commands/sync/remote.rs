//! Ends on other hosts: what was typed as `HOST:PATH`, what a run over ssh has of its own, and the server.
//!
//! Invariant: a path typed for another host goes there through the conversation, never through a shell.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use vellum_host::escape::format_path;
use vellum_sync::ends::SourceEnd;
use vellum_sync::ends::name_charset::SourcePlace;
use vellum_sync::ends::remote::{AddressError, RemoteAddress, RemoteEnd, RemoteShell};
use vellum_sync::model::options::{DeltaMode, SyncOptions};
use vellum_sync::remote::session::{FoundPath, LinkSettings, ServerRole, SessionLink, serve_session};
use vellum_sync::remote::wire::WireCodec;

use super::args::{Args, CompressArg};
use super::ends::{DestinationEndpoint, SourceEndpoint, names_dir_content};
use super::iconv;
use super::meaning::copies_dirs_alone;
use crate::error::{CliError, CommandOutcome, Result};

/// Without a byte for so long the other side is gone, milliseconds, unless told otherwise: far longer than a pause
/// between two signs of life, and than most breaks of a line.
const TIMEOUT: u64 = 300_000;
/// A server that nobody speaks to ends after so long, milliseconds: who started it speaks at once.
const SILENCE: u64 = 60_000;
/// Threads that receive: they wait for the line, not for the machine.
const JOBS: u32 = 8;
/// Be the other side, until whoever started this has enough.
pub fn run_sync_server() -> Result<CommandOutcome> {
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let read = own(std::io::stdin().as_fd()).map_err(CliError::io_error("use", "standard input"))?;
    let write = own(std::io::stdout().as_fd()).map_err(CliError::io_error("use", "standard output"))?;
    // The files above are copies: the stream ends for the other side when both are closed.
    let home = std::env::current_dir().map_err(CliError::io_error("find", "the current directory"))?;
    let link =
        SessionLink::start_link(read, write, &LinkSettings { codec: WireCodec::Zstd, timeout: SILENCE });
    let outcome = serve_session(&link, &home);
    // After a failure, too: the other side must get the error that was queued for it.
    link.finish_sending();
    outcome?;
    Ok(CommandOutcome::Done)
}

fn address_error(error: &AddressError) -> CliError {
    CliError::usage_error(error.to_string(), "HOST:PATH, USER@HOST:PATH")
}

/// Connects to a place on another host.
pub fn connect_remote(host: &OsStr, path: &OsStr, role: ServerRole, args: &Args) -> Result<RemoteEnd> {
    let typed = [host.as_bytes(), b":", path.as_bytes()].concat();
    if typed.starts_with(b"rsync://") {
        let message = format!(
            "'{}' is the address of an rsync daemon, and these are not supported",
            format_path(&typed)
        );
        return Err(CliError::usage_error(message, "HOST:PATH, over ssh"));
    }
    // Without this check, the scheme would be taken for the name of a host.
    let scheme = typed.windows(3).position(|bytes| bytes == b"://").and_then(|at| typed.get(..at));
    if scheme.is_some_and(|scheme| scheme.iter().all(u8::is_ascii_alphanumeric)) {
        let message = format!("'{}' is an address with an unsupported scheme", format_path(&typed));
        let hint = match typed.strip_prefix(b"file://") {
            Some(path) => format!("the path alone: {}", format_path(path)),
            None => {
                "a path of this host, or HOST:PATH, over ssh; './' begins a path that has such a name".into()
            }
        };
        return Err(CliError::usage_error(message, hint));
    }
    // What is sent to the host, not what is shown.
    let told = [host.as_bytes(), b":", &iconv::convert_remote_path(args, path.as_bytes())?].concat();
    let address = match RemoteAddress::parse(&told) {
        Some(parsed) => parsed.map_err(|error| address_error(&error))?,
        None => return Err(address_error(&AddressError::Host(format_path(&typed).to_string()))),
    };
    let mut shell = RemoteShell::default();
    // As with rsync, the option counts more than the variables. rsync's own variable is heeded last: what it says
    // about ssh usually holds here as well.
    let typed = args.effort.rsh.clone().or_else(|| std::env::var_os("VELLUM_RSH"));
    let typed = typed.or_else(|| std::env::var_os("RSYNC_RSH").filter(|words| !words.is_empty()));
    if let Some(typed) = typed {
        shell.words = RemoteShell::parse_words(typed.as_bytes()).map_err(|error| address_error(&error))?;
    }
    if let Some(program) = &args.effort.remote_program {
        shell.program.clone_from(program);
    }
    let codec = match args.effort.compress {
        Some(CompressArg::None) => WireCodec::Plain,
        Some(CompressArg::Auto | CompressArg::Zstd) | None => WireCodec::Zstd,
    };
    let timeout = match args.effort.timeout {
        None => TIMEOUT,
        Some(seconds) => u64::from(seconds) * 1000,
    };
    Ok(RemoteEnd::connect(address, shell, role, LinkSettings { codec, timeout })?)
}

/// Refuses what only a connection can have.
pub fn refuse_remote_options(args: &Args) -> Result<()> {
    if args.effort.timeout.is_some_and(|seconds| seconds > 0) {
        let message = "--timeout bounds how long the other host may be silent, and both ends are on this one";
        let hint = "leave it out: a filesystem that does not answer cannot be told from a slow one";
        return Err(CliError::usage_error(message, hint));
    }
    Ok(())
}

fn last_path_component(path: &[u8]) -> Vec<u8> {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec()
}

/// Opens a source on another host.
pub fn open_remote_source(host: &OsStr, path: &OsStr, args: &Args) -> Result<SourceEndpoint> {
    let remote = connect_remote(host, path, ServerRole::Source, args)?;
    let shown = format_path([host.as_bytes(), b":", path.as_bytes()].concat()).to_string();
    let content = names_dir_content(path) || path.is_empty() || path == "~";
    // A path that asks for the content of a directory needs no question to the other host: if it is no directory,
    // the listing fails.
    let is_dir = content || stat_remote_path(&remote, path)? == FoundPath::Directory;
    let words = match (content, is_dir) {
        (true, _) => format!("what is in '{shown}'"),
        (false, true) => format!("the directory '{shown}'"),
        (false, false) => format!("the file '{shown}'"),
    };
    let name = (!content).then(|| last_path_component(path.as_bytes()));
    let source = remote.clone();
    let path = iconv::convert_remote_path(args, path.as_bytes())?;
    let charsets = iconv::parse_name_charsets(args)?;
    let open = Box::new(move |shown: &[u8]| -> Box<dyn SourceEnd> {
        if !is_dir {
            source.set_target(path, Some(shown.to_vec()));
        }
        let place = if is_dir { SourcePlace::Remote } else { SourcePlace::RemoteEntry };
        iconv::convert_remote_source(Box::new(source), charsets, place)
    });
    Ok(SourceEndpoint { open, words, name, is_dir, path: None, root: None, remote: Some(remote) })
}

/// What stands at a path of another host.
fn stat_remote_path(remote: &RemoteEnd, path: &OsStr) -> Result<FoundPath> {
    remote.inspect_target().map_err(|error| {
        // Users of rsync may expect that a shell on the other host expands patterns.
        let is_pattern = path.as_bytes().iter().any(|byte| b"*?[".contains(byte));
        if !(is_pattern && error.kind() == vellum_types::ErrorKind::NotFound) {
            return CliError::from(error);
        }
        let message = format!(
            "'{}' is not expanded: paths are not passed to a shell on the other host",
            format_path(path.as_bytes())
        );
        CliError::usage_error(message, "name the directory, and choose with --include and --exclude")
    })
}

/// Where a source goes on another host.
pub fn find_remote_destination(
    host: &OsStr,
    path: &OsStr,
    from: &SourceEndpoint,
    args: &Args,
) -> Result<DestinationEndpoint> {
    let remote = connect_remote(host, path, ServerRole::Destination, args)?;
    let shown = format_path([host.as_bytes(), b":", path.as_bytes()].concat()).to_string();
    let typed = path.as_bytes();
    let into = |words: String, shown: Option<Vec<u8>>| DestinationEndpoint {
        path: PathBuf::from(path),
        is_new: false,
        makes_path: false,
        shown,
        words,
        remote: Some(remote.clone()),
    };
    if from.is_dir {
        let is_new = || Ok::<_, CliError>(remote.inspect_target()? == FoundPath::Nothing);
        // A directory alone becomes DST itself, if that is not there, as with rsync.
        let becomes_base =
            copies_dirs_alone(&args.preserve) && !typed.is_empty() && !typed.ends_with(b"/") && is_new()?;
        let Some(name) = from.name.as_ref().filter(|_| !becomes_base) else {
            return Ok(into(format!("'{shown}'"), None));
        };
        let below =
            Path::new(if typed.is_empty() { OsStr::new(".") } else { path }).join(OsStr::from_bytes(name));
        if args.preserve.keep_dirlinks {
            remote.follow_target_name();
        }
        let told = iconv::convert_remote_path(args, below.as_os_str().as_bytes())?;
        remote.set_target(told, Some(iconv::convert_remote_path(args, name)?));
        return Ok(into(format!("'{shown}', as '{}'", format_path(name)), None));
    }
    if typed.is_empty() || typed.ends_with(b"/") || remote.inspect_target()? == FoundPath::Directory {
        return Ok(into(format!("the directory '{shown}'"), from.name.clone()));
    }
    let name = last_path_component(typed);
    let parent = typed.get(..typed.len() - name.len()).unwrap_or_default();
    // The target of a connection is a directory: a single file goes into the one above it.
    let parent = if parent.is_empty() { b"." } else { parent };
    remote.set_target(iconv::convert_remote_path(args, parent)?, None);
    Ok(into(format!("the file '{shown}'"), Some(name)))
}

/// The options of a run with an end on another host.
pub fn adapt_remote_options(options: &SyncOptions, is_single: bool) -> SyncOptions {
    let mut options = options.clone();
    // Over a connection, reading an old file at both ends takes less time than sending a new one.
    if options.writing.delta == DeltaMode::Auto {
        options.writing.delta = DeltaMode::Always;
    }
    options.effort.jobs.get_or_insert(JOBS);
    // A connection can be cut at any time; what arrived is not to be sent again by the next one.
    options.writing.resume = true;
    // A destination is not listed in depth for the sake of one file.
    options.preserve.recursive &= !is_single;
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_is_behind_the_last_slash() {
        assert_eq!(last_path_component(b"a/b"), b"b");
        assert_eq!(last_path_component(b"b"), b"b");
        assert_eq!(last_path_component(b"a/"), b"");
    }
}
