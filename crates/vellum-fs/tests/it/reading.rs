//! Reading: what is known of a read before it is made.

use crate::stand::Stand;

/// More than what is kept beside the attributes.
const BIG: usize = 300_000;

#[test]
fn content_is_at_hand_in_the_log_and_decoded_and_not_in_the_store() {
    let stand = Stand::new();
    stand.populate(&["big", "small"]);
    let ino = stand.at("big").ino;
    let content: Vec<u8> = (0..BIG).map(|at| (at / 7) as u8).collect();
    stand.write(ino, 0, &content, false).unwrap();
    stand.write(stand.at("small").ino, 0, b"inline", false).unwrap();
    assert!(stand.fs.is_at_hand(ino, 0, BIG), "in the log");
    stand.fs.flush().unwrap();
    let stand = stand.again();
    assert!(!stand.fs.is_at_hand(ino, 0, BIG), "in the store");
    assert!(stand.fs.is_at_hand(stand.at("small").ino, 0, 10), "inline");
    assert!(stand.fs.is_at_hand(ino, BIG as u64, 10), "nothing");
    assert!(stand.read(ino, 0, BIG).unwrap() == content);
    assert!(stand.fs.is_at_hand(ino, 0, BIG), "decoded");
}
