//! Refuses to take what is absent from a partial checkout for deleted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vellum_checkout::{CheckoutError, read_absent_paths};
use vellum_host::escape::format_path;
use vellum_volume::StateDir;

use super::args::Args;
use super::ends::EndpointArg;
use super::worktree_file_path;
use crate::context::CommandContext;
use crate::error::Result;

/// Fails if a run deletes at one end what the other does not have, and files of that are absent on purpose.
pub fn check_whole_sources(args: &Args, context: &CommandContext) -> Result<()> {
    let typed = &args.delete;
    let deletes = typed.delete || typed.delete_before || typed.delete_after || typed.delete_excluded;
    let sources = match args.ends.as_slice() {
        ends if args.two_way.two_way => ends,
        [sources @ .., _] if deletes || typed.delete_missing_args => sources,
        // Nothing is deleted because the source lacks it: what is absent there does no harm.
        _ => return Ok(()),
    };
    sources.iter().try_for_each(|source| check_whole_source(source, context))
}

fn check_whole_source(source: &OsString, context: &CommandContext) -> Result<()> {
    let path = match EndpointArg::parse_endpoint(source, context) {
        EndpointArg::Path(path) => path,
        // The same files by another name: what is absent of them would count as deleted, too.
        EndpointArg::Volume { directory, snapshot: None, path } => worktree_file_path(&directory, &path),
        // A snapshot has all its files, and this host cannot look at those of another one.
        EndpointArg::Volume { snapshot: Some(_), .. } | EndpointArg::Host { .. } => return Ok(()),
    };
    // What is not there, or lies in no worktree, is not for this check to judge.
    let Ok(path) = context.resolve_local_path(Path::new(&path)).canonicalize() else { return Ok(()) };
    let Ok(state) = StateDir::find_enclosing(&path) else { return Ok(()) };
    let inside = path.strip_prefix(state.root()).unwrap_or(&path).as_os_str().as_bytes();
    let absent = read_absent_paths(&state)?;
    let concerned = absent.find_covering(inside).or_else(|| absent.list_within(inside).next());
    match concerned {
        None => Ok(()),
        Some(path) => Err(CheckoutError::Absent {
            action: "delete what the source does not have",
            path: format_path(path),
        }
        .into()),
    }
}
