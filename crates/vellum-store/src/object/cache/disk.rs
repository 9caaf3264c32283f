//! Work on the disk of a cache, for which nobody waits long.
//!
//! The system may hold a thread for ever that uses a disk which hangs, so that this work has threads of its own, which are
//! used again (`workers`). Invariant:
//! no caller waits for longer than [`ANSWER_MAX`] after the last progress. A disk that did not answer is left alone for a
//! while, then one caller tries it again; how many threads it can hold is bounded.
//!
//! A process whose thread is held cannot end. One that others wait for sets a [`CacheDiskProbe`], which asks the disk from
//! another process first.

mod workers;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use vellum_host::fork_safe::{Condvar, Mutex};
use vellum_host::per_process::PerProcess;

use self::workers::DiskWorkers;

/// How long work may make no progress.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// For how long a disk that did not answer is left alone.
const BYPASSED_FOR: Duration = Duration::from_mins(1);
/// Threads that a disk may hold, a count. With so many, it is not tried again before it lets one go.
const HELD_MAX: usize = 64;

/// The disks of this process's caches, by folder: what one part of the program notices, all others know.
// Those of the process before a fork have threads that are not here.
static DISKS: PerProcess<Mutex<HashMap<PathBuf, Weak<CacheDisk>>>> = PerProcess::new();

/// Asks from another process, within some time, whether the disk of a folder answers. True if that cannot be found out.
pub type CacheDiskProbe = fn(&Path, Duration) -> bool;

static PROBE: OnceLock<CacheDiskProbe> = OnceLock::new();

/// From now on the disk of each cache is probed before this process uses it, and before it is tried again.
pub fn set_cache_disk_probe(probe: CacheDiskProbe) {
    // The choice of a command line, of which a process has one.
    let _ = PROBE.set(probe);
}

thread_local! {
    /// The steps of the work that this thread does.
    static STEPS: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// The disk that a cache is on.
pub(in crate::object) struct CacheDisk {
    folder: PathBuf,
    answer_max: Duration,
    bypassed_for: Duration,
    probe: Option<CacheDiskProbe>,
    first_probe: Once,
    state: Mutex<DiskState>,
    workers: DiskWorkers,
}

#[derive(Default)]
struct DiskState {
    /// When the disk is tried again; none as long as it answers.
    next_try: Option<Instant>,
    /// Threads for which nobody waits any more.
    held_threads: usize,
}

/// Some work, and what came of it.
struct DiskWork<T> {
    state: Mutex<WorkState<T>>,
    ended: Condvar,
    steps: Arc<AtomicU64>,
}

struct WorkState<T> {
    output: Option<io::Result<T>>,
    is_abandoned: bool,
}

/// Notes that the work of this thread goes on, so that it may take longer.
pub(super) fn note_progress() {
    STEPS.with_borrow(|steps| {
        if let Some(steps) = steps {
            steps.fetch_add(1, Ordering::Relaxed);
        }
    });
}

impl CacheDisk {
    /// The disk of a cache in this folder. The folder is not looked at.
    pub fn for_folder(folder: &Path) -> Arc<Self> {
        let mut disks = DISKS.get_or_init(Mutex::default).lock();
        if let Some(disk) = disks.get(folder).and_then(Weak::upgrade) {
            return disk;
        }
        // Nothing else removes the entries of caches that were closed.
        disks.retain(|_, disk| disk.strong_count() > 0);
        let disk =
            Arc::new(Self { probe: PROBE.get().copied(), ..Self::new(folder, ANSWER_MAX, BYPASSED_FOR) });
        disks.insert(folder.to_owned(), Arc::downgrade(&disk));
        disk
    }

    /// A disk with other times than those of [`Self::for_folder`].
    pub(super) fn new(folder: &Path, answer_max: Duration, bypassed_for: Duration) -> Self {
        Self {
            folder: folder.to_owned(),
            answer_max,
            bypassed_for,
            probe: None,
            first_probe: Once::new(),
            state: Mutex::default(),
            workers: DiskWorkers::new(),
        }
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the disk is left alone, since it did not answer.
    pub fn is_bypassed(&self) -> bool {
        self.state.lock().next_try.is_some_and(|next| Instant::now() < next)
    }

    /// Does work that uses the disk. Fails with `TimedOut` if the disk does not answer, or did not a moment ago.
    pub fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        // If the disk does not answer, it is bypassed from here on, which `admit_work` finds.
        self.first_probe.call_once(|| drop(self.probe_disk()));
        let is_retry = self.admit_work()?;
        if is_retry {
            self.probe_disk()?;
        }
        let job = Arc::new(DiskWork::new());
        let disk = Arc::clone(self);
        let running = Arc::clone(&job);
        self.workers.start(move |place| {
            STEPS.set(Some(Arc::clone(&running.steps)));
            let output = work(&disk.folder);
            // Offered before the caller is woken: its next work then finds this thread.
            if running.finish(output, || place.become_idle()) {
                // Whatever the output takes with it belongs to the work.
                drop(running);
                disk.state.lock().held_threads -= 1;
                place.become_idle();
            }
        })?;
        let output = job.wait(self);
        if is_retry && output.is_some() {
            self.state.lock().next_try = None;
            tracing::info!(folder = %self.folder.display(), "the disk of the cache answers again");
        }
        output.unwrap_or_else(|| Err(no_answer()))
    }

    /// Drops what uses the disk when it is dropped. If the disk does not answer, it is left to the end of the process.
    pub fn discard<T: Send + 'static>(self: &Arc<Self>, value: T) {
        // Work that is not admitted is dropped here, where it must not block.
        let value = ManuallyDrop::new(value);
        let _ = self.run(move |_| {
            drop(ManuallyDrop::into_inner(value));
            Ok(())
        });
    }

    /// Whether work may begin, and tries a disk again that did not answer.
    fn admit_work(&self) -> io::Result<bool> {
        let mut state = self.state.lock();
        let Some(next) = state.next_try else { return Ok(false) };
        let now = Instant::now();
        if now < next || state.held_threads >= HELD_MAX {
            return Err(no_answer());
        }
        // Others go on without the disk until this one has an answer.
        state.next_try = Some(now + self.bypassed_for);
        Ok(true)
    }

    /// Asks the disk from another process, if that was chosen.
    fn probe_disk(&self) -> io::Result<()> {
        if self.probe.is_none_or(|probe| probe(&self.folder, self.answer_max)) {
            return Ok(());
        }
        self.note_bypass(&mut self.state.lock());
        Err(no_answer())
    }

    fn note_silence(&self) {
        let mut state = self.state.lock();
        state.held_threads += 1;
        self.note_bypass(&mut state);
    }

    fn note_bypass(&self, state: &mut DiskState) {
        if state.next_try.replace(Instant::now() + self.bypassed_for).is_none() {
            tracing::warn!(
                folder = %self.folder.display(),
                "the disk of the cache does not answer: until it does, everything is fetched from the store"
            );
        }
    }
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the disk does not answer")
}

impl<T> DiskWork<T> {
    fn new() -> Self {
        let state = WorkState { output: None, is_abandoned: false };
        Self { state: Mutex::new(state), ended: Condvar::new(), steps: Arc::default() }
    }

    /// Keeps the output for whoever waits, after `prepare`. True if nobody waits any more; then nothing was prepared.
    fn finish(&self, output: io::Result<T>, prepare: impl FnOnce()) -> bool {
        let mut state = self.state.lock();
        if !state.is_abandoned {
            prepare();
        }
        state.output = Some(output);
        self.ended.notify_one();
        state.is_abandoned
    }

    /// Waits for the output as long as the work makes progress.
    fn wait(&self, disk: &CacheDisk) -> Option<io::Result<T>> {
        let mut state = self.state.lock();
        loop {
            let steps = self.steps.load(Ordering::Relaxed);
            self.ended.wait_while_for(&mut state, |state| state.output.is_none(), disk.answer_max);
            if let Some(output) = state.output.take() {
                return Some(output);
            }
            if self.steps.load(Ordering::Relaxed) == steps {
                // Under the lock, so that the thread, when it ends, knows that it counts as held.
                state.is_abandoned = true;
                disk.note_silence();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use super::*;

    /// A file that blocks whoever opens it to read: a FIFO without a writer.
    fn make_blocking_file(dir: &Path) -> io::Result<PathBuf> {
        let path = dir.join("fifo");
        let made = Command::new("mkfifo").arg(&path).status()?;
        if made.success() { Ok(path) } else { Err(io::Error::other("no FIFO")) }
    }

    fn unblock(fifo: &Path) -> io::Result<File> {
        File::options().write(true).open(fifo)
    }

    #[test]
    fn a_disk_that_hangs_is_left_alone_and_tried_again() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let fifo = make_blocking_file(dir.path())?;
        let bypassed_for = Duration::from_millis(300);
        let disk = Arc::new(CacheDisk::new(dir.path(), Duration::from_millis(50), bypassed_for));
        let open = |disk: &Arc<CacheDisk>| disk.run(|folder| File::open(folder.join("fifo")).map(drop));
        let silent = |output: io::Result<()>| {
            assert_eq!(output.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        };
        silent(open(&disk));
        let begun = Instant::now();
        // No thread for these.
        for _ in 0..1000 {
            silent(disk.run(|_| Ok(())));
        }
        assert!(disk.is_bypassed() || begun.elapsed() >= bypassed_for);
        std::thread::sleep(bypassed_for.saturating_sub(begun.elapsed()));
        silent(open(&disk));
        assert_eq!(disk.state.lock().held_threads, 2);
        assert!(disk.is_bypassed());
        unblock(&fifo)?;
        let begun = Instant::now();
        while disk.state.lock().held_threads > 0 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert_eq!(disk.state.lock().held_threads, 0);
        while disk.is_bypassed() {
            std::thread::yield_now();
        }
        assert_eq!(disk.run(|_| Ok(7))?, 7);
        assert!(!disk.is_bypassed() && disk.state.lock().next_try.is_none());
        Ok(())
    }

    #[test]
    fn threads_are_used_again_unless_the_disk_holds_them() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let fifo = make_blocking_file(dir.path())?;
        let disk = Arc::new(CacheDisk::new(dir.path(), Duration::from_secs(2), Duration::ZERO));
        let thread = |disk: &Arc<CacheDisk>| disk.run(|_| Ok(std::thread::current().id()));
        let first = thread(&disk)?;
        for _ in 0..100 {
            assert_eq!(thread(&disk)?, first);
        }
        // The thread is held now, and others work as soon as they are tried. It takes as long as a disk may hold one: longer
        // than a busy machine keeps the others.
        let held = disk.run(|folder| File::open(folder.join("fifo")).map(drop));
        assert!(held.is_err());
        assert_ne!(thread(&disk)?, first);
        std::thread::scope(|scope| {
            let run = || (0..200).all(|number| disk.run(move |_| Ok(number)).is_ok_and(|got| got == number));
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|is_right| is_right)));
        });
        unblock(&fifo)?;
        let begun = Instant::now();
        while disk.state.lock().held_threads > 0 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert!((1..=16).contains(&disk.workers.count_idle()), "{}", disk.workers.count_idle());
        Ok(())
    }

    #[test]
    fn a_disk_that_does_not_answer_the_probe_holds_no_thread() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let answers = |folder: &Path, _| folder.join("answers").exists();
        let times = CacheDisk::new(dir.path(), Duration::from_millis(50), Duration::from_millis(100));
        let disk = Arc::new(CacheDisk { probe: Some(answers), ..times });
        let run = || disk.run(|_| Ok(7)).map_err(|error| error.kind());
        assert_eq!(run(), Err(io::ErrorKind::TimedOut));
        assert!(disk.is_bypassed());
        std::thread::sleep(disk.bypassed_for);
        assert_eq!(run(), Err(io::ErrorKind::TimedOut), "it was tried again");
        assert_eq!(disk.state.lock().held_threads, 0);
        File::create(dir.path().join("answers"))?;
        std::thread::sleep(disk.bypassed_for);
        assert_eq!(run(), Ok(7));
        assert!(!disk.is_bypassed());
        Ok(())
    }

    #[test]
    fn work_that_goes_on_may_take_long() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let answer_max = Duration::from_secs(1);
        let disk = Arc::new(CacheDisk::new(dir.path(), answer_max, Duration::from_hours(1)));
        let begun = Instant::now();
        let took = disk.run(move |_| {
            while begun.elapsed() < answer_max * 3 {
                note_progress();
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(begun.elapsed())
        })?;
        assert!(took >= answer_max * 3 && !disk.is_bypassed());
        Ok(())
    }

    #[test]
    fn what_blocks_when_it_is_dropped_blocks_nobody() -> io::Result<()> {
        struct BlockingDrop(PathBuf);
        impl Drop for BlockingDrop {
            fn drop(&mut self) {
                let _ = File::open(&self.0);
            }
        }
        let dir = tempfile::tempdir()?;
        let fifo = make_blocking_file(dir.path())?;
        let disk = Arc::new(CacheDisk::new(dir.path(), Duration::from_millis(50), Duration::from_hours(1)));
        disk.discard(BlockingDrop(fifo.clone()));
        disk.discard(BlockingDrop(fifo.clone()));
        assert_eq!(disk.state.lock().held_threads, 1);
        unblock(&fifo).map(drop)
    }
}
