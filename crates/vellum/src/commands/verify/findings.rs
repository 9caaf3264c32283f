//! Findings of a verification, as text: each by itself, or summed up by pack and by directory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vellum_host::escape::format_path;
use vellum_types::FileKind;
use vellum_volume::Volume;
use vellum_volume::history::{HistoryEntry, list_history};
use vellum_volume::verify::{AffectedTree, TreeOwner, VerifyFinding};

use crate::error::Result;
use crate::ui::format;

/// Files of one directory that are hit.
#[derive(Default)]
struct DamagedDirectory {
    files: BTreeSet<String>,
    /// Files beyond those that the report names.
    more: u64,
    snapshots: BTreeSet<usize>,
    /// Others than snapshots that have them.
    others: BTreeSet<String>,
}

/// The findings by object, and what they hit by directory, with the range of snapshots.
pub(super) fn summarize_findings(volume: &Volume, findings: &[VerifyFinding]) -> Result<Vec<String>> {
    let history = list_history(&volume.catalog)?;
    // Oldest first, so that a range of snapshots reads in the order of time.
    let age: HashMap<String, usize> =
        history.iter().rev().enumerate().map(|(age, entry)| (entry.id.to_string(), age)).collect();
    let mut lines = Vec::new();
    let mut blobs: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut directories: BTreeMap<String, DamagedDirectory> = BTreeMap::new();
    for finding in findings {
        // A finding about a blob is called "BLOB in PACK", any other by its object alone.
        match finding.object.split_once(" in ") {
            // The blobs of a damaged pack mostly have one problem in common, so that the first is shown for all.
            Some((_, place)) => blobs.entry(place).or_insert((0, &finding.problem)).0 += 1,
            None => {
                lines.push(describe_problem(finding));
            }
        }
        for affected in &finding.affected {
            let named = affected.paths.len() as u64;
            let mut note = |directory: String, file: Option<&String>, more| {
                let hits = directories.entry(directory).or_default();
                hits.files.extend(file.cloned());
                // Several snapshots may have the same damaged files, so the numbers are not added.
                hits.more = hits.more.max(more);
                match &affected.owner {
                    TreeOwner::Snapshot(id) => hits.snapshots.extend(age.get(id)),
                    TreeOwner::Worktree(_) | TreeOwner::Trash(_) => {
                        hits.others.insert(describe_owner(volume, &affected.owner));
                    }
                }
            };
            for path in &affected.paths {
                let directory = path.rsplit_once('/').map_or(".", |(directory, _)| directory);
                note(directory.into(), Some(path), 0);
            }
            match affected.count {
                None => note("files that cannot be named, because a directory is damaged".into(), None, 0),
                Some(count) if count > named => note("other files".into(), None, count - named),
                Some(_) => {}
            }
        }
    }
    for (place, (count, problem)) in blobs {
        let count = format::format_count(count, "blob");
        lines.push(format!("{}: {count} damaged: {}", format_path(place), format_path(problem)));
    }
    for (directory, hits) in directories {
        // The number of all files is read from the newest snapshot that is hit: the directory may have more or fewer in
        // others.
        let newest = hits.snapshots.last().and_then(|age| history.iter().rev().nth(*age));
        let files = match (hits.files.len() as u64, hits.more) {
            (0, 0) => String::new(),
            (0, more) => format!(": {} or more", format::format_count(more, "file")),
            (files, _) => match newest.and_then(|newest| count_files_in(volume, newest, &directory)) {
                Some(all) if all > files => {
                    format!(": {} of {}", format::format_number(files), format::format_count(all, "file"))
                }
                _ => format!(": {}", format::format_count(files, "file")),
            },
        };
        let mut owners = Vec::from_iter(hits.others);
        if !hits.snapshots.is_empty() || owners.is_empty() {
            owners.insert(0, format_snapshot_range(volume, &history, &hits.snapshots)?);
        }
        lines.push(format!("    {directory}{files}, {}", owners.join(", ")));
    }
    Ok(lines)
}

/// How many files a directory has in a snapshot, as far as the damage lets it be read.
fn count_files_in(volume: &Volume, snapshot: &HistoryEntry, directory: &str) -> Option<u64> {
    let tree = volume.open_tree(snapshot.record.root);
    let path = if directory == "." { "" } else { directory };
    let (ino, _) = tree.find_path(path.as_bytes(), "the snapshot").ok()?;
    let entries = tree.list_entries(ino).ok()?;
    Some(entries.iter().filter(|(_, dentry)| dentry.kind == FileKind::File).count() as u64)
}

/// Snapshots by their age, oldest 0, as a range.
fn format_snapshot_range(
    volume: &Volume,
    history: &[HistoryEntry],
    ages: &BTreeSet<usize>,
) -> Result<String> {
    let short = |age: Option<&usize>| {
        // The history begins with the newest snapshot, and ages count from the oldest.
        let entry = age.and_then(|age| history.iter().rev().nth(*age));
        entry.map_or(Ok(String::new()), |entry| volume.short_id(&entry.id))
    };
    let first = short(ages.first())?;
    let last = short(ages.last())?;
    Ok(match ages.len() as u64 {
        0 | 1 => format!("in snapshot {first}"),
        count => format!("in {} from {first} to {last}", format::format_count(count, "snapshot")),
    })
}

pub(super) fn describe_finding(volume: &Volume, finding: &VerifyFinding) -> Vec<String> {
    let mut lines = vec![describe_problem(finding)];
    for AffectedTree { owner, paths, count } in &finding.affected {
        let place = describe_owner(volume, owner);
        lines.extend(paths.iter().map(|path| format!("    {place}: {path}")));
        match count {
            Some(count) if *count > paths.len() as u64 => {
                lines
                    .push(format!("    {place}: {} more", format::format_number(count - paths.len() as u64)));
            }
            None => {
                lines.push(format!("    {place}: files that cannot be named, because a directory is damaged"))
            }
            Some(_) => {}
        }
    }
    lines
}

/// What is damaged, and how; most problems name it themselves.
fn describe_problem(finding: &VerifyFinding) -> String {
    let object = format_path(&finding.object);
    let problem = format_path(&finding.problem);
    // A blob is called "BLOB in PACK", and a problem with it may say only "BLOB".
    let name = object.split_once(" in ").map_or(object.as_str(), |(blob, _)| blob);
    if problem.starts_with(name) { problem } else { format!("{object}: {problem}") }
}

/// Where files are.
fn describe_owner(volume: &Volume, owner: &TreeOwner) -> String {
    match owner {
        // The volume is damaged, so that the id may not be found in it: then it is shown whole.
        TreeOwner::Snapshot(id) => {
            let short = id.parse().ok().and_then(|id| volume.short_id(&id).ok());
            format!("in {}", short.as_ref().unwrap_or(id))
        }
        TreeOwner::Worktree(name) => format!("in worktree '{}'", format_path(name.as_bytes())),
        TreeOwner::Trash(name) => format!("in the trash of '{}'", format_path(name.as_bytes())),
    }
}
