//! What was probably meant by the name of something that does not exist. Only what is known on this machine is looked at.

use vellum_checkout::CheckoutError;
use vellum_host::near_name::find_nearest_name;
use vellum_store::RequestLimits;
use vellum_volume::tree::path_components;
use vellum_volume::volume::{KnownName, NameKind};
use vellum_volume::{FsTree, Volume, VolumeError};

use super::CommandContext;
use crate::error::{CliError, Result};

impl CommandContext {
    /// The volume of the worktree that the user stands in, without a request to a service: what is not on this machine
    /// cannot be read from it.
    pub fn open_known_volume(&self) -> Result<Volume> {
        let limits = RequestLimits { sends_requests: false, ..RequestLimits::default() };
        Ok(match self.find_mount_process()? {
            Some(process) => {
                Volume::open_with_limits(&process.state_dir()?, &limits)?.with_worktree(&process.worktree)
            }
            None => Volume::open_with_limits(&self.open_state_dir()?, &limits)?,
        })
    }

    /// Adds the name that was probably meant to the failure of a command.
    pub fn suggest_name(&self, error: CliError) -> CliError {
        let error = match error {
            CliError::Checkout(CheckoutError::NoSuchPath { ref path, .. })
            | CliError::Volume(VolumeError::NoSuchPath { ref path, .. }) => {
                let nearest = self.find_near_head_path(path.as_bytes());
                return error.with_suggestion(nearest);
            }
            CliError::Volume(error) | CliError::Checkout(CheckoutError::Volume(error)) => error,
            other => return other,
        };
        let nearest = match &error {
            VolumeError::UnknownSnapshot(name) => self.find_near_name(name, |_| true),
            VolumeError::NoSuchRef { kind: "tag", name } | VolumeError::UnknownRetentionTag(name) => {
                self.find_near_name(name, |known| known.kind == NameKind::Tag)
            }
            VolumeError::NoSuchRef { kind: "worktree", name } | VolumeError::NoSnapshotOfWorktree(name) => {
                self.find_near_name(name, |known| known.kind == NameKind::Worktree)
            }
            VolumeError::NoSuchRef { kind: "remote", name } => self.find_near_remote(name),
            _ => None,
        };
        CliError::Volume(error).with_suggestion(nearest)
    }

    /// The tag, worktree or name of a remote that is nearest to what was typed, of those that are wanted.
    pub fn find_near_name(&self, typed: &str, is_wanted: impl Fn(&KnownName) -> bool) -> Option<String> {
        // Without names, nothing is suggested: the failure itself is what matters.
        let known = self.open_known_volume().ok()?.list_known_names().ok()?;
        find_nearest_name(typed, known.into_iter().filter(|known| is_wanted(known)).map(|known| known.name))
    }

    /// The path in the last snapshot that is nearest to one from the root of the worktree, as the user would type it.
    pub fn find_near_head_path(&self, path: &[u8]) -> Option<String> {
        let volume = self.open_known_volume().ok()?;
        let paths = self.paths_for_volume(&volume).ok()?;
        let head = volume.catalog.get_record(&volume.read_head().ok()??).ok()?;
        Some(paths.format_path(&find_near_path(&volume.open_tree(head.root), path)?))
    }

    fn find_near_remote(&self, typed: &str) -> Option<String> {
        let remotes = self.open_known_volume().ok()?.list_remotes().ok()?;
        find_nearest_name(typed, remotes.into_iter().map(|remote| remote.name))
    }
}

/// The path in a tree that is nearest to one that is not there: the same but for one name, that of the first directory or
/// file that is missing.
pub fn find_near_path(tree: &FsTree, path: &[u8]) -> Option<Vec<u8>> {
    let mut found: Vec<u8> = Vec::new();
    let mut ino = vellum_types::Ino::ROOT;
    let mut names = path_components(path);
    for name in names.by_ref() {
        let entry = tree.lookup_dentry(ino, name).ok()?;
        let exact = entry.map(|entry| (name.to_vec(), entry.ino));
        let (name, inner) = exact.or_else(|| find_near_entry(tree, ino, name))?;
        if !found.is_empty() {
            found.push(b'/');
        }
        found.extend_from_slice(&name);
        ino = inner;
    }
    (found != path).then_some(found)
}

fn find_near_entry(
    tree: &FsTree,
    dir: vellum_types::Ino,
    typed: &[u8],
) -> Option<(Vec<u8>, vellum_types::Ino)> {
    let typed = std::str::from_utf8(typed).ok()?;
    let entries = tree.list_entries(dir).ok()?;
    let names = entries.iter().filter_map(|(name, _)| std::str::from_utf8(name).ok());
    let nearest = find_nearest_name(typed, names)?.as_bytes();
    let entry = entries.iter().find(|(name, _)| name == nearest)?;
    Some((entry.0.clone(), entry.1.ino))
}
