//! Resolves the name of a snapshot: a tag or a worktree's name, an id or a unique prefix of one, `HEAD` or `@`, `latest`,
//! the line of a directory or stream (`box:/srv/data`), `@{2 hours ago}`, a name of a remote (`origin/main`), and any of these followed by `~N` and `^N`.
//!
//! Invariant: an existing name is never read as the prefix of an id, and an ambiguous name is an error.

use std::cell::Cell;

use jiff::{Span, Timestamp, Zoned};
use vellum_store::join_requests;
use vellum_types::{SnapshotId, UnixTime};

use crate::error::{Result, VolumeError};
use crate::history::{AncestorWalk, HistoryEntry};
use crate::refs::RefKind;
use crate::volume::{Volume, decode_worktree_head, is_outside_line};

/// Maximum number of candidates that a message about an ambiguous prefix lists.
const MATCHES_SHOWN: usize = 5;

/// Shortest prefix that is shown: shorter ones would soon not be unique any more.
const SHORT_ID: usize = 8;

/// Fewest digits that count as the beginning of an id: shorter words are more often mistyped names.
const PREFIX_MIN: usize = 4;

/// The name of the newest snapshot of the worktree, whichever is current.
const LATEST: &str = "latest";

impl Volume {
    /// Returns the snapshot that `text` names. Fails with [`VolumeError::UnknownSnapshot`] if nothing has the name, with
    /// [`VolumeError::Ambiguous`] or [`VolumeError::SeveralNamed`] if several have it, with
    /// [`VolumeError::BadExpression`] if it cannot be parsed, and with [`VolumeError::NoSnapshotThere`] if the name is known
    /// and leads to no snapshot.
    pub fn resolve_snapshot(&self, text: &str) -> Result<HistoryEntry> {
        let expression = RevisionExpression::parse(text)?;
        let id = self.resolve_base(expression.base)?;
        let mut entry = HistoryEntry { id, record: self.catalog.get_record(&id)? };
        for step in expression.steps {
            entry = self.walk_step(text, entry, step)?;
        }
        Ok(entry)
    }

    fn resolve_base(&self, text: &str) -> Result<SnapshotId> {
        if text == "HEAD" || text == "@" {
            return self.read_head()?.ok_or_else(|| unresolved_error(text, "none was made yet"));
        }
        if let Some(moment) = text.strip_prefix("@{").and_then(|rest| rest.strip_suffix('}')) {
            return self.find_by_time(text, moment);
        }
        if let Ok(id) = text.parse::<SnapshotId>() {
            // A snapshot made since the last listing is asked for again before it counts as unknown.
            let seen = || Ok::<_, VolumeError>(self.catalog.last_listed_ids()?.binary_search(&id).is_ok());
            return if seen()? || self.catalog.list_ids()?.binary_search(&id).is_ok() {
                Ok(id)
            } else {
                Err(VolumeError::UnknownSnapshot(text.into()))
            };
        }
        if is_outside_line(text)
            && let Some(newest) = self.find_newest_in_line(text)?
        {
            return Ok(newest.id);
        }
        if let Some(id) = self.find_remote_ref(text)? {
            return Ok(id);
        }
        // Names before beginnings of ids: a tag `beef` stays what it is, whatever ids there come to be.
        let (worktree, tag) = join_requests(
            &*self.objects,
            || self.refs.get_recent_ref(RefKind::Worktree, text),
            || self.find_tag(text),
        );
        let worktree = worktree?.map(|found| decode_worktree_head(&found)).transpose()?.map(|head| head.head);
        match (tag?, worktree) {
            (Some(id), None) => return Ok(id),
            // Both lead to one snapshot, or the worktree to none: nothing is ambiguous.
            (Some(id), Some(head)) if head.is_none_or(|head| head == id) => return Ok(id),
            (Some(tag), Some(head)) => return Err(self.ambiguous_name_error(text, tag, head)?),
            (None, Some(Some(id))) => return Ok(id),
            (None, Some(None)) => return Err(unresolved_error(text, "that worktree has no snapshot yet")),
            (None, None) => {}
        }
        if let Some(found) = self.find_by_prefix(text)? {
            return Ok(found);
        }
        // Last, so that a tag or a worktree of this name comes first.
        if text == LATEST {
            return self.find_latest_snapshot()?.ok_or_else(|| unresolved_error(text, "none was made yet"));
        }
        if is_hexadecimal(text) && text.len() < PREFIX_MIN {
            return Err(unresolved_error(
                text,
                "no tag or worktree is called that, and of an id 4 digits are needed",
            ));
        }
        Err(VolumeError::UnknownSnapshot(vellum_host::escape::format_path(text)))
    }

    /// A tag and a worktree of one name, which older versions let be made.
    fn ambiguous_name_error(
        &self,
        name: &str,
        tag: SnapshotId,
        head: Option<SnapshotId>,
    ) -> Result<VolumeError> {
        let mut matches = vec![format!("tag {name}, which is {}", self.short_id(&tag)?)];
        if let Some(head) = head {
            matches.push(format!("worktree {name}, which stands on {}", self.short_id(&head)?));
        }
        Ok(VolumeError::SeveralNamed { name: name.into(), matches })
    }

    /// Returns the newest snapshot that this worktree has made, whether it is current or not.
    pub fn find_latest_snapshot(&self) -> Result<Option<SnapshotId>> {
        let own = |entry: &HistoryEntry| entry.record.worktree == self.worktree.worktree;
        // A new worktree, which has made none yet, stands on a snapshot of another one.
        let newest = crate::history::list_history(&self.catalog)?.into_iter().find(own);
        Ok(newest.map(|entry| entry.id).or(self.read_head()?))
    }

    /// Counts the snapshots that this worktree made after the one that it stands on, as after a restore.
    pub fn count_newer_than_head(&self) -> Result<usize> {
        let Some(head) = self.read_head()? else { return Ok(0) };
        let record = self.catalog.get_record(&head)?;
        let own = &self.worktree.worktree;
        let is_newer = |time, counter| (time, counter) > (record.time, record.counter);
        let is_ahead = Cell::new(false);
        let newer = self.catalog.count_listed(|id, summary| {
            let is_counted =
                *id != head && summary.worktree == own && is_newer(summary.time, summary.counter);
            is_ahead.set(is_ahead.get() || is_counted && summary.counter < record.counter);
            is_counted
        })?;
        if !is_ahead.get() {
            return Ok(newer);
        }
        // What the worktree made before has a later time if a clock was ahead.
        let mut before = 0;
        for entry in AncestorWalk::from_heads(&self.catalog, [head])? {
            let HistoryEntry { id, record } = entry?;
            let is_counted = id != head && record.worktree == *own && is_newer(record.time, record.counter);
            before += usize::from(is_counted);
        }
        Ok(newer.saturating_sub(before))
    }

    /// Fails if the name of a new tag already has another meaning.
    pub fn check_new_tag(&self, name: &str) -> Result<()> {
        crate::refs::check_ref_name(name)?;
        // Names count before beginnings of ids, so such a tag would hide a snapshot.
        if is_hexadecimal(name) && name.len() >= PREFIX_MIN {
            let reason = "it reads as the beginning of an id";
            return Err(VolumeError::BadName { name: name.into(), reason });
        }
        if self.refs.get_ref(RefKind::Worktree, name)?.is_some() {
            return Err(VolumeError::BadName { name: name.into(), reason: "a worktree is called that" });
        }
        Ok(())
    }

    /// Fails if the name of a new worktree is that of a tag.
    pub(crate) fn check_new_worktree(&self, name: &str) -> Result<()> {
        crate::refs::check_ref_name(name)?;
        // A name that a tag has, too, would be ambiguous.
        match self.refs.get_ref(RefKind::Tag, name)? {
            Some(_) => Err(VolumeError::BadName { name: name.into(), reason: "a tag is called that" }),
            None => Ok(()),
        }
    }

    fn find_tag(&self, name: &str) -> Result<Option<SnapshotId>> {
        match self.refs.get_ref(RefKind::Tag, name)? {
            None => Ok(None),
            Some(tag) => crate::volume::decode_tag_target(&tag).map(Some),
        }
    }

    fn find_by_prefix(&self, prefix: &str) -> Result<Option<SnapshotId>> {
        if prefix.len() < PREFIX_MIN || !is_hexadecimal(prefix) {
            return Ok(None);
        }
        let ids = self.catalog.last_listed_ids()?;
        let matches: Vec<_> = ids.iter().filter(|id| id.to_string().starts_with(prefix)).collect();
        match matches.as_slice() {
            [] => Ok(None),
            [id] => Ok(Some(**id)),
            _ => Err(VolumeError::Ambiguous {
                prefix: prefix.into(),
                matches: format_candidates(&matches, &ids),
            }),
        }
    }

    fn find_by_time(&self, text: &str, moment: &str) -> Result<SnapshotId> {
        let limit = parse_time(moment, &Zoned::now()).ok_or_else(|| VolumeError::BadExpression {
            text: text.into(),
            reason: "write a moment like '2 hours ago', 'yesterday', '2026-05-01' or '2026-05-01 13:30'"
                .into(),
        })?;
        let head = self.read_head()?;
        // Along the history of this worktree: what others made at that time is not what it held.
        for entry in AncestorWalk::from_heads(&self.catalog, head)? {
            let entry = entry?;
            if (entry.record.time.secs, i64::from(entry.record.time.nanos))
                <= (limit.as_second(), i64::from(limit.subsec_nanosecond()))
            {
                return Ok(entry.id);
            }
        }
        Err(unresolved_error(text, "no snapshot is that old"))
    }

    /// The snapshot to which a step leads from another one.
    fn walk_step(&self, text: &str, entry: HistoryEntry, step: RevisionStep) -> Result<HistoryEntry> {
        match step {
            RevisionStep::Back(count) => (0..count).try_fold(entry, |entry, _| {
                let parent = entry.record.parents.first().copied();
                self.find_live_ancestor(parent, text, "the history is not that long")
            }),
            // As in git, this is the snapshot itself.
            RevisionStep::Parent(0) => Ok(entry),
            RevisionStep::Parent(number) => {
                let place = usize::try_from(number - 1).unwrap_or(usize::MAX);
                let parent = entry.record.parents.get(place).copied();
                self.find_live_ancestor(parent, text, "it has no such parent")
            }
        }
    }

    /// A parent, or the next snapshot before it along the first parents if it was forgotten: those do not count.
    fn find_live_ancestor(
        &self,
        parent: Option<SnapshotId>,
        text: &str,
        missing: &'static str,
    ) -> Result<HistoryEntry> {
        let live = self.catalog.last_listed_ids()?;
        let mut next = parent;
        while let Some(id) = next {
            let record = self.catalog.get_record(&id)?;
            if live.binary_search(&id).is_ok() {
                return Ok(HistoryEntry { id, record });
            }
            next = record.parents.first().copied();
        }
        Err(unresolved_error(text, missing))
    }

    /// Returns the shortest beginning of `id` that no other snapshot shares, at least 8 hexadecimal digits. A service is not
    /// asked for its list only for that: the snapshots that are known here must do.
    pub fn short_id(&self, id: &SnapshotId) -> Result<String> {
        let ids = match self.objects.is_remote() {
            true => self.catalog.ids_for_display(),
            false => self.catalog.last_listed_ids()?,
        };
        Ok(shorten_id(id, &ids))
    }
}

fn unresolved_error(text: &str, reason: &'static str) -> VolumeError {
    VolumeError::NoSnapshotThere { text: vellum_host::escape::format_path(text), reason }
}

fn is_hexadecimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

fn format_candidates(matches: &[&SnapshotId], ids: &[SnapshotId]) -> Vec<String> {
    let mut shown: Vec<_> = matches.iter().take(MATCHES_SHOWN).map(|id| shorten_id(id, ids)).collect();
    if matches.len() > MATCHES_SHOWN {
        shown.push(format!("and {} more", matches.len() - MATCHES_SHOWN));
    }
    shown
}

/// Returns the shortest beginning of `id` that is unique among `ids`, which are in ascending order; at least 8 hexadecimal
/// digits.
#[must_use]
pub fn shorten_id(id: &SnapshotId, ids: &[SnapshotId]) -> String {
    let full = id.to_string();
    // In a sorted list, the neighbours of an id share its longest beginnings: no other has to be compared.
    let at = ids.partition_point(|other| other < id);
    let before = at.checked_sub(1).and_then(|at| ids.get(at));
    let after = ids.get(at..).unwrap_or_default().iter().find(|other| *other != id);
    let shared =
        |other: &SnapshotId| full.bytes().zip(other.to_string().bytes()).take_while(|(a, b)| a == b).count();
    let needed = before.into_iter().chain(after).map(|other| shared(other) + 1).max().unwrap_or(0);
    full.chars().take(needed.max(SHORT_ID)).collect()
}

/// Returns how many hexadecimal digits of each id are needed to tell it from all others, at least 8. They are in ascending
/// order.
#[must_use]
pub fn common_id_length(ids: &[SnapshotId]) -> usize {
    // In a sorted list, the neighbours of an id share its longest beginnings.
    let shared = ids.windows(2).map(|pair| match pair {
        [one, other] if one != other => count_shared_digits(one, other),
        _ => 0,
    });
    shared.max().map_or(SHORT_ID, |shared| (shared + 1).max(SHORT_ID))
}

fn count_shared_digits(one: &SnapshotId, other: &SnapshotId) -> usize {
    let pairs = || one.as_bytes().iter().zip(other.as_bytes());
    let bytes = pairs().take_while(|(a, b)| a == b).count();
    2 * bytes + pairs().nth(bytes).map_or(0, |(a, b)| usize::from(a >> 4 == b >> 4))
}

/// A name with what follows it: `HEAD~2^2`.
#[derive(Debug, PartialEq, Eq)]
struct RevisionExpression<'a> {
    base: &'a str,
    steps: Vec<RevisionStep>,
}

/// A step from a snapshot to one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RevisionStep {
    /// `~N`: so many times to the first parent.
    Back(u64),
    /// `^N`: to the parent of this number, of which the first is 1; 0 is the snapshot itself.
    Parent(u64),
}

impl<'a> RevisionExpression<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let bad = |reason: String| VolumeError::BadExpression { text: text.into(), reason };
        // No name of a snapshot has one of these.
        let end = text.find(['~', '^']).unwrap_or(text.len());
        let (base, mut rest) = text.split_at(end);
        if base.is_empty() && !rest.is_empty() {
            return Err(bad(format!("what comes before the '{}' is missing", &rest[..1])));
        }
        let mut steps = Vec::new();
        while let Some(sign) = rest.chars().next() {
            // The sign is ASCII, so that this is the start of a character.
            let tail = &rest[1..];
            let end = tail.find(['~', '^']).unwrap_or(tail.len());
            let (number, next) = tail.split_at(end);
            // As in git, a sign alone means 1.
            let parsed = if number.is_empty() { Ok(1) } else { number.parse() };
            let number = parsed.map_err(|_| bad(format!("after '{sign}' comes a number")))?;
            steps.push(if sign == '~' { RevisionStep::Back(number) } else { RevisionStep::Parent(number) });
            rest = next;
        }
        Ok(Self { base, steps })
    }
}

/// Reads a moment: "2 hours ago", "yesterday", a date, or a date and time in the local time zone.
#[must_use]
pub fn parse_moment(text: &str) -> Option<UnixTime> {
    let moment = parse_time(text, &Zoned::now())?;
    Some(UnixTime { secs: moment.as_second(), nanos: 0 })
}

/// A moment relative to `now`: "2 hours ago", "yesterday", a date, or a date and time.
fn parse_time(text: &str, now: &Zoned) -> Option<Timestamp> {
    let text = text.trim();
    match text {
        "now" => return Some(now.timestamp()),
        "yesterday" => return now.checked_sub(Span::new().days(1)).ok().map(|then| then.timestamp()),
        _ => {}
    }
    if let Ok(span) = text.parse::<Span>() {
        // `2 hours` is meant as `2 hours ago`: no snapshot lies in the future.
        let span = if text.ends_with("ago") { span } else { span.abs().negate() };
        return now.checked_add(span).ok().map(|then| then.timestamp());
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Some(moment);
    }
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    civil.to_zoned(now.time_zone().clone()).ok().map(|then| then.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(first: u8, second: u8) -> SnapshotId {
        let mut bytes = [0; 32];
        (bytes[0], bytes[4]) = (first, second);
        SnapshotId(bytes)
    }

    #[test]
    fn short_ids_are_as_long_as_needed_and_no_longer() {
        let mut ids = [id(1, 0x10), id(1, 0x11), id(2, 0)];
        ids.sort_unstable();
        assert_eq!(shorten_id(&ids[0], &ids), "0100000010");
        assert_eq!(shorten_id(&ids[1], &ids), "0100000011");
        assert_eq!(shorten_id(&ids[2], &ids), "02000000");
    }

    #[test]
    fn a_list_has_ids_of_one_length() {
        assert_eq!(common_id_length(&[]), 8);
        assert_eq!(common_id_length(&[id(1, 0), id(2, 0)]), 8);
        assert_eq!(common_id_length(&[id(1, 0x10), id(1, 0x11), id(2, 0)]), 10);
        assert_eq!(common_id_length(&[id(1, 0x10), id(1, 0x21), id(2, 0)]), 9);
    }

    #[test]
    fn moments_are_understood() {
        let now: Zoned = "2026-05-01T12:00:00[UTC]".parse().expect("a valid time");
        let at = |text| parse_time(text, &now).map(|moment| moment.to_string());
        assert_eq!(at("2 hours ago").as_deref(), Some("2026-05-01T10:00:00Z"));
        assert_eq!(at("2 hours").as_deref(), Some("2026-05-01T10:00:00Z"));
        assert_eq!(at("yesterday").as_deref(), Some("2026-04-30T12:00:00Z"));
        assert_eq!(at("2026-04-01").as_deref(), Some("2026-04-01T00:00:00Z"));
        assert_eq!(at("2026-04-01 13:30").as_deref(), Some("2026-04-01T13:30:00Z"));
        assert_eq!(at("next week"), None);
    }

    #[test]
    fn steps_are_split_off() {
        use RevisionStep::{Back, Parent};
        let steps =
            |text| RevisionExpression::parse(text).ok().map(|parsed| (parsed.base.to_owned(), parsed.steps));
        assert_eq!(steps("HEAD~3"), Some(("HEAD".into(), vec![Back(3)])));
        assert_eq!(steps("HEAD~"), Some(("HEAD".into(), vec![Back(1)])));
        assert_eq!(steps("@^"), Some(("@".into(), vec![Parent(1)])));
        assert_eq!(steps("v1~2^2~"), Some(("v1".into(), vec![Back(2), Parent(2), Back(1)])));
        assert_eq!(steps("@{yesterday}^^"), Some(("@{yesterday}".into(), vec![Parent(1), Parent(1)])));
        for wrong in ["~3", "^", "HEAD~x", "HEAD^-1", "HEAD~1x", "HEAD^~x"] {
            assert_eq!(steps(wrong), None, "{wrong}");
        }
    }
}
