//! Files of which a part is restored: their new content is known, and all else of them stays.
//!
//! Invariant: what is replaced is the content that was seen, and is in a snapshot before it goes. Each file is replaced in
//! one step.

use std::io::{Read, Write};

use vellum_host::ProgressMeter;
use vellum_host::beneath::{HeldDir, HeldNode, OpenedFile, ReplacePolicy};
use vellum_host::escape::format_path;
use vellum_host::metadata::{MetadataCaller, TargetMetadata, apply_metadata};
use vellum_types::SnapshotId;

use super::RestoreRequest;
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::worktree::CheckoutWorktree;

/// Mode bits that a file keeps.
const MODE_MASK: u32 = 0o7777;

/// New content of a file.
#[derive(Debug, Clone)]
pub struct FileEdit {
    /// Relative to the root.
    pub path: Vec<u8>,
    /// What it holds.
    pub before: Vec<u8>,
    /// What it is to hold.
    pub after: Vec<u8>,
}

/// What became of edits.
#[derive(Debug, Default)]
pub struct FileEditReport {
    /// The automatic snapshot of what would have been lost.
    pub safety: Option<SnapshotId>,
    /// Bytes of content written.
    pub bytes: u64,
    /// What could not be done.
    pub problems: Vec<CheckoutProblem>,
}

impl CheckoutWorktree {
    /// Replaces the content of files by what comes, in parts, from the target of a request. What no snapshot holds is saved
    /// before, unless the request says otherwise. The caller holds the lock.
    pub fn edit_files(
        &self,
        request: &RestoreRequest,
        edits: &[FileEdit],
        meter: &ProgressMeter,
    ) -> Result<FileEditReport> {
        let mut report = FileEditReport::default();
        if edits.is_empty() {
            return Ok(report);
        }
        let paths = edits.iter().map(|edit| edit.path.clone()).collect();
        let request = RestoreRequest { paths, only: Vec::new(), ..request.clone() };
        // Of the files, the plan says which would be lost if all of each were restored.
        let plan = self.plan_restore(&request, meter)?;
        // All of them before the first is changed: if one was edited meanwhile, nothing is restored.
        edits.iter().try_for_each(|edit| edit.open_unchanged(&self.root).map(drop))?;
        if !request.discard && !plan.unsaved.is_empty() {
            report.safety = Some(self.save_unsaved_changes(&request, &plan.unsaved, meter)?);
        }
        for edit in edits {
            meter.check_stopped()?;
            if let Some(message) = edit.replace_content(&self.root)? {
                report.problems.push(CheckoutProblem { path: edit.path.clone(), message });
            }
            report.bytes += edit.after.len() as u64;
        }
        // There is no record from which this would be finished after a power cut.
        self.sync_files()?;
        Ok(report)
    }
}

impl FileEdit {
    /// Opens the file below the root, if it holds what was seen. Fails with [`CheckoutError::EditedMeanwhile`] otherwise.
    pub fn open_unchanged(&self, root: &HeldDir) -> Result<OpenedFile> {
        let (dir, name) = root.resolve_parent(&self.path)?;
        let opened = dir.open_file(name)?;
        let mut content = Vec::with_capacity(self.before.len() + 1);
        // One byte more than expected shows growth.
        let most = self.before.len() as u64 + 1;
        (&opened.file)
            .take(most)
            .read_to_end(&mut content)
            .map_err(CheckoutError::path_error("read", &self.path))?;
        if content == self.before {
            return Ok(opened);
        }
        Err(CheckoutError::EditedMeanwhile(format_path(&self.path)))
    }

    /// Puts a file with the new content in the place of the old one. Says what of its attributes could not be kept. Fails as
    /// [`Self::open_unchanged`] does.
    pub fn replace_content(&self, root: &HeldDir) -> Result<Option<String>> {
        let (dir, name) = root.resolve_parent(&self.path)?;
        // Once more: the safety snapshot may have taken long.
        let opened = self.open_unchanged(root)?;
        let xattrs = HeldNode::from_file(&opened.file).read_xattrs()?;
        let staged = dir.stage_file()?;
        staged.file()?.write_all(&self.after).map_err(CheckoutError::path_error("write", &self.path))?;
        let stat = opened.stat;
        let wanted = TargetMetadata {
            mode: stat.mode & MODE_MASK,
            uid: stat.uid,
            gid: stat.gid,
            // The content is new, and programs that go by times have to notice.
            times: None,
            xattrs: &xattrs,
        };
        let applied = apply_metadata(&staged.node()?, &wanted, MetadataCaller::current_process());
        staged.commit(name, ReplacePolicy::Always)?;
        let message = || "its owner, permissions or extended attributes could not all be kept".to_owned();
        Ok((!applied.is_complete()).then(message))
    }
}
