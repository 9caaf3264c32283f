//! Copies a part of a snapshot into a plain directory that is not a worktree.

use std::path::Path;

use vellum_host::ProgressMeter;
use vellum_host::beneath::HeldDir;
use vellum_types::{FileKind, Ino};
use vellum_volume::{FsTree, Volume};

use crate::error::{CheckoutProblem, Result};
use crate::fork::create_empty_dir;
use crate::materialize::MaterializeRequest;
use crate::plan::{FileWrite, PlanInput, PlanSteps, TargetEntry, WantedPart};

/// Writes what is at `ino` into `dest`: a directory's entries into an empty directory, which is made if need be;
/// anything else under its own name into a directory that is there. Gives what could not be done.
pub fn export_tree(
    volume: &Volume,
    tree: &FsTree,
    ino: Ino,
    dest: &Path,
    meter: &ProgressMeter,
) -> Result<Vec<CheckoutProblem>> {
    let attr = tree.expect_inode_attr(ino)?;
    let (base, root, steps) = if attr.kind == FileKind::Dir {
        let root = HeldDir::open_root(&create_empty_dir(dest)?)?;
        let part = WantedPart::Everything;
        let planner = PlanInput { target: tree, now: None, paths: &[], base: ino, elsewhere: true, part };
        (ino, root, planner.build_plan()?)
    } else {
        let place = TargetEntry { dir: attr.parent, name: attr.name, ino, kind: attr.kind };
        // Nothing is replaced: if the name is taken, that is reported.
        let write = FileWrite { place, replaces: None, overwrites: false, same_content: None };
        (attr.parent, HeldDir::open_root(dest)?, PlanSteps { writes: vec![write], ..PlanSteps::default() })
    };
    let work = MaterializeRequest {
        volume,
        target: tree,
        root: &root,
        base,
        now: None,
        clones: None,
        engine: None,
        meter,
    };
    Ok(work.execute_steps(&steps)?.problems)
}
