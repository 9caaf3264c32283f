//! One directory: its names, judged and looked at.

use vellum_checkout::beneath::{BeneathError, Dir, Xattr};
use vellum_checkout::meta::Stat;
use vellum_types::FileKind;

use super::{Judge, is_own};
use crate::error::Result;
use crate::listing::{Block, Detail, Flags, Fresh, Unlisted};
use crate::options::Symlinks;
use crate::source::{Side, Wish};

/// ACLs are attributes whose names begin so.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// Attributes of the filesystem's own, which nobody copies.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// What was found in a directory.
pub(super) struct Found {
    /// Its entries.
    pub block: Block,
    /// Subdirectories to visit: place in the block, and name.
    pub dirs: Vec<(u32, Box<[u8]>)>,
    /// Files with several names: place in the block, device and inode.
    pub linked: Vec<(u32, u64, u64)>,
    /// What could not be looked at; paths are names.
    pub unlisted: Vec<Unlisted>,
    /// Names of files that a killed run may have left.
    pub leftovers: Vec<Box<[u8]>>,
    /// Something was left out.
    pub keeps: bool,
    /// Regular files.
    pub files: u64,
}

impl Found {
    pub fn with_capacity(names: usize) -> Self {
        Self {
            block: Block::with_capacity(names),
            dirs: Vec::new(),
            linked: Vec::new(),
            unlisted: Vec::new(),
            leftovers: Vec::new(),
            keeps: false,
            files: 0,
        }
    }
}

/// What is looked for.
pub(super) struct Looker<'w> {
    wish: &'w Wish,
    xattrs: bool,
    acls: bool,
    atimes: bool,
    groups: bool,
    recursive: bool,
    symlinks: Symlinks,
    partial_dir: Option<&'w [u8]>,
    /// Device of the root's filesystem, where others are not entered.
    device: Option<u64>,
}

impl<'w> Looker<'w> {
    pub fn new(wish: &'w Wish) -> Self {
        let preserve = &wish.options.preserve;
        Self {
            wish,
            xattrs: preserve.xattrs,
            acls: preserve.acls,
            atimes: preserve.atimes,
            groups: preserve.hard_links,
            recursive: preserve.recursive,
            symlinks: preserve.symlinks,
            partial_dir: wish.options.writing.partial_dir.as_deref(),
            device: None,
        }
    }

    /// Directories of other devices are not entered.
    pub fn staying_on(mut self, device: Option<u64>) -> Self {
        self.device = device;
        self
    }

    /// Looks at all names of a directory.
    pub fn visit(&self, dir: &Dir, judge: &dyn Judge) -> Result<Found> {
        let mut names = dir.names_once()?;
        names.sort();
        let mut found = Found::with_capacity(names.len());
        for listed in names.iter() {
            if is_own(listed.name) || Some(listed.name) == self.partial_dir {
                self.own(listed.name, &mut found);
                continue;
            }
            self.judged(dir, judge, listed.name, listed.is_dir, &mut found);
        }
        Ok(found)
    }

    fn own(&self, name: &[u8], found: &mut Found) {
        match vellum_checkout::beneath::is_temp_name(name) {
            true => found.leftovers.push(name.into()),
            false => found.keeps = true,
        }
    }

    fn judged(&self, dir: &Dir, judge: &dyn Judge, name: &[u8], is_dir: Option<bool>, found: &mut Found) {
        let looked = match is_dir {
            Some(is_dir) => Ok(is_dir),
            None => dir.stat(name).map(|stat| stat.kind == FileKind::Dir),
        };
        let outcome = looked.map_err(Into::into).and_then(|is_dir| {
            let verdict = judge.judge(name, is_dir);
            let left_out = match self.wish.side {
                Side::Source => !verdict.transfer,
                Side::Destination => !verdict.transfer && verdict.protect_from_delete,
            };
            if left_out {
                found.keeps = true;
                return Ok(());
            }
            let protected = self.wish.side == Side::Destination && verdict.protect_from_delete;
            self.look_with(dir, name, name, Some((judge, protected)), found)
        });
        if let Err(error) = outcome {
            let vanished = error.kind() == vellum_types::ErrorKind::NotFound;
            found.unlisted.push(Unlisted { path: name.into(), message: error.chain(), vanished });
        }
    }

    /// Looks at one name, and enters it as `shown`.
    pub fn look(&self, dir: &Dir, name: &[u8], shown: &[u8], found: &mut Found) -> Result<()> {
        self.look_with(dir, name, shown, None, found)
    }

    fn look_with(
        &self,
        dir: &Dir,
        name: &[u8],
        shown: &[u8],
        judged: Option<(&dyn Judge, bool)>,
        found: &mut Found,
    ) -> Result<()> {
        let stat = dir.stat(name)?;
        if stat.kind == FileKind::Dir && self.wish.avoid == Some((stat.dev, stat.ino)) {
            found.keeps = true;
            return Ok(());
        }
        let detail = self.detail(dir, name, &stat)?;
        let elsewhere = stat.kind == FileKind::Dir && self.device.is_some_and(|device| device != stat.dev);
        let withheld = self.wish.side == Side::Source
            && stat.kind == FileKind::File
            && judged.is_some_and(|(judge, _)| !judge.admits(stat.size, stat.mtime));
        let flags = Flags::default()
            .with_if(Flags::PROTECTED, judged.is_some_and(|(_, protected)| protected))
            .with_if(Flags::MOUNT.with(Flags::KEEPS), elsewhere)
            .with_if(Flags::WITHHELD, withheld)
            .with_if(Flags::SPARSE, stat.may_have_holes)
            .with_if(Flags::LINKED, stat.kind != FileKind::Dir && stat.nlink > 1);
        let place = found.block.len() as u32;
        found.block.push(shown, &fresh(&stat, flags), detail)?;
        match stat.kind {
            FileKind::Dir if self.recursive && !elsewhere => found.dirs.push((place, name.into())),
            FileKind::Dir => found.keeps |= !elsewhere,
            _ if self.groups && stat.nlink > 1 => found.linked.push((place, stat.dev, stat.ino)),
            _ => {}
        }
        found.files += u64::from(stat.kind == FileKind::File);
        Ok(())
    }

    /// What few entries have.
    fn detail(&self, dir: &Dir, name: &[u8], stat: &Stat) -> Result<Option<Detail>> {
        let mut detail = Detail::default();
        let mut any = self.atimes || self.groups && stat.nlink > 1 && stat.kind != FileKind::Dir;
        if stat.kind == FileKind::Symlink && self.symlinks == Symlinks::Keep {
            detail.target = dir.read_link(name)?.into();
            any = true;
        }
        if matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            detail.rdev = stat.rdev;
            any = true;
        }
        if self.atimes {
            detail.atime = Some(dir.access_time(name)?);
        }
        if self.xattrs || self.acls {
            detail.xattrs = self.attributes(&dir.node(name)?)?.into();
            any |= !detail.xattrs.is_empty();
        }
        Ok(any.then_some(detail))
    }

    /// The attributes that are asked for.
    pub fn attributes(
        &self,
        node: &vellum_checkout::beneath::Node<'_>,
    ) -> std::result::Result<Vec<Xattr>, BeneathError> {
        let mut found = Vec::new();
        if !(self.xattrs || self.acls) {
            return Ok(found);
        }
        for name in node.xattr_names()? {
            let is_acl = name.starts_with(ACL_PREFIX);
            if if is_acl { self.acls } else { self.xattrs && !name.starts_with(SYSTEM_PREFIX) } {
                // One that is gone since it was listed is no error.
                found.extend(node.xattr(&name)?.map(|value| Xattr { name, value }));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// Attributes of a file as a listing has them.
pub(super) fn fresh(stat: &Stat, flags: Flags) -> Fresh {
    let Stat { kind, mode, uid, gid, size, mtime, .. } = *stat;
    Fresh { kind, mode, uid, gid, size, mtime, flags }
}
