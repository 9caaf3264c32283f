//! Operations: what every command that changed a ref did, who ran it, where and when.
//!
//! Each worktree has a chain of records: `operations/<id of its name>/<sequence>`. A record names the one before it by its
//! hash, and the worktree's ref names the last one, in the same compare-and-swap as the change itself. What belongs to no
//! worktree (tags, forgotten snapshots, collections, keys) stands in the chain of the worktree that the command was run from,
//! or in that of the volume if the store does not have this worktree.
//!
//! Invariants: a record never changes; what a chain's head names was carried out. A record that nothing names was not, unless
//! its other ref has changed: then the next operation takes it into the chain. [`crate::refs::RefStore`] is the only one that
//! adds to chains, so that no command can forget it.

mod chain;
mod command;
mod log;
mod record;
mod revert;
mod scope;
mod thinning;
mod timeline;

pub use self::chain::{ChainCheck, ChainListing, CheckedCheckpoint, ListedOperation, OperationProblem};
pub use self::command::{
    CommandId, CommandScope, RecordedCommand, current_command, scoped_command, set_process_command,
};
pub(crate) use self::log::{
    ChainName, OperationLog, OperationSink, PutOperation, SealedOperation, is_chain_folder, is_operation_key,
};
pub use self::record::{
    Checkpoint, KeyChange, OperationEffect, OperationLink, OperationRecord, RefEffect, RevertDirection,
    RevertedOperation,
};
pub(crate) use self::record::{FORGOTTEN_MAX, find_outside_snapshot};
pub use self::revert::{HeadChange, KeptSnapshot, OperationChoice, RevertError, RevertPlan, RevertStep};
pub use self::scope::{RevertScope, WorktreeScope};
pub use self::thinning::OperationRetention;
