//! Bytes that change, and files that end early: never a panic, never a state that did not exist, and damage to what
//! was durable is named.

use super::*;
use crate::embedded::journal;
use crate::embedded::sim::SimFolder;

/// A store with runs, a checkpoint and a journal, and its states from the checkpoint on.
fn build() -> (BTreeMap<String, Vec<u8>>, Vec<State>, usize) {
    let folder = SimFolder::with_files(BTreeMap::new());
    let engine = open(&folder).unwrap();
    for number in 0..12 {
        put(&engine, &key(1, &format!("{number}")), &[number; 30]).unwrap();
    }
    put(&engine, b"orphan", b"").unwrap();
    engine.freeze_prefix(&layer(1)).unwrap();
    let mut states = vec![state(&engine).unwrap()];
    let mut durable = 0;
    for number in 0..8 {
        put(&engine, &key(2, &format!("{}", number % 5)), &[number; 10]).unwrap();
        states.push(state(&engine).unwrap());
        if number == 4 {
            engine.wait_until_durable(u64::MAX).unwrap();
            durable = states.len() - 1;
        }
    }
    (folder.file_contents(), states, durable)
}

/// What is found in changed files: the number of a state, or None if they were refused, at once or when read.
fn outcome(files: BTreeMap<String, Vec<u8>>, states: &[State], what: &str) -> Option<usize> {
    let found = open(&SimFolder::with_files(files)).and_then(|engine| state(&engine));
    match found {
        Ok(found) => {
            let number = states.iter().rposition(|state| *state == found);
            Some(number.unwrap_or_else(|| panic!("{what}: a state that never was: {found:?}")))
        }
        Err(LiveError::Damaged { path, what: why }) => {
            assert!(!path.is_empty() && !why.is_empty());
            None
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn every_flipped_bit_is_noticed_or_at_the_end() {
    let (files, states, durable) = build();
    for (name, bytes) in &files {
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut files = files.clone();
                files.get_mut(name).unwrap()[at] ^= 1 << bit;
                let what = format!("bit {bit} of byte {at} of {name}");
                let found = outcome(files, &states, &what);
                assert!(found.is_none_or(|number| number >= durable), "{what}: {found:?}");
                assert!(found.is_none() || journal::parse_journal_number(name).is_some(), "{what} passed");
            }
        }
    }
}

#[test]
fn a_file_that_ends_early_is_noticed_or_was_not_durable() {
    let (files, states, durable) = build();
    for (name, bytes) in &files {
        let mut kept = Vec::new();
        for len in 0..bytes.len() {
            let mut files = files.clone();
            files.get_mut(name).unwrap().truncate(len);
            kept.extend(outcome(files, &states, &format!("{len} bytes of {name}")));
        }
        let is_journal = journal::parse_journal_number(name).is_some();
        assert!(is_journal || kept.is_empty(), "{name} was cut");
        assert!(kept.is_sorted(), "longer journals hold more");
        // Without a mark behind it, a missing end cannot be distinguished from one that was never written.
        assert!(!is_journal || kept.contains(&durable) && kept.contains(&(states.len() - 2)));
    }
}

#[test]
fn a_missing_file_is_noticed() {
    let (files, states, _) = build();
    for name in files.keys() {
        let mut files = files.clone();
        files.remove(name);
        assert_eq!(outcome(files, &states, name), None, "{name} was missing");
    }
}

#[test]
fn damage_names_file_and_offset() {
    let (mut files, ..) = build();
    let (name, bytes) =
        files.iter_mut().find(|(name, _)| journal::parse_journal_number(name).is_some()).unwrap();
    let name = name.clone();
    // Behind the header and the mark that the checkpoint left.
    bytes[36 + 21 + 12] ^= 1;
    let Err(error) = open(&SimFolder::with_files(files)) else { panic!("damage was not noticed") };
    assert_eq!(
        error.to_string(),
        format!("{name} is damaged: at byte 57: its field 'checksum' is out of range")
    );
}

#[test]
fn a_mark_that_a_value_imitates_is_none() {
    let folder = SimFolder::with_files(BTreeMap::new());
    let engine = open(&folder).unwrap();
    put(&engine, b"a", b"1").unwrap();
    engine.wait_until_durable(u64::MAX).unwrap();
    // A real mark's bytes, as an attacker may copy them from one file into another.
    let end = engine.writer.lock().journal.end as usize;
    let name = folder
        .file_contents()
        .into_keys()
        .find(|name| journal::parse_journal_number(name).is_some())
        .unwrap();
    let mark = folder.file_contents()[&name][end - 21..end].to_vec();
    put(&engine, b"b", b"torn").unwrap();
    put(&engine, b"c", &mark).unwrap();
    drop(engine);
    let mut files = folder.file_contents();
    files.get_mut(&name).unwrap()[end + 15] ^= 1;
    let engine = open(&SimFolder::with_files(files)).unwrap();
    assert_eq!(state(&engine).unwrap(), State::from([(b"a".to_vec(), b"1".to_vec())]));
}
