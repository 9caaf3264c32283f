//! The cache answers what was put and nothing that was changed since, and stays within its bytes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;
use vellum_types::FileKind;

fn attr(size: u64) -> Arc<InodeAttr> {
    Arc::new(InodeAttr { size, ..InodeAttr::new(FileKind::File, 0o644) })
}

fn put(cache: &InodeCache, ino: Ino, attr: &Arc<InodeAttr>) {
    let ticket = cache.get_attr(ino).expect_err("it is not there yet");
    cache.insert_attr(ino, attr, ticket);
}

#[test]
fn what_was_put_is_found() {
    let cache = InodeCache::default();
    put(&cache, Ino(7), &attr(1));
    assert_eq!(cache.get_attr(Ino(7)).unwrap().size, 1);
    assert!(cache.get_attr(Ino(8)).is_err());
    for (name, dentry) in [(&b"a"[..], Some(Dentry { ino: Ino(7), kind: FileKind::File })), (&b"b"[..], None)]
    {
        let ticket = cache.get_dentry(Ino(1), name).unwrap_err();
        cache.insert_dentry(Ino(1), name, dentry, ticket);
        assert_eq!(cache.get_dentry(Ino(1), name).unwrap(), dentry);
        assert!(cache.get_dentry(Ino(2), name).is_err());
    }
    let ticket = cache.get_xattr(Ino(7), b"user.a").unwrap_err();
    cache.insert_xattr(Ino(7), b"user.a", Some(b"x"[..].into()), ticket);
    assert_eq!(cache.get_xattr(Ino(7), b"user.a").unwrap().as_deref(), Some(&b"x"[..]));
    let seen = cache.statistics();
    assert_eq!((seen.hits, seen.misses, seen.entries, seen.evictions), (4, 7, 4, 0));
}

#[test]
fn what_was_changed_meanwhile_is_not_put() {
    let cache = InodeCache::default();
    let ticket = cache.get_attr(Ino(7)).unwrap_err();
    cache.invalidate_keys(&[MapKey::for_attr(Ino(7))]);
    cache.insert_attr(Ino(7), &attr(1), ticket);
    assert!(cache.get_attr(Ino(7)).is_err());

    let ticket = cache.get_dentry(Ino(1), b"a").unwrap_err();
    cache.clear_all();
    cache.insert_dentry(Ino(1), b"a", None, ticket);
    assert!(cache.get_dentry(Ino(1), b"a").is_err());
}

#[test]
fn what_was_changed_is_forgotten() {
    let cache = InodeCache::default();
    put(&cache, Ino(7), &attr(1));
    put(&cache, Ino(8), &attr(1));
    let ticket = cache.get_dentry(Ino(1), b"a").unwrap_err();
    cache.insert_dentry(Ino(1), b"a", None, ticket);
    cache.invalidate_keys(&[
        MapKey::for_attr(Ino(7)),
        MapKey::for_dentry(Ino(1), b"a"),
        MapKey::for_extent(Ino(8), 0),
    ]);
    assert!(cache.get_attr(Ino(7)).is_err() && cache.get_dentry(Ino(1), b"a").is_err());
    assert!(cache.get_attr(Ino(8)).is_ok());
}

#[test]
fn bytes_are_bounded_and_what_is_used_stays() {
    let cache = InodeCache::new(4 << 20);
    put(&cache, Ino(1), &attr(1));
    for number in 2..100_000 {
        put(&cache, Ino(number), &attr(number));
        assert!(cache.get_attr(Ino(1)).is_ok(), "it was asked for all the time");
    }
    let full = cache.statistics();
    assert!(full.evictions > 0 && full.bytes <= full.capacity && full.capacity <= 4 << 20);
    assert_eq!(full.entries + full.evictions, 99_999);

    cache.set_capacity(1 << 20);
    let small = cache.statistics();
    assert!(small.entries < full.entries && small.bytes <= small.capacity && small.capacity <= 1 << 20);
    cache.set_capacity(0);
    put(&cache, Ino(1_000_000), &attr(1));
    assert_eq!((cache.statistics().entries, cache.statistics().bytes), (0, 0));
    cache.set_capacity(4 << 20);
    put(&cache, Ino(1_000_000), &attr(1));
    assert!(cache.get_attr(Ino(1_000_000)).is_ok());
}

#[test]
fn an_entry_that_is_put_again_counts_once() {
    let cache = InodeCache::default();
    let tickets = [(); 2].map(|()| cache.get_attr(Ino(7)).unwrap_err());
    cache.insert_attr(Ino(7), &attr(1), tickets[0]);
    cache.insert_attr(Ino(7), &attr(2), tickets[1]);
    assert_eq!(cache.statistics().entries, 1);
    assert_eq!(cache.get_attr(Ino(7)).unwrap().size, 2);
}
