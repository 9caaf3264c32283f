//! Renaming a worktree and the directory of its live state.
//!
//! The directory is moved first, then the ref: after a crash, running it again continues. A live state on another
//! machine is not moved: only what it published is available.

use vellum_host::process::host_name;
use vellum_volume::Volume;
use vellum_volume::refs::{WorktreeHead, check_ref_name};

use super::tokens::TokenFile;
use super::{LiveStateClaim, Result, live_state_dir};

/// Renames a worktree. Fails while the worktree is mounted or open.
pub fn rename_worktree(volume: &Volume, old: &str, new: &str) -> Result<()> {
    check_ref_name(new)?;
    if !volume.holds_unpublished(old)? {
        return move_worktree(volume, old, new);
    }
    // If the new name is another worktree's, nothing is moved, and that one's content is not this one's concern. If it is that of
    // a run that was killed, this was done by that run.
    if volume.read_worktree_head(new)?.is_none() {
        // Before it is moved: at no moment is there a worktree whose content nothing protects.
        volume.hold_unpublished(new)?;
    }
    // If it fails, a second run continues, and both are held until then.
    move_worktree(volume, old, new)?;
    Ok(volume.release_unpublished(old)?)
}

fn move_worktree(volume: &Volume, old: &str, new: &str) -> Result<()> {
    let head = volume.read_worktree_head(old)?;
    let here = live_state_dir(volume, old).display().to_string();
    match head.filter(|head| head.host == host_name() && head.place == here) {
        // There is no worktree of this name, or it has no state on this machine.
        None => Ok(volume.rename_worktree(old, new)?),
        Some(head) => rename_live_state(volume, old, new, &head),
    }
}

fn rename_live_state(volume: &Volume, old: &str, new: &str, head: &WorktreeHead) -> Result<()> {
    let from = live_state_dir(volume, old);
    let to = live_state_dir(volume, new);
    let token = head.lease.as_ref().map(|lease| lease.token);
    // Only the token tells whose state a directory holds: its name says nothing after a crash between the two
    // renames.
    let is_its = |dir| {
        TokenFile::in_dir(dir).load_tokens().is_ok_and(|all| token.is_some_and(|token| all.contains(&token)))
    };
    // A run that was killed in between has moved it already.
    if is_its(&from) || !is_its(&to) {
        super::check_name_free(volume, new)?;
        // The lock tells of processes of this machine, the lease of those of others.
        volume.check_lease_free(old)?;
        let _claim = LiveStateClaim::acquire(volume, old, None)?;
        super::move_live_state(volume, old, new)?;
    }
    Ok(volume.move_worktree(old, new, Some(&to.display().to_string()))?)
}
