//! `vellum ls`: what a directory held in a snapshot.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::ser::{Error as _, SerializeSeq};
use serde::{Serialize, Serializer};
use vellum_checkout::{AbsentPaths, read_absent_paths};
use vellum_host::escape::format_path;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::tree::PathStack;
use vellum_volume::{FsTree, Volume};

use crate::context::CommandContext;
use crate::context::place::SnapshotPath;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::format;
use crate::ui::json::FileJson;
use crate::ui::owners::NamedOwners;
use crate::ui::table::TextTable;

/// List a directory as it was in a snapshot
///
/// Names of directories end in '/'. With -R, names are relative to the listed directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP", default_value = "HEAD")]
    snapshot: String,
    /// A directory or file [default: the current directory]
    path: Option<OsString>,
    /// Also mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Also where the content of files is: here, partly here, remote (in the store only), or pinned; in a partial checkout,
    /// which files are absent from the directory
    #[arg(long)]
    state: bool,
}

#[derive(Serialize)]
struct ListJson<'a> {
    snapshot: String,
    entries: Entries<'a>,
}

/// What is listed, read while it is printed: a whole deep tree would take memory with the square of its depth.
struct Entries<'a> {
    place: &'a SnapshotPath,
    options: ListOptions<'a>,
}

/// What is asked about a directory.
#[derive(Clone, Copy)]
struct ListOptions<'a> {
    recursive: bool,
    /// Also where content is; and the files that are in no place but the store.
    state: Option<&'a AbsentFiles>,
}

/// The files of a snapshot that are absent from the directory.
struct AbsentFiles {
    paths: AbsentPaths,
    root: PathBuf,
}

impl AbsentFiles {
    fn read_list(context: &CommandContext, volume: &Volume) -> Result<Self> {
        // The names of a mount are all there.
        let paths = match context.find_mount_process()? {
            Some(_) => AbsentPaths::default(),
            None => read_absent_paths(&volume.state)?,
        };
        Ok(Self { paths, root: volume.state.root().to_path_buf() })
    }

    fn contains(&self, place: &SnapshotPath, entry: &ListedFile) -> bool {
        if self.paths.is_empty() {
            return false;
        }
        let path = match (place.attr.kind, place.path.as_slice()) {
            (FileKind::Dir, []) => entry.name.clone(),
            (FileKind::Dir, above) => [above, &entry.name].join(&b'/'),
            // A file that was named itself: its entry has only the last part of the path.
            _ => place.path.clone(),
        };
        let is_here = || self.root.join(OsStr::from_bytes(&path)).symlink_metadata().is_ok();
        // A user may have put something new in the place of an absent path.
        self.paths.find_covering(&path).is_some() && !is_here()
    }
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut printed = Ok(());
        let visited = visit_listed_files(self.place, self.options, |entry| {
            let mut item = FileJson::new(&entry.name, entry.ino, &entry.attr);
            item.state = entry.state;
            printed = list.serialize_element(&item);
            // What could not be printed is reported as it is; this one only ends the walk.
            if printed.is_ok() { Ok(()) } else { Err(CliError::Output(io::ErrorKind::Other.into())) }
        });
        printed?;
        visited.map_err(S::Error::custom)?;
        list.end()
    }
}

/// Lists the directory.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let place = SnapshotPath::find_path(context, &volume, &args.snapshot, args.path.as_deref())?;
    let ui = &context.ui;
    let absent = args.state.then(|| AbsentFiles::read_list(context, &volume)).transpose()?;
    let options = ListOptions { recursive: args.recursive, state: absent.as_ref() };
    if ui.is_json() {
        // All of it is read once before: a tree that cannot be read is an error in place of half an object.
        visit_listed_files(&place, options, |_| Ok(()))?;
        let entries = Entries { place: &place, options };
        ui.print_json(&ListJson { snapshot: place.entry.id.to_string(), entries })?;
    } else if args.long {
        // Columns are aligned in portions: a whole deep tree would take memory with the square of its depth.
        let mut portion = Vec::new();
        let mut bytes = 0;
        let print = |portion: &[ListedFile]| {
            let lines = format_long_listing(context, portion);
            portion
                .iter()
                .zip(lines)
                .try_for_each(|(entry, line)| ui.print_line(format_state(args, entry) + &line))
        };
        visit_listed_files(&place, options, |entry| {
            bytes += entry.name.len();
            portion.push(entry);
            if bytes > PORTION_BYTES {
                print(&std::mem::take(&mut portion))?;
                bytes = 0;
            }
            Ok(())
        })?;
        print(&portion)?;
    } else {
        visit_listed_files(&place, options, |entry| {
            ui.print_line(format_state(args, &entry) + &paint_file_name(context, &entry))
        })?;
    }
    Ok(CommandOutcome::Done)
}

/// Bytes of names that are aligned together.
const PORTION_BYTES: usize = 4 << 20;

/// The column that says where content is, if it is asked for.
fn format_state(args: &Args, entry: &ListedFile) -> String {
    if !args.state {
        return String::new();
    }
    // As wide as the longest state, "partly 99%".
    format!("{:<12}", entry.state.as_deref().unwrap_or("-"))
}

/// Visits what is listed of a place.
fn visit_listed_files(
    place: &SnapshotPath,
    options: ListOptions<'_>,
    mut each: impl FnMut(ListedFile) -> Result<()>,
) -> Result<()> {
    let mut each = |mut entry: ListedFile| {
        if let Some(absent) = options.state {
            entry.state = match entry.attr.kind {
                _ if absent.contains(place, &entry) => Some("absent".into()),
                FileKind::File => place.tree.content_state(entry.ino)?.map(|state| state.to_string()),
                _ => None,
            };
        }
        each(entry)
    };
    if place.attr.kind == FileKind::Dir {
        return visit_dir(&place.tree, place.ino, options.recursive, &mut each);
    }
    // As with ls, a file that is named itself is listed.
    each(ListedFile {
        name: base_name(&place.path).to_vec(),
        ino: place.ino,
        attr: place.attr.clone(),
        state: None,
    })
}

/// One listed file.
pub struct ListedFile {
    /// Relative to the listed directory.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Its attributes.
    pub attr: InodeAttr,
    /// Where its content is, if that was asked for.
    pub state: Option<String>,
}

/// The entries of a directory by name.
pub fn list_dir(tree: &FsTree, dir: Ino) -> Result<Vec<ListedFile>> {
    let mut listing = Vec::new();
    visit_dir(tree, dir, false, &mut |entry| {
        listing.push(entry);
        Ok(())
    })?;
    Ok(listing)
}

/// Visits the entries of a directory by name; if `recursive`, what is in a directory comes right after it.
fn visit_dir(
    tree: &FsTree,
    dir: Ino,
    recursive: bool,
    each: &mut impl FnMut(ListedFile) -> Result<()>,
) -> Result<()> {
    let mut names = PathStack::default();
    names.push_entries(tree.list_entries(dir)?);
    while let Some(dentry) = names.next_entry() {
        let attr = tree.expect_inode_attr(dentry.ino)?;
        each(ListedFile { name: names.path().to_vec(), ino: dentry.ino, attr, state: None })?;
        if recursive && dentry.kind == FileKind::Dir {
            names.push_entries(tree.list_entries(dentry.ino)?);
        }
    }
    Ok(())
}

/// The last component of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Lines as `ls -l` has them.
pub fn format_long_listing(context: &CommandContext, listing: &[ListedFile]) -> Vec<String> {
    // Read once for the listing, and not for each entry.
    let owners = NamedOwners::read();
    let mut table = TextTable::new([1, 4]);
    for entry in listing {
        let attr = &entry.attr;
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{}, {}", rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev))
            }
            // What a filesystem shows as the size of a directory depends on its format: a tree has no such size.
            FileKind::Dir => "-".into(),
            _ => format::format_size(attr.size),
        };
        let target = match attr.kind {
            FileKind::Symlink => format!(" -> {}", format_path(&attr.target)),
            _ => String::new(),
        };
        table.add_row([
            format::format_mode(attr.kind, attr.mode),
            attr.nlink.to_string(),
            owners.format_user(attr.uid),
            owners.format_group(attr.gid),
            size,
            format::format_local_minute(attr.mtime),
            format!("{}{target}", paint_file_name(context, entry)),
        ]);
    }
    table.format_lines()
}

fn paint_file_name(context: &CommandContext, entry: &ListedFile) -> String {
    let style = context.ui.style;
    let name = format_path(&entry.name);
    match entry.attr.kind {
        FileKind::Dir => format!("{}/", style.paint_bold(&name)),
        FileKind::Symlink => style.paint_cyan(&name),
        FileKind::File if entry.attr.mode & 0o111 != 0 => style.paint_green(&name),
        FileKind::File => name,
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            style.paint_yellow(&name)
        }
    }
}
