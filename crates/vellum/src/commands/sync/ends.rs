//! The two ends as typed: which directory, host or snapshot is meant, and what goes where.
//!
//! Invariant: a trailing slash means what it means to rsync: `SRC/` is what is in it, `SRC` is the directory itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use vellum_host::beneath::{BeneathError, HeldDir};
use vellum_host::escape::format_path;
use vellum_sync::SyncError;
use vellum_sync::ends::local::LocalEnd;
use vellum_sync::ends::remote::RemoteEnd;
use vellum_sync::ends::{SourceEnd, SyncSide};
use vellum_sync::local::receive::DestinationEnd;
use vellum_sync::model::listing::{EntryFlags, NewListingEntry, OwnerNames, TreeListing};
use vellum_sync::model::options::FollowSymlinks;
use vellum_types::LookupResult;
use vellum_volume::own_place::ReservedDirectory;

use super::args::PreserveArgs;
use super::meaning::copies_dirs_alone;
use super::snapshot;
use crate::context::CommandContext;
use crate::error::Result;

/// An end as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointArg {
    /// A path of this host.
    Path(OsString),
    /// `HOST:PATH`.
    Host {
        /// Perhaps with a user in front.
        host: OsString,
        /// The path there.
        path: OsString,
    },
    /// `VOLUME@SNAP:/PATH`, or `VOLUME:/PATH` without a snapshot.
    Volume {
        /// A directory in the volume.
        directory: PathBuf,
        /// The snapshot.
        snapshot: Option<String>,
        /// The path in it.
        path: OsString,
    },
}

impl EndpointArg {
    /// The kind of what was typed, as far as its form and the existing files show it.
    pub fn parse_endpoint(typed: &OsStr, context: &CommandContext) -> Self {
        let bytes = typed.as_bytes();
        let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
            return Self::Path(typed.into());
        };
        // What exists is meant, whatever its name looks like.
        if std::fs::symlink_metadata(context.resolve_local_path(Path::new(typed))).is_ok() {
            return Self::Path(typed.into());
        }
        let before = bytes.get(..colon).unwrap_or_default();
        let after = bytes.get(colon + 1..).unwrap_or_default();
        // A directory of a volume before the colon counts before a host of the same name: whoever means the host
        // can write USER@HOST.
        if let Some(volume) = Self::parse_volume_endpoint(before, after, context) {
            return volume;
        }
        // As with rsync, a colon behind a slash is part of a path.
        if before.is_empty() || before.contains(&b'/') {
            return Self::Path(typed.into());
        }
        let word = |bytes: &[u8]| OsStr::from_bytes(bytes).to_os_string();
        Self::Host { host: word(before), path: word(after) }
    }

    fn parse_volume_endpoint(before: &[u8], after: &[u8], context: &CommandContext) -> Option<Self> {
        let at = before.iter().position(|byte| *byte == b'@');
        let (volume, snapshot) = match at {
            Some(at) => {
                // Names of snapshots are UTF-8: anything else can only be a path or a host.
                (before.get(..at)?, Some(std::str::from_utf8(before.get(at + 1..)?).ok()?.to_owned()))
            }
            None => (before, None),
        };
        let directory = context.resolve_local_path(Path::new(OsStr::from_bytes(volume)));
        // With nothing at all before the colon no volume is meant; '@SNAP:' means the volume that the user stands in.
        let known = if volume.is_empty() { at.is_some() } else { directory.is_dir() };
        (known && snapshot::is_in_volume(&directory)).then(|| Self::Volume {
            directory,
            snapshot,
            path: OsStr::from_bytes(after).to_os_string(),
        })
    }
}

/// Makes a source that goes by a name.
pub type OpenSource = dyn FnOnce(&[u8]) -> Box<dyn SourceEnd>;

/// The source, opened.
pub struct SourceEndpoint {
    /// What is read; a single entry goes by the name that it is given here.
    pub open: Box<OpenSource>,
    /// The name of its kind, for messages.
    pub words: String,
    /// The name under which it goes into the destination; none for what is in a directory.
    pub name: Option<Vec<u8>>,
    /// It is a directory.
    pub is_dir: bool,
    /// Where it is on this host, without symlinks, if it is a directory.
    pub path: Option<PathBuf>,
    /// The directory in which rules are anchored, on this host and without symlinks: it, or the one that it is in.
    pub root: Option<PathBuf>,
    /// The other host that it is on.
    pub remote: Option<RemoteEnd>,
}

/// What decides where a source goes.
#[derive(Debug, Clone, Copy)]
pub struct SourceShape<'a> {
    /// The name under which it goes into the destination; none for what is in a directory.
    pub name: Option<&'a [u8]>,
    /// It is a directory.
    pub is_dir: bool,
}

impl SourceEndpoint {
    /// What decides where it goes.
    pub fn shape(&self) -> SourceShape<'_> {
        SourceShape { name: self.name.as_deref(), is_dir: self.is_dir }
    }
}

/// The destination.
pub struct DestinationEndpoint {
    /// The directory that is made equal to the source's root.
    pub path: PathBuf,
    /// It does not exist.
    pub is_new: bool,
    /// All directories above it are made with it.
    pub makes_path: bool,
    /// The name of a single entry there.
    pub shown: Option<Vec<u8>>,
    /// Its name in messages.
    pub words: String,
    /// The other host that it is on.
    pub remote: Option<RemoteEnd>,
}

fn endpoint_error(what: &'static str, path: &Path, why: impl ToString) -> SyncError {
    SyncError::End { what, path: path.as_os_str().as_bytes().to_vec(), why: why.to_string() }
}

/// Whether what is in it is meant, not the directory itself.
pub fn names_dir_content(typed: &OsStr) -> bool {
    let bytes = typed.as_bytes();
    bytes.ends_with(b"/")
        || bytes == b"."
        || bytes == b".."
        || bytes.ends_with(b"/.")
        || bytes.ends_with(b"/..")
}

/// Opens a source on this host.
pub fn open_local_source(
    context: &CommandContext,
    typed: &OsStr,
    follow: FollowSymlinks,
) -> Result<SourceEndpoint> {
    const WHAT: &str = "cannot read the source";
    let path = context.resolve_local_path(Path::new(typed));
    let shown = format_path(typed.as_bytes());
    let behind = || std::fs::metadata(&path);
    // A slash at the end, and the options that follow symlinks, ask for what a symlink leads to. Otherwise the
    // symlink itself is the source.
    let looked = match (names_dir_content(typed), follow) {
        (true, _) | (_, FollowSymlinks::Always) => behind(),
        (_, FollowSymlinks::Dirs) if behind().is_ok_and(|found| found.is_dir()) => behind(),
        _ => std::fs::symlink_metadata(&path),
    };
    let found = looked.map_err(|error| endpoint_error(WHAT, Path::new(typed), error))?;
    if found.is_dir() {
        let real = path.canonicalize().map_err(|error| endpoint_error(WHAT, Path::new(typed), error))?;
        let local = LocalEnd::open(&path)?;
        let content = names_dir_content(typed);
        let name = if content { None } else { path.file_name().map(|name| name.as_bytes().to_vec()) };
        let words =
            if content { format!("what is in '{shown}'") } else { format!("the directory '{shown}'") };
        let open = Box::new(|_: &[u8]| -> Box<dyn SourceEnd> { Box::new(local) });
        return Ok(SourceEndpoint {
            open,
            words,
            name,
            is_dir: true,
            root: Some(real.clone()),
            path: Some(real),
            remote: None,
        });
    }
    if names_dir_content(typed) {
        return Err(endpoint_error(
            WHAT,
            Path::new(typed),
            "it is not a directory, although its path ends with a slash",
        )
        .into());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().as_bytes();
    // The directory stays open, so that the file is found in it even if a directory on the way is replaced
    // meanwhile.
    let dir = HeldDir::open_root(parent).map_err(SyncError::from)?;
    let name = name.to_vec();
    let own = name.clone();
    let open = Box::new(move |shown: &[u8]| -> Box<dyn SourceEnd> {
        Box::new(LocalEnd::from_single_entry(dir, &own, shown))
    });
    let words = format!("the file '{shown}'");
    let root = parent.canonicalize().ok();
    Ok(SourceEndpoint { open, words, name: Some(name), is_dir: false, path: None, root, remote: None })
}

/// Where a source goes on this host.
pub fn find_local_destination(
    context: &CommandContext,
    typed: &OsStr,
    from: SourceShape<'_>,
    typed_args: &PreserveArgs,
) -> Result<DestinationEndpoint> {
    const WHAT: &str = "cannot write to the destination";
    let base = context.resolve_local_path(Path::new(typed));
    let shown = format_path(typed.as_bytes());
    check_trusted_path(&base)?;
    let found = std::fs::metadata(&base)
        .none_if_missing()
        .map_err(|error| endpoint_error(WHAT, Path::new(typed), error))?;
    let there = found.as_ref().is_some_and(std::fs::Metadata::is_dir);
    if from.is_dir {
        if found.is_some() && !there {
            return Err(endpoint_error(
                WHAT,
                Path::new(typed),
                "it is not a directory, and the source is one",
            )
            .into());
        }
        // A directory alone becomes DST itself, if that is not there, as with rsync.
        let becomes_base =
            found.is_none() && !typed.as_bytes().ends_with(b"/") && copies_dirs_alone(typed_args);
        let below = from.name.filter(|_| !becomes_base);
        let path = match below {
            Some(name) => base.join(OsStr::from_bytes(name)),
            None => base,
        };
        let words = match below {
            Some(name) => format!("'{shown}', as '{}'", format_path(name)),
            None => format!("'{shown}'"),
        };
        let stays_inside =
            || Some(path.canonicalize().ok()?.starts_with(base_of(&path).canonicalize().ok()?));
        let standing = match typed_args.keep_dirlinks && path.is_dir() && stays_inside() == Some(true) {
            true => std::fs::metadata(&path).ok(),
            false => std::fs::symlink_metadata(&path).ok(),
        };
        // Checked again, because the name of the source has made another path of it.
        check_trusted_path(&path)?;
        // What stands where the directory itself goes must not lead elsewhere.
        if from.name.is_some() && standing.as_ref().is_some_and(|standing| !standing.is_dir()) {
            let why = "something other than a directory is there: remove it, or end the source with a slash";
            return Err(endpoint_error(WHAT, &path, why).into());
        }
        let is_new = from.name.is_some() && standing.is_none() || !there;
        return Ok(DestinationEndpoint { path, is_new, makes_path: false, shown: None, words, remote: None });
    }
    if there || typed.as_bytes().ends_with(b"/") {
        let words = format!("the directory '{shown}'");
        return Ok(DestinationEndpoint {
            path: base,
            is_new: !there,
            makes_path: false,
            shown: from.name.map(<[u8]>::to_vec),
            words,
            remote: None,
        });
    }
    let name = base.file_name().map(|name| name.as_bytes().to_vec());
    let name =
        name.ok_or_else(|| endpoint_error(WHAT, Path::new(typed), "its path has no name at the end"))?;
    let path = base.parent().unwrap_or(Path::new("/")).to_path_buf();
    Ok(DestinationEndpoint {
        is_new: !path.is_dir(),
        makes_path: false,
        path,
        shown: Some(name),
        words: format!("the file '{shown}'"),
        remote: None,
    })
}

impl DestinationEndpoint {
    /// What is there when there is nothing.
    pub fn empty_listing() -> TreeListing {
        let mut nothing = TreeListing::new(
            &NewListingEntry { flags: EntryFlags::IMPLIED, ..NewListingEntry::unknown_dir() },
            None,
        );
        nothing.owners = OwnerNames::read_local(SyncSide::Destination, &nothing, true);
        nothing
    }

    /// The directory, made if it is not there: with at most one above it.
    pub fn open_or_create(&self) -> vellum_sync::Result<Box<dyn DestinationEnd>> {
        if self.is_new && self.remote.is_none() {
            // If more than one directory above it is missing, a typing error is likely. It is an error for rsync as
            // well.
            let above = if self.makes_path { usize::MAX } else { 1 };
            create_trusted_dir(&self.path, above).map_err(|error| {
                let hint =
                    if error.is_not_found() { "; --mkpath makes all directories above it" } else { "" };
                let why = error.into_io_error();
                endpoint_error("cannot make the destination", &self.path, format!("{why}{hint}"))
            })?;
        }
        self.open_existing()
    }

    /// The directory, which is there.
    pub fn open_existing(&self) -> vellum_sync::Result<Box<dyn DestinationEnd>> {
        Ok(match &self.remote {
            Some(remote) => Box::new(remote.clone()),
            None => Box::new(LocalEnd::open_destination(&self.path)?),
        })
    }
}

/// Makes a directory and its missing parents, without passing through symlinks of other users.
pub fn create_trusted_dir(path: &Path, above: usize) -> Result<(), BeneathError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return HeldDir::open_trusted_root(path).map(drop);
    };
    let opened = match HeldDir::open_trusted_root(parent) {
        Err(error) if error.is_not_found() && above > 0 => {
            create_trusted_dir(parent, above - 1)?;
            // Opened by its path again: another user may have put a symlink there meanwhile, which this refuses.
            HeldDir::open_trusted_root(parent)
        }
        opened => opened,
    };
    // The umask removes the bits that new directories shall not have.
    match opened?.create_dir(name.as_bytes(), 0o777) {
        // Another process has made it meanwhile.
        Err(error) if error.errno() == Some(rustix::io::Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// The directory that a path is in.
fn base_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Fails if `real`, to which symlinks in `path` led, is not where those of trusted users lead.
pub fn check_same_trusted_dir(path: &Path, real: &Path) -> Result<()> {
    let locate = |path: &Path| -> vellum_sync::Result<(u64, u64)> {
        let stat = HeldDir::open_trusted_root(path)?.stat_self()?;
        Ok((stat.dev, stat.ino))
    };
    // By device and inode number: between the two look-ups, another user may have exchanged a directory on the way.
    if locate(path)? != locate(real)? {
        let why = "it was replaced while the command began: run it again";
        return Err(endpoint_error("cannot use the directory", path, why).into());
    }
    Ok(())
}

/// Fails if a symlink of another user is on the way to a directory that an option names, or if it is one of Vellum's own.
pub fn check_option_dir(path: &Path) -> Result<()> {
    check_trusted_path(path)?;
    refuse_reserved_dir(path)
}

/// Fails if a symlink of another user is on the way to a destination.
fn check_trusted_path(path: &Path) -> Result<()> {
    match HeldDir::open_trusted_root(path) {
        Err(error @ BeneathError::UntrustedLink { .. }) => Err(SyncError::from(error).into()),
        // Other failures are reported when it is opened.
        _ => Ok(()),
    }
}

/// Refuses a directory that Vellum keeps for itself, and what lies in one.
pub fn refuse_reserved_dir(path: &Path) -> Result<()> {
    match ReservedDirectory::find_containing(path) {
        Some(place) => Err(SyncError::for_own_place(path, &place).into()),
        None => Ok(()),
    }
}

/// A path as it may be shown.
pub fn argument_bytes(typed: &OsString) -> Vec<u8> {
    typed.clone().into_vec()
}
