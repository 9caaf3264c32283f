//! Comparing two entries with the same path.

use vellum_host::beneath::ExtendedAttribute;
use vellum_types::{FileKind, UnixTime};

use super::{Differences, WantedAttributes};
use crate::model::listing::{ListingEntry, ListingEntryId, TreeListing};
use crate::model::options::{ACL_PREFIX, CompareMethod, SymlinkHandling, SyncOptions};

const NANOS: i128 = 1_000_000_000;

/// The attributes that differ from those that the entry should get.
#[must_use]
pub fn compare_attributes(
    source: &ListingEntry<'_>,
    old: &ListingEntry<'_>,
    options: &SyncOptions,
) -> Differences {
    let wanted = WantedAttributes::from_entry(source, options);
    // Only the owner of a file may change its group (EPERM for others). A difference that no run can remove
    // would be reported by every run, so it does not count.
    let is_theirs = options.preserve.receiver.as_ref().is_none_or(|receiver| receiver.user == old.uid());
    let gid = wanted.gid.filter(|_| is_theirs).unwrap_or(old.gid());
    let uid = wanted.uid.unwrap_or(old.uid());
    let mode = wanted.compute_mode(old.mode(), uid, gid);
    let window = if old.is_dir() { directory_window(options) } else { options.compare.modify_window };
    let time = wanted.mtime.is_some_and(|mtime| !is_within(mtime, old.mtime(), window));
    let atime =
        wanted.atime.is_some_and(|atime| old.atime().is_none_or(|old| !is_same_time(atime, old, options)));
    let (acl, xattr) = compare_xattrs(source.xattrs(), old.xattrs());
    Differences::default()
        .union_if(Differences::TIME, time)
        .union_if(Differences::MODE, mode.is_some_and(|mode| mode != old.mode()))
        .union_if(Differences::OWNER, uid != old.uid())
        .union_if(Differences::GROUP, gid != old.gid())
        .union_if(Differences::ATIME, atime)
        .union_if(Differences::ACL, acl && options.preserve.acls)
        .union_if(
            Differences::XATTR,
            xattr && (options.preserve.xattrs || options.preserve.stored_stat.destination),
        )
}

/// Whether ACLs differ, and whether other attributes do.
fn compare_xattrs(a: &[ExtendedAttribute], b: &[ExtendedAttribute]) -> (bool, bool) {
    let is_acl = |xattr: &&ExtendedAttribute| xattr.name.starts_with(ACL_PREFIX);
    let acls = a.iter().filter(is_acl).ne(b.iter().filter(is_acl));
    let others = a.iter().filter(|x| !is_acl(x)).ne(b.iter().filter(|x| !is_acl(x)));
    (acls, others)
}

/// Whether two times count as equal.
pub(super) fn is_same_time(a: UnixTime, b: UnixTime, options: &SyncOptions) -> bool {
    is_within(a, b, options.compare.modify_window)
}

fn is_within(a: UnixTime, b: UnixTime, window: u64) -> bool {
    a == b || total_nanos(a).abs_diff(total_nanos(b)) <= u128::from(window)
}

/// The same for directories: where times of files have a resolution of seconds, as on exFAT, those of directories may
/// have one of two seconds.
fn directory_window(options: &SyncOptions) -> u64 {
    const SECOND: u64 = NANOS as u64;
    let window = options.compare.modify_window;
    if window >= SECOND - 1 { window.max(2 * SECOND - 1) } else { window }
}

/// Whether the destination's time is later, by more than the tolerance.
pub(super) fn is_newer(old: UnixTime, source: UnixTime, options: &SyncOptions) -> bool {
    // Within the tolerance the destination may have rounded the time of this very file.
    total_nanos(old) > total_nanos(source) && !is_same_time(old, source, options)
}

fn total_nanos(time: UnixTime) -> i128 {
    i128::from(time.secs) * NANOS + i128::from(time.nanos)
}

/// Whether the content of two entries of the same type differs, by the method of the options.
pub(crate) fn compare_content(
    source: &ListingEntry<'_>,
    old: &ListingEntry<'_>,
    options: &SyncOptions,
) -> Differences {
    match source.kind() {
        FileKind::File => compare_files(source, old, options),
        FileKind::Symlink => Differences::default()
            .union_if(Differences::CONTENT, source.symlink_target() != old.symlink_target()),
        FileKind::CharDevice | FileKind::BlockDevice => {
            Differences::default().union_if(Differences::CONTENT, source.rdev() != old.rdev())
        }
        FileKind::Dir | FileKind::Fifo | FileKind::Socket => Differences::default(),
    }
}

fn compare_files(source: &ListingEntry<'_>, old: &ListingEntry<'_>, options: &SyncOptions) -> Differences {
    // Files of different sizes differ, whatever is compared otherwise, as in rsync.
    if source.size() != old.size() {
        return Differences::CONTENT.union(Differences::SIZE);
    }
    let digests = (source.listing().content_digest(source.id()), old.listing().content_digest(old.id()));
    // Hashes may exist for another reason (renames). If they differ, equal size and time are a coincidence.
    let known_to_differ = matches!(digests, (Some(a), Some(b)) if a != b);
    let equal = match options.compare.by {
        CompareMethod::SizeAndTime => is_same_time(source.mtime(), old.mtime(), options) && !known_to_differ,
        CompareMethod::Size => true,
        CompareMethod::Nothing => false,
        CompareMethod::Content => source.size() == 0 || matches!(digests, (Some(a), Some(b)) if a == b),
    };
    Differences::default().union_if(Differences::CONTENT, !equal)
}

/// Whether the options include entries of this type.
pub(super) fn is_requested_kind(entry: &ListingEntry<'_>, options: &SyncOptions) -> bool {
    let preserve = &options.preserve;
    match entry.kind() {
        FileKind::File => true,
        FileKind::Dir => preserve.recursive || preserve.dirs,
        FileKind::Symlink => preserve.symlinks == SymlinkHandling::Keep,
        FileKind::Fifo | FileKind::Socket => preserve.specials,
        FileKind::CharDevice | FileKind::BlockDevice => preserve.devices,
    }
}

/// Files of both sides on whose content the plan depends: they have to be hashed, and the digests recorded in the
/// listings.
#[must_use]
pub fn find_undecided_files(
    source: &TreeListing,
    destination: &TreeListing,
    options: &SyncOptions,
) -> (Vec<ListingEntryId>, Vec<ListingEntryId>) {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    if options.compare.by == CompareMethod::Content {
        collect_same_size(source, destination, &mut ours, &mut theirs);
    }
    if options.detect_renames {
        super::rename::find_rename_candidates(source, destination, &mut ours, &mut theirs);
    }
    ours.sort_unstable();
    // A file can be a candidate of several comparisons, and reading it is expensive.
    ours.dedup();
    theirs.sort_unstable();
    theirs.dedup();
    (ours, theirs)
}

/// The same for a source and a basis directory.
#[must_use]
pub fn find_undecided_in_basis(
    source: &TreeListing,
    basis: &TreeListing,
    options: &SyncOptions,
) -> (Vec<ListingEntryId>, Vec<ListingEntryId>) {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    if options.compare.by == CompareMethod::Content {
        collect_same_size(source, basis, &mut ours, &mut theirs);
        // Files that were hashed for an earlier basis directory have a digest already.
        ours.retain(|id| source.content_digest(*id).is_none());
    }
    (ours, theirs)
}

/// Collects the files that have the same path and size in both listings.
fn collect_same_size(
    source: &TreeListing,
    other: &TreeListing,
    ours: &mut Vec<ListingEntryId>,
    theirs: &mut Vec<ListingEntryId>,
) {
    let mut pairs = vec![(source.root(), other.root())];
    while let Some((a, b)) = pairs.pop() {
        for (a, b) in a.children().filter_map(|a| Some((a, b.find_child(a.name())?))) {
            if a.is_dir() && b.is_dir() {
                pairs.push((a, b));
            } else if a.is_file() && b.is_file() && a.size() == b.size() && a.size() > 0 {
                ours.push(a.id());
                theirs.push(b.id());
            }
        }
    }
}
