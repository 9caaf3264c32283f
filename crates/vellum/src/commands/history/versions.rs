//! The versions of files: what `history PATH` lists.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::FileKind;
use vellum_volume::VolumeError;
use vellum_volume::file_history::{FileHistory, FileVersion, VersionChange};

use super::operands::HistoryOperands;
use super::{HistoryFilter, format_description};
use crate::context::CommandContext;
use crate::context::paths::UserPaths;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::changes::aspect_words;
use crate::ui::format;
use crate::ui::json::{self, NameJson, SnapshotJson, format_json_time};
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};

#[derive(Serialize)]
struct FileVersionsJson {
    files: Vec<VersionedFileJson>,
}

#[derive(Serialize)]
struct VersionedFileJson {
    #[serde(flatten)]
    path: NameJson,
    versions: Vec<VersionJson>,
    more: bool,
}

#[derive(Serialize)]
struct VersionJson {
    #[serde(flatten)]
    path: NameJson,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<NameJson>,
    aspects: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    snapshot: SnapshotJson,
}

/// Versions of one file.
struct VersionedFile {
    path: Vec<u8>,
    versions: Vec<FileVersion>,
    /// There are older ones.
    more: bool,
}

/// Lists them.
pub(super) fn list_versions(
    filter: &HistoryFilter<'_>,
    operands: HistoryOperands,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let paths = context.paths_for_volume(filter.volume)?;
    let HistoryOperands { files, typed_range, mut no_snapshot, .. } = operands;
    let mut listed = Vec::with_capacity(files.len());
    for typed in &files {
        let path = paths.parse_path(typed)?;
        let found = filter.find_versions(&path)?;
        // Only the first word could have been a snapshot.
        let reason = no_snapshot.take();
        let missing = || missing_file_error(typed, &path, typed_range.as_deref(), reason, context);
        listed.push(found.ok_or_else(missing)?);
    }
    let ui = &context.ui;
    if ui.is_json() {
        let files = listed.iter().map(|file| VersionedFileJson::new(file, filter)).collect();
        ui.print_json(&FileVersionsJson { files })?;
        return Ok(CommandOutcome::Done);
    }
    for (number, file) in listed.iter().enumerate() {
        if listed.len() > 1 {
            let gap = if number > 0 { "\n" } else { "" };
            ui.print_line(format!("{gap}{}:", ui.style.paint_bold(&paths.format_path(&file.path))))?;
        }
        ui.print_lines(versions_table(filter, file, &paths, context).format_lines())?;
        if file.versions.is_empty() {
            ui.print_note("none")?;
        } else if file.more {
            let number = filter.args.number.saturating_mul(5);
            ui.print_note(format!(
                "older ones: vellum history -n {number} {}",
                paths.format_path(&file.path)
            ))?;
        }
    }
    Ok(CommandOutcome::Done)
}

impl HistoryFilter<'_> {
    /// The versions of a file that are to be shown; None if no snapshot has it.
    fn find_versions(&self, path: &[u8]) -> Result<Option<VersionedFile>> {
        let limit = self.limit();
        let entries = self.walk_entries()?;
        // It follows the file through its renames, so the filter by path is not used here.
        let mut history = FileHistory::new(self.volume, path.to_vec(), self.names.ids(), entries);
        let mut versions = Vec::new();
        let mut more = false;
        for version in history.by_ref() {
            let version = version?;
            if !self.matches_annotation(&version.entry) {
                continue;
            }
            if versions.len() == limit {
                more = true;
                break;
            }
            versions.push(version);
        }
        Ok(history.was_found().then(|| VersionedFile { path: path.to_vec(), versions, more }))
    }
}

/// Reports a path that no snapshot has, with what was probably meant.
fn missing_file_error(
    typed: &OsStr,
    path: &[u8],
    range: Option<&str>,
    no_snapshot: Option<VolumeError>,
    context: &CommandContext,
) -> CliError {
    let near_path = || context.find_near_head_path(path);
    let place = match range {
        Some(range) => format!("any snapshot of {}", format_path(range)),
        None => "any snapshot".into(),
    };
    match no_snapshot {
        // It was typed like a snapshot, and says why there is none.
        Some(error @ (VolumeError::NoSnapshotThere { .. } | VolumeError::BadExpression { .. })) => {
            error.into()
        }
        Some(_) => {
            let typed = format_path(typed.as_bytes());
            let near = near_path().or_else(|| context.find_near_name(&typed, |_| true));
            let place = format!("{place}, and no snapshot is called that");
            CliError::Volume(VolumeError::NoSuchPath { path: typed, place }).with_suggestion(near)
        }
        None => {
            let path = format_path(typed.as_bytes());
            CliError::Volume(VolumeError::NoSuchPath { path, place }).with_suggestion(near_path())
        }
    }
}

fn versions_table(
    filter: &HistoryFilter<'_>,
    file: &VersionedFile,
    paths: &UserPaths,
    context: &CommandContext,
) -> TextTable {
    let columns = context.ui.output_columns();
    let mut table = TextTable::new([2]);
    // What the file is called from here on back.
    let mut path = &file.path;
    for version in &file.versions {
        let entry = &version.entry;
        let time = match context.ui.is_narrow() {
            true => format::format_local_minute(entry.record.time),
            false => format::format_local_time(entry.record.time),
        };
        let words = describe_change(version, path, paths);
        // The table goes from new to old: rows below this one are about the file under its old name.
        if let VersionChange::Renamed { from, .. } = &version.change {
            path = from;
        }
        let file = version.attr.as_ref().filter(|attr| attr.kind == FileKind::File);
        table.add_row([
            context.ui.style.paint_yellow(&filter.names.short_id(&entry.id)),
            time,
            file.map(|attr| format::format_size(attr.size)).unwrap_or_default(),
            words,
            format_description(context, filter.names, entry, None),
        ]);
    }
    let shortened = [ShortenedColumn::keep_beginning(4), ShortenedColumn::keep_beginning(3)];
    table.fit_columns(columns, &TableFit { optional: &[], shortened: &shortened });
    table
}

/// What a snapshot did to a file that is called `path` in it, or before it.
fn describe_change(version: &FileVersion, path: &[u8], paths: &UserPaths) -> String {
    let words = match &version.change {
        VersionChange::Added => return "added".into(),
        VersionChange::Deleted => return "deleted".into(),
        VersionChange::Modified(aspects) => list_aspects(*aspects),
        VersionChange::Renamed { from, aspects } => {
            let renamed = match version.path == path {
                true => format!("renamed from {}", paths.format_path(from)),
                false => format!("renamed to {}", paths.format_path(&version.path)),
            };
            std::iter::once(renamed).chain(list_aspects(*aspects)).collect()
        }
    };
    words.join(", ")
}

fn list_aspects(aspects: vellum_volume::diff::ChangeAspects) -> Vec<String> {
    // A new time comes with everything else, and is no version by itself.
    aspect_words(aspects).into_iter().filter(|word| *word != "time").map(str::to_owned).collect()
}

impl VersionedFileJson {
    fn new(file: &VersionedFile, filter: &HistoryFilter<'_>) -> Self {
        let versions = file.versions.iter().map(|version| VersionJson::new(version, filter)).collect();
        Self { path: NameJson::new(&file.path), versions, more: file.more }
    }
}

impl VersionJson {
    fn new(version: &FileVersion, filter: &HistoryFilter<'_>) -> Self {
        let FileVersion { entry, path, change, attr } = version;
        let attr = attr.as_ref();
        let mut old_path = None;
        let mut aspects = Vec::new();
        let change = match change {
            VersionChange::Added => "added",
            VersionChange::Deleted => "deleted",
            VersionChange::Modified(differing) => {
                aspects = aspect_words(*differing);
                "modified"
            }
            VersionChange::Renamed { from, aspects: differing } => {
                old_path = Some(NameJson::new(from));
                aspects = aspect_words(*differing);
                "renamed"
            }
        };
        Self {
            path: NameJson::new(path),
            change,
            old_path,
            aspects,
            kind: attr.map(|attr| json::file_kind_name(attr.kind)),
            size: attr.map(|attr| attr.size),
            mode: attr.map(|attr| attr.mode),
            modified: attr.map(|attr| format_json_time(attr.mtime)),
            snapshot: filter.names.to_snapshot_json(entry),
        }
    }
}
