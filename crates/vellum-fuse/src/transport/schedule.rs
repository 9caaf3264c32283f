//! Processors and scheduling policies of this process's threads.
//!
//! Invariant: a thread gets the policy for idle time only if that can be taken back: the kernel lets a thread leave it
//! only if the process may raise priorities.
//!
//! Deliberately absent: which thread gets it, and for how long.

use std::io;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use vellum_host::process::ProcessStat;

/// When a thread runs, relative to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// Like most threads (`SCHED_OTHER`).
    Normal,
    /// Only while no other thread wants the processor (`SCHED_IDLE`).
    Idle,
}

/// Sets the policy of a thread of this process. Threads that it starts inherit the policy.
pub fn set_thread_policy(thread: Pid, policy: SchedulingPolicy) -> io::Result<()> {
    let number = match policy {
        SchedulingPolicy::Normal => libc::SCHED_OTHER,
        SchedulingPolicy::Idle => libc::SCHED_IDLE,
    };
    // The kernel's own call: musl's function only fails, because the call is for a thread and POSIX means processes.
    let priority: libc::c_int = 0;
    let thread = thread.as_raw_nonzero().get();
    #[expect(unsafe_code, reason = "no safe call sets a policy")]
    // SAFETY: the kernel reads the priority, which lives until it has returned, and writes nothing.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, number, &raw const priority) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether threads have the normal policy, can be given the policy for idle time, and can get the normal one back.
/// Tries it with a thread of its own, which would be lost for other work if the policy could not be taken back.
pub fn can_change_policy() -> bool {
    // In a thread of its own: if the policy cannot be taken back, it ends with the thread.
    let attempt = || {
        let thread = rustix::thread::gettid();
        // A process that was started with another policy (`chrt`) is to keep it.
        get_thread_policy(thread) == Some(SchedulingPolicy::Normal)
            && set_thread_policy(thread, SchedulingPolicy::Idle)
                .and_then(|()| set_thread_policy(thread, SchedulingPolicy::Normal))
                .is_ok()
    };
    let thread = std::thread::Builder::new().name("vellum-policy".into()).spawn(attempt);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// The processor on which a thread of any process runs, or ran last; None if the thread has ended, or cannot be read.
pub fn find_thread_processor(thread: u32) -> Option<usize> {
    ProcessStat::read(thread).ok()?.processor()
}

/// Whether more threads than `processors` are ready to run now. False if that cannot be read.
pub fn is_machine_overloaded(processors: u32) -> bool {
    std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| parse_running_count(&text))
        .is_some_and(|it| it > processors)
}

/// The number of threads that are ready to run, from the text of `/proc/loadavg`.
fn parse_running_count(text: &str) -> Option<u32> {
    text.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// The processors on which this thread may run.
pub fn allowed_processors() -> io::Result<CpuSet> {
    Ok(sched_getaffinity(None)?)
}

/// Moves this thread to a processor. The scheduler may move it to another one of its `processors` at any time.
pub fn move_to_processor(processor: usize, processors: &CpuSet) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    // The kernel moves the thread before this call returns. Widening the set again leaves it where it is.
    sched_setaffinity(None, &only)?;
    Ok(sched_setaffinity(None, processors)?)
}

/// The processor on which this thread runs.
pub fn current_processor() -> usize {
    sched_getcpu()
}

/// The policy of a thread; None if it has another one than these.
pub fn get_thread_policy(thread: Pid) -> Option<SchedulingPolicy> {
    #[expect(unsafe_code, reason = "no safe call reads a policy")]
    // SAFETY: it only reads a number.
    let number = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) };
    match libc::c_int::try_from(number).ok()? {
        libc::SCHED_OTHER => Some(SchedulingPolicy::Normal),
        libc::SCHED_IDLE => Some(SchedulingPolicy::Idle),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_moved_is_seen_where_it_is_and_may_go_on() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let all = allowed_processors().unwrap();
        for each in (0..CpuSet::MAX_CPU).filter(|&each| all.is_set(each)) {
            move_to_processor(each, &all).unwrap();
            assert!(find_thread_processor(thread).is_some_and(|found| all.is_set(found)));
            assert_eq!(allowed_processors().unwrap(), all);
        }
    }

    #[test]
    fn a_policy_is_taken_on_and_back() {
        if !can_change_policy() {
            return;
        }
        let thread = rustix::thread::gettid();
        for policy in [SchedulingPolicy::Idle, SchedulingPolicy::Normal] {
            set_thread_policy(thread, policy).unwrap();
            assert_eq!(get_thread_policy(thread), Some(policy));
        }
    }

    #[test]
    fn the_load_says_how_many_threads_want_a_processor() {
        assert_eq!(parse_running_count("0.52 1.20 1.10 3/412 90210\n"), Some(3));
        assert_eq!(parse_running_count("none"), None);
        assert!(!is_machine_overloaded(u32::MAX));
    }

    #[test]
    fn nobody_knows_where_a_thread_runs_that_is_not_there() {
        assert_eq!(find_thread_processor(u32::MAX), None);
    }
}
