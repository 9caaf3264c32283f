//! Threads that share the processors' work: rayon's, of each process its own.
//!
//! rayon's global threads are those of the process that used them first. After `fork(2)` they are not there, and whoever
//! hands them work waits for ever; so work that is to be shared begins here. Invariant: inside [`run_parallel`], rayon's
//! functions use threads of this process. Deliberately absent: pools for special work, such as that of a publisher, whose
//! threads have a lower priority.

use rayon::ThreadPool;

use crate::per_process::PerProcess;

static POOL: PerProcess<Option<ThreadPool>> = PerProcess::new();

/// Runs work whose parts rayon shares among one thread for each processor.
pub fn run_parallel<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // Work that is itself a part, or that was given a pool of its own, stays where it is.
    if rayon::current_thread_index().is_some() {
        return work();
    }
    let start =
        || rayon::ThreadPoolBuilder::new().thread_name(|number| format!("vellum-{number}")).build().ok();
    match POOL.get_or_init(start) {
        Some(pool) => pool.install(work),
        // The system has no more threads. rayon's own way out is to share nothing.
        None => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_work_stay_among_the_threads_that_it_began_on() {
        let name = || std::thread::current().name().map(str::to_owned);
        let (outer, inner) = run_parallel(|| (name(), run_parallel(name)));
        assert!(outer.as_ref().is_some_and(|name| name.starts_with("vellum-")), "{outer:?}");
        assert_eq!(outer, inner);
        let own = rayon::ThreadPoolBuilder::new().thread_name(|_| "own".into()).num_threads(1).build();
        let own = own.expect("a thread");
        assert_eq!(own.install(|| run_parallel(name)).as_deref(), Some("own"));
    }
}
