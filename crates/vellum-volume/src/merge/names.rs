//! Where files are in the result: no directory in itself, no file in a directory that is gone, one file for each name.
//!
//! Invariant: a file that stays has a name, and all directories above it stay. Whoever loses a name gets one beside it.

use std::collections::{BTreeMap, BTreeSet};

use vellum_types::limits::NAME_MAX;
use vellum_types::{FileKind, Ino};

use super::conflict::ConflictKind;
use super::files::{FileId, FileLink, FileResult, LinkChanges};
use super::links::ResultPaths;
use super::side::SideName;
use super::work::{ConflictOther, FoundConflict, MergeWork};
use crate::diff::compare_inodes;
use crate::error::{Result, VolumeError};
use crate::tree::DEPTH_MAX;

/// The files that want a name.
type NameClaims = BTreeMap<FileLink, Vec<FileId>>;

impl MergeWork<'_> {
    /// Settles all names.
    pub fn settle_names(&mut self) -> Result<()> {
        // Directories first: names are settled within directories that stay. Undone moves may need directories that were
        // deleted. Equal files are joined before names are separated, so that they do not count as conflicts.
        self.keep_needed_dirs()?;
        if self.undo_cycles()? {
            self.keep_needed_dirs()?;
        }
        self.join_same_files()?;
        self.separate_names()?;
        self.name_copies()
    }

    fn is_kept(&self, id: FileId) -> bool {
        matches!(self.table.get(id).result, FileResult::Kept(_))
    }

    /// The side that gave a file a name that it has in the result.
    fn origin_of(&self, id: FileId, link: &FileLink) -> SideName {
        let file = self.table.get(id);
        let has = |side: SideName| {
            let links = file.links.get(side);
            let is_same = |other: &FileLink| other.1 == link.1 && self.table.resolve(other.0) == link.0;
            links.added.iter().any(is_same)
        };
        match SideName::BOTH.into_iter().find(|side| has(*side)) {
            Some(side) => side,
            None if file.is_link_of(SideName::First, link) => SideName::First,
            None => SideName::Second,
        }
    }

    /// Brings back directories that one side deleted and that something in the result lies in.
    fn keep_needed_dirs(&mut self) -> Result<()> {
        let mut reported: BTreeSet<FileId> = self.conflicts.iter().map(|found| found.file).collect();
        let mut waiting: Vec<FileId> = self.table.ids().filter(|id| self.is_kept(*id)).collect();
        while let Some(id) = waiting.pop() {
            let file = self.table.get(id);
            let links: Vec<_> = file.outcome.added.union(&file.retained).cloned().collect();
            let mut was_needed = false;
            for link in links {
                if !matches!(self.table.get(link.0).result, FileResult::Deleted) {
                    continue;
                }
                // The side that deletes the directory may be the preferred one: then a new file of the other side goes with
                // it.
                let deleter = SideName::BOTH.into_iter().find(|side| self.is_preferred(id, *side));
                if deleter.is_some_and(|side| self.is_droppable(id, side)) {
                    self.drop_name(id, &link);
                    continue;
                }
                was_needed = true;
                if self.bring_back_dir(link.0)? {
                    reported.insert(link.0);
                    waiting.push(link.0);
                } else {
                    // Both sides deleted the directory, so that neither has a place for it.
                    self.move_to_root(id, &link);
                }
            }
            // One conflict for each file: it may have been reported when it was decided on.
            if was_needed && reported.insert(id) {
                self.report_conflict(ConflictKind::EditDelete, id, ConflictOther::None);
            }
        }
        Ok(())
    }

    /// Brings back a directory as the side has it that did not delete it; false if both did.
    fn bring_back_dir(&mut self, id: FileId) -> Result<bool> {
        let file = self.table.get(id);
        let Some(side) = SideName::BOTH.into_iter().find(|side| file.sides.get(*side).is_some()) else {
            return Ok(false);
        };
        let record = self.read_version(id, side)?;
        let file = self.table.get_mut(id);
        let gone = &file.links.get(side.other()).removed;
        // It is where that side has it, under the name that the other side removed.
        file.outcome = file.links.get(side).clone();
        file.retained = gone.difference(&file.outcome.removed).cloned().collect();
        file.result = FileResult::Kept(Box::new(record));
        Ok(true)
    }

    /// A file whose directory is on no side lies in the root.
    fn move_to_root(&mut self, id: FileId, link: &FileLink) {
        let root = self.table.find_base_file(Ino::ROOT, FileKind::Dir);
        self.change_link(id, link, (root, link.1.clone()));
    }

    fn change_link(&mut self, id: FileId, old: &FileLink, new: FileLink) {
        let file = self.table.get_mut(id);
        // A name that the base has must be removed from the tree. One that was only to be added is not added, and
        // that is it.
        if !file.outcome.added.remove(old) {
            file.retained.remove(old);
            file.outcome.removed.insert(old.clone());
        }
        file.outcome.added.insert(new);
    }

    /// Undoes moves of directories that would put one into itself, the ones whose new paths sort last.
    fn undo_cycles(&mut self) -> Result<bool> {
        let mut moves = Vec::new();
        for id in self.table.ids() {
            let file = self.table.get(id);
            if file.kind == FileKind::Dir
                && file.base.is_some()
                && self.is_kept(id)
                && let Some(link) = file.outcome.added.first()
            {
                let side = self.origin_of(id, link);
                moves.push((self.side_path(side, link)?, id, side));
            }
        }
        let is_by = |side| moves.iter().any(|(_, _, by)| *by == side);
        // Moves of one side alone lead to no circle: they are all in its own tree.
        if !is_by(SideName::First) || !is_by(SideName::Second) {
            return Ok(false);
        }
        // By path, which is the same for whoever merges.
        moves.sort();
        let mut pending: BTreeSet<FileId> = moves.iter().map(|(_, id, _)| *id).collect();
        let mut is_undone = false;
        for (path, id, _) in moves {
            // Moves are made one after the other, and those still pending count as not made. So the move that closes
            // a circle is found, and it is the same one on all machines.
            pending.remove(&id);
            let Some((dir, _)) = self.table.get(id).outcome.added.first().cloned() else { continue };
            if !self.lies_below(dir, id, &pending)? {
                continue;
            }
            let file = self.table.get_mut(id);
            // With its move undone, the directory keeps the name that the move took away.
            file.retained = std::mem::take(&mut file.outcome).removed;
            self.report_conflict(ConflictKind::Cycle, id, ConflictOther::Path(path));
            is_undone = true;
        }
        Ok(is_undone)
    }

    /// Whether a directory is `top` or lies below it, while the pending ones are where the base has them.
    fn lies_below(&mut self, dir: FileId, top: FileId, pending: &BTreeSet<FileId>) -> Result<bool> {
        let mut at = dir;
        // A circle that does not pass through `top` ends here, and counts as one.
        for _ in 0..DEPTH_MAX {
            if at == top {
                return Ok(true);
            }
            let file = self.table.get(at);
            let moved = file.outcome.added.first().filter(|_| !pending.contains(&at));
            let parent = match (moved, file.base) {
                (Some((dir, _)), _) => Some(*dir),
                (None, Some(ino)) if ino != Ino::ROOT => self.find_base_parent(ino)?,
                (None, _) => None,
            };
            let Some(parent) = parent else { return Ok(false) };
            at = parent;
        }
        Ok(true)
    }

    fn find_base_parent(&mut self, ino: Ino) -> Result<Option<FileId>> {
        let attr = self.table.base.inode_attr(ino)?.filter(|attr| !attr.name.is_empty());
        Ok(attr.map(|attr| self.table.find_base_file(attr.parent, FileKind::Dir)))
    }

    /// Which files want the names that are new in the result.
    fn collect_claims(&mut self) -> Result<NameClaims> {
        let mut claims = NameClaims::new();
        for id in self.table.ids().filter(|id| self.is_kept(*id)) {
            let file = self.table.get(id);
            for (dir, name) in file.outcome.added.union(&file.retained) {
                let claimants = claims.entry((self.table.resolve(*dir), name.clone())).or_default();
                if !claimants.contains(&id) {
                    claimants.push(id);
                }
            }
        }
        // A new file may also claim a name that neither side touched: whoever has it in the base and keeps it is a
        // claimant.
        for (link, claimants) in &mut claims {
            if let Some(holder) = self.find_base_holder(link)?
                && !claimants.contains(&holder)
            {
                claimants.push(holder);
            }
        }
        Ok(claims)
    }

    /// The file that had a name in the base, if it keeps that.
    fn find_base_holder(&mut self, link: &FileLink) -> Result<Option<FileId>> {
        let Some(dir) = self.table.get(link.0).base else { return Ok(None) };
        // Unchecked, as in `find_replaced`: only the number is asked for.
        let Some(dentry) = self.table.base.lookup_dentry_unchecked(dir, &link.1)? else { return Ok(None) };
        let holder = self.table.find_base_file(dentry.ino, dentry.kind);
        let file = self.table.get(holder);
        let stays = !matches!(file.result, FileResult::Deleted) && !file.outcome.removed.contains(link);
        Ok(stays.then_some(holder))
    }

    /// Joins directories that both sides made, and files that both made alike.
    fn join_same_files(&mut self) -> Result<()> {
        // Again until nothing is joined: two directories that become one bring the names in them together.
        loop {
            let mut is_joined = false;
            for claimants in self.collect_claims()?.into_values() {
                // With a third claimant, a file of the base has the name: both new ones get names beside it.
                let [a, b] = claimants.as_slice() else { continue };
                let is_from = |id: FileId, side: SideName| self.is_kept(id) && self.is_new_from(id, side);
                let pair = match (is_from(*a, SideName::First), is_from(*b, SideName::First)) {
                    (true, false) if is_from(*b, SideName::Second) => (*a, *b),
                    (false, true) if is_from(*a, SideName::Second) => (*b, *a),
                    _ => continue,
                };
                if self.are_same(pair.0, pair.1)? {
                    self.join_new_files(pair.0, pair.1)?;
                    is_joined = true;
                }
            }
            if !is_joined {
                break;
            }
        }
        self.follow_joined_dirs();
        Ok(())
    }

    fn is_new_from(&self, id: FileId, side: SideName) -> bool {
        let file = self.table.get(id);
        file.base.is_none() && file.sides.get(side).is_some() && file.sides.get(side.other()).is_none()
    }

    fn are_same(&self, first: FileId, second: FileId) -> Result<bool> {
        let kind = self.table.get(first).kind;
        // Two directories count as the same, whatever is in them: their entries are merged one by one.
        if kind != self.table.get(second).kind || kind == FileKind::Dir {
            return Ok(kind == self.table.get(second).kind);
        }
        let a = self.read_version(first, SideName::First)?;
        let b = self.read_version(second, SideName::Second)?;
        // A joined file has the names of both. With other link counts, a name that one side gave to its file would
        // come to mean the other's.
        Ok(!compare_inodes(&a, &b).content && a.attr.nlink == b.attr.nlink)
    }

    /// Names in directories that were joined with others are names in those.
    fn follow_joined_dirs(&mut self) {
        for id in self.table.ids() {
            let follow = |links: &BTreeSet<FileLink>| -> BTreeSet<FileLink> {
                links.iter().map(|(dir, name)| (self.table.resolve(*dir), name.clone())).collect()
            };
            let file = self.table.get(id);
            let outcome =
                LinkChanges { removed: follow(&file.outcome.removed), added: follow(&file.outcome.added) };
            self.table.get_mut(id).outcome = outcome;
        }
    }

    /// Gives each name to one file, and those that lose it a name beside it.
    fn separate_names(&mut self) -> Result<()> {
        let mut claims = self.collect_claims()?;
        let contested: Vec<_> = claims
            .iter()
            .filter(|(_, ids)| ids.len() > 1)
            .map(|(link, ids)| (link.clone(), ids.clone()))
            .collect();
        for (link, mut ids) in contested {
            // A directory keeps its name, because all paths in it contain the name. Then the lower side, then the lower id,
            // whoever merges.
            ids.sort_by_key(|id| {
                let is_dir = self.table.get(*id).kind == FileKind::Dir;
                (!is_dir, self.origin_of(*id, &link), *id)
            });
            let mut ids = ids.into_iter();
            let Some(mut winner) = ids.next() else { continue };
            for mut loser in ids {
                if let Some(side) = self.preferred_side(loser) {
                    if side == self.origin_of(loser, &link) && self.is_droppable(winner, side) {
                        std::mem::swap(&mut winner, &mut loser);
                    }
                    if self.is_droppable(loser, side) {
                        self.drop_name(loser, &link);
                        continue;
                    }
                }
                self.rename_loser(&link, winner, loser, &mut claims)?;
            }
        }
        Ok(())
    }

    /// Whether a file may be left out because another side is preferred: nobody else knows it.
    fn is_droppable(&self, id: FileId, preferred: SideName) -> bool {
        self.table.get(id).kind != FileKind::Dir && self.is_new_from(id, preferred.other())
    }

    fn drop_name(&mut self, id: FileId, link: &FileLink) {
        let file = self.table.get_mut(id);
        file.outcome.added.remove(link);
        if file.outcome.added.is_empty() {
            file.result = FileResult::Deleted;
        }
    }

    fn rename_loser(
        &mut self,
        link: &FileLink,
        winner: FileId,
        loser: FileId,
        claims: &mut NameClaims,
    ) -> Result<()> {
        let side = self.origin_of(loser, link);
        // Claimed at once, so that the next loser is not given the same name.
        let new = self.find_free_name(link, side, claims)?;
        claims.insert(new.clone(), vec![loser]);
        self.change_link(loser, link, new);
        let is_dir = |id: FileId| self.table.get(id).kind == FileKind::Dir;
        let kind = if is_dir(winner) == is_dir(loser) { ConflictKind::SameName } else { ConflictKind::Kind };
        // The policy is that of the loser, which is what can be decided on. The conflict is shown at the name, which
        // the winner has.
        let key = self.table.get(loser).key();
        if self.policies.policy_for(key) == super::ConflictPolicy::Report {
            let other = ConflictOther::File(loser);
            self.conflicts.push(FoundConflict { kind, file: winner, key, other });
        }
        Ok(())
    }

    /// The name of a version beside a name: `name.~1a2b3c4d`, and `.2`, `.3` after that if it is taken.
    fn find_free_name(&mut self, link: &FileLink, side: SideName, claims: &NameClaims) -> Result<FileLink> {
        let id = self.short_id(side);
        let (dir, name) = link;
        let plain = (*dir, append_suffix(name, format!(".~{id}").as_bytes()));
        if !claims.contains_key(&plain) && self.find_base_holder(&plain)?.is_none() {
            return Ok(plain);
        }
        // Long names that begin alike become one name when they are shortened: very many of them must not try all
        // numbers again.
        let first = self.taken_numbers.get(&plain).map_or(2, |last| last + 1);
        for number in first.. {
            let new = (*dir, append_suffix(name, format!(".~{id}.{number}").as_bytes()));
            if !claims.contains_key(&new) && self.find_base_holder(&new)?.is_none() {
                self.taken_numbers.insert(plain, number);
                return Ok(new);
            }
        }
        Err(VolumeError::BadTree("a directory has all names".into()))
    }

    /// Puts second versions beside the first.
    fn name_copies(&mut self) -> Result<()> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let mut claims = self.collect_claims()?;
        let mut paths = ResultPaths::default();
        for copy in std::mem::take(&mut self.copies) {
            let original = self.table.resolve(copy.original);
            let link = self.find_main_link(original, &mut paths)?;
            let new = self.find_free_name(&link, copy.side, &claims)?;
            claims.insert(new.clone(), vec![copy.copy]);
            self.table.get_mut(copy.copy).outcome.added.insert(new);
        }
        Ok(())
    }
}

/// A name with a suffix; shortened at a character, if it would be too long.
fn append_suffix(name: &[u8], suffix: &[u8]) -> Vec<u8> {
    let room = NAME_MAX.saturating_sub(suffix.len());
    let mut end = name.len().min(room);
    let is_inside_character = |end: usize| name.get(end).is_some_and(|byte| byte & 0xc0 == 0x80);
    // At least one byte stays: in a name that is no UTF-8, all bytes may look like the inside of a character.
    while end > 1 && is_inside_character(end) {
        end -= 1;
    }
    let mut new = name.get(..end).unwrap_or_default().to_vec();
    new.extend_from_slice(suffix);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_at_a_character() {
        assert_eq!(append_suffix(b"a.txt", b".~12345678"), b"a.txt.~12345678");
        let long = "é".repeat(127).into_bytes();
        let new = append_suffix(&long, b".~12345678");
        assert!(new.len() <= NAME_MAX && new.ends_with(b"\xa9.~12345678"), "{}", new.len());
    }
}
