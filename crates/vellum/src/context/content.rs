//! Content that a command brings to this machine or removes from it: in a mount, or in a snapshot.
//!
//! Invariant: a mount's process is asked about the mount, as it alone knows what is open and what is not in the store. What
//! concerns a snapshot is done here: the cache belongs to all processes.

use std::ffi::OsString;

use vellum_fs::content::residence::EvictedContent;
use vellum_host::ProgressMeter;
use vellum_store::{PackCache, StoreAddress};
use vellum_volume::history::HistoryEntry;
use vellum_volume::residence::{ContentScope, ContentSelector, NewPin, SelectedContent};
use vellum_volume::{Volume, VolumeError};

use super::CommandContext;
use super::mounted::MountProcess;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::mounting::control::{self, ContentReply, ControlRequest};
use crate::mounting::{holders, table};
use crate::ui::format;
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;

/// Content by path.
pub struct ContentPaths {
    source: ContentOrigin,
    /// From the root.
    paths: Vec<Vec<u8>>,
}

enum ContentOrigin {
    Mount(MountProcess),
    Snapshot(Box<Volume>, Box<HistoryEntry>),
}

impl ContentPaths {
    /// What is typed: paths of the mount that the user stands in, or of a snapshot.
    pub fn find_paths(context: &CommandContext, typed: &[OsString], from: Option<&str>) -> Result<Self> {
        if let Some(snapshot) = from {
            let volume = context.open_volume()?;
            let entry = volume.resolve_snapshot(snapshot)?;
            let paths = context.paths_for_volume(&volume)?.parse_paths(typed)?;
            return Ok(Self { source: ContentOrigin::Snapshot(volume.into(), entry.into()), paths });
        }
        // In a checked-out worktree, files are plain files, whose content can be nowhere else.
        let Some(process) = context.find_mount_process()? else {
            return Err(CliError::usage_error(
                "this is not a mounted worktree: all its files are here",
                "--from SNAP names the content of a snapshot",
            ));
        };
        let paths = context.paths_at_root(&process.mountpoint).parse_paths(typed)?;
        Ok(Self { source: ContentOrigin::Mount(process), paths })
    }

    /// These paths as pins with names: in a mount each path by itself, named after the worktree and it; those of a snapshot
    /// together, named after the snapshot and the first.
    pub fn name_pins(self) -> Vec<(String, Self)> {
        match self.source {
            ContentOrigin::Mount(process) => {
                let name_pin = |path: Vec<u8>| {
                    let name = default_pin_name(&process.worktree, &path);
                    (name, Self { source: ContentOrigin::Mount(process.clone()), paths: vec![path] })
                };
                self.paths.into_iter().map(name_pin).collect()
            }
            ContentOrigin::Snapshot(volume, entry) => {
                let first = self.paths.first().map(Vec::as_slice).unwrap_or_default();
                let name = default_pin_name(format::shorten_id(&entry.id.to_string()), first);
                vec![(name, Self { source: ContentOrigin::Snapshot(volume, entry), paths: self.paths })]
            }
        }
    }

    /// Brings the content to this machine, and shows the progress.
    pub fn hydrate(
        &self,
        context: &CommandContext,
        names_only: bool,
        pin: Option<&str>,
    ) -> Result<ContentReply> {
        let task = ProgressTask { first: "Looking", verb: "Fetching", item: "file" };
        let done: Result<_> = context.run_with_progress(task, |meter| match &self.source {
            ContentOrigin::Mount(process) => {
                // A pin holds what is in the store: what programs have written, and the kernel has not handed over
                // yet, must become part of the worktree first.
                if pin.is_some() {
                    process.sync_filesystem()?;
                }
                let pin = pin.map(String::from);
                let request = ControlRequest::Hydrate { paths: self.paths.clone(), names_only, pin };
                let answer = process.send_long_request(&request, meter)?;
                Ok(answer.content.unwrap_or_default())
            }
            ContentOrigin::Snapshot(volume, entry) => {
                let pin =
                    pin.map(|name| NewPin { name: name.into(), content: control::join_shown(&self.paths) });
                let scope = if names_only { ContentScope::Names } else { ContentScope::Readable };
                let select = || self.select_in_snapshot(volume, entry, scope, meter);
                volume.hydrate_content(pin.as_ref(), meter, select).map(ContentReply::for_hydration)
            }
        });
        done.with_resume_hint("run it again: what was fetched is here")
    }

    fn select_in_snapshot(
        &self,
        volume: &Volume,
        entry: &HistoryEntry,
        scope: ContentScope,
        meter: &ProgressMeter,
    ) -> Result<SelectedContent> {
        let tree = volume.open_tree(entry.record.root);
        let place = format!("snapshot {}", volume.short_id(&entry.id)?);
        let mut selector = ContentSelector::new(volume, entry.record.root, scope);
        for path in &self.paths {
            selector.select_path(&tree, path, &place, meter)?;
        }
        Ok(selector.finish_selection()?)
    }

    /// Removes the content from this machine.
    pub fn evict(&self, context: &CommandContext) -> Result<ContentReply> {
        let task = ProgressTask { first: "Looking", verb: "Removing", item: "file" };
        context.run_with_progress(task, |meter| match &self.source {
            ContentOrigin::Mount(process) => {
                // Files with content that is not in the store are left out: the process must know of everything that
                // programs have written.
                process.sync_filesystem()?;
                // OPEN is answered with ENOSYS, so that the kernel opens files without a request, and only `/proc`
                // shows which are open.
                let mount = table::find_mount_at(&process.mountpoint)?;
                let open = mount.map(|mount| holders::list_open_nodes(mount.device)).unwrap_or_default();
                let request = ControlRequest::Evict { paths: self.paths.clone(), open };
                Ok(process.send_long_request(&request, meter)?.content.unwrap_or_default())
            }
            ContentOrigin::Snapshot(volume, entry) => {
                let selected = self.select_in_snapshot(volume, entry, ContentScope::Content, meter)?;
                let SelectedContent { files, pieces, refused } = selected;
                let bytes = volume.evict_content(&pieces)?;
                Ok(ContentReply::for_eviction(EvictedContent { files, bytes, refused }))
            }
        })
    }
}

/// The name of a pin that got none.
pub fn default_pin_name(owner: &str, path: &[u8]) -> String {
    if path.is_empty() { owner.into() } else { format!("{owner}/{}", String::from_utf8_lossy(path)) }
}

/// Shows what was left out.
pub fn report_refused(context: &CommandContext, refused: &[ProblemJson]) -> Result<CommandOutcome> {
    if !context.ui.is_json() {
        context.ui.print_problems(refused)?;
    }
    Ok(CommandOutcome::from_findings(!refused.is_empty()))
}

/// Files that were left out, as JSON shows them.
pub fn list_refused(refused: &[(Vec<u8>, String)]) -> Vec<ProblemJson> {
    refused.iter().map(|(path, why)| ProblemJson::new(path, why.clone())).collect()
}

impl CommandContext {
    /// The address of the store of the worktree that the user stands in, and the cache on this machine; no cache if the store
    /// is a directory. The service is not asked.
    pub fn find_pack_cache(&self) -> Result<(String, Option<PackCache>)> {
        let state = match self.find_mount_process()? {
            Some(process) => process.state_dir()?,
            None => self.open_state_dir()?,
        };
        let mut store = state.read_worktree_file()?.store;
        let mut address = StoreAddress::parse(&store).map_err(VolumeError::from)?;
        // Packs of a local store are read where they are: a copy of them on the same machine would only take space.
        // What it lacks may be fetched from elsewhere.
        if matches!(address, StoreAddress::Directory(_))
            && let Some(source) = Volume::open(&state)?.find_source()?
        {
            store = source.url;
            address = StoreAddress::parse(&store).map_err(VolumeError::from)?;
        }
        let cache = match address {
            StoreAddress::Service(address) => PackCache::for_address(&address),
            StoreAddress::Sftp(address) => PackCache::for_address(&address),
            StoreAddress::Directory(_) | StoreAddress::Memory(_) => return Ok((store, None)),
        };
        Ok((store, Some(cache.ok_or(VolumeError::NoCache)?)))
    }
}
