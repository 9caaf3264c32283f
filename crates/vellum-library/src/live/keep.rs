//! What was left behind when another took a worktree over becomes a worktree of its own.
//!
//! First the folder moves, then the new worktree is entered: run again after a crash, it goes on.

use std::fs;

use vellum_volume::Volume;
use vellum_volume::lease::Lease;
use vellum_volume::refs::{UnsnapshottedTree, WorktreeHead};
use vellum_volume::session::host_name;

use super::tokens::TokenFile;
use super::{LiveStateClaim, OpenError, Result, folder};

/// Makes the worktree `new` of the changes of `worktree` that were not published here before another took it over.
pub fn keep(volume: &Volume, worktree: &str, new: &str) -> Result<()> {
    vellum_volume::refs::check_ref_name(new)?;
    let (old, dir) = (folder(volume, worktree), folder(volume, new));
    let claim = LiveStateClaim::take(volume, worktree, None)?;
    let tokens = TokenFile::of(claim.dir()).load()?;
    let head = volume.worktree_head(worktree)?;
    let current = head.and_then(|head| head.lease).map(|lease| lease.token);
    let is_behind = current.is_none_or(|token| !tokens.contains(&token));
    if !tokens.is_empty() && is_behind && claim.holds_unpublished()? {
        if volume.worktree_head(new)?.is_some()
            || TokenFile::of(&dir).load().is_ok_and(|there| !there.is_empty())
        {
            return Err(vellum_volume::VolumeError::Exists { kind: "worktree", name: new.into() }.into());
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(OpenError::io("replace", &dir))?;
        }
        fs::rename(&old, &dir).map_err(OpenError::io("move", &old))?;
    }
    drop(claim);
    enter(volume, worktree, new)?;
    Ok(volume.let_go(worktree, &tokens)?)
}

/// Enters the worktree whose live state is there already.
fn enter(volume: &Volume, worktree: &str, new: &str) -> Result<()> {
    let nothing = || OpenError::NothingLeft { name: worktree.into() };
    let claim = LiveStateClaim::take(volume, new, None)?;
    let token = TokenFile::of(claim.dir()).load()?.into_iter().next_back().ok_or_else(nothing)?;
    let head = claim.head()?.ok_or_else(nothing)?;
    let live = UnsnapshottedTree { root: head.state.base, counted: head.state.counted };
    let published = head.snapshot.map(|last| last.id).filter(|id| volume.catalog.get(id).is_ok());
    let place = claim.dir().display().to_string();
    let lease = Some(Lease::ended(token));
    let made =
        WorktreeHead { head: published, live: Some(live), lease, ..WorktreeHead::new(host_name(), place) };
    Ok(volume.enter_worktree(new, &made)?)
}
