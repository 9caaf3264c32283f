//! Reading: what is known of a read before it is made.

use crate::stand::Stand;
use vellum_fs::StateReader;

/// More than what is kept beside the attributes.
const BIG: usize = 300_000;

#[test]
fn content_is_at_hand_in_the_log_and_decoded_and_not_in_the_store() {
    let stand = Stand::new();
    stand.populate(&["big", "small"]);
    let ino = stand.at("big").ino;
    let content: Vec<u8> = (0..BIG).map(|at| (at / 7) as u8).collect();
    stand.content().write(ino, 0, &content, false).unwrap();
    stand.content().write(stand.at("small").ino, 0, b"inline", false).unwrap();
    assert!(stand.fs.content().is_content_cached(ino, 0, BIG), "in the log");
    stand.fs.publisher().publish_all().unwrap();
    let stand = stand.again();
    assert!(!stand.fs.content().is_content_cached(ino, 0, BIG), "in the store");
    assert!(stand.fs.content().is_content_cached(stand.at("small").ino, 0, 10), "inline");
    assert!(stand.fs.content().is_content_cached(ino, BIG as u64, 10), "nothing");
    assert!(stand.read(ino, 0, BIG).unwrap() == content);
    assert!(stand.fs.content().is_content_cached(ino, 0, BIG), "decoded");
}

#[test]
fn large_reads_that_threads_share_give_all_content_whoever_reads_along() {
    let stand = Stand::new();
    stand.populate(&["large"]);
    let mut number = 7u32;
    let mut next = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 24) as u8
    };
    let content: Vec<u8> = (0..4 << 20).map(|_| next()).collect();
    stand.content().write(stand.at("large").ino, 0, &content, false).unwrap();
    stand.fs.publisher().publish_all().unwrap();
    let stand = stand.again();
    let ino = stand.at("large").ino;
    // They begin at different places of the same chunks.
    std::thread::scope(|scope| {
        for start in [0, 1000, 700_000, 2 << 20] {
            let stand = &stand;
            let content = &content;
            scope.spawn(move || {
                let read = stand.read(ino, start as u64, content.len()).unwrap();
                assert!(read == content[start..], "from {start}");
            });
        }
    });
}
