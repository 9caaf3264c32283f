//! The plan of a restore as a file: what it would do, and what it saw of that. (docs/restore-plans.md)
//!
//! Invariant: a plan is carried out only if it is the one that was written, for this volume and worktree, and if the same
//! request, planned again, does the same to the same things. No path of a file is ever used to reach one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_host::escape::{EscapedPath, format_path};
use vellum_types::key::check_name;
use vellum_types::{FieldWriter, FileKind, Ino, SnapshotId};
use vellum_volume::history::HistoryEntry;
use vellum_volume::{FsTree, Volume};

use super::{RestorePlan, RestoreRequest, RestoreStepKind};
use crate::error::{CheckoutError, Result};
use crate::scan::{STATE_DIR, ScanEntryId};
use crate::worktree::CheckoutWorktree;

/// What a file begins to say it is.
const FORMAT: &str = "vellum-restore-plan";
const VERSION: u32 = 1;
/// Longest file, bytes: a plan of some million steps.
pub const PLAN_MAX: u64 = 1 << 30;
/// Longest path in a plan, bytes: longer than any that a system call takes.
const PATH_MAX: usize = 1 << 20;
/// Differences that a message names.
const SHOWN: usize = 10;

/// Why a file is no plan that can be carried out.
#[derive(Debug, thiserror::Error)]
pub enum SavedPlanError {
    /// It is no plan, or not a whole one.
    #[error("it is no plan of a restore, or not a whole one: {0}")]
    NotAPlan(#[from] serde_json::Error),
    /// It says that it is something else.
    #[error("it is no plan of a restore")]
    OtherFormat,
    /// A later version of Vellum wrote it.
    #[error("it has version {0}, which this version of Vellum does not know")]
    Version(u32),
    /// It has a path that no plan can have.
    #[error("it has the path '{0}', which no plan can have")]
    Path(String),
    /// It has an id that is none.
    #[error("it names a snapshot by what is no id")]
    Id,
    /// It is that of another volume.
    #[error("it is for another volume")]
    OtherVolume,
    /// It is that of another worktree.
    #[error("it is for the worktree '{0}'")]
    OtherWorktree(String),
    /// It is not what was written.
    #[error("it was changed after it was written")]
    Edited,
}

/// The plan of a restore, as a file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRestorePlan {
    format: String,
    version: u32,
    volume: String,
    worktree: String,
    /// The snapshot on which the worktree stood.
    head: Option<String>,
    target: String,
    paths: Vec<SavedPath>,
    only: Vec<SavedPath>,
    discard: bool,
    steps: Vec<SavedStep>,
    unsaved: Vec<SavedPath>,
    /// A keyed hash of all the rest.
    check: String,
}

/// What a plan does, and what it saw.
pub(super) struct SavedSteps {
    /// The snapshot on which the worktree stands.
    pub head: Option<SnapshotId>,
    /// In any order.
    pub steps: Vec<SavedStep>,
    /// Paths that a safety snapshot will hold, in any order.
    pub unsaved: Vec<Vec<u8>>,
}

/// A path: text where it is UTF-8; else its bytes in hexadecimal beside a text that resembles them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPath {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedStep {
    action: SavedAction,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// A keyed hash of what is there; None: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    saw: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SavedAction {
    Create,
    Replace,
    Change,
    Delete,
}

/// The first fields of any version.
#[derive(Deserialize)]
struct PlanHeader {
    format: String,
    version: u32,
}

impl SavedRestorePlan {
    /// Reads a file. What it says is not checked against anything yet.
    pub fn decode(bytes: &[u8]) -> Result<Self, SavedPlanError> {
        // First only what every version has: a later one is to be named as that, and not reported as damaged.
        let header: PlanHeader = serde_json::from_slice(bytes)?;
        if header.format != FORMAT {
            return Err(SavedPlanError::OtherFormat);
        }
        if header.version != VERSION {
            return Err(SavedPlanError::Version(header.version));
        }
        let plan: Self = serde_json::from_slice(bytes)?;
        let mut named = plan.paths.iter().chain(&plan.only).chain(&plan.unsaved);
        named.try_for_each(|path| path.to_bytes().map(drop))?;
        plan.steps.iter().try_for_each(|step| step.to_path().map(drop))?;
        Ok(plan)
    }

    /// The bytes of the file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(SavedPlanError::NotAPlan)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    fn compute_check(&self, keys: &VolumeKeys) -> Result<String> {
        // A hash cannot cover itself.
        let unchecked = Self { check: String::new(), ..self.clone() };
        let bytes = serde_json::to_vec(&unchecked).map_err(SavedPlanError::NotAPlan)?;
        Ok(hash_with_key(keys, "check", &bytes))
    }

    fn steps_by_path(&self) -> BTreeMap<(SavedPath, SavedAction), &Option<String>> {
        self.steps.iter().map(|step| ((step.name(), step.action), &step.saw)).collect()
    }
}

impl SavedPath {
    fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { path: text.into(), path_hex: None },
            Err(_) => Self {
                path: String::from_utf8_lossy(bytes).into_owned(),
                path_hex: Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            },
        }
    }

    /// The path, if a plan can have it: relative, of names that a file can have, and outside of the state directory.
    fn to_bytes(&self) -> Result<Vec<u8>, SavedPlanError> {
        let refused = || SavedPlanError::Path(EscapedPath(self.path.as_bytes()).to_string());
        let bytes = match &self.path_hex {
            None => self.path.clone().into_bytes(),
            Some(hex) => parse_hexadecimal(hex).ok_or_else(refused)?,
        };
        let is_whole = bytes.is_empty();
        let names = || bytes.split(|byte| *byte == b'/');
        let is_right = bytes.len() <= PATH_MAX
            // Text that resembles other bytes than those in hexadecimal would show a user another path than the one
            // that counts.
            && Self::new(&bytes) == *self
            && (is_whole || names().all(|name| check_name(name).is_ok()))
            && names().next() != Some(STATE_DIR);
        if is_right { Ok(bytes) } else { Err(refused()) }
    }
}

impl SavedStep {
    fn name(&self) -> SavedPath {
        SavedPath { path: self.path.clone(), path_hex: self.path_hex.clone() }
    }

    fn to_path(&self) -> Result<Vec<u8>, SavedPlanError> {
        self.name().to_bytes()
    }
}

impl From<RestoreStepKind> for SavedAction {
    fn from(kind: RestoreStepKind) -> Self {
        match kind {
            RestoreStepKind::Create => Self::Create,
            RestoreStepKind::Replace => Self::Replace,
            RestoreStepKind::Metadata => Self::Change,
            RestoreStepKind::Delete => Self::Delete,
        }
    }
}

impl SavedRestorePlan {
    /// The file of a plan that does these steps.
    pub(super) fn new(volume: &Volume, request: &RestoreRequest, steps: SavedSteps) -> Result<Self> {
        let path = |path: &Vec<u8>| SavedPath::new(path);
        let SavedSteps { head, mut steps, unsaved } = steps;
        steps.sort_by(|a, b| (&a.path, &a.path_hex, a.action).cmp(&(&b.path, &b.path_hex, b.action)));
        let mut saved = Self {
            format: FORMAT.into(),
            version: VERSION,
            volume: volume.worktree.volume.clone(),
            worktree: volume.worktree.worktree.clone(),
            head: head.map(|id| id.to_string()),
            target: request.target.id.to_string(),
            paths: request.paths.iter().map(path).collect(),
            only: request.only.iter().map(path).collect(),
            discard: request.discard,
            steps,
            unsaved: unsaved.iter().map(path).collect(),
            check: String::new(),
        };
        // In one order, so that equal plans have equal files.
        saved.unsaved.sort();
        saved.check = saved.compute_check(&volume.keys)?;
        Ok(saved)
    }

    /// What the file asks for. Fails with [`CheckoutError::Plan`] if it is not as it was written, or not for the worktree of
    /// this volume.
    pub fn read_request(&self, volume: &Volume) -> Result<RestoreRequest> {
        let own = &volume.worktree;
        // Before the hash: with the key of another volume, that would only say that the file was changed.
        if self.volume != own.volume {
            return Err(SavedPlanError::OtherVolume.into());
        }
        if self.worktree != own.worktree {
            return Err(SavedPlanError::OtherWorktree(format_path(&self.worktree)).into());
        }
        if self.check != self.compute_check(&volume.keys)? {
            return Err(SavedPlanError::Edited.into());
        }
        let id: SnapshotId = self.target.parse().map_err(|_| SavedPlanError::Id)?;
        let bytes =
            |paths: &[SavedPath]| paths.iter().map(SavedPath::to_bytes).collect::<Result<Vec<_>, _>>();
        Ok(RestoreRequest {
            target: HistoryEntry { id, record: volume.catalog.get_record(&id)? },
            paths: bytes(&self.paths)?,
            only: bytes(&self.only)?,
            discard: self.discard,
        })
    }

    /// Fails with [`CheckoutError::PlanOutdated`] if a plan that was drawn now is another than this one, and names what is
    /// different. Both are compared in the form of the file, so that what the file does not have cannot make a difference.
    pub fn check_same_plan(&self, now: &Self) -> Result<()> {
        let mut differences = Vec::new();
        if now.head != self.head {
            differences.push("the worktree stands on another snapshot".to_owned());
        }
        let before = self.steps_by_path();
        let after = now.steps_by_path();
        let mut changed: Vec<_> = before
            .iter()
            .filter(|(step, saw)| after.get(*step) != Some(*saw))
            .map(|(step, _)| step)
            .collect();
        changed.extend(after.keys().filter(|step| !before.contains_key(*step)));
        let mut paths: Vec<_> = changed.into_iter().map(|(path, _)| path).collect();
        paths.extend(self.unsaved.iter().filter(|path| !now.unsaved.contains(path)));
        paths.extend(now.unsaved.iter().filter(|path| !self.unsaved.contains(path)));
        // A path may have two steps, and be unsaved as well.
        paths.sort();
        paths.dedup();
        differences.extend(paths.into_iter().map(|path| format!("'{}' has changed", format_saved(path))));
        if differences.is_empty() {
            return Ok(());
        }
        let more = differences.len().saturating_sub(SHOWN);
        differences.truncate(SHOWN);
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        Err(CheckoutError::PlanOutdated(differences))
    }
}

impl CheckoutWorktree {
    /// The file of a plan. The caller holds the lock since before it was drawn.
    pub fn save_plan(&self, plan: &RestorePlan) -> Result<SavedRestorePlan> {
        let head = self.volume.read_head()?;
        let unsaved = plan.unsaved.clone();
        let steps = SavedSteps { head, steps: self.list_saved_steps(plan)?, unsaved };
        SavedRestorePlan::new(&self.volume, &plan.request, steps)
    }

    /// All steps, those of directories' attributes among them, by path.
    fn list_saved_steps(&self, plan: &RestorePlan) -> Result<Vec<SavedStep>> {
        let mut saw: BTreeMap<Vec<u8>, String> = BTreeMap::new();
        for id in plan.replaced_entries() {
            saw.insert(plan.looked.tree.entry(id).path(), self.hash_entry(plan, id)?);
        }
        let mut steps = Vec::new();
        let mut made = Vec::new();
        for step in plan.list_steps()? {
            if step.kind == RestoreStepKind::Create {
                made.push(step.path.clone());
            }
            let seen = match step.kind {
                RestoreStepKind::Create => None,
                RestoreStepKind::Replace | RestoreStepKind::Metadata | RestoreStepKind::Delete => {
                    saw.get(&step.path).cloned()
                }
            };
            steps.push(new_step(step.kind.into(), &step.path, seen));
        }
        for ino in &plan.work.dirs {
            let path = plan.target.inode_path(*ino)?;
            // A directory that is made has a step already, and there is nothing of it that could be lost.
            // `list_steps` gives the steps in the order of their paths, and so were these collected.
            if made.binary_search(&path).is_ok() {
                continue;
            }
            let now =
                plan.looked.state.find_path(&path, "").ok().filter(|(_, attr)| attr.kind == FileKind::Dir);
            let seen =
                now.map(|(now, _)| hash_inode(&self.volume.keys, &plan.looked.state, now)).transpose()?;
            steps.push(new_step(SavedAction::Change, &path, seen));
        }
        Ok(steps)
    }

    fn hash_entry(&self, plan: &RestorePlan, id: ScanEntryId) -> Result<String> {
        hash_inode(&self.volume.keys, &plan.looked.state, plan.looked.captured.number_of_entry(id))
    }
}

/// A keyed hash of what a restore would lose of an inode. Inode numbers are not in it, which others' changes move.
pub(super) fn hash_inode(keys: &VolumeKeys, state: &FsTree, ino: Ino) -> Result<String> {
    let inode = state.read_inode(ino)?;
    let attr = &inode.attr;
    let is_dir = attr.kind == FileKind::Dir;
    let mut writer = FieldWriter::new();
    writer.write_u8(attr.kind.as_byte());
    for number in [attr.mode, attr.uid, attr.gid] {
        writer.write_u32(number);
    }
    if !is_dir {
        // The time and the size of a directory follow from its entries, each of which has a step of its own.
        attr.mtime.encode(&mut writer);
        writer.write_varint(attr.size).write_varint(attr.rdev);
    }
    writer.write_bytes(&attr.target);
    match &attr.inline {
        None => drop(writer.write_u8(0)),
        Some(content) => drop(writer.write_u8(1).write_bytes(content)),
    }
    for (name, value) in &inode.xattrs {
        writer.write_bytes(name).write_bytes(value);
    }
    for (offset, extent) in &inode.extents {
        writer.write_varint(*offset).write_bytes(&extent.encode());
    }
    Ok(hash_with_key(keys, "inode", &writer.into_vec()))
}

pub(super) fn new_step(action: SavedAction, path: &[u8], saw: Option<String>) -> SavedStep {
    let SavedPath { path, path_hex } = SavedPath::new(path);
    SavedStep { action, path, path_hex, saw }
}

fn format_saved(path: &SavedPath) -> String {
    match path.path.as_str() {
        "" => ".".into(),
        shown => format_path(shown),
    }
}

/// Whoever has no key of the volume can neither make such a hash nor guess content by it.
fn hash_with_key(keys: &VolumeKeys, what: &str, bytes: &[u8]) -> String {
    // The NUL ends the name, which therefore cannot run into the bytes behind it.
    let mut named = format!("restore plan, {what}\0").into_bytes();
    named.extend_from_slice(bytes);
    let hash = keys.compute_record_id(RecordDomain::Local, &named);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(paths: &[&[u8]]) -> SavedRestorePlan {
        SavedRestorePlan {
            format: FORMAT.into(),
            version: VERSION,
            volume: "v".into(),
            worktree: "main".into(),
            head: None,
            target: "0".repeat(64),
            paths: Vec::new(),
            only: Vec::new(),
            discard: false,
            steps: paths.iter().map(|path| new_step(SavedAction::Create, path, None)).collect(),
            unsaved: Vec::new(),
            check: String::new(),
        }
    }

    #[test]
    fn plans_are_read_as_they_were_written_and_hostile_paths_are_refused() {
        let good = plan(&[b"a/b", b"caf\xe9", b""]);
        let bytes = good.encode().unwrap_or_default();
        assert_eq!(SavedRestorePlan::decode(&bytes).ok(), Some(good));
        for bad in [&b"/etc/passwd"[..], b"../x", b"a/../b", b"a//b", b"a/", b".vellum/key", b"a\0b"] {
            let bytes = plan(&[bad]).encode().unwrap_or_default();
            assert!(matches!(SavedRestorePlan::decode(&bytes), Err(SavedPlanError::Path(_))), "{bad:?}");
        }
        let newer = SavedRestorePlan { version: 2, ..plan(&[]) }.encode().unwrap_or_default();
        assert!(matches!(SavedRestorePlan::decode(&newer), Err(SavedPlanError::Version(2))));
    }

    #[test]
    fn a_path_in_hexadecimal_has_one_form() {
        for (path, hex) in [("a", "61"), ("caf\u{fffd}", "636166E9"), ("other", "636166e9"), ("x", "6")] {
            let bad = SavedPath { path: path.into(), path_hex: Some(hex.into()) };
            assert!(bad.to_bytes().is_err(), "{path} {hex}");
        }
    }

    proptest! {
        #[test]
        fn what_is_damaged_is_refused_or_read_without_a_panic(at: prop::sample::Index, byte: u8, cut: bool) {
            let mut bytes = plan(&[b"a/b", b"caf\xe9"]).encode().unwrap_or_default();
            let at = at.index(bytes.len());
            match cut {
                true => bytes.truncate(at),
                false => bytes[at] = byte,
            }
            if let Ok(plan) = SavedRestorePlan::decode(&bytes) {
                let again = plan.encode().unwrap_or_default();
                prop_assert_eq!(SavedRestorePlan::decode(&again).ok(), Some(plan));
            }
        }
    }
}
