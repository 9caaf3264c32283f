//! A step as a line: in words, or in rsync's letters.

use vellum_sync::listing::{Entry, Listing};
use vellum_sync::plan::{Action, How, Phase, Plan, Step, What};
use vellum_types::FileKind;
use vellum_volume::tree::show;

use crate::ui::format;

/// A step with the listings that its numbers are of.
pub struct Told<'a> {
    pub step: &'a Step,
    from: &'a Listing,
    to: &'a Listing,
}

/// The steps that a person is told of: those that only mend what others touch are left out.
pub fn told<'a>(plan: &'a Plan, from: &'a Listing, to: &'a Listing) -> impl Iterator<Item = Told<'a>> {
    let tells =
        |step: &&Step| step.phase != Phase::Finish || !step.what.is_empty() && !step.what.has(What::NEW);
    plan.steps.iter().filter(tells).map(move |step| Told { step, from, to })
}

impl Told<'_> {
    fn source(&self) -> Option<Entry<'_>> {
        self.step.source.and_then(|id| self.from.get(id))
    }

    fn old(&self) -> Option<Entry<'_>> {
        self.step.old.and_then(|id| self.to.get(id))
    }

    /// The path that it is about.
    pub fn path(&self) -> Vec<u8> {
        self.source().or_else(|| self.old()).map(|entry| entry.path()).unwrap_or_default()
    }

    /// The path that it had, or that of the file that it becomes a name of.
    pub fn other_path(&self) -> Option<Vec<u8>> {
        match self.step.action {
            Action::Rename => self.old().map(|old| old.path()),
            Action::Link => self.step.other.and_then(|id| self.from.get(id)).map(|entry| entry.path()),
            _ => None,
        }
    }

    fn shown(&self) -> String {
        let path = self.path();
        let is_dir = self.source().or_else(|| self.old()).is_some_and(|entry| entry.is_dir());
        match (path.is_empty(), is_dir) {
            (true, _) => "./".into(),
            (false, true) => format!("{}/", show(&path)),
            (false, false) => show(&path),
        }
    }

    /// Bytes that the file has.
    pub fn bytes(&self) -> Option<u64> {
        matches!(self.step.action, Action::Write(_) | Action::CopyBasis(_))
            .then(|| self.source().map(|entry| entry.size()))
            .flatten()
    }

    /// In words: what is done to it.
    pub fn words(&self) -> String {
        let path = self.shown();
        let new = self.step.what.has(What::NEW);
        match self.step.action {
            Action::MakeDir => format!("make    {path}"),
            Action::Write(how) => {
                let verb = if new { "write   " } else { "update  " };
                let size = format::size(self.bytes().unwrap_or_default());
                let how = match how {
                    How::Whole | How::Delta => "",
                    How::InPlace => ", in place",
                    How::Append => ", appended",
                };
                format!("{verb}{path} ({size}{}{how})", self.because())
            }
            Action::Symlink => {
                let target = self.source().map(|entry| show(entry.target())).unwrap_or_default();
                format!("link    {path} -> {target}")
            }
            Action::Special => format!("make    {path} ({})", self.kind()),
            Action::Link => {
                let first = self.other_path().map(|path| show(&path)).unwrap_or_default();
                format!("link    {path} => {first}")
            }
            Action::LinkBasis(_) => format!("link    {path} (unchanged in a basis directory)"),
            Action::CopyBasis(_) => {
                let size = format::size(self.bytes().unwrap_or_default());
                format!("copy    {path} ({size}, from a basis directory)")
            }
            Action::Attributes => format!("set     {path} ({})", names(self.step.what).join(", ")),
            Action::Rename => {
                let old = self.other_path().map(|path| show(&path)).unwrap_or_default();
                format!("rename  {old} -> {path}")
            }
            Action::Delete => format!("delete  {path}"),
        }
    }

    fn because(&self) -> String {
        if self.step.what.has(What::NEW) {
            return String::new();
        }
        let names: Vec<_> = names(self.step.what).into_iter().filter(|name| *name != "content").collect();
        if names.is_empty() { String::new() } else { format!("; {} differ", names.join(", ")) }
    }

    fn kind(&self) -> &'static str {
        self.source().or_else(|| self.old()).map_or("", |entry| crate::ui::json::kind(entry.kind()))
    }

    /// In rsync's letters.
    pub fn letters(&self) -> String {
        let path = self.shown();
        if self.step.action == Action::Delete {
            return format!("*deleting   {path}");
        }
        let what = self.step.what;
        let letter = match self.source().map(|entry| entry.kind()) {
            Some(FileKind::Dir) => 'd',
            Some(FileKind::Symlink) => 'L',
            Some(FileKind::CharDevice | FileKind::BlockDevice) => 'D',
            Some(FileKind::Fifo | FileKind::Socket) => 'S',
            _ => 'f',
        };
        let kind = match self.step.action {
            Action::Write(_) => '>',
            Action::Link | Action::LinkBasis(_) => 'h',
            Action::Attributes => '.',
            _ => 'c',
        };
        let link = match (self.step.action, self.other_path()) {
            (Action::Link, Some(first)) => format!(" => {}", show(&first)),
            (Action::Rename, Some(old)) => format!(" <- {}", show(&old)),
            (Action::Symlink, _) => {
                format!(" -> {}", self.source().map(|e| show(e.target())).unwrap_or_default())
            }
            _ => String::new(),
        };
        if what.has(What::NEW) && self.step.action != Action::Link {
            return format!("{kind}{letter}+++++++++ {path}{link}");
        }
        let mark = |flag: What, letter: char| if what.has(flag) { letter } else { '.' };
        let content = mark(What::CONTENT, 'c');
        let marks: String = [
            content,
            mark(What::SIZE, 's'),
            mark(What::TIME, 't'),
            mark(What::MODE, 'p'),
            mark(What::OWNER, 'o'),
            mark(What::GROUP, 'g'),
            mark(What::ATIME, 'u'),
            mark(What::ACL, 'a'),
            mark(What::XATTR, 'x'),
        ]
        .iter()
        .collect();
        format!("{kind}{letter}{marks} {path}{link}")
    }
}

/// What differs, in words.
pub fn names(what: What) -> Vec<&'static str> {
    const NAMES: [(What, &str); 10] = [
        (What::KIND, "kind"),
        (What::CONTENT, "content"),
        (What::SIZE, "size"),
        (What::TIME, "time"),
        (What::MODE, "mode"),
        (What::OWNER, "owner"),
        (What::GROUP, "group"),
        (What::ATIME, "access time"),
        (What::ACL, "ACL"),
        (What::XATTR, "attributes"),
    ];
    NAMES.iter().filter(|(flag, _)| what.has(*flag)).map(|(_, name)| *name).collect()
}

/// What an action is called in JSON.
pub fn action(step: &Step) -> &'static str {
    match step.action {
        Action::MakeDir => "make_directory",
        Action::Write(How::Whole) => "write",
        Action::Write(How::Delta) => "update",
        Action::Write(How::InPlace) => "update_in_place",
        Action::Write(How::Append) => "append",
        Action::Symlink => "make_symlink",
        Action::Special => "make_special",
        Action::Link => "link",
        Action::Attributes => "set_attributes",
        Action::Rename => "rename",
        Action::Delete => "delete",
        Action::LinkBasis(_) => "link_basis",
        Action::CopyBasis(_) => "copy_basis",
    }
}
