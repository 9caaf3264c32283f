//! What a cluster bench and its workers tell each other: one JSON object in each line, on the standard input and output of
//! the worker.
//!
//! Invariant: a line that is longer than [`LINE_MAX`], or that is no message, ends the conversation.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vellum_host::histogram::{DurationClass, DurationDistribution};

use super::workload::ClusterWorkload;

/// Longest line, bytes: a distribution of latencies has some kilobytes.
pub const LINE_MAX: u64 = 1 << 20;

/// The numbers of a bench that each worker needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterBenchSizes {
    /// Threads of each host.
    pub threads: usize,
    /// Bytes of each small file.
    pub small_file_size: u64,
    /// Small files, and empty files, of each thread.
    pub small_file_count: u64,
    /// Bytes of each thread's large file.
    pub big_file_size: u64,
    /// Bytes of one read or write.
    pub io_size: u64,
    /// Records that each thread appends, and locks that each host takes.
    pub operations: u64,
}

/// What the bench tells a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum WorkerCommand {
    /// Asks for its clock.
    Ping,
    /// Makes or opens the directory of the bench.
    Join(JoinRequest),
    /// Prepares a workload.
    Prepare(WorkloadStep),
    /// Begins with it at a moment of the worker's clock, nanoseconds.
    Start {
        /// The moment.
        at: u64,
    },
    /// Counts the records in the file of [`ClusterWorkload::Append`].
    CountAppended {
        /// Which run it was.
        run: u64,
    },
    /// Removes what is in the directory of the bench.
    Clear,
    /// Ends what is under way, at once; the only command that is heeded while another one is carried out.
    Stop,
    /// Removes the directory.
    Remove,
}

/// What a worker has to know first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The number of its host.
    pub host: usize,
    /// The directory that is measured.
    pub dir: String,
    /// The name of the bench's directory in it; None: it is to be made.
    pub name: Option<String>,
    /// Bytes that are needed there.
    pub space: u64,
    /// The numbers.
    pub sizes: ClusterBenchSizes,
}

/// A workload as one worker is to do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadStep {
    /// Which.
    pub workload: ClusterWorkload,
    /// In which run.
    pub run: u64,
    /// The host whose files are read.
    pub source: usize,
    /// Its place among the hosts that take part.
    pub rank: usize,
    /// How many take part.
    pub ranks: usize,
}

/// What a worker tells the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum WorkerReply {
    /// First of all: who it is.
    Hello {
        /// The version of the program.
        version: String,
    },
    /// It works, and has nothing else to tell.
    Alive,
    /// Its clock, nanoseconds since its start.
    Pong {
        /// The moment.
        clock: u64,
    },
    /// The directory of the bench is there.
    Joined {
        /// Its name.
        name: String,
        /// What is measured.
        target: BTreeMap<String, String>,
    },
    /// A command is done.
    Done,
    /// A workload is done.
    // Boxed, since it is far larger than the other replies.
    Measured(Box<WorkloadSample>),
    /// What is in the file of records.
    Appended {
        /// Different whole records.
        records: u64,
        /// Whether there is anything else.
        damaged: bool,
    },
    /// A command failed.
    Failed {
        /// Why.
        message: String,
    },
}

/// What a worker did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkloadSample {
    /// When its first thread began, by its clock, nanoseconds.
    pub begin: u64,
    /// When its last thread ended.
    pub end: u64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Bytes that they read or wrote.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// How the first of them failed.
    pub first_error: Option<String>,
    /// The longest one, nanoseconds.
    pub longest: u64,
    /// The sum of all durations, nanoseconds.
    pub total: u64,
    /// How long they took: numbers of classes of durations, and how many are in each.
    pub latencies: Vec<(u32, u64)>,
}

impl WorkloadSample {
    /// How long operations took. None if no worker of this version says so.
    #[must_use]
    pub fn read_latencies(&self) -> Option<DurationDistribution> {
        let classes: Vec<_> =
            self.latencies.iter().map(|&(class, count)| DurationClass { class, count }).collect();
        let read = DurationDistribution::from_classes(&classes, Duration::from_nanos(self.total))?;
        // What contradicts itself would spoil the figures of all hosts.
        (read.count() == self.operations && self.begin <= self.end).then_some(read)
    }
}

/// Reads the next message; None at the end.
pub fn read_message<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    // Bounded: whatever is at the other end, if it is no worker, may never end its line.
    input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long or cut off")),
    }
}

/// Writes a message.
pub fn write_message(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    output.write_all(&line)?;
    // At once, since the other end waits for it.
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines_and_what_is_none_is_refused() {
        let mut sent = Vec::new();
        let step = WorkloadStep { workload: ClusterWorkload::Mix, run: 1, source: 2, rank: 0, ranks: 3 };
        let commands = [WorkerCommand::Ping, WorkerCommand::Prepare(step), WorkerCommand::Start { at: 5 }];
        for command in &commands {
            write_message(&mut sent, command).unwrap();
        }
        let mut input = &sent[..];
        for command in commands {
            assert_eq!(read_message(&mut input).unwrap(), Some(command));
        }
        assert_eq!(read_message::<WorkerCommand>(&mut input).unwrap(), None);
        for wrong in [&b"Welcome to h2!\n"[..], b"{\"command\":\"ping\"}", b"{\"command\":\"dance\"}\n"] {
            assert!(read_message::<WorkerCommand>(&mut &wrong[..]).is_err());
        }
        assert!(read_message::<WorkerCommand>(&mut io::BufReader::new(io::repeat(b'x'))).is_err());
    }

    #[test]
    fn a_sample_that_contradicts_itself_is_refused() {
        let good = WorkloadSample { operations: 2, latencies: vec![(3, 2)], ..WorkloadSample::default() };
        assert_eq!(good.read_latencies().unwrap().count(), 2);
        for wrong in [
            WorkloadSample { operations: 3, ..good.clone() },
            WorkloadSample { begin: 1, ..good.clone() },
            WorkloadSample { latencies: vec![(u32::MAX, 2)], ..good },
        ] {
            assert_eq!(wrong.read_latencies(), None);
        }
    }
}
