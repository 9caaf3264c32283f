//! A step as a line: in words, or in rsync's letters.

use vellum_host::escape::format_path;
use vellum_sync::model::listing::{ListingEntry, TreeListing};
use vellum_sync::plan::{Differences, StepAction, StepPhase, SyncPlan, SyncStep, WriteMethod};
use vellum_types::FileKind;

use crate::ui::format;

/// A step with the listings that its numbers are of.
pub struct ItemizedStep<'a> {
    pub step: &'a SyncStep,
    from: &'a TreeListing,
    to: &'a TreeListing,
}

/// The steps that are reported: those that only restore what others touch are left out.
pub fn itemize_steps<'a>(
    plan: &'a SyncPlan,
    from: &'a TreeListing,
    to: &'a TreeListing,
) -> impl Iterator<Item = ItemizedStep<'a>> {
    // The last phase sets the times of directories again. That is no line of its own, as with rsync, if the directory
    // is new or did not differ itself.
    let tells = |step: &&SyncStep| {
        step.phase != StepPhase::Finish || !step.what.is_empty() && !step.what.contains(Differences::NEW)
    };
    plan.steps.iter().filter(tells).map(move |step| ItemizedStep { step, from, to })
}

impl ItemizedStep<'_> {
    fn source_entry(&self) -> Option<ListingEntry<'_>> {
        self.step.source.and_then(|id| self.from.get(id))
    }

    fn old_entry(&self) -> Option<ListingEntry<'_>> {
        self.step.old.and_then(|id| self.to.get(id))
    }

    /// The path that it is about.
    pub fn path(&self) -> Vec<u8> {
        self.source_entry().or_else(|| self.old_entry()).map(|entry| entry.path()).unwrap_or_default()
    }

    /// The path that it had, or that of the file that it becomes a name of.
    pub fn other_path(&self) -> Option<Vec<u8>> {
        match self.step.action {
            StepAction::Rename => self.old_entry().map(|old| old.path()),
            StepAction::Link => self.step.other.and_then(|id| self.from.get(id)).map(|entry| entry.path()),
            _ => None,
        }
    }

    /// What is at the source, or what is deleted.
    pub fn entry(&self) -> Option<ListingEntry<'_>> {
        self.source_entry().or_else(|| self.old_entry())
    }

    /// The path as it is shown: of a directory with a slash behind it.
    pub fn name(&self) -> String {
        let path = self.path();
        let is_dir = self.source_entry().or_else(|| self.old_entry()).is_some_and(|entry| entry.is_dir());
        match (path.is_empty(), is_dir) {
            // As rsync shows the top of the tree.
            (true, _) => "./".into(),
            (false, true) => format!("{}/", format_path(&path)),
            (false, false) => format_path(&path),
        }
    }

    /// Bytes that the file has.
    pub fn content_bytes(&self) -> Option<u64> {
        matches!(self.step.action, StepAction::Write(_) | StepAction::CopyBasis(_))
            .then(|| self.source_entry().map(|entry| entry.size()))
            .flatten()
    }

    /// In words: what is done to it.
    pub fn format_description(&self) -> String {
        let path = self.name();
        let new = self.step.what.contains(Differences::NEW);
        match self.step.action {
            StepAction::MakeDir => format!("make    {path}"),
            StepAction::Write(how) => {
                let verb = if new { "write   " } else { "update  " };
                let size = format::format_size(self.content_bytes().unwrap_or_default());
                let how = match how {
                    WriteMethod::Whole | WriteMethod::Delta => "",
                    WriteMethod::InPlace => ", in place",
                    WriteMethod::Append => ", appended",
                };
                format!("{verb}{path} ({size}{}{how})", self.format_difference())
            }
            StepAction::Symlink => {
                let target =
                    self.source_entry().map(|entry| format_path(entry.symlink_target())).unwrap_or_default();
                format!("link    {path} -> {target}")
            }
            StepAction::Special => format!("make    {path} ({})", self.kind_name()),
            StepAction::Link => {
                let first = self.other_path().map(|path| format_path(&path)).unwrap_or_default();
                format!("link    {path} => {first}")
            }
            StepAction::LinkBasis(_) => format!("link    {path} (unchanged in a basis directory)"),
            StepAction::CopyBasis(_) => {
                let size = format::format_size(self.content_bytes().unwrap_or_default());
                format!("copy    {path} ({size}, from a basis directory)")
            }
            StepAction::Attributes => {
                format!("set     {path} ({})", attribute_names(self.step.what).join(", "))
            }
            StepAction::Rename => {
                let old = self.other_path().map(|path| format_path(&path)).unwrap_or_default();
                format!("rename  {old} -> {path}")
            }
            StepAction::Delete => format!("delete  {path}"),
        }
    }

    fn format_difference(&self) -> String {
        if self.step.what.contains(Differences::NEW) {
            return String::new();
        }
        let names: Vec<_> =
            attribute_names(self.step.what).into_iter().filter(|name| *name != "content").collect();
        match names.as_slice() {
            [] => String::new(),
            [one] => format!("; {one} differs"),
            several => format!("; {} differ", several.join(", ")),
        }
    }

    fn kind_name(&self) -> &'static str {
        self.source_entry()
            .or_else(|| self.old_entry())
            .map_or("", |entry| crate::ui::json::file_kind_name(entry.kind()))
    }

    /// In rsync's letters.
    pub fn format_rsync_letters(&self) -> String {
        format!("{} {}{}", self.change_letters(), self.name(), self.link())
    }

    /// What differs, in rsync's letters.
    pub fn change_letters(&self) -> String {
        if self.step.action == StepAction::Delete {
            // Padded to the 11 letters that all others have, as rsync does it, so that names stand in one column.
            return "*deleting  ".into();
        }
        let what = self.step.what;
        // The letters and their places are those of rsync's `%i`, which scripts parse.
        let letter = match self.source_entry().map(|entry| entry.kind()) {
            Some(FileKind::Dir) => 'd',
            Some(FileKind::Symlink) => 'L',
            Some(FileKind::CharDevice | FileKind::BlockDevice) => 'D',
            Some(FileKind::Fifo | FileKind::Socket) => 'S',
            _ => 'f',
        };
        let kind = match self.step.action {
            StepAction::Write(_) => '>',
            StepAction::Link | StepAction::LinkBasis(_) => 'h',
            StepAction::Attributes => '.',
            // rsync's letter for a change that is made at the destination without content from the source.
            _ => 'c',
        };
        if what.contains(Differences::NEW) && self.step.action != StepAction::Link {
            return format!("{kind}{letter}+++++++++");
        }
        let mark = |flag: Differences, letter: char| if what.contains(flag) { letter } else { '.' };
        let marks: String = [
            mark(Differences::CONTENT, 'c'),
            mark(Differences::SIZE, 's'),
            mark(Differences::TIME, 't'),
            mark(Differences::MODE, 'p'),
            mark(Differences::OWNER, 'o'),
            mark(Differences::GROUP, 'g'),
            mark(Differences::ATIME, 'u'),
            mark(Differences::ACL, 'a'),
            mark(Differences::XATTR, 'x'),
        ]
        .iter()
        .collect();
        format!("{kind}{letter}{marks}")
    }

    /// What a symlink leads to, which file a name is another name of, or which path a file had.
    pub fn link(&self) -> String {
        match (self.step.action, self.other_path()) {
            // rsync's `%L` has these arrows for hard links and symlinks. It knows no renames: their arrow is not from
            // rsync.
            (StepAction::Link, Some(first)) => format!(" => {}", format_path(&first)),
            (StepAction::Rename, Some(old)) => format!(" <- {}", format_path(&old)),
            (StepAction::Symlink, _) => {
                format!(
                    " -> {}",
                    self.source_entry().map(|entry| format_path(entry.symlink_target())).unwrap_or_default()
                )
            }
            _ => String::new(),
        }
    }
}

/// What differs, in words.
pub fn attribute_names(what: Differences) -> Vec<&'static str> {
    const NAMES: [(Differences, &str); 10] = [
        (Differences::KIND, "kind"),
        (Differences::CONTENT, "content"),
        (Differences::SIZE, "size"),
        (Differences::TIME, "time"),
        (Differences::MODE, "mode"),
        (Differences::OWNER, "owner"),
        (Differences::GROUP, "group"),
        (Differences::ATIME, "access time"),
        (Differences::ACL, "ACL"),
        (Differences::XATTR, "attributes"),
    ];
    NAMES.iter().filter(|(flag, _)| what.contains(*flag)).map(|(_, name)| *name).collect()
}

/// What an action is called in JSON.
pub fn action_name(step: &SyncStep) -> &'static str {
    // Programs read these names, so that they stay if a variant is renamed.
    match step.action {
        StepAction::MakeDir => "make_directory",
        StepAction::Write(WriteMethod::Whole) => "write",
        StepAction::Write(WriteMethod::Delta) => "update",
        StepAction::Write(WriteMethod::InPlace) => "update_in_place",
        StepAction::Write(WriteMethod::Append) => "append",
        StepAction::Symlink => "make_symlink",
        StepAction::Special => "make_special",
        StepAction::Link => "link",
        StepAction::Attributes => "set_attributes",
        StepAction::Rename => "rename",
        StepAction::Delete => "delete",
        StepAction::LinkBasis(_) => "link_basis",
        StepAction::CopyBasis(_) => "copy_basis",
    }
}
