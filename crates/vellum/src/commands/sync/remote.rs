//! Ends on other hosts: what was typed as `HOST:PATH`, what a run over ssh has of its own, and the server.
//!
//! Invariant: a path typed for another host goes there through the conversation, never through a shell.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use vellum_sync::options::{DeltaMode, SyncOptions};
use vellum_sync::remote::{AddressError, RemoteAddress, RemoteEnd, RemoteShell};
use vellum_sync::session::{FoundPath, LinkSettings, ServerRole, SessionLink, serve};
use vellum_sync::source::SourceEnd;
use vellum_sync::wire::WireCodec;
use vellum_volume::tree::show;

use super::args::{Args, CompressArg};
use super::ends::{DestinationEndpoint, SourceEndpoint, means_content};
use crate::error::{CliError, CommandOutcome, Result};

/// Without a byte for so long the other side is gone, milliseconds, unless told otherwise: far longer than a pause
/// between two signs of life, and than most breaks of a line.
const TIMEOUT: u64 = 300_000;
/// A server that nobody speaks to ends after so long, milliseconds: who started it speaks at once.
const SILENCE: u64 = 60_000;
/// Threads that receive: they wait for the line, not for the machine.
const JOBS: u32 = 8;
/// Be the other side, until whoever started this has enough.
pub fn be_server() -> Result<CommandOutcome> {
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let read = own(std::io::stdin().as_fd()).map_err(CliError::io("use", "standard input"))?;
    let write = own(std::io::stdout().as_fd()).map_err(CliError::io("use", "standard output"))?;
    // The files above are copies: the stream ends for the other side when both are closed.
    let home = std::env::current_dir().map_err(CliError::io("find", "the current directory"))?;
    let link = SessionLink::start(read, write, &LinkSettings { codec: WireCodec::Zstd, timeout: SILENCE });
    let outcome = serve(&link, &home);
    link.finish();
    outcome?;
    Ok(CommandOutcome::Done)
}

fn wrong(error: &AddressError) -> CliError {
    CliError::usage(error.to_string(), "HOST:PATH, USER@HOST:PATH")
}

/// Connects to a place on another host.
pub fn connect(host: &OsStr, path: &OsStr, role: ServerRole, args: &Args) -> Result<RemoteEnd> {
    let typed = [host.as_bytes(), b":", path.as_bytes()].concat();
    if typed.starts_with(b"rsync://") {
        let message =
            format!("'{}' is a place at an rsync daemon, and these are not spoken to", show(&typed));
        return Err(CliError::usage(message, "HOST:PATH, over ssh"));
    }
    let scheme = typed.windows(3).position(|bytes| bytes == b"://").and_then(|at| typed.get(..at));
    if scheme.is_some_and(|scheme| scheme.iter().all(u8::is_ascii_alphanumeric)) {
        let message = format!("'{}' is an address of a kind that is not spoken to", show(&typed));
        let hint = match typed.strip_prefix(b"file://") {
            Some(path) => format!("the path alone: {}", show(path)),
            None => {
                "a path of this host, or HOST:PATH, over ssh; './' begins a path that has such a name".into()
            }
        };
        return Err(CliError::usage(message, hint));
    }
    let address = match RemoteAddress::parse(&typed) {
        Some(parsed) => parsed.map_err(|error| wrong(&error))?,
        None => return Err(wrong(&AddressError::Host(show(&typed).to_string()))),
    };
    let mut shell = RemoteShell::default();
    let typed = args.effort.rsh.clone().or_else(|| std::env::var_os("VELLUM_RSH"));
    let typed = typed.or_else(|| std::env::var_os("RSYNC_RSH").filter(|words| !words.is_empty()));
    if let Some(typed) = typed {
        shell.words = RemoteShell::split(typed.as_bytes()).map_err(|error| wrong(&error))?;
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
pub fn check_here(args: &Args) -> Result<()> {
    if args.effort.timeout.is_some_and(|seconds| seconds > 0) {
        let message = "--timeout bounds how long the other host may be silent, and both ends are on this one";
        let hint = "leave it out: a filesystem that does not answer cannot be told from a slow one";
        return Err(CliError::usage(message, hint));
    }
    Ok(())
}

fn name_of(path: &[u8]) -> Vec<u8> {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec()
}

/// Opens a source on another host.
pub fn from_host(host: &OsStr, path: &OsStr, args: &Args) -> Result<SourceEndpoint> {
    let remote = connect(host, path, ServerRole::Source, args)?;
    let shown = show(&[host.as_bytes(), b":", path.as_bytes()].concat()).to_string();
    let content = means_content(path) || path.is_empty() || path == "~";
    let is_dir = content || found(&remote, path)? == FoundPath::Directory;
    let words = match (content, is_dir) {
        (true, _) => format!("what is in '{shown}'"),
        (false, true) => format!("the directory '{shown}'"),
        (false, false) => format!("the file '{shown}'"),
    };
    let name = (!content).then(|| name_of(path.as_bytes()));
    let (source, path) = (remote.clone(), path.as_bytes().to_vec());
    let open = Box::new(move |shown: &[u8]| -> Box<dyn SourceEnd> {
        if !is_dir {
            source.aim(path, Some(shown.to_vec()));
        }
        Box::new(source)
    });
    Ok(SourceEndpoint { open, words, name, is_dir, path: None, root: None, remote: Some(remote) })
}

/// What stands at a path of another host.
fn found(remote: &RemoteEnd, path: &OsStr) -> Result<FoundPath> {
    remote.look().map_err(|error| {
        let is_pattern = path.as_bytes().iter().any(|byte| b"*?[".contains(byte));
        if !(is_pattern && error.kind() == vellum_types::ErrorKind::NotFound) {
            return CliError::from(error);
        }
        let message = format!("no shell of the other host expands '{}'", show(path.as_bytes()));
        CliError::usage(message, "name the directory, and choose with --include and --exclude")
    })
}

/// Where a source goes on another host.
pub fn into_host(
    host: &OsStr,
    path: &OsStr,
    from: &SourceEndpoint,
    args: &Args,
) -> Result<DestinationEndpoint> {
    let remote = connect(host, path, ServerRole::Destination, args)?;
    let shown = show(&[host.as_bytes(), b":", path.as_bytes()].concat()).to_string();
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
        let Some(name) = &from.name else { return Ok(into(format!("'{shown}'"), None)) };
        let below =
            Path::new(if typed.is_empty() { OsStr::new(".") } else { path }).join(OsStr::from_bytes(name));
        remote.aim(below.into_os_string().into_vec(), None);
        return Ok(into(format!("'{shown}', as '{}'", show(name)), None));
    }
    if typed.is_empty() || typed.ends_with(b"/") || remote.look()? == FoundPath::Directory {
        return Ok(into(format!("the directory '{shown}'"), from.name.clone()));
    }
    let name = name_of(typed);
    let parent = typed.get(..typed.len() - name.len()).unwrap_or_default();
    let parent = if parent.is_empty() { b"." } else { parent };
    remote.aim(parent.to_vec(), None);
    Ok(into(format!("the file '{shown}'"), Some(name)))
}

/// The options of a run with an end on another host.
pub fn adapted(options: &SyncOptions, is_single: bool) -> SyncOptions {
    let mut options = options.clone();
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
        assert_eq!(name_of(b"a/b"), b"b");
        assert_eq!(name_of(b"b"), b"b");
        assert_eq!(name_of(b"a/"), b"");
    }
}
