use std::time::Duration;

use proptest::prelude::*;
use vellum_fs::TimeChange;
use vellum_types::UnixTime;

use super::*;

const HEAD_OF_REQUEST: usize = 40;

/// The bytes of a request.
fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEAD_OF_REQUEST + body.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend(len.to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(77u64.to_ne_bytes());
    bytes.extend(5u64.to_ne_bytes());
    for number in [1000u32, 100, 4242, 0] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}

fn body(words: &[u32], rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(rest);
    bytes
}

fn operation(opcode: u32, body: &[u8]) -> Result<String, MalformedRequest> {
    let bytes = request(opcode, body);
    Ok(format!("{:?}", FuseRequest::decode(&bytes)?.decode_operation()?))
}

#[test]
fn the_head_says_who_asks_about_what() {
    let bytes = request(3, &[]);
    let request = FuseRequest::decode(&bytes).unwrap();
    let expected = RequestHeader { opcode: 3, unique: 77, node: 5, uid: 1000, gid: 100, pid: 4242 };
    assert_eq!(request.header, expected);
    assert_eq!(request.decode_operation(), Ok(FuseOperation::Getattr));
}

#[test]
fn a_length_that_is_none_is_refused() {
    let mut bytes = request(3, &[]);
    bytes.push(0);
    assert_eq!(FuseRequest::decode(&bytes), Err(MalformedRequest::Length { stated: 40, found: 41 }));
    assert_eq!(FuseRequest::decode(&bytes[..39]), Err(MalformedRequest::Length { stated: 40, found: 39 }));
    assert_eq!(FuseRequest::decode(&[]), Err(MalformedRequest::Short));
}

#[test]
fn names_end() {
    assert_eq!(operation(1, b"a\0"), Ok(format!("{:?}", FuseOperation::Lookup { name: b"a" })));
    assert_eq!(operation(1, b"a"), Err(MalformedRequest::Endless));
    let named = FuseOperation::Symlink { name: b"a", target: b"b" };
    assert_eq!(operation(6, b"a\0b\0"), Ok(format!("{named:?}")));
    assert_eq!(operation(6, b"a\0b"), Err(MalformedRequest::Endless));
}

#[test]
fn a_write_carries_what_it_says() {
    let words = [0, 0, 4096, 0, 3, 1 << 2, 0, 0, 0, 0];
    let write = FuseOperation::Write { offset: 4096, flags: WriteFlags(4), data: b"abc" };
    assert_eq!(operation(16, &body(&words, b"abc")), Ok(format!("{write:?}")));
    assert_eq!(operation(16, &body(&words, b"ab")), Err(MalformedRequest::Short));
    assert!(
        WriteFlags(4).should_clear_set_ids()
            && !WriteFlags(4).is_write_back()
            && WriteFlags(1).is_write_back()
    );
}

#[test]
fn reads_and_writes_say_whether_they_pass_the_pages_by() {
    let direct = rustix::fs::OFlags::DIRECT.bits();
    let read = |flags| {
        let words = [0, 0, 4096, 0, 512, 0, 0, 0, flags, 0];
        operation(15, &body(&words, &[])).unwrap()
    };
    for (flags, direct) in [(direct, true), (2, false)] {
        assert_eq!(read(flags), format!("{:?}", FuseOperation::Read { offset: 4096, len: 512, direct }));
    }
    let write = |flags| {
        let bytes = request(16, &body(&[0, 0, 0, 0, 1, 4, 0, 0, flags, 0], b"a"));
        match FuseRequest::decode(&bytes).unwrap().decode_operation() {
            Ok(FuseOperation::Write { flags, .. }) => (flags.is_direct_write(), flags.kernel_bits()),
            other => panic!("not decoded: {other:?}"),
        }
    };
    assert_eq!([write(direct), write(0)], [(true, 4), (false, 4)]);
}

#[test]
fn an_attribute_is_set_in_the_long_form_and_in_the_short() {
    let set = |drops_set_gid| {
        let set = FuseOperation::Setxattr { name: b"user.a", value: b"xy", flags: 1, drops_set_gid };
        Ok(format!("{set:?}"))
    };
    assert_eq!(operation(21, &body(&[2, 1], b"user.a\0xy")), set(false));
    assert_eq!(operation(21, &body(&[2, 1, 0, 0], b"user.a\0xy")), set(false));
    assert_eq!(operation(21, &body(&[2, 1, 1, 0], b"user.a\0xy")), set(true));
    assert_eq!(operation(21, &body(&[2, 1], b"u\0xy")), Ok(operation_of_short_name()));
    assert_eq!(operation(21, &body(&[2, 1, 1, 0], b"user.a\0x")), Err(MalformedRequest::Short));
}

/// A name that is shorter than the long form's own flags.
fn operation_of_short_name() -> String {
    format!("{:?}", FuseOperation::Setxattr { name: b"u", value: b"xy", flags: 1, drops_set_gid: false })
}

#[test]
fn an_operation_of_a_files_own_kind_is_told_with_its_command() {
    let words = [0, 0, 0, 0x4008_6602, 0, 0, 4, 0];
    let set = FuseOperation::Ioctl { command: 0x4008_6602, input: &[1, 0, 0, 0], room: 0 };
    assert_eq!(operation(39, &body(&words, &[1, 0, 0, 0])), Ok(format!("{set:?}")));
    assert_eq!(operation(39, &body(&words, &[1])), Err(MalformedRequest::Short));
}

#[test]
fn times_before_1970_are_told_as_they_are() {
    let valid = 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8;
    let mut words = vec![valid, 0, 0, 0, 9, 0, 0, 0];
    // A second and a half before 1970: the nanoseconds count forwards.
    words.extend([(-2i32).cast_unsigned(), u32::MAX, 0, 0, 0, 0]);
    words.extend([500_000_000, 0, 0, 0o100_644, 0, 0, 0, 0]);
    let bytes = request(4, &body(&words, &[]));
    let Ok(FuseOperation::Setattr(set)) = FuseRequest::decode(&bytes).unwrap().decode_operation() else {
        panic!("not decoded")
    };
    assert_eq!(set.atime, Some(TimeChange::At(UnixTime { secs: -2, nanos: 500_000_000 })));
    assert_eq!((set.mtime, set.ctime), (Some(TimeChange::Now), None));
    assert_eq!((set.mode, set.size, set.uid, set.gid), (Some(0o100_644), Some(9), None, None));
}

#[test]
fn a_list_of_forgotten_nodes_has_what_it_counts() {
    let words = [2, 0, 7, 0, 1, 0, 8, 0, 300, 0];
    let bytes = request(42, &body(&words, &[]));
    let Ok(FuseOperation::BatchForget(forgets)) = FuseRequest::decode(&bytes).unwrap().decode_operation()
    else {
        panic!("not decoded")
    };
    assert_eq!(forgets.iter_nodes().collect::<Vec<_>>(), [(7, 1), (8, 300)]);
    assert_eq!(operation(42, &body(&[3, 0, 7, 0, 1, 0, 8, 0, 300, 0], &[])), Err(MalformedRequest::Short));
    assert_eq!(operation(42, &body(&[u32::MAX, 0], &[])), Err(MalformedRequest::Short));
}

#[test]
fn the_second_word_of_flags_counts_if_it_is_announced() {
    let init = |words: &[u32]| {
        let bytes = request(26, &body(words, &[]));
        match FuseRequest::decode(&bytes).unwrap().decode_operation() {
            Ok(FuseOperation::Init(init)) => init,
            other => panic!("not decoded: {other:?}"),
        }
    };
    assert_eq!(init(&[7, 45, 1 << 17, 1 << 30 | 1, 2]).flags, 2 << 32 | 1 << 30 | 1);
    assert_eq!(init(&[7, 45, 1 << 17, 1, 2]).flags, 1);
    assert_eq!(init(&[7, 31, 1 << 17, 1 << 30 | 1]).flags, 1 << 30 | 1);
    assert_eq!(init(&[8, 0]), InitRequest { major: 8, minor: 0, max_readahead: 0, flags: 0 });
}

#[test]
fn what_is_not_known_is_not_refused() {
    assert_eq!(operation(9999, b"anything"), Ok(format!("{:?}", FuseOperation::Unknown)));
}

fn entry() -> EntryAnswer {
    let time = |secs| UnixTime { secs, nanos: 5 };
    let attr = NodeAttributes {
        ino: 9,
        size: 10,
        blocks: 1,
        atime: time(-3),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        mode: 0o100_644,
        nlink: 1,
        uid: 2,
        gid: 3,
        device: (1, 3),
        block_size: 4096,
    };
    EntryAnswer { attr, generation: 6, timeout: Duration::new(7, 8) }
}

const OPEN: OpenFileAnswer = OpenFileAnswer { handle: 7, flags: open_flags::KEEP_CACHE };

const LOCK: FileLock =
    FileLock { handle: 7, owner: 8, start: 1, end: 2, kind: FileLock::EXCLUSIVE, pid: 9, is_flock: true };

#[test]
fn locks_are_decoded() {
    let words = [7, 0, 8, 0, 1, 0, 2, 0, 1, 9, 1, 0];
    let locked = FuseOperation::Setlk { lock: LOCK, waits: true };
    assert_eq!(operation(33, &body(&words, &[])), Ok(format!("{locked:?}")));
    let released = FuseOperation::Release { handle: 7, flock_owner: Some(8) };
    assert_eq!(operation(18, &body(&[7, 0, 0, 2, 8, 0], &[])), Ok(format!("{released:?}")));
    assert_eq!(operation(32, &body(&words[..10], &[])), Err(MalformedRequest::Short));
}

#[test]
fn answers_have_the_lengths_that_the_kernel_demands() {
    let entry = entry();
    let lengths = [
        (SmallAnswer::for_entry(&entry), 128),
        (SmallAnswer::for_attributes(&entry), 104),
        (SmallAnswer::for_statx(&entry), 288),
        (SmallAnswer::for_created_file(&entry, OPEN), 144),
        (SmallAnswer::for_open_file(OPEN), 16),
        (SmallAnswer::for_lock(&LOCK), 24),
        (SmallAnswer::for_byte_count(1), 8),
        (SmallAnswer::for_offset(1), 8),
        (InitAnswer::default().encode(), 64),
    ];
    for (small, len) in lengths {
        assert_eq!(small.answer_body().len(), len, "{small:?}");
    }
}

#[test]
fn attributes_of_directories_are_believed_for_a_minute_at_most() {
    let day = Duration::from_secs(86_400);
    let file = EntryAnswer { timeout: day, ..entry() };
    let dir = EntryAnswer { attr: NodeAttributes { mode: 0o040_755, ..file.attr }, ..file };
    let seconds = |body: &[u8], at: usize| u64::from_ne_bytes(body[at..at + 8].try_into().unwrap());
    for (answer, attributes) in [(&file, 86_400), (&dir, 60)] {
        // The name, and the attributes behind it.
        assert_eq!(seconds(SmallAnswer::for_entry(answer).answer_body(), 16), 86_400);
        assert_eq!(seconds(SmallAnswer::for_entry(answer).answer_body(), 24), attributes);
        assert_eq!(seconds(SmallAnswer::for_attributes(answer).answer_body(), 0), attributes);
        assert_eq!(seconds(SmallAnswer::for_statx(answer).answer_body(), 0), attributes);
    }
    let unsure = EntryAnswer { timeout: Duration::ZERO, ..dir };
    assert_eq!(seconds(SmallAnswer::for_attributes(&unsure).answer_body(), 0), 0);
}

#[test]
fn an_answer_begins_with_its_length_and_its_request() {
    let mut small = SmallAnswer::for_byte_count(3);
    let bytes = small.finish_answer(77);
    assert_eq!(
        bytes,
        [&24u32.to_ne_bytes()[..], &[0; 4], &77u64.to_ne_bytes(), &3u32.to_ne_bytes(), &[0; 4]].concat()
    );
    assert_eq!(encode_answer_head(0, -2, 77)[..8], [16u32.to_ne_bytes(), (-2i32).to_ne_bytes()].concat());
}

#[test]
fn devices_are_told_in_both_ways() {
    let mut entry = entry();
    entry.attr.device = (0x123, 0x45678);
    let packed = SmallAnswer::for_attributes(&entry).answer_body()[16 + 76..16 + 80].to_vec();
    assert_eq!(packed, 0x4561_2378u32.to_ne_bytes());
    let statx = SmallAnswer::for_statx(&entry);
    let numbers: Vec<u8> = [0x123u32, 0x45678].iter().flat_map(|number| number.to_ne_bytes()).collect();
    assert_eq!(statx.answer_body()[32 + 128..32 + 136], numbers);
}

#[test]
fn a_listing_takes_what_fits_and_is_aligned() {
    let listed = |name| NameInAnswer { name, node: 9, mode: 0o100_000, next: 1 };
    let mut listing = ListingAnswer::new(32 + 32 + 7);
    assert!(listing.add_name(listed(b"a")) && listing.add_name(listed(b"12345678")));
    assert!(!listing.add_name(listed(b"")));
    let bytes = listing.into_bytes();
    assert_eq!(bytes.len(), 64);
    assert_eq!(bytes[20..25], [&8u32.to_ne_bytes()[..], b"a"].concat());
    let mut listing = ListingAnswer::new(128 + 32);
    assert!(
        listing.add_name_with_entry(listed(b"name"), &entry())
            && !listing.add_name_with_entry(listed(b"b"), &entry())
    );
    assert_eq!(listing.into_bytes().len(), 160);
}

#[test]
fn notices_look_like_answers_to_nobody() {
    let name = Invalidation::Name { dir: 1, name: b"ab" }.encode();
    assert_eq!(name.len(), 16 + 16 + 3);
    assert_eq!(name[..4], 35u32.to_ne_bytes());
    assert_eq!(name[4..8], 3i32.to_ne_bytes());
    assert_eq!(name[8..16], [0; 8]);
    assert_eq!(Invalidation::Inode(1).encode().len(), 40);
    let pages = Invalidation::Pages { node: 1, offset: 2, len: 3 }.encode();
    assert_eq!(pages[4..8], 2i32.to_ne_bytes());
    assert_eq!(pages[16..], [1u64, 2, 3].map(u64::to_ne_bytes).concat());
    assert_eq!(Invalidation::Names.encode(), encode_answer_head(0, 8, 0));
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(opcode in 0..60u32, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = request(opcode, &bytes);
        let _ = FuseRequest::decode(&bytes).unwrap().decode_operation();
    }

    #[test]
    fn a_write_cut_short_is_refused(data in prop::collection::vec(any::<u8>(), 1..64), cut in 0..104usize) {
        let words = [0, 0, 1, 0, u32::try_from(data.len()).unwrap(), 0, 0, 0, 0, 0];
        let whole = body(&words, &data);
        let cut = cut % whole.len();
        prop_assert_eq!(operation(16, &whole[..cut]), Err(MalformedRequest::Short));
    }
}
