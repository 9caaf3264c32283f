//! What a user types to name a snapshot: an id or a unique prefix of one, a tag, a worktree's name, `HEAD`,
//! `@{2 hours ago}`, and any of these followed by `~N`.

use jiff::{Span, Timestamp, Zoned};
use vellum_types::SnapshotId;

use crate::error::{Result, VolumeError};
use crate::history::{Ancestors, Entry};
use crate::refs::RefKind;
use crate::volume::Volume;

/// How many candidates a message about an ambiguous prefix names.
const MATCHES_SHOWN: usize = 5;

/// Shortest prefix that is shown: shorter ones would soon not be unique any more.
const SHORT_ID: usize = 8;

impl Volume {
    /// The snapshot that `text` names.
    pub fn resolve(&self, text: &str) -> Result<Entry> {
        let (base, steps) = split_steps(text)?;
        let id = self.resolve_base(base)?;
        self.step_back(text, id, steps)
    }

    fn resolve_base(&self, text: &str) -> Result<SnapshotId> {
        if text == "HEAD" {
            return self
                .head()?
                .ok_or_else(|| VolumeError::UnknownSnapshot("HEAD (none was made yet)".into()));
        }
        if let Some(moment) = text.strip_prefix("@{").and_then(|rest| rest.strip_suffix('}')) {
            return self.at_moment(text, moment);
        }
        if let Ok(id) = text.parse::<SnapshotId>() {
            let seen = || Ok::<_, VolumeError>(self.catalog.ids_seen()?.binary_search(&id).is_ok());
            return if seen()? || self.catalog.ids()?.binary_search(&id).is_ok() {
                Ok(id)
            } else {
                Err(VolumeError::UnknownSnapshot(text.into()))
            };
        }
        if let Some(id) = self.tag(text)? {
            return Ok(id);
        }
        if let Some(found) = self.by_prefix(text)? {
            return Ok(found);
        }
        match self.worktree_head(text)? {
            Some(head) => head.head.ok_or_else(|| {
                VolumeError::UnknownSnapshot(format!("{text} (a worktree without snapshots)"))
            }),
            None => Err(VolumeError::UnknownSnapshot(text.escape_debug().to_string())),
        }
    }

    fn tag(&self, name: &str) -> Result<Option<SnapshotId>> {
        match self.refs.get(RefKind::Tag, name)? {
            None => Ok(None),
            Some(tag) => crate::volume::decode_tag(&tag).map(Some),
        }
    }

    fn by_prefix(&self, prefix: &str) -> Result<Option<SnapshotId>> {
        if prefix.is_empty() || !prefix.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Ok(None);
        }
        let ids = self.catalog.ids_seen()?;
        let matches: Vec<_> = ids.iter().filter(|id| id.to_string().starts_with(prefix)).collect();
        match matches.as_slice() {
            [] => Ok(None),
            [id] => Ok(Some(**id)),
            _ => Err(VolumeError::Ambiguous {
                prefix: prefix.into(),
                matches: matches.iter().take(MATCHES_SHOWN).map(|id| short(id, &ids)).collect(),
            }),
        }
    }

    fn at_moment(&self, text: &str, moment: &str) -> Result<SnapshotId> {
        let limit = parse_moment(moment, &Zoned::now()).ok_or_else(|| VolumeError::BadExpression {
            text: text.into(),
            reason: "write a moment like '2 hours ago', 'yesterday', '2026-05-01' or '2026-05-01 13:30'"
                .into(),
        })?;
        let head = self.head()?;
        for entry in Ancestors::of(&self.catalog, head)? {
            let entry = entry?;
            if (entry.record.time.secs, i64::from(entry.record.time.nanos))
                <= (limit.as_second(), i64::from(limit.subsec_nanosecond()))
            {
                return Ok(entry.id);
            }
        }
        Err(VolumeError::UnknownSnapshot(format!("{text} (no snapshot is that old)")))
    }

    /// `steps` snapshots back along the first parents; forgotten ones do not count.
    fn step_back(&self, text: &str, start: SnapshotId, steps: u64) -> Result<Entry> {
        let none = || VolumeError::UnknownSnapshot(format!("{text} (the history is not that long)"));
        let mut entry = Entry { id: start, record: self.catalog.get(&start)? };
        if steps == 0 {
            return Ok(entry);
        }
        let live = self.catalog.ids_seen()?;
        let mut left = steps;
        while left > 0 {
            let parent = *entry.record.parents.first().ok_or_else(none)?;
            entry = Entry { id: parent, record: self.catalog.get(&parent)? };
            if live.binary_search(&parent).is_ok() {
                left -= 1;
            }
        }
        Ok(entry)
    }

    /// The shortest beginning of `id` that no other snapshot shares, eight digits at least.
    pub fn short_id(&self, id: &SnapshotId) -> Result<String> {
        Ok(short(id, &self.catalog.ids_seen()?))
    }
}

/// The shortest beginning of `id` that is unique among the sorted `ids`, eight digits at least.
#[must_use]
pub fn short(id: &SnapshotId, ids: &[SnapshotId]) -> String {
    let full = id.to_string();
    let at = ids.partition_point(|other| other < id);
    let before = at.checked_sub(1).and_then(|at| ids.get(at));
    let after = ids.get(at..).unwrap_or_default().iter().find(|other| *other != id);
    let shared =
        |other: &SnapshotId| full.bytes().zip(other.to_string().bytes()).take_while(|(a, b)| a == b).count();
    let needed = before.into_iter().chain(after).map(|other| shared(other) + 1).max().unwrap_or(0);
    full.chars().take(needed.max(SHORT_ID)).collect()
}

fn split_steps(text: &str) -> Result<(&str, u64)> {
    let bad = |reason: &str| VolumeError::BadExpression { text: text.into(), reason: reason.into() };
    match text.rsplit_once('~') {
        None => Ok((text, 0)),
        Some(("", _)) => Err(bad("what comes before the '~' is missing")),
        Some((base, "")) => Ok((base, 1)),
        Some((base, steps)) => {
            steps.parse().map(|steps| (base, steps)).map_err(|_| bad("after '~' comes a number"))
        }
    }
}

/// A moment relative to `now`: "2 hours ago", "yesterday", a date, or a date and time.
fn parse_moment(text: &str, now: &Zoned) -> Option<Timestamp> {
    let text = text.trim();
    match text {
        "now" => return Some(now.timestamp()),
        "yesterday" => return now.checked_sub(Span::new().days(1)).ok().map(|then| then.timestamp()),
        _ => {}
    }
    if let Ok(span) = text.parse::<Span>() {
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
        assert_eq!(short(&ids[0], &ids), "0100000010");
        assert_eq!(short(&ids[1], &ids), "0100000011");
        assert_eq!(short(&ids[2], &ids), "02000000");
    }

    #[test]
    fn moments_are_understood() {
        let now: Zoned = "2026-05-01T12:00:00[UTC]".parse().expect("a valid time");
        let at = |text| parse_moment(text, &now).map(|moment| moment.to_string());
        assert_eq!(at("2 hours ago").as_deref(), Some("2026-05-01T10:00:00Z"));
        assert_eq!(at("2 hours").as_deref(), Some("2026-05-01T10:00:00Z"));
        assert_eq!(at("yesterday").as_deref(), Some("2026-04-30T12:00:00Z"));
        assert_eq!(at("2026-04-01").as_deref(), Some("2026-04-01T00:00:00Z"));
        assert_eq!(at("2026-04-01 13:30").as_deref(), Some("2026-04-01T13:30:00Z"));
        assert_eq!(at("next week"), None);
    }

    #[test]
    fn steps_are_split_off() {
        assert_eq!(split_steps("HEAD~3").ok(), Some(("HEAD", 3)));
        assert_eq!(split_steps("HEAD~").ok(), Some(("HEAD", 1)));
        assert!(split_steps("~3").is_err());
        assert!(split_steps("HEAD~x").is_err());
    }
}
