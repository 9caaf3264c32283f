//! What snapshots of a worktree leave out, as the commands say that make them. Whatever looks at the directory afterwards
//! leaves it out too, so that it is neither new nor in the way of a restore.

use serde::{Deserialize, Serialize};
use vellum_host::escape::format_path;
use vellum_volume::StateDir;

use super::CheckoutWorktree;
use crate::error::{CheckoutError, Result};
use crate::scan::{ScanExclusions, parse_exclude_patterns};

const FILE: &str = "exclusions.json";
const VERSION: u32 = 1;

/// What a snapshot leaves out, beside what ignore files say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotExclusions {
    /// Patterns of gitignore, relative to the root.
    pub patterns: Vec<String>,
    /// What is mounted below the root, or a path that is named.
    pub other_file_systems: bool,
    /// What is in directories that are marked as caches.
    pub caches: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExclusionsFile {
    version: u32,
    exclusions: SnapshotExclusions,
}

impl SnapshotExclusions {
    /// Whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What either leaves out.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        Self {
            patterns: self.patterns.iter().chain(&other.patterns).cloned().collect(),
            other_file_systems: self.other_file_systems || other.other_file_systems,
            caches: self.caches || other.caches,
        }
    }

    fn add_to_scan(&self, scan: ScanExclusions) -> Result<ScanExclusions, String> {
        let patterns = parse_exclude_patterns(&self.patterns)?;
        let Self { other_file_systems, caches, .. } = *self;
        Ok(ScanExclusions { patterns, other_file_systems, caches, ..scan })
    }

    /// What the last snapshot of a worktree left out.
    fn read_kept(state: &StateDir) -> Result<Self> {
        let Some(bytes) = state.read_file(FILE)? else { return Ok(Self::default()) };
        let kept = serde_json::from_slice::<ExclusionsFile>(&bytes).ok();
        let kept = kept.filter(|kept| kept.version == VERSION).map(|kept| kept.exclusions);
        // As if it said nothing, files that are not to be touched would be taken for new ones.
        kept.ok_or_else(|| CheckoutError::BadExclusions(Self::format_place(state)))
    }

    fn format_place(state: &StateDir) -> String {
        format_path(state.join(FILE).as_os_str().as_encoded_bytes())
    }
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
        let scan = exclusions.add_to_scan(self.scan_exclusions.clone());
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
        let kept = SnapshotExclusions::read_kept(&self.volume.state)?;
        if kept.is_empty() {
            return Ok(());
        }
        let place = SnapshotExclusions::format_place(&self.volume.state);
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
