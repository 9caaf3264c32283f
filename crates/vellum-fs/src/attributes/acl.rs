//! POSIX access control lists (POSIX 1003.1e draft 17, `acl(5)`), in the kernel's stored form.
//!
//! Invariant: of a file with an access list, mode and list agree: the class bits of the mode are the list's entries for
//! owner, mask (or owning group where there is no mask) and others. A list that says no more than a mode is not kept.
//! Deliberately absent: deciding about access, which is the kernel's affair.

use rustix::io::Errno;
use vellum_types::{FileKind, Ino, InodeAttr, MapKey};

use crate::error::Result;
use crate::tree::{LiveTransaction, MapReader};

/// Name of the list that rules access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the list that what is made in a directory gets.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// What stands for the id in entries that name nobody.
const NOBODY: u32 = u32::MAX;
const PERMISSIONS: u32 = 0o777;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AclTag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Others,
}

impl AclTag {
    const ALL: [Self; 6] =
        [Self::Owner, Self::User, Self::OwningGroup, Self::Group, Self::Mask, Self::Others];

    fn to_number(self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User => 0x02,
            Self::OwningGroup => 0x04,
            Self::Group => 0x08,
            Self::Mask => 0x10,
            Self::Others => 0x20,
        }
    }

    fn has_qualifier(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: AclTag,
    /// Read, write, execute: the lowest three bits.
    allowed: u32,
    id: u32,
}

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessControlList(Vec<AclEntry>);

impl AccessControlList {
    /// Reads the kernel's form. None is the empty list, which stands for no list.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
        // Linux gives the same answer for a version that it does not know: the list may be valid, but nobody
        // here can say what it allows.
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (entries, rest) = rest.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Errno::INVAL);
        }
        // As in the kernel, a header without entries takes the list away.
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries.iter().map(decode_acl_entry).collect::<Result<_, _>>()?);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::INVAL) }
    }

    /// The kernel's form.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, allowed, id } in &self.0 {
            bytes.extend_from_slice(&tag.to_number().to_le_bytes());
            bytes.extend_from_slice(&(*allowed as u16).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// One owner, owning group and others each; a mask if anybody is named; in the order of the tags.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = self.0.iter().any(|entry| entry.tag.has_qualifier());
        // The kernel refuses all other lists, and has to accept what is stored when it reads it back.
        self.0.is_sorted_by_key(|entry| entry.tag)
            && [AclTag::Owner, AclTag::OwningGroup, AclTag::Others].into_iter().all(|tag| count(tag) == 1)
            && count(AclTag::Mask) <= 1
            && (count(AclTag::Mask) == 1 || !named)
    }

    /// Whether it says more than a mode can.
    fn is_extended(&self) -> bool {
        // Owner, owning group and others are what a mode says.
        self.0.len() > 3
    }

    /// The entries that the class bits of a mode stand for, each with the place of its bits.
    fn iter_mode_classes(&mut self) -> impl Iterator<Item = (&mut u32, u32)> {
        // If there is a mask, the group bits of the mode are the mask's, not those of the owning group
        // (acl(5)): `chmod` then limits everybody whom the list names.
        let group = if self.0.iter().any(|entry| entry.tag == AclTag::Mask) {
            AclTag::Mask
        } else {
            AclTag::OwningGroup
        };
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            AclTag::Owner => Some((&mut entry.allowed, 6)),
            AclTag::Others => Some((&mut entry.allowed, 0)),
            tag if tag == group => Some((&mut entry.allowed, 3)),
            _ => None,
        })
    }

    /// The permission bits of a mode that agrees with it.
    fn to_mode_bits(&self) -> u32 {
        self.clone().iter_mode_classes().map(|(allowed, shift)| *allowed << shift).sum()
    }

    /// Lets it agree with a mode.
    fn set_mode(&mut self, mode: u32) {
        self.iter_mode_classes().for_each(|(allowed, shift)| *allowed = mode >> shift & 7);
    }

    /// Allows no class more than a mode does.
    fn restrict_to_mode(&mut self, mode: u32) {
        self.iter_mode_classes().for_each(|(allowed, shift)| *allowed &= mode >> shift & 7);
    }
}

fn decode_acl_entry(bytes: &[u8; 8]) -> Result<AclEntry, Errno> {
    let [tag_low, tag_high, allowed_low, allowed_high, id @ ..] = *bytes;
    let number = u16::from_le_bytes([tag_low, tag_high]);
    let tag = AclTag::ALL.into_iter().find(|tag| tag.to_number() == number).ok_or(Errno::INVAL)?;
    let allowed = u32::from(u16::from_le_bytes([allowed_low, allowed_high]));
    let id = u32::from_le_bytes(id);
    // No user and no group has the number -1.
    if allowed > 7 || tag.has_qualifier() && id == NOBODY {
        return Err(Errno::INVAL);
    }
    // Whatever stands there for those who need no id is not kept, so that equal lists have equal bytes.
    Ok(AclEntry { tag, allowed, id: if tag.has_qualifier() { id } else { NOBODY } })
}

/// What something new gets from its directory.
#[derive(Debug, PartialEq, Eq)]
pub struct InheritedAccess {
    /// Its mode.
    pub mode: u32,
    /// Its access list.
    pub access: Option<Vec<u8>>,
}

/// What something new gets that is asked for with a mode: the directory's default list decides, or else the mask of
/// who asks.
pub fn inherit_access(default: Option<&[u8]>, mode: u32, umask: u32) -> InheritedAccess {
    // A list that cannot be read (an older one, of a hostile tree) must not allow more than none would.
    let acl = default.and_then(|bytes| AccessControlList::decode(bytes).ok().flatten());
    let Some(mut acl) = acl else {
        return InheritedAccess { mode: mode & !(umask & PERMISSIONS), access: None };
    };
    acl.restrict_to_mode(mode);
    let mode = mode & !PERMISSIONS | acl.to_mode_bits();
    InheritedAccess { mode, access: acl.is_extended().then(|| acl.encode()) }
}

/// The access list of an inode follows its new mode.
pub fn update_acl_mode(txn: &mut LiveTransaction<'_>, ino: Ino, mode: u32) -> Result<()> {
    let key = MapKey::for_xattr(ino, ACCESS);
    let held = txn.get_value(&key)?;
    // A list that cannot be read is left as it is: nobody can say what it should allow with the new mode.
    if let Some(mut acl) = held.and_then(|bytes| AccessControlList::decode(&bytes).ok().flatten()) {
        acl.set_mode(mode);
        txn.set_key(key, &acl.encode());
    }
    Ok(())
}

/// Sets a list, and the mode with it. The caller puts the attributes.
pub fn set_acl(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    attr: &mut InodeAttr,
    name: &[u8],
    value: &[u8],
) -> Result<()> {
    // As on Linux: nobody asks for the permissions of a symlink, so that a list would have no effect.
    if attr.kind == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP.into());
    }
    let acl = AccessControlList::decode(value)?;
    // Linux gives the same error; taking away a list that cannot be there succeeds.
    if name == DEFAULT && attr.kind != FileKind::Dir && acl.is_some() {
        return Err(Errno::ACCESS.into());
    }
    let kept = match acl {
        Some(acl) if name == ACCESS => {
            attr.mode = attr.mode & !PERMISSIONS | acl.to_mode_bits();
            acl.is_extended().then(|| acl.encode())
        }
        acl => acl.map(|acl| acl.encode()),
    };
    let key = MapKey::for_xattr(ino, name);
    match kept {
        Some(value) => txn.set_key(key, &value),
        // Without the look, a tombstone would be written for what is not there, and would have to be
        // published.
        None if txn.get_value(&key)?.is_some() => txn.delete_key(key),
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
