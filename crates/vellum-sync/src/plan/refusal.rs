//! Why a plan is refused, and remarks on a plan.

use std::fmt;

use vellum_host::escape::EscapedPath;

/// Why a plan is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRefusal {
    /// Deleting would leave less than half of the destination.
    MoreThanHalf {
        /// Entries that would be deleted.
        deletes: u64,
        /// The number of entries.
        of: u64,
    },
    /// A Vellum store would be written to or deleted.
    Store {
        /// Its path at the destination; empty for the destination itself.
        path: Vec<u8>,
    },
    /// The source is empty, and everything would be deleted.
    EmptySource,
    /// More entries would be deleted than the limit allows.
    TooMany {
        /// Entries that would be deleted.
        deletes: u64,
        /// The limit.
        allowed: u64,
    },
}

impl PlanRefusal {
    /// What would have happened.
    fn describe_reason(&self) -> String {
        match self {
            Self::MoreThanHalf { deletes, of } => {
                format!("{deletes} of {of} entries at the destination would be deleted, more than half")
            }
            Self::Store { path } if path.is_empty() => {
                "the destination is a Vellum store, which only Vellum may write to".to_owned()
            }
            Self::Store { path } => format!(
                "'{}' at the destination is a Vellum store, which only Vellum may write to or delete",
                EscapedPath(path)
            ),
            Self::EmptySource => {
                "the source is empty, and everything at the destination would be deleted".to_owned()
            }
            Self::TooMany { deletes, allowed } => {
                format!("{deletes} entries at the destination would be deleted, and {allowed} are allowed")
            }
        }
    }
}

impl fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: nothing was done", self.describe_reason())
    }
}

/// A remark on a plan for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRemark {
    /// Nothing is deleted, because part of the source could not be read.
    DeletesHeld {
        /// How many entries would have been deleted.
        deletes: u64,
    },
    /// Nothing is deleted, because the deletions are refused; all other steps are carried out.
    DeletesRefused {
        /// The reason.
        refusal: PlanRefusal,
    },
    /// A directory that the source lacks stays, because an entry in it is not deleted.
    Kept {
        /// The directory at the destination.
        path: Vec<u8>,
    },
    /// An entry that is not deleted is in the way of another, which is left out.
    InTheWay {
        /// The path of both.
        path: Vec<u8>,
    },
    /// Source and destination seem to be the same file, which is not removed.
    Itself {
        /// The path of both.
        path: Vec<u8>,
    },
    /// A later source has another entry at this path than the earlier one, whose entry is used.
    Shadowed {
        /// The path of both.
        path: Vec<u8>,
    },
    /// A basis directory does not exist.
    BasisMissing {
        /// Its path on the destination's host.
        path: Vec<u8>,
    },
    /// A symlink, device, fifo or socket is left out, because the options do not include its type.
    Skipped {
        /// The entry.
        path: Vec<u8>,
    },
}

impl PlanRemark {
    /// Whether a requested change is not made, which ends the run with exit code 1.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        match self {
            Self::DeletesHeld { .. }
            | Self::DeletesRefused { .. }
            | Self::InTheWay { .. }
            | Self::Itself { .. } => true,
            Self::Kept { .. } | Self::Shadowed { .. } | Self::BasisMissing { .. } | Self::Skipped { .. } => {
                false
            }
        }
    }

    /// The path of the entry; empty for a remark on the whole.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self {
            Self::DeletesHeld { .. } | Self::DeletesRefused { .. } => &[],
            Self::Kept { path }
            | Self::InTheWay { path }
            | Self::Itself { path }
            | Self::Shadowed { path }
            | Self::BasisMissing { path }
            | Self::Skipped { path } => path,
        }
    }

    /// The path, mutable, for display in another charset; None for a remark on the whole.
    pub fn path_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Self::DeletesHeld { .. } | Self::DeletesRefused { .. } => None,
            Self::Kept { path }
            | Self::InTheWay { path }
            | Self::Itself { path }
            | Self::Shadowed { path }
            | Self::BasisMissing { path }
            | Self::Skipped { path } => Some(path),
        }
    }
}

impl fmt::Display for PlanRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeletesHeld { deletes } => write!(
                f,
                "part of the source could not be read, so nothing is deleted; {deletes} entries would have been"
            ),
            Self::DeletesRefused { refusal } => {
                let force = match refusal {
                    PlanRefusal::TooMany { .. } => "--max-delete allows more",
                    _ => "--force-delete allows it",
                };
                write!(f, "{}, so nothing was deleted; {force}", refusal.describe_reason())
            }
            Self::Kept { .. } => {
                f.write_str("not deleted: an entry in it is excluded by a rule, or protected")
            }
            Self::InTheWay { .. } => f.write_str(
                "left out: a directory that is not empty is in its way; --delete or --force removes it",
            ),
            Self::Itself { .. } => {
                f.write_str("not removed at the source: it seems to be the same file as at the destination")
            }
            Self::Shadowed { .. } => {
                f.write_str("an earlier source has another entry of this name, so this one is not copied")
            }
            Self::BasisMissing { .. } => {
                f.write_str("the basis directory does not exist, so nothing is taken from it")
            }
            Self::Skipped { .. } => f.write_str("skipped: not a regular file"),
        }
    }
}
