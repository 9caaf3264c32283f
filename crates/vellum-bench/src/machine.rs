//! The machine that figures come from: what it is called and how fast it is by itself.
//!
//! The *yardsticks* are measured beside every bench, so that expectations can be ratios to them: what is fast on one
//! machine is slow on another.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long each yardstick is measured: enough to be steady to some percent.
const YARD: Duration = Duration::from_millis(60);

/// How often: the best of them is taken, since others at work only make it slower.
const YARD_ROUNDS: usize = 3;

/// Bytes that are copied: more than the nearest caches hold, as those of big files are.
const COPIED: usize = 8 << 20;

/// A machine, as far as its figures depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineDescription {
    /// The processor's name.
    pub processor: String,
    /// How many of it this process may use.
    pub cores: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Processes that were running or ready, on average of the minute before.
    pub load: f64,
    /// How fast it is by itself.
    pub yardsticks: MachineYardsticks,
}

/// What the machine does without a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MachineYardsticks {
    /// Copying memory, MiB a second on one core.
    pub copy: f64,
    /// The cheapest system call, a second on one core.
    pub calls: f64,
}

impl MachineDescription {
    /// This machine, now. Takes a third of a second.
    #[must_use]
    pub fn measure_current() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        // The kernel counts load in fixed point, with 16 bits behind the point.
        let load = rustix::system::sysinfo().loads[0] as f64 / f64::from(1 << 16);
        Self {
            processor: processor_name(),
            cores,
            memory: total_memory(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load: (load * 100.0).round() / 100.0,
            yardsticks: MachineYardsticks::measure(),
        }
    }

    /// Whether figures of this machine and of the other can be compared.
    #[must_use]
    pub fn is_comparable_to(&self, other: &Self) -> bool {
        self.processor == other.processor && self.cores == other.cores && self.kernel == other.kernel
    }
}

impl MachineYardsticks {
    fn measure() -> Self {
        // Memory that was never written can be one page of zeros many times over, which stays in the nearest
        // cache.
        let from = vec![1_u8; COPIED];
        let mut to = vec![0_u8; COPIED];
        let copy = measure_best_rate(|| {
            // The compiler must not see that nobody uses the copy.
            black_box(&mut to).copy_from_slice(black_box(&from));
            (COPIED >> 20) as f64
        });
        let calls = measure_best_rate(|| {
            // This call enters the kernel each time: the vDSO does not answer it.
            for _ in 0..1000 {
                black_box(rustix::process::getppid());
            }
            1000.0
        });
        Self { copy, calls }
    }
}

/// The best rate of a few rounds: the amount of work that `work` returns, per second.
fn measure_best_rate(mut work: impl FnMut() -> f64) -> f64 {
    let round = |_| {
        let start = Instant::now();
        let mut done = 0.0;
        while start.elapsed() < YARD {
            done += work();
        }
        done / start.elapsed().as_secs_f64()
    };
    // The best round counts: whatever else is at work only makes it slower.
    (0..YARD_ROUNDS).map(round).fold(0.0, f64::max)
}

/// From the kernel's list; of machines whose list has no names, the architecture.
fn processor_name() -> String {
    let list = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // The name of the first processor stands for all of them.
    let named = list.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map_or_else(|| std::env::consts::ARCH.into(), |(_, name)| name.trim().into())
}

fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}
