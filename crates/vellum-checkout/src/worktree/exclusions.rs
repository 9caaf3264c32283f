//! What snapshots of a worktree leave out, as the commands say that make them. Whatever looks at the directory afterwards
//! leaves it out too, so that it is neither new nor in the way of a restore.

use serde::{Deserialize, Serialize};
use vellum_host::escape::format_path;
use vellum_host::exclusions::parse_exclude_patterns;
use vellum_volume::StateDir;
pub use vellum_volume::exclusions::SnapshotExclusions;

use super::CheckoutWorktree;
use crate::error::{CheckoutError, Result};
use crate::scan::ScanExclusions;

const FILE: &str = "exclusions.json";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExclusionsFile {
    version: u32,
    exclusions: SnapshotExclusions,
}

fn add_to_scan(exclusions: &SnapshotExclusions, scan: ScanExclusions) -> Result<ScanExclusions, String> {
    let patterns = parse_exclude_patterns(&exclusions.patterns)?;
    let SnapshotExclusions { other_file_systems, caches, .. } = *exclusions;
    Ok(ScanExclusions { patterns, other_file_systems, caches, ..scan })
}

/// What the last snapshot of a worktree left out.
fn read_kept(state: &StateDir) -> Result<SnapshotExclusions> {
    let Some(bytes) = state.read_file(FILE)? else { return Ok(SnapshotExclusions::default()) };
    let kept = serde_json::from_slice::<ExclusionsFile>(&bytes).ok();
    let kept = kept.filter(|kept| kept.version == VERSION).map(|kept| kept.exclusions);
    // As if it said nothing, files that are not to be touched would be taken for new ones.
    kept.ok_or_else(|| CheckoutError::BadExclusions(format_place(state)))
}

fn format_place(state: &StateDir) -> String {
    format_path(state.join(FILE).as_os_str().as_encoded_bytes())
}

impl CheckoutWorktree {
    /// What is left out of all that is seen of the directory. The settings of the volume are read when something is scanned:
    /// commands that do not look at the directory ask the store for nothing.
    pub(crate) fn scan_exclusions(&self) -> Result<ScanExclusions> {
        let rule_files = self.volume.settings_in_force()?.ignore_files();
        Ok(ScanExclusions { rule_files, ..self.scan_exclusions.clone() })
    }

    /// Lets everything that is done with the worktree from now on leave this out, instead of what the last snapshot left out.
    pub fn exclude(&mut self, exclusions: SnapshotExclusions) -> Result<()> {
        let scan = add_to_scan(&exclusions, self.scan_exclusions.clone());
        self.scan_exclusions = scan.map_err(CheckoutError::BadPattern)?;
        self.exclusions = exclusions;
        Ok(())
    }

    /// What is left out, beside what ignore files say.
    #[must_use]
    pub fn exclusions(&self) -> &SnapshotExclusions {
        &self.exclusions
    }

    /// Leaves out what the last snapshot left out.
    pub(super) fn apply_kept_exclusions(&mut self) -> Result<()> {
        let kept = read_kept(&self.volume.state)?;
        if kept.is_empty() {
            return Ok(());
        }
        let place = format_place(&self.volume.state);
        self.exclude(kept).map_err(|_| CheckoutError::BadExclusions(place))
    }

    /// Remembers what is left out, durably, as that of the last snapshot.
    pub(super) fn keep_exclusions(&self) -> Result<()> {
        let state = &self.volume.state;
        if !self.exclusions.is_empty() {
            let file = ExclusionsFile { version: VERSION, exclusions: self.exclusions.clone() };
            return Ok(state.write_json_file(FILE, &file)?);
        }
        // Removing waits for the disk, and most worktrees leave nothing out.
        if state.read_file(FILE)?.is_some() {
            state.remove_file(FILE)?;
        }
        Ok(())
    }
}
