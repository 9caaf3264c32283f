//! Copying a part of a snapshot into a plain directory that is no worktree.

use std::path::Path;

use vellum_types::{FileKind, Ino};
use vellum_volume::{FsTree, Meter, Volume};

use crate::beneath::Dir;
use crate::error::{Problem, Result};
use crate::fork::make_empty_dir;
use crate::materialize::Materialize;
use crate::plan::{Place, Planner, Steps, Write};

/// Writes what is at `ino` into `dest`: a directory's entries into an empty directory, which is made if need be;
/// anything else under its own name into a directory that is there. Gives what could not be done.
pub fn export_dir(
    volume: &Volume,
    tree: &FsTree,
    ino: Ino,
    dest: &Path,
    meter: &Meter,
) -> Result<Vec<Problem>> {
    let attr = tree.attr_of(ino)?;
    let (base, root, steps) = if attr.kind == FileKind::Dir {
        let root = Dir::open_root(&make_empty_dir(dest)?)?;
        let planner = Planner { target: tree, now: None, paths: &[], base: ino, elsewhere: true };
        (ino, root, planner.run()?)
    } else {
        let place = Place { dir: attr.parent, name: attr.name, ino, kind: attr.kind };
        let write = Write { place, replaces: None, overwrites: false, same_content: None };
        (attr.parent, Dir::open_root(dest)?, Steps { writes: vec![write], ..Steps::default() })
    };
    let work =
        Materialize { volume, target: tree, root: &root, base, now: None, clones: None, engine: None, meter };
    Ok(work.run(&steps)?.problems)
}
