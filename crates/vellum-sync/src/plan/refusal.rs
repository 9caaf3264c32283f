//! Why a plan is not carried out, and what else a person should know of one.

use std::fmt;

use vellum_host::escape::EscapedPath;

/// Why a plan is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRefusal {
    /// Deleting would leave less than half of the destination.
    MoreThanHalf {
        /// Entries that would be deleted.
        deletes: u64,
        /// Of so many.
        of: u64,
    },
    /// A store of Vellum's would be written to, or deleted.
    Store {
        /// Its path at the destination; empty for the destination itself.
        path: Vec<u8>,
    },
    /// The source is empty, and everything would be deleted.
    EmptySource,
    /// More would be deleted than was allowed.
    TooMany {
        /// Entries that would be deleted.
        deletes: u64,
        /// Allowed.
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

/// What a person should know of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRemark {
    /// Nothing is deleted, since part of the source could not be read.
    DeletesHeld {
        /// So many entries would have been.
        deletes: u64,
    },
    /// Nothing is deleted, since it would be too much; all else is done.
    DeletesRefused {
        /// Why.
        refusal: PlanRefusal,
    },
    /// A directory that the source does not have stays, since there is something in it that is not deleted.
    Kept {
        /// The directory at the destination.
        path: Vec<u8>,
    },
    /// Something that is not deleted is in the way of an entry, which is left out.
    InTheWay {
        /// The path of both.
        path: Vec<u8>,
    },
    /// Source and destination seem to be one file, which is not taken away.
    Itself {
        /// The path of both.
        path: Vec<u8>,
    },
    /// One of several sources has something else of this path than an earlier one, and that is taken.
    Shadowed {
        /// The path of both.
        path: Vec<u8>,
    },
    /// A basis directory is not there.
    BasisMissing {
        /// Its path on the host of the destination.
        path: Vec<u8>,
    },
    /// A symlink, device, fifo or socket is left out, since the options do not ask for its kind.
    Skipped {
        /// The entry.
        path: Vec<u8>,
    },
}

impl PlanRemark {
    /// Whether something that was asked for is not done, which a run must end with exit code 1 for.
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

    /// The entry that it is about; empty for the whole.
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

    /// The same, to be shown in other words; None for the whole.
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
                    _ => "--force-delete does it",
                };
                write!(f, "{}, so nothing was deleted; {force}", refusal.describe_reason())
            }
            Self::Kept { .. } => {
                f.write_str("not deleted: something in it is left out by a rule, or protected")
            }
            Self::InTheWay { .. } => f.write_str(
                "a directory that is not empty is in its way: left out; --delete or --force lets it go",
            ),
            Self::Itself { .. } => f.write_str(
                "not taken away at the source: it seems to be the very file that the destination has",
            ),
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
