//! Names of snapshots, of worktrees and of remotes.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;
use vellum_types::SnapshotId;
use vellum_volume::Volume;
use vellum_volume::resolve::shorten_id;
use vellum_volume::volume::{KnownName, NameKind};

use super::{CompletionPlace, paths};
use crate::context::names::first_note_line;
use crate::error::Result;
use crate::ui::format;

/// Most ids that are offered: more than these nobody reads.
const IDS_MAX: usize = 100;

/// Tags, worktrees, names of remotes, what stands for a snapshot, and ids that begin as typed.
pub fn list_snapshots(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let Some(typed) = typed.to_str() else { return Ok(Vec::new()) };
    let volume = &place.volume;
    let mut found = offer_names(volume, typed, |_| true)?;
    for (name, meaning) in [("HEAD", "where this worktree stands"), ("latest", "its newest snapshot")] {
        if name.starts_with(typed) {
            found.push(CompletionCandidate::new(name).help(Some(meaning.into())));
        }
    }
    found.extend(offer_ids(volume, typed)?);
    Ok(found)
}

/// The same for the last end of a range, `A..B`.
pub fn list_range_ends(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let Some(typed) = typed.to_str() else { return Ok(Vec::new()) };
    let Some((first, last)) = typed.split_once("..") else {
        return list_snapshots(place, OsStr::new(typed));
    };
    let ends = list_snapshots(place, OsStr::new(last))?;
    Ok(ends.into_iter().map(|end| end.add_prefix(format!("{first}.."))).collect())
}

/// Snapshots, and paths of the one that was typed before.
pub fn list_snapshots_and_paths(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let mut found = list_range_ends(place, typed)?;
    found.extend(paths::list_paths(place, typed)?);
    Ok(found)
}

/// Tags.
pub fn list_tags(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let typed = typed.to_string_lossy();
    offer_names(&place.volume, &typed, |known| known.kind == NameKind::Tag)
}

/// Worktrees of this store.
pub fn list_worktrees(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let typed = typed.to_string_lossy();
    offer_names(&place.volume, &typed, |known| known.kind == NameKind::Worktree)
}

/// Remotes.
pub fn list_remotes(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let typed = typed.to_string_lossy();
    let remotes = place.volume.list_remotes()?.into_iter();
    let known = remotes.filter(|remote| remote.name.starts_with(&*typed));
    Ok(known.map(|remote| CompletionCandidate::new(remote.name)).collect())
}

fn offer_names(
    volume: &Volume,
    typed: &str,
    is_wanted: impl Fn(&KnownName) -> bool,
) -> Result<Vec<CompletionCandidate>> {
    let known = volume.list_known_names()?.into_iter();
    let known = known.filter(|known| known.name.starts_with(typed) && is_wanted(known));
    Ok(known.map(|known| offer_name(volume, known)).collect())
}

fn offer_name(volume: &Volume, known: KnownName) -> CompletionCandidate {
    let kind = match known.kind {
        NameKind::Tag => "tag",
        NameKind::Worktree => "worktree",
        NameKind::Remote => "remote",
    };
    let description = known.target.and_then(|id| describe_known_snapshot(volume, &id));
    let help = description.map_or_else(|| kind.into(), |description| format!("{kind}: {description}"));
    CompletionCandidate::new(known.name).help(Some(help.into()))
}

/// Ids, once some of their digits are typed: a volume may have thousands.
fn offer_ids(volume: &Volume, typed: &str) -> Result<Vec<CompletionCandidate>> {
    if typed.is_empty() || !typed.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(Vec::new());
    }
    let ids = match volume.objects.is_remote() {
        // Without a request: a listing of the store would take longer than the shell waits.
        true => volume.catalog.cached_ids(),
        false => volume.catalog.last_listed_ids()?,
    };
    let matching = ids.iter().filter(|id| id.to_string().starts_with(typed)).take(IDS_MAX);
    let offered = matching.map(|id| {
        // An id of which more was typed is offered whole.
        let short = shorten_id(id, &ids);
        let shown = if short.len() < typed.len() { id.to_string() } else { short };
        let help = describe_known_snapshot(volume, id).map(Into::into);
        CompletionCandidate::new(shown).help(help)
    });
    Ok(offered.collect())
}

/// Its note and its age, if its record is here.
fn describe_known_snapshot(volume: &Volume, id: &SnapshotId) -> Option<String> {
    let record = volume.catalog.get_record(id).ok()?;
    let note = first_note_line(&record.note);
    let age = format::format_age(record.time);
    Some(if note.is_empty() { age } else { format!("{note}, {age}") })
}
