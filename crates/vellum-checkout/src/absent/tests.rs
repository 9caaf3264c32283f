//! The list: its order, its bytes, and what it covers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use vellum_types::DecodeError;

use super::*;

fn list(paths: &[&str]) -> AbsentPaths {
    let mut list = AbsentPaths::default();
    paths.iter().for_each(|path| list.add_path(path.as_bytes()));
    list
}

fn shown(list: &AbsentPaths) -> Vec<String> {
    list.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn a_path_stands_for_all_below_it() {
    let mut absent = list(&["a/b", "a.b", "a/b/c", "d/e", "d/f", "d"]);
    assert_eq!(shown(&absent), ["a/b", "a.b", "d"], "what is below a path follows it at once");
    assert_eq!(absent.find_covering(b"a/b/c/d"), Some(&b"a/b"[..]));
    assert_eq!(absent.find_covering(b"d"), Some(&b"d"[..]));
    assert_eq!(absent.find_covering(b"a/bc"), None);
    assert_eq!(absent.find_covering(b"a"), None);
    assert!(absent.is_concerned(b"a") && absent.is_concerned(b"") && !absent.is_concerned(b"a/x"));
    assert_eq!(absent.list_within(b"a").collect::<Vec<_>>(), [b"a/b"]);
    absent.remove_within(b"a");
    assert_eq!(shown(&absent), ["a.b", "d"]);
    absent.remove_within(b"");
    assert!(absent.is_empty());
    absent.add_path(b"");
    assert!(absent.is_empty(), "the root itself is never absent");
}

#[test]
fn two_lists_together_name_what_either_names() {
    let joined = list(&["a/x", "b", "c/d/e"]).join_with(&list(&["a", "b/y", "c/d/f"]));
    assert_eq!(shown(&joined), ["a", "b", "c/d/e", "c/d/f"]);
}

#[test]
fn a_million_paths_share_what_they_have_in_common() {
    let mut many = AbsentPaths::default();
    for number in 0..1_000_000 {
        many.add_path(format!("some directory/with/a long name/file {number:07}").as_bytes());
    }
    let bytes = many.encode().unwrap();
    assert!(bytes.len() < 12 << 20, "{} bytes", bytes.len());
    assert_eq!(AbsentPaths::decode(&bytes).unwrap(), many);
}

#[test]
fn every_flipped_byte_and_every_cut_is_no_list() {
    let bytes = list(&["a", "b/c", "b/d"]).encode().unwrap();
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x40;
        assert!(AbsentPaths::decode(&damaged).is_err(), "byte {place}");
        assert!(AbsentPaths::decode(&bytes[..place]).is_err(), "cut at {place}");
    }
}

/// A list with these paths, whatever they are, and a right checksum.
fn forge(paths: &[(u64, &[u8])]) -> Vec<u8> {
    let mut writer = vellum_types::FieldWriter::new();
    writer.write_raw(b"VLMABSNT").write_u32(1).write_varint(paths.len() as u64);
    for (shared, rest) in paths {
        writer.write_varint(*shared).write_bytes(rest);
    }
    let checksum = blake3::hash(writer.as_slice());
    writer.write_raw(checksum.as_bytes());
    writer.into_vec()
}

#[test]
fn paths_that_no_checkout_has_are_refused() {
    let whole = |paths: &[(u64, &[u8])]| AbsentPaths::decode(&forge(paths));
    assert_eq!(shown(&whole(&[(0, b"a/b"), (2, b"c")]).unwrap()), ["a/b", "a/c"]);
    for hostile in [&b""[..], b"/a", b"a/", b"a//b", b"..", b"a/../b", b"a/.", b"a\0", &[b'x'; 256]] {
        assert!(whole(&[(0, hostile)]).is_err(), "{hostile:?}");
    }
    let order = Err(AbsentListError::Malformed(DecodeError::Invalid("order")));
    assert_eq!(whole(&[(0, b"b"), (0, b"a")]), order);
    assert_eq!(whole(&[(0, b"a"), (1, b"")]), order);
    assert_eq!(whole(&[(0, b"a"), (1, b"/b")]), order, "below another");
    assert!(whole(&[(0, b"a"), (9, b"b")]).is_err());
    // What is shared takes no bytes, and must not take memory without bound.
    let mut deep: Vec<(u64, &[u8])> = vec![(0, b"a/a/a/a/a/a/a/a")];
    deep.extend((0..20_000).map(|number| (15 + number * 250, &[b'b'; 250][..])));
    assert!(whole(&deep).is_err());
}

proptest! {
    #[test]
    fn lists_round_trip(paths in proptest::collection::vec("[a-c.]{1,2}(/[a-c]{1,2}){0,3}", 0..30)) {
        let mut absent = AbsentPaths::default();
        for path in paths.iter().filter(|path| !path.split('/').any(|name| name.trim_matches('.').is_empty())) {
            absent.add_path(path.as_bytes());
        }
        for path in &paths {
            let scopes = absent.iter().filter(|scope| is_path_within(path.as_bytes(), scope));
            prop_assert_eq!(absent.find_covering(path.as_bytes()), scopes.last());
        }
        prop_assert_eq!(AbsentPaths::decode(&absent.encode().unwrap()).unwrap(), absent);
    }

    #[test]
    fn any_bytes_as_a_list_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut forged = b"VLMABSNT\x01\0\0\0".to_vec();
        forged.extend_from_slice(&bytes);
        let checksum = blake3::hash(&forged);
        forged.extend_from_slice(checksum.as_bytes());
        if let Ok(list) = AbsentPaths::decode(&forged) {
            prop_assert!(AbsentPaths::decode(&list.encode().unwrap()).is_ok());
        }
    }
}
