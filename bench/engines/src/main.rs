//! One engine, one workload, one run: prints its figures as one JSON object.
//!
//!     engines ENGINE DIR TRANSACTIONS DURABLE
//!
//! A transaction is what creating a file takes: two gets and three puts of some 100 bytes. First TRANSACTIONS of them
//! that survive the death of the process, with a flush to the disk every second, as a mount does it; then DURABLE of
//! them, each flushed by itself; then the engine is closed and opened again.

mod engine;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use engine::{Engine, open};

/// How often what is not flushed by itself is flushed.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, dir, transactions, durable] = arguments.as_slice() else {
        eprintln!("usage: engines vellum|redb|fjall DIR TRANSACTIONS DURABLE");
        return ExitCode::from(3);
    };
    let (Ok(transactions), Ok(durable)) = (transactions.parse(), durable.parse()) else {
        eprintln!("engines: TRANSACTIONS and DURABLE are numbers");
        return ExitCode::from(3);
    };
    match run(engine, Path::new(dir), transactions, durable) {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("engines: {engine}: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(name: &str, dir: &Path, transactions: u64, durable: u64) -> engine::Result<String> {
    let store = open(name, dir)?;
    let mut waits = Vec::with_capacity(usize::try_from(transactions)?);
    let busy_before = processor_time();
    let mut flushed = Instant::now();
    for number in 0..transactions {
        let start = Instant::now();
        create_file(&*store, number)?;
        waits.push(start.elapsed());
        if flushed.elapsed() >= FLUSH_INTERVAL {
            store.flush()?;
            flushed = Instant::now();
        }
    }
    store.flush()?;
    let busy = processor_time() - busy_before;
    let mut durable_waits = Vec::with_capacity(usize::try_from(durable)?);
    for number in transactions..transactions + durable {
        let start = Instant::now();
        create_file(&*store, number)?;
        store.flush()?;
        durable_waits.push(start.elapsed());
    }
    drop(store);
    let start = Instant::now();
    let store = open(name, dir)?;
    let last = store.get(&file_name(transactions + durable - 1))?;
    let reopened = start.elapsed();
    if last.is_none() {
        return Err("the last transaction is not there after opening again".into());
    }
    Ok(format!(
        "{{\"busy\": {:e}, \"median\": {:e}, \"durable\": {:e}, \"reopen\": {:e}}}",
        busy.as_secs_f64() / transactions as f64,
        median(&mut waits).as_secs_f64(),
        median(&mut durable_waits).as_secs_f64(),
        reopened.as_secs_f64(),
    ))
}

/// Attributes of the directory and of the file, and a name. A thousand files share a directory.
fn create_file(store: &dyn Engine, number: u64) -> engine::Result<()> {
    let directory = key(1 + number / 1000, 0, b"");
    let file = key(1_000_000 + number, 0, b"");
    let name = file_name(number);
    store.transact(
        &[&directory, &name],
        &[(&directory, &[3; 120]), (&name, &[4; 10]), (&file, &[5; 120])],
    )
}

fn file_name(number: u64) -> Vec<u8> {
    key(1 + number / 1000, 1, format!("file-{number:08}.txt").as_bytes())
}

/// A key as the live store has it: a layer, an inode, a tag, and the rest.
fn key(inode: u64, tag: u8, rest: &[u8]) -> Vec<u8> {
    [b"l\0\0\0\0\0\0\0\x01", inode.to_be_bytes().as_slice(), &[tag], rest].concat()
}

fn median(waits: &mut [Duration]) -> Duration {
    waits.sort_unstable();
    waits.get(waits.len() / 2).copied().unwrap_or_default()
}

/// Processor time of all threads of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
