//! Garbage collection: a plan that can be read, then its execution.
//!
//! Invariant: nothing is deleted that a snapshot or the head of a worktree needs, or that a writer at work may rely
//! on; killed at any point, the next run goes on. The order of a run is the argument (see [`crate::session`] for the
//! writers' half): condemn what the plan says; look for writers, and leave the rest to a later run if there are any;
//! mark again, since a writer may have ended between plan and condemnation; copy what is alive out of packs that are
//! mostly dead, or to be joined; let the index forget the condemned packs; delete them.

mod mark;
mod node_packs;
mod plan;
mod roots;
mod run;

pub use mark::{LiveBlobs, mark_live_blobs};
pub(crate) use mark::{NodeReferences, low_half_bits, mark_reached_blobs, read_node_references};
pub use node_packs::{NodePackCount, count_node_packs};
pub use plan::{CollectionPlan, PackAction, PackPlan, plan_collection};
pub use roots::LostRecord;
pub(crate) use roots::{LiveRoots, find_live_roots};
pub use run::{CollectionReport, CollectionRequest, run_collection};
