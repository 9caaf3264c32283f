//! Commands that are killed at any moment.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::checked_out::{list_notes, noise};
use super::entries::describe_directory;
use super::ground::{TrialGround, TrialWorktree};
use super::{Promise, TrialResult, expect};

/// How often a command is killed, at moments that lie at equal distances in its time.
const ROUNDS: u32 = 6;
/// Files of the directory: enough for a command to take some time.
const FILES: usize = 150;

pub const PROMISES: &[Promise] = &[
    Promise {
        name: "a snapshot is whole or not there, after kill -9",
        how: "killed at 6 moments, verify --all and history",
        check: try_killed_snapshots,
    },
    Promise {
        name: "an interrupted restore is completed by the next",
        how: "killed at 6 moments, run again, compared",
        check: try_killed_restores,
    },
];

/// Changes some files of a directory.
fn write_files(tree: &Path, seed: u8) -> std::io::Result<()> {
    for number in 0..FILES {
        let dir = tree.join(format!("d{}", number % 10));
        fs::create_dir_all(&dir)?;
        // Some stay as they are, and some are only there in every second state.
        if number % 3 == 0 || !dir.join(number.to_string()).exists() {
            fs::write(dir.join(number.to_string()), noise(2000 + number, seed))?;
        }
    }
    fs::write(tree.join("big"), noise(2_000_000, seed))?;
    fs::write(tree.join(format!("only-{seed}")), "content")
}

/// How long a command takes that is not killed.
fn measure_command(worktree: &TrialWorktree<'_>, args: &[&str]) -> TrialResult<Duration> {
    let start = Instant::now();
    worktree.run_ok(args)?;
    Ok(start.elapsed())
}

fn try_killed_snapshots(ground: &TrialGround) -> TrialResult {
    ground.require_several_writers()?;
    let worktree = ground.make_worktree(&["--plain"])?;
    write_files(&worktree.tree, 0)?;
    let time = measure_command(&worktree, &["snapshot", "--quiet", "-m", "0"])?;
    let mut known = 1;
    for round in 1..=ROUNDS {
        write_files(&worktree.tree, round as u8)?;
        let note = round.to_string();
        let args = ["snapshot", "--quiet", "-m", &note];
        // Moments that are spread over the time that a whole run took: each round hits another part of the work.
        worktree.program.run_killed(&worktree.tree, &args, time * round / (ROUNDS + 1))?;
        worktree.verify()?;
        let found = list_notes(&worktree)?.len();
        expect(found == known || found == known + 1, || {
            format!("after a snapshot was killed there are {found} snapshots in place of {known}")
        })?;
        known = found;
    }
    worktree.snapshot("last")?;
    // With 0, there are no changes.
    worktree.run_ok(&["status"])?;
    worktree.verify()
}

fn try_killed_restores(ground: &TrialGround) -> TrialResult {
    ground.require_several_writers()?;
    let worktree = ground.make_worktree(&["--plain"])?;
    let mut states = Vec::new();
    for seed in [1, 2] {
        fs::remove_file(worktree.tree.join("only-1")).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        write_files(&worktree.tree, seed)?;
        worktree.snapshot(&format!("state-{seed}"))?;
        states.push(describe_directory(&worktree.tree)?);
    }
    let time = measure_command(&worktree, &["restore", "state-1"])?;
    for round in 1..=ROUNDS {
        // The target alternates, so that each restore has something to change.
        let number = round as usize % 2;
        let target = format!("state-{}", number + 1);
        let args = ["restore", target.as_str()];
        worktree.program.run_killed(&worktree.tree, &args, time * round / (ROUNDS + 1))?;
        worktree.run_ok(&args)?;
        let found = describe_directory(&worktree.tree)?;
        let difference = states.get(number).and_then(|wanted| wanted.find_difference(&found));
        expect(difference.is_none(), || {
            format!("after a restore was killed and run again: {}", difference.unwrap_or_default())
        })?;
    }
    Ok(())
}
