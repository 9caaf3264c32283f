//! Annotations: notes and properties that snapshots get after they were made.
//!
//! A record never changes, and its id is the hash of what it says. So what is said later is a ref that is named after the
//! snapshot. Each field says who set it and when: between two stores, the later one of each field counts.

use std::collections::{BTreeMap, BTreeSet};

use vellum_host::escape::is_invisible_char;
use vellum_types::{DecodeError, FieldReader, FieldWriter, SnapshotId, UnixTime};

use crate::error::{Result, VolumeError};
use crate::record::{WHO_MAX, recorded_host_name, recorded_user_name};
use crate::refs::{RefKind, StoredRef};
use crate::session::current_time;
use crate::volume::{RefListing, Volume};

const VERSION: u8 = 1;

/// The field that has the note; no property has this name.
const NOTE: &str = "";
/// Longest note, bytes: with the properties it must fit into a ref.
pub const NOTE_LEN_MAX: usize = 16 << 10;
/// Longest name of a property, bytes.
pub const PROPERTY_NAME_MAX: usize = 64;
/// Longest value of a property, bytes.
pub const PROPERTY_VALUE_MAX: usize = 1024;
/// Most properties of a snapshot, those that were taken away included.
pub const PROPERTIES_MAX: usize = 64;

/// One thing that was said about a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnotationField {
    /// When. First, because the later of two counts.
    pub set: UnixTime,
    /// What; None if it was taken away.
    pub value: Option<String>,
    /// The user.
    pub author: String,
    /// The machine.
    pub host: String,
}

/// What was said about a snapshot since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotAnnotation {
    fields: BTreeMap<String, AnnotationField>,
}

/// What is to be said about a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnotationChange {
    /// A note in place of the present one.
    pub note: Option<String>,
    /// Properties by name.
    pub set: BTreeMap<String, String>,
    /// Names of properties that are taken away.
    pub unset: BTreeSet<String>,
}

impl AnnotationChange {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.note.is_none() && self.set.is_empty() && self.unset.is_empty()
    }

    /// Fails with [`VolumeError::BadAnnotation`] if something in it is too long, or could deceive where it is shown.
    pub fn check(&self) -> Result<()> {
        let bad = |message: String| Err(VolumeError::BadAnnotation(message));
        if let Some(note) = &self.note {
            if note.len() > NOTE_LEN_MAX {
                return bad(format!("the note is longer than {} KiB", NOTE_LEN_MAX >> 10));
            }
            // A note is printed on terminals, where other control characters act. Invisible characters change what a note seems
            // to say.
            if note.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t') || is_invisible_char(c)) {
                return bad("the note has control characters, or some that do not show".into());
            }
        }
        if let Some(name) = self.set.keys().chain(&self.unset).find(|name| !is_property_name(name)) {
            let name = name.escape_debug();
            return bad(format!(
                "'{name}' is no name of a property: these have up to {PROPERTY_NAME_MAX} letters, digits, and - _ . : /"
            ));
        }
        let is_wrong = |value: &String| {
            value.len() > PROPERTY_VALUE_MAX || value.chars().any(|c| c.is_control() || is_invisible_char(c))
        };
        match self.set.iter().find(|(_, value)| is_wrong(value)) {
            None => Ok(()),
            Some((name, _)) => bad(format!(
                "the value of '{name}' has control characters, or is longer than {PROPERTY_VALUE_MAX} bytes"
            )),
        }
    }
}

fn is_property_name(name: &str) -> bool {
    // The command line takes `NAME=VALUE` and options: '=' ends a name, and a name that began with a dash would pass for an
    // option.
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/');
    !name.is_empty()
        && name.len() <= PROPERTY_NAME_MAX
        && !name.starts_with('-')
        && name.chars().all(is_allowed)
}

impl SnapshotAnnotation {
    /// The note that was given later, if one was.
    #[must_use]
    pub fn note(&self) -> Option<&AnnotationField> {
        self.fields.get(NOTE).filter(|field| field.value.is_some())
    }

    /// The properties that the snapshot has, by name.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &AnnotationField)> {
        let properties = self.fields.iter().filter(|(name, field)| *name != NOTE && field.value.is_some());
        properties.map(|(name, field)| (name.as_str(), field))
    }

    /// The value of a property.
    #[must_use]
    pub fn get_property(&self, name: &str) -> Option<&str> {
        self.properties().find(|(found, _)| *found == name)?.1.value.as_deref()
    }

    fn apply(&mut self, change: &AnnotationChange) -> Result<()> {
        if let Some(note) = &change.note {
            self.set_field(NOTE, Some(note));
        }
        change.set.iter().for_each(|(name, value)| self.set_field(name, Some(value)));
        // The field stays without its value: if it were removed, the next transfer from a store where it is still set would bring
        // it back.
        change.unset.iter().for_each(|name| self.set_field(name, None));
        match self.fields.keys().filter(|name| *name != NOTE).count() > PROPERTIES_MAX {
            true => Err(VolumeError::BadAnnotation(format!(
                "a snapshot has at most {PROPERTIES_MAX} properties, those that were unset included"
            ))),
            false => Ok(()),
        }
    }

    /// Whether both say the same, whoever said it and when.
    pub(crate) fn is_same_annotation(&self, other: &Self) -> bool {
        let said = |annotation: &Self| -> BTreeMap<String, String> {
            let fields = annotation.fields.iter();
            fields.filter_map(|(name, field)| Some((name.clone(), field.value.clone()?))).collect()
        };
        said(self) == said(other)
    }

    /// What another one says, said now where it differs.
    pub(crate) fn renew(&self, other: &Self) -> Self {
        let mut new = self.clone();
        let names: BTreeSet<_> = self.fields.keys().chain(other.fields.keys()).cloned().collect();
        for name in names {
            new.set_field(&name, other.fields.get(&name).and_then(|field| field.value.as_ref()));
        }
        new
    }

    /// Gives a field a value, or takes it away, unless that is what it says.
    fn set_field(&mut self, name: &str, value: Option<&String>) {
        let old = self.fields.get(name);
        if old.and_then(|old| old.value.as_ref()) == value {
            return;
        }
        let now = current_time();
        // After what it replaces, also by a clock that is behind.
        let set = match old {
            Some(old) => now.max(UnixTime { secs: old.set.secs.saturating_add(1), nanos: 0 }),
            None => now,
        };
        let author = recorded_user_name();
        let field = AnnotationField { set, value: value.cloned(), author, host: recorded_host_name() };
        self.fields.insert(name.into(), field);
    }

    /// Takes over the fields of another that are later. Returns whether there was one.
    fn merge(&mut self, other: &Self) -> bool {
        let mut is_changed = false;
        for (name, field) in &other.fields {
            // Of two fields of one time, author and value decide, so that two stores that merge each other's annotations come to
            // the same.
            if self.fields.get(name).is_none_or(|own| own < field) {
                self.fields.insert(name.clone(), field.clone());
                is_changed = true;
            }
        }
        is_changed
    }

    /// The value of the ref.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_varint(self.fields.len() as u64);
        for (name, field) in &self.fields {
            writer.write_bytes(name.as_bytes());
            field.set.encode(&mut writer);
            match &field.value {
                None => writer.write_u8(0),
                Some(value) => writer.write_u8(1).write_bytes(value.as_bytes()),
            };
            writer.write_bytes(field.author.as_bytes()).write_bytes(field.host.as_bytes());
        }
        writer.into_vec()
    }

    /// Reads the value of the ref.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        reader.expect_version(VERSION)?;
        let mut fields = BTreeMap::<String, AnnotationField>::new();
        // The note is a field, too.
        for _ in 0..reader.read_count(PROPERTIES_MAX + 1)? {
            let name = reader.read_string(PROPERTY_NAME_MAX)?.to_owned();
            // In one order: equal annotations have equal bytes.
            if fields.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(DecodeError::Invalid("order of properties"));
            }
            let set = UnixTime::decode(&mut reader)?;
            let value = match reader.read_u8()? {
                0 => None,
                1 => Some(reader.read_string(NOTE_LEN_MAX)?.to_owned()),
                _ => return Err(DecodeError::Invalid("property")),
            };
            let author = reader.read_string(WHO_MAX)?.to_owned();
            let host = reader.read_string(WHO_MAX)?.to_owned();
            fields.insert(name, AnnotationField { set, value, author, host });
        }
        reader.expect_end()?;
        Ok(Self { fields })
    }
}

impl Volume {
    /// Changes what is said about a snapshot. Fails as [`AnnotationChange::check`] does.
    pub fn annotate_snapshot(&self, id: SnapshotId, change: &AnnotationChange) -> Result<()> {
        change.check()?;
        self.refs.update_ref(RefKind::Annotation, &id.to_string(), |old| {
            let mut annotation = old.map(decode_annotation).transpose()?.unwrap_or_default();
            annotation.apply(change)?;
            Ok(Some(annotation.encode()))
        })
    }

    /// What was said about snapshots later, by id, as far as it can be read, and what cannot.
    pub fn list_readable_annotations(&self) -> Result<RefListing<SnapshotAnnotation>> {
        self.list_decoded_refs(RefKind::Annotation, decode_annotation)
    }
}

/// Brings annotations of one store to another, for snapshots that the other has.
pub(crate) fn copy_annotations(from: &Volume, to: &Volume) -> Result<()> {
    let refs = from.refs.list_refs(RefKind::Annotation)?;
    // Most volumes have none: then the other store is not asked for anything.
    if refs.is_empty() {
        return Ok(());
    }
    let decode = |found: &StoredRef| Ok((found.name.clone(), decode_annotation(found)?));
    let there = to.refs.list_refs(RefKind::Annotation)?;
    let mut there = there.iter().map(decode).collect::<Result<BTreeMap<_, _>>>()?;
    let ids: BTreeSet<_> = to.catalog.list_ids()?.iter().map(ToString::to_string).collect();
    for (name, annotation) in refs.iter().map(decode).collect::<Result<Vec<_>>>()? {
        // Merged with the listing first: a ref that would not change is not swapped.
        if !ids.contains(&name) || !there.entry(name.clone()).or_default().merge(&annotation) {
            continue;
        }
        to.refs.update_ref(RefKind::Annotation, &name, |old| {
            // Merged again, with the value that the swap is based on: it may have changed since it was listed.
            let mut own = old.map(decode_annotation).transpose()?.unwrap_or_default();
            own.merge(&annotation);
            Ok(Some(own.encode()))
        })?;
    }
    Ok(())
}

pub(crate) fn decode_annotation(found: &StoredRef) -> Result<SnapshotAnnotation> {
    SnapshotAnnotation::decode(&found.value)
        .map_err(VolumeError::wrap_decode_error(format!("the note of snapshot {}", found.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(set: &[(&str, &str)], unset: &[&str]) -> AnnotationChange {
        AnnotationChange {
            note: None,
            set: set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            unset: unset.iter().map(|name| (*name).into()).collect(),
        }
    }

    #[test]
    fn an_annotation_is_read_as_it_was_written_and_in_no_other_form() -> Result<()> {
        let mut annotation = SnapshotAnnotation::default();
        let noted =
            AnnotationChange { note: Some("two\nlines".into()), ..change(&[("a", "1"), ("b", "")], &[]) };
        annotation.apply(&noted)?;
        annotation.apply(&change(&[], &["a"]))?;
        let bytes = annotation.encode();
        assert_eq!(SnapshotAnnotation::decode(&bytes).as_ref(), Ok(&annotation));
        assert!((0..bytes.len()).all(|len| SnapshotAnnotation::decode(&bytes[..len]).is_err()));
        assert_eq!(SnapshotAnnotation::decode(&[2]), Err(DecodeError::Version(2)));
        assert_eq!((annotation.get_property("a"), annotation.get_property("b")), (None, Some("")));
        assert_eq!(annotation.note().and_then(|note| note.value.as_deref()), Some("two\nlines"));
        Ok(())
    }

    #[test]
    fn the_later_of_two_counts_for_each_field_whoever_merges() -> Result<()> {
        let mut here = SnapshotAnnotation::default();
        here.apply(&change(&[("a", "1"), ("b", "1")], &[]))?;
        let mut there = here.clone();
        here.apply(&change(&[("c", "here")], &["a"]))?;
        there.apply(&change(&[("b", "there")], &[]))?;
        let (mut one, mut other) = (here.clone(), there.clone());
        assert!(one.merge(&there) && other.merge(&here));
        assert_eq!(one, other);
        assert!(!one.merge(&there));
        let found: Vec<_> = one.properties().map(|(name, field)| (name, field.value.as_deref())).collect();
        assert_eq!(found, [("b", Some("there")), ("c", Some("here"))]);
        Ok(())
    }

    #[test]
    fn what_could_deceive_or_is_too_long_is_refused() {
        let note = |note: &str| AnnotationChange { note: Some(note.into()), ..AnnotationChange::default() };
        assert!(note("a\n\tb").check().is_ok() && change(&[("ci/build:1", "ok")], &["x"]).check().is_ok());
        let long = "x".repeat(NOTE_LEN_MAX + 1);
        for wrong in [
            note("\x1b[2J"),
            note("a\u{202e}b"),
            note(&long),
            change(&[("", "1")], &[]),
            change(&[("a b", "1")], &[]),
            change(&[("-a", "1")], &[]),
            change(&[("a", "1\n2")], &[]),
            change(&[("a", &long)], &[]),
            change(&[(&long, "1")], &[]),
            change(&[], &["a\x1b"]),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn there_is_a_limit_to_properties() -> Result<()> {
        let mut annotation = SnapshotAnnotation::default();
        for number in 0..PROPERTIES_MAX {
            annotation.apply(&change(&[(&number.to_string(), "x")], &[]))?;
        }
        assert!(annotation.clone().apply(&change(&[("more", "x")], &[])).is_err());
        Ok(())
    }
}
