//! The engines of the shared log, on real servers: what all of them must do, and what each does when it is killed,
//! full, unfit or away.
#![expect(clippy::unwrap_used, reason = "tests")]

mod etcd;
mod object;
mod outages;
mod postgres;
mod redis;
mod tls;
