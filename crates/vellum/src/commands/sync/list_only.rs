//! `--list-only`: what a source has, by the rules, and nothing is done with it.
//!
//! Invariant: no destination is opened. A line is as rsync has it: mode, bytes, time, name.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_sync::SyncError;
use vellum_sync::ends::object::ObjectEnd;
use vellum_sync::ends::{ListingRequest, SyncEnd, SyncSide};
use vellum_sync::model::listing::{EntryFlags, ListingEntry, ListingEntryId, TreeListing};
use vellum_sync::model::options::{SymlinkHandling, SyncOptions};
use vellum_sync::rules::SyncFilters;
use vellum_types::FileKind;

use super::args::Args;
use super::iconv;
use super::line_format::local_time;
use super::sources::SourceArg;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::json::{self, NameJson, ProblemJson};
use crate::ui::progress::ProgressTask;

const TASK: ProgressTask = ProgressTask { first: "Listing", verb: "Listing", item: "entry" };

/// Columns that the number of bytes takes, as with rsync.
const SIZE_COLUMNS: usize = 14;

#[derive(Serialize)]
struct SourceListJson {
    entries: Vec<SourceEntryJson>,
    problems: Vec<ProblemJson>,
}

#[derive(Serialize)]
struct SourceEntryJson {
    #[serde(flatten)]
    name: NameJson,
    kind: &'static str,
    mode: String,
    size: u64,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<NameJson>,
}

/// What is listed how.
pub struct SourceLister<'a> {
    pub options: &'a Arc<SyncOptions>,
    pub filters: &'a Arc<SyncFilters>,
    pub args: &'a Args,
    pub context: &'a CommandContext,
}

/// What the root of a listing is.
struct ListedTop<'a> {
    /// Its name, if it was named itself; otherwise empty.
    name: &'a [u8],
    is_dir: bool,
}

impl SourceLister<'_> {
    /// Lists each source.
    pub fn list_sources(&self, source_args: &[SourceArg]) -> Result<CommandOutcome> {
        let mut listed = SourceListJson { entries: Vec::new(), problems: Vec::new() };
        for source_arg in source_args {
            self.list_source(source_arg, &mut listed)?;
        }
        self.finish_list(&listed)
    }

    /// Lists the objects of each end, with the times of the files.
    pub fn list_objects(&self, ends: &[ObjectEnd]) -> Result<CommandOutcome> {
        let mut listed = SourceListJson { entries: Vec::new(), problems: Vec::new() };
        for end in ends {
            let rules = self.filters.create_named_filter(SyncSide::Source, b"", b"");
            let request = ListingRequest {
                side: SyncSide::Source,
                rules: rules.map_err(SyncError::from)?,
                options: Arc::clone(self.options),
                top: Vec::new(),
                avoid: None,
                owners: false,
            };
            let found = self.context.run_with_progress(TASK, |meter| {
                let mut found = end.list_entries(&request, meter)?;
                let files: Vec<ListingEntryId> =
                    found.iter().filter(ListingEntry::is_file).map(|file| file.id()).collect();
                // These times are metadata of the objects, which the listing of a service does not have.
                end.load_times(&mut found, &files, meter)?;
                Ok::<_, vellum_sync::SyncError>(found)
            })?;
            self.show_listing(&found, &ListedTop { name: b"", is_dir: true }, &mut listed)?;
        }
        self.finish_list(&listed)
    }

    fn finish_list(&self, listed: &SourceListJson) -> Result<CommandOutcome> {
        let ui = &self.context.ui;
        if ui.is_json() {
            ui.print_json(listed)?;
        } else {
            ui.print_problems(&listed.problems)?;
        }
        // As in a run, what could not be listed is a finding.
        Ok(if listed.problems.is_empty() { CommandOutcome::Done } else { CommandOutcome::Findings })
    }

    fn list_source(&self, source_arg: &SourceArg, listed: &mut SourceListJson) -> Result<()> {
        let from = source_arg.open_source(self.args, self.context)?;
        let top = from.name.clone().filter(|_| from.is_dir).unwrap_or_default();
        let root = from.root.as_ref().map(|root| root.as_os_str().as_bytes()).unwrap_or_default();
        let mut options = SyncOptions::clone(self.options);
        // Without recursion, what is in the directory is listed, or the directory that was named.
        options.preserve.dirs = true;
        // The bytes of a symlink are those of where it leads.
        options.preserve.symlinks = SymlinkHandling::Keep;
        let options = Arc::new(options);
        let mut rules = source_arg.restrict_filters(self.filters, &options)?;
        if let (Some(charsets), Some(_)) = (iconv::parse_name_charsets(self.args)?, &from.remote) {
            rules = iconv::convert_listed_paths(&rules, charsets.to_remote());
        }
        let request = ListingRequest {
            side: SyncSide::Source,
            rules: rules.create_named_filter(SyncSide::Source, root, &top).map_err(SyncError::from)?,
            options,
            top: top.clone(),
            avoid: None,
            owners: false,
        };
        let source = (from.open)(from.name.as_deref().unwrap_or_default());
        let found = self.context.run_with_progress(TASK, |meter| source.list_entries(&request, meter))?;
        self.show_listing(&found, &ListedTop { name: &top, is_dir: from.is_dir }, listed)
    }

    fn show_listing(
        &self,
        found: &TreeListing,
        top: &ListedTop<'_>,
        listed: &mut SourceListJson,
    ) -> Result<()> {
        let is_recursive = self.options.preserve.recursive;
        for entry in found.iter().filter(|entry| !entry.flags().contains(EntryFlags::WITHHELD)) {
            let path = entry.path();
            let is_shown = is_recursive || top.name.is_empty() || path.is_empty();
            // The root of a single entry is no directory of the source's.
            if !is_shown || path.is_empty() && !top.is_dir {
                continue;
            }
            let path = match (top.name.is_empty(), path.is_empty()) {
                (true, true) => b".".to_vec(),
                (true, false) => path,
                (false, true) => top.name.to_vec(),
                (false, false) => [top.name, b"/", &path].concat(),
            };
            self.show_entry(&path, entry, listed)?;
        }
        let problems = found.unlisted.iter();
        listed
            .problems
            .extend(problems.map(|unlisted| ProblemJson::new(&unlisted.path, unlisted.message.clone())));
        Ok(())
    }

    fn show_entry(&self, path: &[u8], entry: ListingEntry<'_>, listed: &mut SourceListJson) -> Result<()> {
        let is_link = entry.kind() == FileKind::Symlink;
        // As with rsync, where a symlink leads is shown if symlinks are copied.
        let shows_target = is_link && self.options.preserve.symlinks != SymlinkHandling::Skip;
        let size = if is_link { entry.symlink_target().len() as u64 } else { entry.size() };
        if self.context.ui.is_json() {
            listed.entries.push(SourceEntryJson {
                name: NameJson::new(path),
                kind: json::file_kind_name(entry.kind()),
                mode: format!("{:04o}", entry.mode() & 0o7777),
                size,
                modified: json::format_json_time(entry.mtime()),
                target: shows_target.then(|| NameJson::new(entry.symlink_target())),
            });
            return Ok(());
        }
        let mode = format::format_mode(entry.kind(), entry.mode());
        // With separators, as rsync prints the size in its lists.
        let size = format::format_number(size);
        let time = local_time(entry.mtime(), "%Y/%m/%d %H:%M:%S");
        let target =
            if shows_target { format!(" -> {}", format_path(entry.symlink_target())) } else { String::new() };
        self.context
            .ui
            .print_line(format!("{mode} {size:>SIZE_COLUMNS$} {time} {}{target}", format_path(path)))
    }
}
