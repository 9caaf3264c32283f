//! Renaming all new files to their final names together (`--delay-updates`).
//!
//! Invariant: if the run stops early, or the connection is lost, no delayed file is renamed. Deliberately absent: where
//! delayed files are stored (see `receive`).

use std::sync::atomic::Ordering;

use super::carrier::TransferContext;
use crate::local::receive::{SyncJob, SyncProblem};
use crate::plan::{StepAction, SyncStep};

/// Whether a step brings content, whose name is delayed.
pub(super) fn is_delayed(step: &SyncStep) -> bool {
    matches!(step.action, StepAction::Write(_) | StepAction::CopyBasis(_))
}

impl TransferContext<'_> {
    /// Renames all delayed files to their final names, or gives them up.
    pub fn name_delayed(&self, job: &SyncJob<'_>) {
        let Some(delayed) = self.delayed() else { return };
        let (hidden, waiting) = delayed.close();
        // Half of an update must not become visible if the rest will not follow. A failure of single files
        // does not hold the others back.
        let is_over = self.should_stop() || self.cut.load(Ordering::Relaxed);
        if is_over && !self.is_stopped() && !waiting.is_empty() {
            let message =
                format!("not everything was written, so {} files keep their old versions", waiting.len());
            self.report_problem(SyncProblem { path: Vec::new(), message, vanished: false });
        }
        for file in &waiting {
            let Some(entry) = file.step.source.map(|id| job.from.entry(id)) else { continue };
            let named = self.open_parent(&entry).and_then(|dir| match is_over {
                true => {
                    self.receiver().give_up_waiting(file, &dir, &entry);
                    Ok(())
                }
                false => self.receiver().name_waiting(file, &dir, &entry),
            });
            // The step was counted when its file was complete.
            if is_over || named.is_err() {
                self.uncount();
            }
            if let Err(error) = named {
                self.report_failure(&entry.path(), &error);
            }
        }
        let preserve = &job.options.preserve;
        delayed.remove(hidden, preserve.times && !preserve.omit_dir_times);
    }
}
