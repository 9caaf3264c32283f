//! `vellum ls`: what a directory held in a snapshot.

use std::ffi::OsString;

use serde::Serialize;
use vellum_types::{Attr, FileKind, Ino};
use vellum_volume::FsTree;
use vellum_volume::tree::show;

use crate::context::Context;
use crate::context::place::Place;
use crate::error::{Outcome, Result};
use crate::ui::json::Name;
use crate::ui::table::{Align, Cell, Table};
use crate::ui::{format, json};

/// List a directory as it was in a snapshot
///
/// Names of directories end in '/'. With -R, names are relative to the listed directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// A directory or file [default: where you stand]
    path: Option<OsString>,
    /// Mode, links, owner, group, size and time too
    #[arg(short, long)]
    long: bool,
    /// All that is below, not only the directory itself
    #[arg(short = 'R', long)]
    recursive: bool,
}

#[derive(Serialize)]
struct Report {
    snapshot: String,
    entries: Vec<Item>,
}

/// A file as JSON shows it.
#[derive(Serialize)]
pub struct Item {
    #[serde(flatten)]
    name: Name,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    size: u64,
    links: u32,
    modified: String,
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Name>,
}

impl Item {
    /// The file `name` with these attributes.
    pub fn new(name: &[u8], ino: Ino, attr: &Attr) -> Self {
        Self {
            name: Name::new(name),
            kind: json::kind(attr.kind),
            mode: format!("{:04o}", attr.mode),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            links: attr.nlink,
            modified: json::time(attr.mtime),
            inode: ino.0,
            target: (attr.kind == FileKind::Symlink).then(|| Name::new(&attr.target)),
        }
    }
}

/// Lists the directory.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    let volume = context.volume()?;
    let place = Place::find(context, &volume, &args.snapshot, args.path.as_deref())?;
    let listing = if place.attr.kind == FileKind::Dir {
        list(&place.tree, place.ino, args.recursive)?
    } else {
        vec![Listed { name: base_name(&place.path).to_vec(), ino: place.ino, attr: place.attr }]
    };
    let ui = &context.ui;
    if ui.json() {
        let entries = listing.iter().map(|entry| Item::new(&entry.name, entry.ino, &entry.attr)).collect();
        ui.object(&Report { snapshot: place.entry.id.to_string(), entries })?;
    } else if args.long {
        for line in long(context, &listing) {
            ui.line(line)?;
        }
    } else {
        for entry in &listing {
            ui.line(painted(context, entry))?;
        }
    }
    Ok(Outcome::Done)
}

/// One listed file.
pub struct Listed {
    /// Relative to the listed directory.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Its attributes.
    pub attr: Attr,
}

/// The entries of a directory by name; with all below them if `recursive`.
pub fn list(tree: &FsTree, dir: Ino, recursive: bool) -> Result<Vec<Listed>> {
    let mut listing = Vec::new();
    let mut pending = vec![(dir, Vec::new())];
    while let Some((dir, prefix)) = pending.pop() {
        for (name, dentry) in tree.entries(dir)? {
            let name = [prefix.as_slice(), &name].concat();
            if recursive && dentry.kind == FileKind::Dir {
                pending.push((dentry.ino, [name.as_slice(), b"/"].concat()));
            }
            listing.push(Listed { name, ino: dentry.ino, attr: tree.attr_of(dentry.ino)? });
        }
    }
    // By path: what is in a directory stands right after it.
    listing.sort_by(|a, b| a.name.split(|byte| *byte == b'/').cmp(b.name.split(|byte| *byte == b'/')));
    Ok(listing)
}

/// The last component of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Lines as `ls -l` has them.
pub fn long(context: &Context, listing: &[Listed]) -> Vec<String> {
    use Align::{Left, Right};
    let mut table = Table::new(&[Left, Right, Right, Right, Right, Left, Left]);
    for entry in listing {
        let attr = &entry.attr;
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{}, {}", rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev))
            }
            FileKind::Dir => "-".into(),
            _ => format::size(attr.size),
        };
        let target = match attr.kind {
            FileKind::Symlink => format!(" -> {}", show(&attr.target)),
            _ => String::new(),
        };
        let cells: [Cell; 7] = [
            format::mode(attr.kind, attr.mode).into(),
            attr.nlink.to_string().into(),
            attr.uid.to_string().into(),
            attr.gid.to_string().into(),
            size.into(),
            format::local_minute(attr.mtime).into(),
            format!("{}{target}", painted(context, entry)).into(),
        ];
        table.row(cells);
    }
    table.lines()
}

fn painted(context: &Context, entry: &Listed) -> String {
    let style = context.ui.style;
    let name = show(&entry.name);
    match entry.attr.kind {
        FileKind::Dir => format!("{}/", style.bold(&name)),
        FileKind::Symlink => style.cyan(&name),
        FileKind::File if entry.attr.mode & 0o111 != 0 => style.green(&name),
        FileKind::File => name,
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            style.yellow(&name)
        }
    }
}
