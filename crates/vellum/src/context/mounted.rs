//! A user who stands in a mount: the volume behind it, and the process that serves it.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use vellum_map::Root;
use vellum_types::BlobId;
use vellum_volume::history::Entry;
use vellum_volume::{StateDir, Volume};

use super::Context;
use crate::error::{CliError, Result};
use crate::mounting::control::{self, Answer, Request};
use crate::mounting::{MountingError, table};

/// A mounted worktree.
pub struct MountedWorktree {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The volume, opened for this worktree.
    pub volume: Volume,
    control: PathBuf,
}

impl Context {
    /// The mounted worktree that the user stands in, if it is one.
    pub fn mounted(&self) -> Result<Option<MountedWorktree>> {
        match mountpoint_above(&self.cwd)? {
            Some(mountpoint) => {
                table::at(&mountpoint)?.map_or(Ok(None), |mount| MountedWorktree::open(&mount))
            }
            None => Ok(None),
        }
    }
}

/// Where the mount begins that a directory lies in, if it is one of ours.
pub fn mountpoint_above(cwd: &Path) -> Result<Option<PathBuf>> {
    for dir in cwd.ancestors() {
        if let Some(mount) = table::at(dir)? {
            return Ok(mount.is_ours().then_some(mount.mountpoint));
        }
    }
    Ok(None)
}

impl MountedWorktree {
    fn open(mount: &table::Mount) -> Result<Option<Self>> {
        let file = mount.describe().map_err(CliError::io("ask", mount.mountpoint.display().to_string()))?;
        let (Some(worktree), Some(control)) = (file.worktree, file.control) else {
            return Err(MountingError::OnlySnapshot(mount.mountpoint.clone()).into());
        };
        let root = Path::new(&file.state).parent().unwrap_or(Path::new("/")).to_path_buf();
        let mut volume = Volume::open(&StateDir::find(&root)?)?;
        volume.worktree.worktree = worktree;
        Ok(Some(Self { mountpoint: mount.mountpoint.clone(), volume, control: control.into() }))
    }

    /// Asks the process that serves the mount.
    pub fn ask(&self, request: &Request) -> Result<Answer> {
        control::ask(&self.control, request)
    }

    /// Lets the kernel hand over what it has not written yet.
    pub fn sync(&self) -> Result<()> {
        let failed = || CliError::io("write back", self.mountpoint.display().to_string());
        let dir = std::fs::File::open(&self.mountpoint).map_err(failed())?;
        match rustix::fs::syncfs(&dir) {
            // Once: somebody wrote to a file that was open when the worktree was restored. They were told, and of the
            // present state nothing is missing.
            Err(Errno::STALE) => rustix::fs::syncfs(&dir),
            done => done,
        }
        .map_err(|error| failed()(error.into()))
    }

    /// The last snapshot, in the store. Those that wait are published first.
    pub fn head(&self) -> Result<Option<Entry>> {
        self.ask(&Request::Settle)?;
        let Some(id) = self.volume.head()? else { return Ok(None) };
        Ok(Some(Entry { id, record: self.volume.catalog.get(&id)? }))
    }

    /// The tree of the worktree as it is now, published.
    pub fn now(&self) -> Result<Root> {
        self.sync()?;
        let answer = self.ask(&Request::Flush)?;
        self.volume.blobs.refresh().map_err(vellum_volume::VolumeError::from)?;
        let root: Option<BlobId> = answer.root.and_then(|text| text.parse().ok());
        root.map(Root).ok_or_else(|| MountingError::NoAnswer(self.control.clone()).into())
    }
}
