//! Which addresses are taken, and what is shown of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use vellum_types::ErrorKind;

use super::{LogAddress, LogEngine, LogHost};

fn host(host: &str, port: u16) -> LogHost {
    LogHost { host: host.to_owned(), port }
}

#[test]
fn each_engine_has_its_scheme() {
    let cases = [
        ("store:", LogEngine::Store, "store:"),
        ("redis://db", LogEngine::Redis, "redis://db:6379"),
        ("rediss://db:1/3", LogEngine::Redis, "rediss://db:1/3"),
        ("postgres://me@db/vellum", LogEngine::Postgres, "postgres://me@db:5432/vellum"),
        ("postgresql://[::1]:7/a%2Fb", LogEngine::Postgres, "postgres://[::1]:7/a%2Fb"),
        ("postgres://db/v?sslmode=verify-full", LogEngine::Postgres, "postgres://db:5432/v?sslmode=require"),
        ("etcd://a,b:4", LogEngine::Etcd, "etcd://a:2379,b:4"),
        ("rediss://db?ca=/etc/my ca.pem", LogEngine::Redis, "rediss://db:6379?ca=/etc/my%20ca.pem"),
        (
            "postgres://db?sslmode=require&ca=/c",
            LogEngine::Postgres,
            "postgres://db:5432?sslmode=require&ca=/c",
        ),
        ("etcds://u@a", LogEngine::Etcd, "etcds://u@a:2379"),
    ];
    for (text, engine, shown) in cases {
        let address = LogAddress::parse(text).unwrap();
        assert_eq!(address.engine, engine, "{text}");
        assert_eq!(address.to_string(), shown);
        assert_eq!(LogAddress::parse(shown).unwrap(), address, "what is shown can be parsed again");
    }
}

#[test]
fn a_password_is_taken_and_never_shown() {
    let address = LogAddress::parse("redis://us%40er:s%2Fe:c@ret@db:1/2").unwrap();
    assert_eq!(address.user.as_deref(), Some("us@er"));
    assert_eq!(address.password.as_ref().unwrap().as_str(), "s/e:c@ret");
    assert_eq!(address.hosts, [host("db", 1)]);
    assert_eq!(address.to_string(), "redis://us%40er@db:1/2");
    assert_eq!(format!("{address:?}"), "LogAddress(redis://us%40er@db:1/2 with a password)");
    let mut later = LogAddress::parse("redis://us%40er@db:1/2").unwrap();
    later.set_password("s/e:c@ret");
    assert_eq!(later, address);
}

#[test]
fn what_cannot_be_used_is_explained_without_its_secrets() {
    let cases = [
        ("tikv://u:secret@pd:2379", "'tikv' is not supported; these are: store:", ErrorKind::Unsupported),
        ("mysql://u:secret@db", "'mysql' is not supported", ErrorKind::Unsupported),
        ("redis+sentinel://:secret@db/m", "'redis+sentinel' is not supported", ErrorKind::Unsupported),
        ("secret", "an address begins with one of", ErrorKind::Usage),
        ("redis://:secret@a,b", "name one server", ErrorKind::Usage),
        ("redis://:secret@a/x", "a database of Redis is a number", ErrorKind::Usage),
        ("redis://:secret@a?secret=1", "its only option is 'ca'", ErrorKind::Usage),
        ("redis://:secret@", "write redis://HOST:PORT", ErrorKind::Usage),
        ("redis://:secret@a:secret", "the port is not a number", ErrorKind::Usage),
        ("postgres://:secret@a?sslmode=secret", "sslmode may be", ErrorKind::Usage),
        ("postgres://a?password=secret", "its options are 'sslmode' and 'ca'", ErrorKind::Usage),
        ("redis://:secret@a?ca=/c", "'ca' is for encrypted connections: write rediss://", ErrorKind::Usage),
        ("rediss://:secret@a?ca=secret", "'ca' is the absolute path", ErrorKind::Usage),
        ("etcd://:secret@a", "a password of etcd needs a user", ErrorKind::Usage),
        ("etcd://a/secret", "etcd has no databases", ErrorKind::Usage),
        ("redis://:secret\n@a", "it contains control characters", ErrorKind::Usage),
    ];
    for (text, reason, kind) in cases {
        let error = LogAddress::parse(text).unwrap_err();
        assert_eq!(error.kind(), kind, "{text}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(reason), "{text}: {shown}");
        assert!(!shown.contains("secret"), "{text}: {shown}");
    }
}
