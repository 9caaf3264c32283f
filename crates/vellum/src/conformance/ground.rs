//! The directory and the folder of the store in which promises are tried.
//!
//! Invariant: both have random names, are made by the run, and are removed when it ends, however it ends, short of being
//! killed.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use vellum_bench::ground::random_name;
use vellum_host::mount_table::read_mounts;
use vellum_store::{StoreAddress, StoreError, StoreLocation, open_store};
use vellum_volume::VolumeError;

use super::program::TrialProgram;
use super::{ConformanceRequest, TrialResult, TrialStop};
use crate::error::{CliError, Result};

/// How names begin that the run makes.
const PREFIX: &str = "vellum-conformance";

/// Where promises are tried.
pub struct TrialGround {
    root: PathBuf,
    /// The folder in the store, if it is not a directory beside the worktrees.
    store: Option<StoreLocation>,
    /// Directories that the run made around that folder, the innermost first.
    made: Vec<PathBuf>,
    has_single_writer: bool,
    volumes: AtomicUsize,
    is_removed: bool,
    /// Runs this program.
    pub program: TrialProgram,
}

/// A worktree of a new volume.
pub struct TrialWorktree<'g> {
    /// Its directory.
    pub tree: PathBuf,
    /// The directory around it, which nothing else uses.
    pub around: PathBuf,
    /// The directory of its store; None if it is in a service.
    pub store: Option<PathBuf>,
    /// Runs this program.
    pub program: &'g TrialProgram,
}

impl TrialGround {
    /// Makes the directory.
    pub fn create(request: &ConformanceRequest) -> Result<Self> {
        let name = random_name(PREFIX)?;
        let root = request.directory.join(&name);
        let failed = || CliError::io_error("make", root.display().to_string());
        // Nobody else is to change what is in it.
        fs::DirBuilder::new().mode(0o700).create(&root).map_err(failed())?;
        // A home of its own: settings and caches of the user are neither used nor changed.
        let home = root.join("home");
        let made = fs::create_dir(&home).map_err(failed());
        let mut ground = Self {
            program: TrialProgram::new(&home),
            root,
            store: None,
            made: Vec::new(),
            has_single_writer: false,
            volumes: AtomicUsize::new(0),
            is_removed: false,
        };
        made?;
        if let Some(store) = &request.store {
            let address = StoreAddress::parse(&store.url).map_err(VolumeError::from)?;
            ground.has_single_writer =
                matches!(&address, StoreAddress::Service(service) if service.has_single_writer());
            if let StoreAddress::Directory(path) = &address {
                let missing = path.ancestors().take_while(|path| path.symlink_metadata().is_err());
                ground.made = missing.map(Path::to_path_buf).collect();
            }
            ground.store = Some(add_folder(store, &name));
            ground.program.share_credentials().map_err(CliError::io_error("use", "the credentials"))?;
        }
        Ok(ground)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder in the store that was named.
    pub fn store_folder(&self) -> Option<&StoreLocation> {
        self.store.as_ref()
    }

    /// Makes a worktree of a new volume, whose store lies elsewhere.
    pub fn make_worktree(&self, options: &[&str]) -> TrialResult<TrialWorktree<'_>> {
        let number = self.volumes.fetch_add(1, Ordering::Relaxed);
        let around = self.root.join(number.to_string());
        let tree = around.join("tree");
        fs::create_dir_all(&tree)?;
        let location = match &self.store {
            Some(store) => add_folder(store, &number.to_string()),
            None => StoreLocation::new(around.join("store").display().to_string()),
        };
        let mut args = vec!["init", "--store", &location.url];
        if let Some(credentials) = &location.credentials {
            args.extend(["--credentials", credentials]);
        }
        args.extend(options);
        self.program.run_ok(&tree, &args)?;
        let store = match StoreAddress::parse(&location.url) {
            Ok(StoreAddress::Directory(path)) => Some(path),
            Ok(_) | Err(_) => None,
        };
        Ok(TrialWorktree { tree, around, store, program: &self.program })
    }

    /// Says that something cannot be tried if commands of a store are killed that has one writer at a time: the next writer
    /// waits until the right of the killed one has ended.
    pub fn require_several_writers(&self) -> TrialResult {
        match self.has_single_writer {
            true => Err(TrialStop::Inapplicable("the store has one writer at a time".into())),
            false => Ok(()),
        }
    }

    /// Removes all that was made.
    pub fn remove(mut self) -> Result<()> {
        // Set first: a failure below is reported, and `drop` must not try the same again.
        self.is_removed = true;
        // A mount below it would make the removal delete what the mount shows, or fail.
        detach_mounts_below(&self.root);
        let failed = || CliError::io_error("remove", self.root.display().to_string());
        let removed = fs::remove_dir_all(&self.root).map_err(failed());
        if let Some(store) = &self.store {
            self.remove_store(store).map_err(VolumeError::from)?;
        }
        removed
    }

    /// Removes the folder of a store with all that is in it.
    fn remove_store(&self, store: &StoreLocation) -> Result<(), StoreError> {
        if let StoreAddress::Directory(path) = StoreAddress::parse(&store.url)? {
            let _ = fs::remove_dir_all(path);
            // What others use by now is not empty, and stays.
            self.made.iter().for_each(|made| drop(fs::remove_dir(made)));
            return Ok(());
        }
        let store = open_store(store)?;
        for key in store.list_keys("")? {
            store.delete_object(&key)?;
        }
        Ok(())
    }
}

impl Drop for TrialGround {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        // After a failure, which is what the user is told.
        detach_mounts_below(&self.root);
        let _ = fs::remove_dir_all(&self.root);
        if let Some(store) = &self.store {
            let _ = self.remove_store(store);
        }
    }
}

/// A disk need not have room for all worktrees at once.
impl Drop for TrialWorktree<'_> {
    fn drop(&mut self) {
        detach_mounts_below(&self.around);
        // What stays is removed with the directory of the run.
        let _ = fs::remove_dir_all(&self.around);
    }
}

impl TrialWorktree<'_> {
    /// Runs a command in it that has to succeed.
    pub fn run_ok(&self, args: &[&str]) -> TrialResult<String> {
        self.program.run_ok(&self.tree, args)
    }

    /// Makes a snapshot with a tag.
    pub fn snapshot(&self, tag: &str) -> TrialResult<String> {
        self.run_ok(&["snapshot", "--quiet", "-m", tag, "--tag", tag])
    }

    /// Fails unless everything in the store is whole.
    pub fn verify(&self) -> TrialResult {
        self.run_ok(&["verify", "--all", "--quiet"]).map(drop)
    }

    /// Writes the content of a snapshot into a new directory.
    pub fn export(&self, snapshot: &str) -> TrialResult<PathBuf> {
        let to = self.around.join(format!("export-{snapshot}"));
        self.run_ok(&["export", snapshot, "--to", &to.display().to_string()])?;
        Ok(to)
    }

    /// The directory of the store, if it is one.
    pub fn require_local_store(&self) -> TrialResult<&Path> {
        self.store.as_deref().ok_or_else(|| TrialStop::Inapplicable("the store is no directory".into()))
    }
}

/// Takes away what a trial that failed has left mounted.
fn detach_mounts_below(dir: &Path) {
    let mounts = read_mounts().unwrap_or_default();
    for mount in mounts.iter().rev().filter(|mount| mount.mountpoint.starts_with(dir)) {
        // What cannot be detached keeps the directory, which is reported.
        let _ = vellum_fuse::detach_mount(&mount.mountpoint);
    }
}

/// A folder below the folder of an address.
fn add_folder(store: &StoreLocation, name: &str) -> StoreLocation {
    // Options stand behind the folder.
    let url = match store.url.split_once('?') {
        Some((folder, options)) if store.url.contains("://") => {
            format!("{}/{name}?{options}", folder.trim_end_matches('/'))
        }
        _ => format!("{}/{name}", store.url.trim_end_matches('/')),
    };
    StoreLocation { url, credentials: store.credentials.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stands_before_the_options() {
        let add = |url: &str| add_folder(&StoreLocation::new(url), "x").url;
        assert_eq!(add("s3://bucket/a?single-writer"), "s3://bucket/a/x?single-writer");
        assert_eq!(add("s3://bucket"), "s3://bucket/x");
        assert_eq!(add("/a/b?c/"), "/a/b?c/x");
    }
}
