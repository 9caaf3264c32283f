//! What an examination finds, and what is done about it.

use std::fmt::Display;

use serde::Serialize;

use crate::error::{Result, VolumeError};

/// How bad it is. The worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSeverity {
    /// Something does not work, or is lost.
    Problem,
    /// Something is in the way, or will be.
    Warning,
    /// Something that is good to know.
    Note,
}

/// Whether a repair does anything about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingRepair {
    /// No: the user decides.
    None,
    /// Yes, if it is asked for.
    Possible,
    /// It is repaired.
    Done,
    /// It could not be repaired, for this reason.
    Failed(String),
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorFinding {
    /// Which kind of finding it is; the words do not change between versions.
    pub id: &'static str,
    /// How bad it is.
    pub severity: FindingSeverity,
    /// What it concerns.
    pub object: String,
    /// What it means.
    pub meaning: String,
    /// What a repair does, or what the user can do; possibly empty.
    pub remedy: String,
    /// Whether a repair does anything about it.
    pub repair: FindingRepair,
}

impl DoctorFinding {
    /// A finding of which nothing is repaired.
    #[must_use]
    pub fn new(
        severity: FindingSeverity,
        id: &'static str,
        object: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            id,
            severity,
            object: object.into(),
            meaning: meaning.into(),
            remedy: remedy.into(),
            repair: FindingRepair::None,
        }
    }

    /// Whether somebody has still to do something about it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.severity != FindingSeverity::Note && self.repair != FindingRepair::Done
    }
}

/// The findings of an examination.
pub struct DoctorFindings {
    is_repairing: bool,
    hint: fn(&VolumeError) -> Option<String>,
    found: Vec<DoctorFinding>,
}

impl DoctorFindings {
    /// None yet. With `is_repairing`, what can be repaired is repaired as soon as it is found. `hint` knows what to do about
    /// a failure.
    #[must_use]
    pub fn new(is_repairing: bool, hint: fn(&VolumeError) -> Option<String>) -> Self {
        Self { is_repairing, hint, found: Vec::new() }
    }

    /// What to do about a failure.
    #[must_use]
    pub fn hint(&self, error: &VolumeError) -> String {
        (self.hint)(error).unwrap_or_default()
    }

    /// Adds a finding that only the user can do something about.
    pub fn add(&mut self, finding: DoctorFinding) {
        self.found.push(finding);
    }

    /// Adds a finding that `repair` mends.
    pub fn add_repairable<E: Display>(
        &mut self,
        finding: DoctorFinding,
        repair: impl FnOnce() -> Result<(), E>,
    ) {
        let repair = match self.is_repairing.then(repair) {
            None => FindingRepair::Possible,
            Some(Ok(())) => FindingRepair::Done,
            Some(Err(error)) => FindingRepair::Failed(error.to_string()),
        };
        self.found.push(DoctorFinding { repair, ..finding });
    }

    /// Runs a check. One that fails is a finding, too, and does not end the examination.
    pub fn run_check(&mut self, object: &str, check: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = check(self) {
            let hint = self.hint(&error);
            let meaning = vellum_host::error_chain::format_error_chain(&error);
            self.add(DoctorFinding::new(FindingSeverity::Problem, "failed-check", object, meaning, hint));
        }
    }

    /// All findings, the worst first.
    #[must_use]
    pub fn into_sorted(self) -> Vec<DoctorFinding> {
        let mut found = self.found;
        // Stable: findings of one severity stay in the order of the checks.
        found.sort_by_key(|finding| finding.severity);
        // One cause may make several checks fail.
        found.dedup_by(|later, earlier| later.id == "failed-check" && later == earlier);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning() -> DoctorFinding {
        DoctorFinding::new(FindingSeverity::Warning, "test", "object", "meaning", "remedy")
    }

    #[test]
    fn a_repair_runs_only_if_it_is_asked_for() {
        let fail = || -> Result<(), &str> { Err("no") };
        let mut findings = DoctorFindings::new(false, |_| None);
        findings.add_repairable(warning(), fail);
        assert_eq!(findings.found.first().map(|found| &found.repair), Some(&FindingRepair::Possible));
        let mut findings = DoctorFindings::new(true, |_| None);
        findings.add_repairable(warning(), fail);
        findings.add_repairable(warning(), || Ok::<_, &str>(()));
        let repairs: Vec<_> = findings.into_sorted().into_iter().map(|found| found.repair).collect();
        assert_eq!(repairs, [FindingRepair::Failed("no".into()), FindingRepair::Done]);
    }

    #[test]
    fn the_worst_comes_first_and_a_failed_check_is_a_finding() {
        let mut findings = DoctorFindings::new(false, |_| Some("hint".into()));
        findings.add(warning());
        for _ in 0..2 {
            findings.run_check("store", |_| Err(VolumeError::Locked));
        }
        let found = findings.into_sorted();
        assert_eq!(found.len(), 2);
        let first = found.first().map(|found| (found.id, found.remedy.as_str(), found.is_open()));
        assert_eq!(first, Some(("failed-check", "hint", true)));
    }
}
