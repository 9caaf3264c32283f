//! Owners and groups by name: which name a number has on each side, and which ones the receiving side may set.
//!
//! Invariant: root is root on both sides; a number without a name, or whose name the destination does not know, keeps
//! its value. A user other than root changes no owner, and sets only groups of which it is a member. Deliberately
//! absent: users that are not in `/etc/passwd` and `/etc/group`, and names in ACLs, whose entries keep their numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rustix::process::{getegid, geteuid, getgroups};
use vellum_host::owner_names::{OwnerTable, read_owner_names};

use crate::ends::SyncSide;
use crate::error::{Result, SyncError};
use crate::model::listing::{OwnerNames, TreeListing};
use crate::model::options::{OwnerPattern, OwnerRule, SyncOptions, UnprivilegedReceiver};
use crate::rules::matches_name;

impl OwnerNames {
    /// The names of owners on this host, if owners are matched by name: those that occur in a source's listing, or all
    /// that a destination knows, with its receiving user.
    #[must_use]
    pub fn read_local(side: SyncSide, listing: &TreeListing, by_name: bool) -> Self {
        let names = |table| if by_name { read_owner_names(table) } else { BTreeMap::new() };
        let users = names(OwnerTable::Users);
        let groups = names(OwnerTable::Groups);
        match side {
            SyncSide::Destination => Self { users, groups, receiver: detect_receiver() },
            SyncSide::Source => {
                let mut uids = BTreeSet::new();
                let mut gids = BTreeSet::new();
                for entry in listing.iter() {
                    uids.insert(entry.uid());
                    gids.insert(entry.gid());
                }
                let of = |mut names: BTreeMap<u32, String>, ids: &BTreeSet<u32>| {
                    names.retain(|id, _| ids.contains(id));
                    names
                };
                Self { users: of(users, &uids), groups: of(groups, &gids), receiver: None }
            }
        }
    }
}

/// The user that receives here; None for root, which may set any owner.
fn detect_receiver() -> Option<UnprivilegedReceiver> {
    if geteuid().is_root() {
        return None;
    }
    let mut groups: Vec<u32> = getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
    // The effective group need not be in the list (getgroups(2)).
    groups.push(getegid().as_raw());
    groups.sort_unstable();
    groups.dedup();
    Some(UnprivilegedReceiver { user: geteuid().as_raw(), groups })
}

/// Maps the owners of the source's entries to the numbers that they have at the destination. Returns the options as
/// adapted to the receiving user, and to a filesystem with a coarser resolution of times. Fails if a rule names an
/// owner that the destination does not know.
pub fn map_owners(
    source: &mut TreeListing,
    destination: &TreeListing,
    options: &SyncOptions,
) -> Result<SyncOptions> {
    let mut options = options.clone();
    options.compare.widen_tolerance(destination.granularity.tolerance_nanos());
    options.preserve.receiver.clone_from(&destination.owners.receiver);
    // Only root can give files away or create devices (EPERM). A difference that cannot be removed would be
    // in every plan. A destination that stores them in an attribute needs no privilege.
    if options.preserve.receiver.is_some() && !options.preserve.stored_stat.destination {
        options.preserve.owners = false;
        options.preserve.devices = false;
    }
    let (mut users, mut groups) = match options.preserve.numeric_ids {
        true => (HashMap::new(), HashMap::new()),
        false => (
            map_ids_by_name(&source.owners.users, &destination.owners.users),
            map_ids_by_name(&source.owners.groups, &destination.owners.groups),
        ),
    };
    let ours = &source.owners;
    let theirs = &destination.owners;
    let ids: BTreeSet<(u32, u32)> = source.iter().map(|entry| (entry.uid(), entry.gid())).collect();
    let uids = ids.iter().map(|(uid, _)| *uid);
    // Rules of `--usermap` replace the results of matching by name.
    users.extend(apply_owner_rules(&options.changes.users, uids, [&ours.users, &theirs.users])?);
    let gids = ids.iter().map(|(_, gid)| *gid);
    groups.extend(apply_owner_rules(&options.changes.groups, gids, [&ours.groups, &theirs.groups])?);
    source.renumber_owners(&users, &groups);
    Ok(options)
}

/// The numbers that rules assign to owners. `names` are those of the source and of the destination.
fn apply_owner_rules(
    rules: &[OwnerRule],
    ids: impl Iterator<Item = u32>,
    names: [&BTreeMap<u32, String>; 2],
) -> Result<HashMap<u32, u32>> {
    let [ours, theirs] = names;
    let number = |to: &str| {
        let named = || theirs.iter().find(|(_, name)| *name == to).map(|(id, _)| *id);
        to.parse().ok().or_else(named).ok_or_else(|| SyncError::End {
            what: "cannot give files to",
            path: to.as_bytes().to_vec(),
            why: "the destination has no user or group of this name".to_owned(),
        })
    };
    // A name that the destination does not know is an error: files would silently get another owner.
    let rules = rules.iter().map(|rule| Ok((&rule.from, number(&rule.to)?))).collect::<Result<Vec<_>>>()?;
    let of = |id: u32| {
        let name = ours.get(&id);
        let concerns = |from: &OwnerPattern| match from {
            OwnerPattern::Numbers(first, last) => (*first..=*last).contains(&id),
            OwnerPattern::Name(pattern) if pattern == "*" => true,
            OwnerPattern::Name(pattern) => name.is_some_and(|name| matches_name(pattern, name)),
            OwnerPattern::Nameless => name.is_none(),
        };
        rules.iter().find(|(from, _)| concerns(from)).map(|(_, to)| (id, *to))
    };
    Ok(ids.filter_map(of).collect())
}

/// Maps numbers of one side to those of the other, where they differ.
fn map_ids_by_name(from: &BTreeMap<u32, String>, to: &BTreeMap<u32, String>) -> HashMap<u32, u32> {
    let mut known: HashMap<&str, u32> = HashMap::new();
    for (id, name) in to {
        // Several numbers can have one name. The lowest is taken, so the result does not depend on the order
        // of the file.
        known.entry(name).or_insert(*id);
    }
    let pairs = from.iter().filter_map(|(id, name)| Some((*id, *known.get(name.as_str())?)));
    // The numbers of root are never mapped: no other user becomes root, and root becomes no other user.
    pairs.filter(|(from, to)| from != to && *from != 0 && *to != 0).collect()
}

#[cfg(test)]
mod tests {
    use vellum_types::FileKind;

    use super::*;
    use crate::model::listing::{DirectoryBlock, ListingEntryId, NewListingEntry};

    fn names(pairs: &[(u32, &str)]) -> BTreeMap<u32, String> {
        pairs.iter().map(|(id, name)| (*id, (*name).to_owned())).collect()
    }

    fn listing(ids: &[(u32, u32)]) -> TreeListing {
        let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
        let mut block = DirectoryBlock::default();
        for (number, (uid, gid)) in ids.iter().enumerate() {
            let fresh = NewListingEntry {
                kind: FileKind::File,
                uid: *uid,
                gid: *gid,
                ..NewListingEntry::unknown_dir()
            };
            block.push(format!("{number}").as_bytes(), &fresh, None).unwrap();
        }
        listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
        listing
    }

    fn ids(listing: &TreeListing) -> Vec<(u32, u32)> {
        listing.iter().skip(1).map(|entry| (entry.uid(), entry.gid())).collect()
    }

    #[test]
    fn names_go_across_and_numbers_where_there_is_none() {
        let mut from = listing(&[(0, 0), (1000, 100), (1001, 101), (1002, 0), (7, 7)]);
        let there = names(&[(0, "root"), (1000, "ann"), (1001, "bob"), (7, "root")]);
        from.owners = OwnerNames { users: there, groups: names(&[(100, "team")]), receiver: None };
        let mut to = listing(&[]);
        let here = names(&[(0, "root"), (500, "ann"), (1000, "carl")]);
        to.owners = OwnerNames { users: here, groups: names(&[(7, "team")]), receiver: None };
        let options = SyncOptions::default();
        let mut mapped = from.clone();
        map_owners(&mut mapped, &to, &options).unwrap();
        assert_eq!(ids(&mapped), [(0, 0), (500, 7), (1001, 101), (1002, 0), (7, 7)]);
        let mut options = options;
        options.preserve.numeric_ids = true;
        map_owners(&mut from, &to, &options).unwrap();
        assert_eq!(ids(&from).get(1), Some(&(1000, 100)));
    }
}
