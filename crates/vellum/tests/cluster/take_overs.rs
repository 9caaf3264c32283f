//! Servers that are killed at random moments, again and again, while programs on two other machines work.

use std::time::Duration;

use vellum_testkit::histories::{HistoryKind, HistoryReport, TakeOver};
use vellum_testkit::random::{TestRandom, choose_seed};

use crate::histories::expect_none_meanwhile;
use crate::hosts::{LoggedSetup, MountedHosts, MountedKind};
use crate::services::{LogEngine, ObjectPlace};

/// How many servers are killed in a long run, unless `CLUSTER_TAKE_OVERS` says it.
const TAKE_OVERS: usize = 200;
/// Time in which programs work besides that of the take-over, milliseconds: as much before it as after it on average.
const TIME: u64 = 3000;

/// The longest times that were seen, of those that have to wait for a server.
#[derive(Debug, Default)]
struct LongestWaits {
    /// From the kill to the moment in which the next server serves.
    take_over: Duration,
    /// Of an operation of a program that was carried out, or refused, in the end.
    operation: Duration,
}

impl LongestWaits {
    fn add(&mut self, take_over: TakeOver, report: &HistoryReport) {
        let waits = report.events.iter().filter_map(|event| event.end.map(|end| end - event.start));
        self.take_over = self.take_over.max(Duration::from_nanos(take_over.end - take_over.start));
        self.operation = self.operation.max(Duration::from_nanos(waits.max().unwrap_or(0)));
    }
}

/// Kills so many servers, each during a history. Prints how long that took, of which nothing is asserted: a busy machine takes
/// as long as it takes.
fn kill_servers(count: usize) {
    let setup =
        LoggedSetup { engine: LogEngine::Redis, objects: ObjectPlace::Directory, has_wrong_clocks: false };
    let hosts = MountedHosts::start(MountedKind::Logged(setup), &["h1", "h2", "h3"]);
    // The first one is killed with all that runs on it.
    hosts.work_on_others();
    let mut random = TestRandom::new(choose_seed());
    let mut longest = LongestWaits::default();
    for (number, kind) in HistoryKind::ALL.into_iter().cycle().take(count).enumerate() {
        println!("take-over {number} with {}", kind.name());
        let moment = Duration::from_millis(random.next_below(TIME));
        let mut take_over = None;
        let report = expect_none_meanwhile(kind, &hosts, Duration::from_millis(TIME), || {
            std::thread::sleep(moment);
            *take_over.insert(TakeOver::measure(|| hosts.replace_killed_server()))
        });
        let mut waits = LongestWaits::default();
        waits.add(take_over.expect("a take-over"), &report);
        println!("{waits:?}, {} operations", report.events.len());
        longest.add(take_over.expect("a take-over"), &report);
    }
    println!("{count} take-overs, of which none lost anything: longest {longest:?}");
}

/// One on each of the two hosts that serve in turns.
#[test]
fn servers_that_are_killed_one_after_the_other_are_replaced() {
    kill_servers(2);
}

#[test]
#[ignore = "long"]
fn two_hundred_killed_servers_are_replaced() {
    let count = std::env::var("CLUSTER_TAKE_OVERS").map_or(TAKE_OVERS, |text| text.parse().unwrap());
    kill_servers(count);
}
