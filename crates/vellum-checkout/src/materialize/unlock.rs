//! Directories without write permission for their owner: it is granted while entries in them are restored.
//!
//! Root needs no permission. Invariant: these directories get their old permissions again, also after a failure, unless
//! the plan sets others.

use rustix::process::geteuid;
use vellum_host::beneath::HeldDir;

use super::MaterializeRun;
use crate::plan::PlanSteps;

/// The permissions that the owner needs to work in a directory.
const OWNER_ALL: u32 = 0o700;

/// Directories with granted permissions, and their old modes, which are restored when this is dropped.
#[derive(Default)]
pub struct UnlockedDirs {
    dirs: Vec<(HeldDir, u32)>,
}

impl UnlockedDirs {
    /// Grants permissions on the directories with steps; in a plan, parents come before children.
    pub fn unlock_dirs(work: &MaterializeRun<'_>, steps: &PlanSteps) -> Self {
        let mut unlocked = Self::default();
        if work.caller.is_privileged() {
            return unlocked;
        }
        let now = work.what.now.as_ref();
        let mut last = None;
        let mut scanned: Vec<_> = steps.deletes.iter().map(|id| id.dir).collect();
        scanned.sort_unstable();
        for index in scanned {
            // Steps of one directory are adjacent, so comparing with the last one is enough to try each
            // directory once.
            if last.replace(index) != Some(index) {
                unlocked.try_unlock_dir(now.and_then(|now| now.dirs.open_dir(index).ok()));
            }
        }
        let made = steps.make_dirs.iter().map(|place| place.dir);
        let written = steps.writes.iter().map(|write| write.place.dir);
        let linked = steps.links.iter().map(|link| link.place.dir);
        let mut last = None;
        for ino in made.chain(written).chain(linked) {
            if last.replace(ino) != Some(ino) {
                // One that is yet to be made is the caller's anyway.
                unlocked.try_unlock_dir(work.dirs.open_dir(ino).ok());
            }
        }
        unlocked
    }

    fn try_unlock_dir(&mut self, dir: Option<HeldDir>) {
        let Some(dir) = dir else { return };
        let Ok(stat) = dir.stat_self() else { return };
        // `chmod` is allowed to the owner only (EPERM). The removals and creations in other users'
        // directories then fail one by one and are reported.
        let is_mine = stat.uid == geteuid().as_raw();
        if is_mine
            && stat.mode & OWNER_ALL != OWNER_ALL
            && dir.hold_self().set_mode(stat.mode | OWNER_ALL).is_ok()
        {
            self.dirs.push((dir, stat.mode));
        }
    }
}

impl Drop for UnlockedDirs {
    fn drop(&mut self) {
        for (dir, mode) in self.dirs.drain(..).rev() {
            // This fails if the owner has changed meanwhile; then the mode is the new owner's to set.
            let _ = dir.hold_self().set_mode(mode);
        }
    }
}
