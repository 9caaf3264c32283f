//! Whether a Redis keeps what it is given: tried when it is opened.

use redis::Connection;

use crate::error::SharedLogError;

/// The oldest version: since it, a script can say that it may run although the memory is full. An older one that is
/// full refuses to discard the log, and to renew the server's claim.
const OLDEST_VERSION: (u32, u32) = (7, 0);
/// The first version that can wait until its file is on the disk.
const WAITAOF_VERSION: (u32, u32) = (7, 2);

/// When Redis writes its file to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedisDurability {
    /// Before it answers.
    BeforeAnswer,
    /// About once in a second, and one can wait for it.
    Awaited,
    /// About once in a second: a crash of its machine can lose what it acknowledged since. A crash of Redis alone
    /// cannot.
    EverySecond,
}

/// What Redis says of itself.
struct RedisReport {
    text: String,
    /// How it writes its file, as far as it lets one ask.
    appendfsync: Option<String>,
}

impl RedisReport {
    fn read(connection: &mut Connection) -> Result<Self, redis::RedisError> {
        let text = redis::cmd("INFO").query(connection)?;
        // Services often forbid it. They do not let anybody choose 'no' either.
        let found: Result<Vec<String>, _> =
            redis::cmd("CONFIG").arg("GET").arg("appendfsync").query(connection);
        Ok(Self { text, appendfsync: found.ok().and_then(|found| found.into_iter().nth(1)) })
    }

    fn field(&self, name: &str) -> Option<&str> {
        let lines = self.text.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(field, _)| *field == name).map(|(_, value)| value.trim()).next()
    }

    fn version(&self) -> (u32, u32) {
        // Valkey has here the version of Redis that it is compatible with.
        let mut numbers = self.field("redis_version").unwrap_or_default().split('.').map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        (next(), next())
    }

    /// Why it cannot hold a log, if it cannot.
    fn objection(&self) -> Option<String> {
        let (major, minor) = self.version();
        if (major, minor) < OLDEST_VERSION {
            return Some(format!("it is version {major}.{minor}, and 7.0 is the oldest that can: update it"));
        }
        if self.field("role").is_some_and(|role| role != "master") {
            return Some("it is a replica, which takes no writes: name the primary server".to_owned());
        }
        if self.field("redis_mode") == Some("cluster") {
            return Some("it is part of a cluster: name a Redis that stands alone".to_owned());
        }
        // What a service does not say is taken for the default of Redis.
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" {
            let when = match self.field("maxmemory") {
                None | Some("0") => "as soon as somebody sets 'maxmemory'",
                Some(_) => "when its 'maxmemory' is reached",
            };
            return Some(format!(
                "it removes keys by the policy '{policy}' {when}: run 'redis-cli CONFIG SET maxmemory-policy noeviction', and \
                 set the same in redis.conf"
            ));
        }
        if self.field("aof_enabled") != Some("1") {
            return Some(
                "it writes no append-only file, so that a crash loses the log (snapshots of Redis are minutes old): run \
                 'redis-cli CONFIG SET appendonly yes', and set the same in redis.conf"
                    .to_owned(),
            );
        }
        if self.appendfsync.as_deref() == Some("no") {
            return Some(
                "it never waits for its disk: run 'redis-cli CONFIG SET appendfsync everysec', and set the same in redis.conf"
                    .to_owned(),
            );
        }
        None
    }

    fn durability(&self) -> RedisDurability {
        match self.appendfsync.as_deref() {
            Some("always") => RedisDurability::BeforeAnswer,
            Some(_) | None if self.version() >= WAITAOF_VERSION => RedisDurability::Awaited,
            Some(_) | None => RedisDurability::EverySecond,
        }
    }
}

/// What the Redis promises. Fails with [`SharedLogError::Unfit`] if it cannot hold a log; see docs/shared-worktrees.md.
pub(super) fn check_redis(
    connection: &mut Connection,
    engine: &str,
    wrap_error: impl Fn(&redis::RedisError) -> SharedLogError,
) -> Result<RedisDurability, SharedLogError> {
    let report = RedisReport::read(connection).map_err(|error| wrap_error(&error))?;
    match report.objection() {
        Some(reason) => Err(SharedLogError::Unfit { engine: engine.to_owned(), reason }),
        None => Ok(report.durability()),
    }
}

#[cfg(test)]
mod tests {
    use super::{RedisDurability, RedisReport};

    fn report(lines: &[&str], appendfsync: Option<&str>) -> RedisReport {
        let text = lines.iter().map(|line| format!("{line}\r\n")).collect();
        RedisReport { text, appendfsync: appendfsync.map(str::to_owned) }
    }

    const GOOD: [&str; 6] = [
        "# Server",
        "redis_version:7.0.15",
        "role:master",
        "maxmemory:0",
        "maxmemory_policy:noeviction",
        "aof_enabled:1",
    ];

    #[test]
    fn what_loses_data_is_objected_to() {
        assert_eq!(report(&GOOD, None).objection(), None);
        let cases = [
            ("redis_version:7.0.15", "redis_version:6.2.14", "it is version 6.2"),
            ("role:master", "role:slave", "it is a replica"),
            ("maxmemory_policy:noeviction", "maxmemory_policy:allkeys-lru", "as soon as somebody sets"),
            ("aof_enabled:1", "aof_enabled:0", "append-only file"),
        ];
        for (good, bad, reason) in cases {
            let lines: Vec<_> = GOOD.iter().map(|line| if *line == good { bad } else { line }).collect();
            let objection = report(&lines, None).objection();
            assert!(objection.as_ref().is_some_and(|found| found.contains(reason)), "{bad}: {objection:?}");
        }
        let limited =
            ["redis_version:7.0.15", "maxmemory:1000", "maxmemory_policy:volatile-ttl", "aof_enabled:1"];
        let objection = report(&limited, None).objection();
        assert!(objection.is_some_and(|found| found.contains("when its 'maxmemory' is reached")));
        assert!(report(&GOOD, Some("no")).objection().is_some());
    }

    #[test]
    fn newer_versions_can_be_waited_for() {
        assert_eq!(report(&GOOD, Some("always")).durability(), RedisDurability::BeforeAnswer);
        assert_eq!(report(&GOOD, Some("everysec")).durability(), RedisDurability::EverySecond);
        let newer = ["redis_version:7.2.4"];
        assert_eq!(report(&newer, Some("everysec")).durability(), RedisDurability::Awaited);
        assert_eq!(report(&newer, None).durability(), RedisDurability::Awaited);
    }
}
