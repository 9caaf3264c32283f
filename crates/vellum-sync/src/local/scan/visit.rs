//! Visiting one directory: its names are matched against rules and examined.

use std::collections::HashSet;

use vellum_host::beneath::{BeneathError, ExtendedAttribute, HeldDir, HeldNode};
use vellum_host::metadata::FileStat;
use vellum_types::FileKind;
use vellum_volume::config::CONFIG_OBJECT;
use vellum_volume::own_place;

use super::follow::{FollowedDirectory, SymlinkFollower};
use super::judge::create_beside_filter;
use super::{EntryFilter, is_own_name};
use crate::ends::stored_stat::{STORED_STAT, StoredStat, original_xattr_name, read_stored_target};
use crate::ends::{ListingRequest, SyncSide};
use crate::error::{Result, SyncError};
use crate::model::listing::{
    DirectoryBlock, EntryDetail, EntryFlags, NewListingEntry, TimeGranularity, UnlistedEntry,
};
use crate::model::options::{ACL_PREFIX, DeletePhase, SymlinkHandling};

/// The contents of one directory.
pub(super) struct DirectoryContents {
    /// Its entries.
    pub block: DirectoryBlock,
    /// Subdirectories to visit: position in the block, and name.
    pub dirs: Vec<(u32, Box<[u8]>)>,
    /// Symlinks that were followed: positions in the block.
    pub followed: Vec<u32>,
    /// Files with several names: position in the block, device and inode.
    pub linked: Vec<(u32, u64, u64)>,
    /// Change stamps of files, if they are requested: position in the block, and stamp.
    pub stamps: Vec<(u32, u64)>,
    /// Entries that could not be examined; paths are names.
    pub unlisted: Vec<UnlistedEntry>,
    /// Names of files that a killed run may have left.
    pub leftovers: Vec<Box<[u8]>>,
    /// An entry was left out.
    pub keeps: bool,
    /// The directory is a Vellum store.
    pub is_store: bool,
    /// The number of regular files.
    pub files: u64,
    /// The resolution of times.
    pub granularity: TimeGranularity,
}

impl DirectoryContents {
    pub fn with_capacity(names: usize) -> Self {
        Self {
            block: DirectoryBlock::with_capacity(names),
            dirs: Vec::new(),
            followed: Vec::new(),
            linked: Vec::new(),
            stamps: Vec::new(),
            unlisted: Vec::new(),
            leftovers: Vec::new(),
            keeps: false,
            is_store: false,
            files: 0,
            granularity: TimeGranularity::COARSEST,
        }
    }
}

/// A name that the rules include, with the verdict.
#[derive(Clone, Copy)]
struct FilteredName<'h> {
    here: &'h FollowedDirectory<'h>,
    protected: bool,
    perishable: bool,
    is_way: bool,
    is_between: bool,
}

/// The attributes of a name.
struct VisitedFile {
    stat: FileStat,
    /// It is a symlink, and these are the attributes of its target.
    followed: bool,
    /// A regular file or directory represents it, with metadata in an attribute.
    is_stored: bool,
}

/// What a visit reads.
pub(super) struct DirectoryVisitor<'w> {
    wish: &'w ListingRequest,
    /// Extended attributes or ACLs are read.
    xattrs: bool,
    /// Metadata is stored in an attribute.
    is_stored: bool,
    atimes: bool,
    groups: bool,
    recursive: bool,
    /// Directories above named paths are listed without their attributes.
    bare_way: bool,
    /// Directories may be deleted with their entries.
    deletes: bool,
    symlinks: SymlinkHandling,
    pub(super) links: SymlinkFollower,
    partial_dir: Option<&'w [u8]>,
    /// The device of the root, if other filesystems are not entered.
    device: Option<u64>,
}

impl<'w> DirectoryVisitor<'w> {
    pub fn new(wish: &'w ListingRequest) -> Self {
        let preserve = &wish.options.preserve;
        Self {
            wish,
            xattrs: preserve.lists_xattrs(wish.side),
            is_stored: wish.side == SyncSide::Source && preserve.stored_stat.source,
            atimes: preserve.atimes,
            groups: preserve.hard_links,
            recursive: preserve.recursive,
            bare_way: preserve.bare_way && wish.side == SyncSide::Source,
            deletes: wish.options.delete.when != DeletePhase::Never || wish.options.delete.obstacles,
            symlinks: preserve.symlinks,
            links: SymlinkFollower::from_request(wish),
            partial_dir: wish.options.writing.partial_dir.as_deref(),
            device: None,
        }
    }

    /// The request.
    pub fn request(&self) -> &'w ListingRequest {
        self.wish
    }

    /// Sets the device; directories of other devices are not entered.
    pub fn with_device(mut self, device: Option<u64>) -> Self {
        self.device = device;
        self
    }

    /// Examines all names of a directory.
    pub fn visit_dir(&self, here: &FollowedDirectory<'_>) -> Result<DirectoryContents> {
        let dir = here.dir;
        let mut names = dir.read_names_once()?;
        names.sort_names();
        let mut found = DirectoryContents::with_capacity(names.len());
        // This is asked for each directory and costs nothing in most: a file is opened only if it has the
        // name of the configuration of a store.
        found.is_store = is_vellum_store(dir, &|name| names.iter().any(|listed| listed.name == name));
        if found.is_store && self.wish.side == SyncSide::Destination {
            // The store is not looked into. It cannot be deleted, and neither can a directory above it.
            found.keeps = true;
            return Ok(found);
        }
        for listed in names.iter() {
            // Vellum's own names and the directory of partial files are no content on either side, whatever
            // the rules say.
            if is_own_name(listed.name) || Some(listed.name) == self.partial_dir {
                self.record_own_name(listed.name, &mut found);
                continue;
            }
            self.filter_name(here, listed.name, listed.is_dir, &mut found);
        }
        if self.wish.side == SyncSide::Source && !self.wish.options.ignore_missing {
            let listed = here.judge.listed_names();
            // A set is needed only with `--files-from`, where both lists can be long.
            let names: HashSet<&[u8]> = match listed.is_empty() {
                true => HashSet::new(),
                false => names.iter().map(|listed| listed.name).collect(),
            };
            let missing = listed.into_iter().filter(|name| !names.contains(&name[..]));
            found.unlisted.extend(missing.map(|name| UnlistedEntry {
                path: name,
                message: "it is listed, but does not exist".to_owned(),
                vanished: false,
            }));
        }
        Ok(found)
    }

    fn record_own_name(&self, name: &[u8], found: &mut DirectoryContents) {
        match vellum_host::beneath::is_temp_name(name) {
            true => found.leftovers.push(name.into()),
            false => found.keeps = true,
        }
    }

    fn filter_name(
        &self,
        here: &FollowedDirectory<'_>,
        name: &[u8],
        is_dir: Option<bool>,
        found: &mut DirectoryContents,
    ) {
        // Rules for directories differ from rules for files, so the kind is needed first. The listing usually
        // has it; a `statx` is made only for symlinks that may be followed and on filesystems that do not
        // tell.
        let looked = match is_dir {
            Some(is_dir) if is_dir || !self.links.is_following() => Ok(is_dir),
            // One that leads nowhere may still be left out by a rule.
            _ => self.stat_name(here, name, false).map(|file| file.stat.kind == FileKind::Dir).or_else(
                |error| {
                    if matches!(error, SyncError::Dangling(_)) { Ok(false) } else { Err(error) }
                },
            ),
        };
        let outcome = looked.and_then(|is_dir| {
            let verdict = here.judge.evaluate_entry(name, is_dir);
            let left_out = match self.wish.side {
                SyncSide::Source => !verdict.transfer,
                SyncSide::Destination => {
                    // A perishable entry protects its directory only as long as the directory stays. It has
                    // to be in the listing to be deleted with it.
                    let goes = verdict.perishable && self.deletes;
                    !verdict.transfer && verdict.protect_from_delete && !goes
                }
            };
            if left_out {
                // Something is left out here, so the directory is not empty although its listing may be.
                found.keeps = true;
                return Ok(());
            }
            // At the source a rule that protects keeps a directory from being left out as empty.
            let prunes = self.wish.options.preserve.prune_empty;
            let protected =
                (self.wish.side == SyncSide::Destination || prunes) && verdict.protect_from_delete;
            let perishable = protected && verdict.perishable;
            let judged = FilteredName {
                here,
                protected,
                perishable,
                is_way: verdict.is_way,
                is_between: verdict.is_between,
            };
            self.add_entry([name, name], judged, found)
        });
        if let Err(error) = outcome {
            // The entry was removed after its name was read. This is no reason to hold deletions back.
            let vanished = error.kind() == vellum_types::ErrorKind::NotFound;
            found.unlisted.push(UnlistedEntry { path: name.into(), message: error.format_chain(), vanished });
        }
    }

    /// Examines one name, and adds it as `shown`.
    pub fn add_named_entry(
        &self,
        dir: &HeldDir,
        name: &[u8],
        shown: &[u8],
        found: &mut DirectoryContents,
    ) -> Result<()> {
        let judge = create_beside_filter(self.wish)?;
        let here = FollowedDirectory { dir, judge: &*judge, depth: 0, dir_links: None };
        let judged = FilteredName {
            here: &here,
            protected: false,
            perishable: false,
            is_way: false,
            is_between: false,
        };
        self.add_entry([name, shown], judged, found)
    }

    /// The attributes of a name: those of its target if it is followed, or those that it stores in an attribute.
    fn stat_name(&self, here: &FollowedDirectory<'_>, name: &[u8], is_way: bool) -> Result<VisitedFile> {
        let own = here.dir.stat(name)?;
        let target = self.links.resolve_target(here, name, &own, is_way)?;
        let followed = target.is_some();
        let stat = target.unwrap_or(own);
        // Other kinds cannot have attributes in `user.`: the kernel refuses them (EPERM).
        let may_be_stored = self.is_stored && matches!(stat.kind, FileKind::File | FileKind::Dir);
        let stored = match may_be_stored {
            true => StoredStat::read_from_node(&hold_node(here.dir, name, followed)?, stat.kind, name)?,
            false => None,
        };
        let stat_shown = stored.map_or(stat, |stored| stored.apply_to(stat));
        Ok(VisitedFile { stat: stat_shown, followed, is_stored: stored.is_some() })
    }

    fn add_entry(
        &self,
        [name, shown]: [&[u8]; 2],
        judged: FilteredName<'_>,
        found: &mut DirectoryContents,
    ) -> Result<()> {
        let FilteredName { here, is_way, .. } = judged;
        let file = self.stat_name(here, name, is_way)?;
        let VisitedFile { stat, followed, .. } = file;
        // The destination lies within the source, and is not copied into itself.
        if stat.kind == FileKind::Dir && self.wish.avoid == Some((stat.dev, stat.ino)) {
            found.keeps = true;
            return Ok(());
        }
        let detail = self.read_detail(here, name, &file)?;
        let elsewhere = stat.kind == FileKind::Dir && self.device.is_some_and(|device| device != stat.dev);
        let withheld = self.wish.side == SyncSide::Source
            && stat.kind == FileKind::File
            && !here.judge.should_transfer_file(stat.size, stat.mtime)
            || self.links.should_omit(&stat, detail.as_ref(), here.depth);
        let is_bare = stat.kind == FileKind::Dir && self.bare_way && judged.is_between;
        let flags = EntryFlags::default()
            .union_if(EntryFlags::PROTECTED, judged.protected)
            .union_if(EntryFlags::PERISHABLE, judged.perishable)
            .union_if(EntryFlags::MOUNT.union(EntryFlags::KEEPS), elsewhere)
            .union_if(EntryFlags::WITHHELD, withheld)
            .union_if(EntryFlags::IMPLIED, is_bare)
            .union_if(EntryFlags::SPARSE, stat.kind == FileKind::File && stat.may_have_holes)
            .union_if(EntryFlags::LINKED, stat.kind != FileKind::Dir && stat.nlink > 1);
        let place = found.block.len() as u32;
        found.followed.extend(followed.then_some(place));
        found.block.push(shown, &describe_file(&stat, flags), detail)?;
        match stat.kind {
            FileKind::Dir if (self.recursive || is_way) && !elsewhere => {
                found.dirs.push((place, name.into()))
            }
            // The directory is listed without its content, so what it contains is unknown.
            FileKind::Dir => found.keeps |= !elsewhere,
            _ if self.groups && stat.nlink > 1 => found.linked.push((place, stat.dev, stat.ino)),
            _ => {}
        }
        // Stamps cost 8 bytes for each entry of a listing and are kept only where something compares them.
        let is_stamped = stat.kind == FileKind::File || self.wish.options.moves && stat.kind != FileKind::Dir;
        if self.wish.options.stamps && is_stamped {
            let moves = self.wish.options.moves;
            found.stamps.push((place, if moves { compute_identity(&stat) } else { compute_stamp(&stat) }));
        }
        found.files += u64::from(stat.kind == FileKind::File);
        found.granularity.observe_time(stat.mtime);
        // The change time is set by the kernel with full resolution. One of them is enough to see that the
        // filesystem does not round.
        found.granularity.observe_time(stat.ctime);
        Ok(())
    }

    /// The metadata that the root stores in an attribute, if that is requested.
    pub fn read_root_stat(&self, root: &HeldNode<'_>) -> Result<Option<StoredStat>> {
        if self.is_stored { StoredStat::read_from_node(root, FileKind::Dir, b".") } else { Ok(None) }
    }

    /// Reads the facts that few entries have.
    fn read_detail(
        &self,
        here: &FollowedDirectory<'_>,
        name: &[u8],
        file: &VisitedFile,
    ) -> Result<Option<EntryDetail>> {
        let VisitedFile { stat, followed, is_stored } = *file;
        let dir = here.dir;
        let mut detail = EntryDetail::default();
        let mut any = self.atimes || self.groups && stat.nlink > 1 && stat.kind != FileKind::Dir;
        if stat.kind == FileKind::Symlink && self.symlinks == SymlinkHandling::Keep {
            detail.target = match is_stored {
                true => read_stored_target(dir, name)?.into(),
                false => dir.read_link(name)?.into(),
            };
            any = true;
        }
        if matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            detail.rdev = stat.rdev;
            any = true;
        }
        if self.atimes {
            let read =
                if followed { dir.read_access_time_following(name) } else { dir.read_access_time(name) };
            detail.atime = Some(read?);
        }
        if self.xattrs {
            detail.xattrs = self.read_xattrs(&hold_node(dir, name, followed)?, here.judge)?.into();
            any |= !detail.xattrs.is_empty();
        }
        Ok(any.then_some(detail))
    }

    /// The requested attributes that the rules include. Rules do not apply to ACLs.
    pub fn read_xattrs(
        &self,
        node: &HeldNode<'_>,
        judge: &dyn EntryFilter,
    ) -> Result<Vec<ExtendedAttribute>, BeneathError> {
        let mut found = Vec::new();
        if !self.xattrs {
            return Ok(found);
        }
        for name in node.list_xattr_names()? {
            // Rules do not apply to ACLs and to the attribute with stored metadata.
            let is_ruled = !(name.starts_with(ACL_PREFIX) || name == STORED_STAT);
            let is_asked_for = self.wish.options.preserve.sets_xattr(&name);
            if !is_asked_for || is_ruled && !judge.should_transfer_xattr(&name) {
                continue;
            }
            // A tree that was written with `--fake-super` holds attributes of root under other names.
            let shown = if self.is_stored { original_xattr_name(&name) } else { Some(name.clone()) };
            // One that is gone since it was listed is no error.
            if let (Some(shown), Some(value)) = (shown, node.read_xattr(&name)?) {
                found.push(ExtendedAttribute { name: shown, value });
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn hold_node(dir: &HeldDir, name: &[u8], followed: bool) -> Result<HeldNode<'static>, BeneathError> {
    if followed { dir.hold_node_following(name) } else { dir.hold_node(name) }
}

/// Whether a directory with these names is a Vellum store.
fn is_vellum_store(dir: &HeldDir, has: &dyn Fn(&[u8]) -> bool) -> bool {
    use std::io::Read;
    let head = has(CONFIG_OBJECT.as_bytes()).then(|| {
        let mut head = Vec::new();
        let opened = dir.open_file(CONFIG_OBJECT.as_bytes()).ok()?;
        opened.file.take(own_place::CONFIG_HEAD_LEN as u64).read_to_end(&mut head).ok()?;
        Some(head)
    });
    own_place::is_vellum_store(head.flatten().as_deref(), |folder| has(folder.as_bytes()))
}

/// The change time of a file as a number; 0 stands for an unknown one. The inode number is not part of it: some
/// filesystems assign new ones at each mount.
pub(crate) fn compute_stamp(stat: &FileStat) -> u64 {
    /// Nanoseconds in a second.
    const SECOND: u64 = 1_000_000_000;
    let moment = stat.ctime.secs.cast_unsigned().wrapping_mul(SECOND);
    moment.wrapping_add(u64::from(stat.ctime.nanos)).max(1)
}

/// The same with the inode number, which distinguishes a file from its copy: within one run it does not change.
pub(crate) fn compute_identity(stat: &FileStat) -> u64 {
    /// Odd, so that multiplication maps different numbers to different ones.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (compute_stamp(stat) ^ stat.ino.wrapping_mul(SPREAD)).max(1)
}

/// The listed attributes of a file.
pub(super) fn describe_file(stat: &FileStat, flags: EntryFlags) -> NewListingEntry {
    let FileStat { kind, mode, uid, gid, size, mtime, .. } = *stat;
    NewListingEntry { kind, mode, uid, gid, size, mtime, flags }
}
