//! When changes are published that nobody asked to publish.
//!
//! Invariant: a change is never older than [`PublishSchedule::longest`] before publishing begins, unless it fails.
//! Snapshots, `flush` and the end of a mount do not wait for the schedule.

use std::time::{Duration, Instant};

use vellum_live::CommitSequence;

/// Live metadata in memory that are published at once, bytes: they bound the daemon's memory.
const METADATA: usize = 48 << 20;

/// When changes are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PublishSchedule {
    /// Changes are published if there were no others for this long.
    quiet: Duration,
    /// Changes are published at this age though there are always new ones.
    longest: Duration,
    /// File data since the last publish that are published at once, bytes.
    log: u64,
}

impl PublishSchedule {
    /// In a directory, publishing costs little.
    const DIRECTORY: Self =
        Self { quiet: Duration::from_secs(5), longest: Duration::from_secs(60), log: 512 << 20 };
    /// In a service, each publish costs some ten requests, which are paid for, and leaves small packs, each of which is
    /// a request for those who read later. Every minute, that would be 430,000 requests a month.
    const SERVICE: Self =
        Self { quiet: Duration::from_secs(300), longest: Duration::from_secs(300), log: 64 << 20 };

    /// The schedule for a store. `longest`: how old a change may become that is not published, if the user has said it.
    pub(super) fn for_store(is_remote: bool, longest: Option<Duration>) -> Self {
        let usual = if is_remote { Self::SERVICE } else { Self::DIRECTORY };
        let longest = longest.unwrap_or(usual.longest);
        Self { quiet: usual.quiet.min(longest), longest, ..usual }
    }
}

/// What the live worktree has at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveAmount {
    pub commit: CommitSequence,
    pub metadata: usize,
    pub log: u64,
    /// Bytes at which writers to the log wait.
    pub log_limit: u64,
}

/// What is known of unpublished changes.
#[derive(Debug)]
pub(super) struct PublishWatch {
    schedule: PublishSchedule,
    /// The last commit that was seen, and when it was seen first.
    seen: CommitSequence,
    seen_at: Instant,
    /// The last commit of which all is published.
    published: CommitSequence,
    /// An earlier process left something that it had not published: no commit of this one tells of it.
    has_leftover: bool,
    /// When the oldest unpublished change was seen.
    unpublished_since: Option<Instant>,
    /// What publishing left in the log: open files without a name stay there.
    left: u64,
}

impl PublishWatch {
    /// `has_leftover`: something was unpublished before `seen`, which is the last commit. It is due at once, however much it
    /// is: it may have waited for long.
    pub(super) fn new(schedule: PublishSchedule, seen: CommitSequence, has_leftover: bool) -> Self {
        let seen_at = Instant::now();
        Self { schedule, seen, seen_at, published: seen, has_leftover, unpublished_since: None, left: 0 }
    }

    /// Looks at what there is, and returns whether it is to be published now.
    pub(super) fn is_due(&mut self, amount: &LiveAmount, now: Instant) -> bool {
        if amount.commit != self.seen {
            (self.seen, self.seen_at) = (amount.commit, now);
        }
        if self.has_leftover {
            return true;
        }
        if amount.commit == self.published {
            return false;
        }
        let since = *self.unpublished_since.get_or_insert(now);
        // What was removed from the log since is not new data.
        self.left = self.left.min(amount.log);
        amount.metadata > METADATA
            // Long before writers wait.
            || amount.log - self.left > self.schedule.log.min(amount.log_limit / 2)
            || now.duration_since(self.seen_at) > self.schedule.quiet
            || now.duration_since(since) > self.schedule.longest
    }

    /// Notes that everything up to a commit was published; the log has so many bytes left.
    pub(super) fn note_published(&mut self, commit: CommitSequence, left: u64) {
        self.published = commit;
        self.has_leftover = false;
        self.unpublished_since = None;
        self.left = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: PublishSchedule = PublishSchedule::SERVICE;
    const DIRECTORY: PublishSchedule = PublishSchedule::DIRECTORY;

    fn amount(commit: u64, log: u64) -> LiveAmount {
        LiveAmount { commit: CommitSequence(commit), metadata: 0, log, log_limit: 16 << 30 }
    }

    /// Seconds after which a change each second is published, if there are `changes` of them.
    fn seconds_until_due(schedule: PublishSchedule, changes: u64) -> u64 {
        let begun = Instant::now();
        let mut watch = PublishWatch::new(schedule, CommitSequence(1), false);
        watch.note_published(CommitSequence(1), 0);
        // However long nothing was changed before, it is the change that counts.
        assert!(!watch.is_due(&amount(1, 0), begun + Duration::from_secs(1000)));
        let begun = begun + Duration::from_secs(2000);
        let is_due = |second: &u64| {
            let commit = 2 + (*second).min(changes);
            watch.is_due(&amount(commit, 0), begun + Duration::from_secs(*second))
        };
        (0..1000).find(is_due).unwrap_or(u64::MAX)
    }

    #[test]
    fn a_directory_is_published_to_soon() {
        let schedule = PublishSchedule::for_store(false, None);
        assert_eq!(seconds_until_due(schedule, 0), 6);
        assert_eq!(seconds_until_due(schedule, 1000), 61);
    }

    #[test]
    fn a_service_is_published_to_every_five_minutes() {
        let schedule = PublishSchedule::for_store(true, None);
        assert_eq!(seconds_until_due(schedule, 0), 301);
        assert_eq!(seconds_until_due(schedule, 1000), 301);
    }

    #[test]
    fn much_data_is_published_at_once() {
        for (schedule, log) in [(DIRECTORY, 512 << 20), (SERVICE, 64 << 20)] {
            let now = Instant::now();
            let mut watch = PublishWatch::new(schedule, CommitSequence(1), false);
            assert!(!watch.is_due(&amount(2, log), now));
            assert!(watch.is_due(&amount(3, log + 1), now));
            watch.note_published(CommitSequence(3), 0);
            assert!(watch.is_due(&LiveAmount { metadata: METADATA + 1, ..amount(4, 0) }, now));
            assert!(watch.is_due(&LiveAmount { log_limit: 8 << 20, ..amount(5, 5 << 20) }, now));
        }
    }

    #[test]
    fn what_an_earlier_process_left_is_published_at_once_and_until_it_is() {
        let now = Instant::now();
        let mut watch = PublishWatch::new(SERVICE, CommitSequence(0), true);
        assert!(watch.is_due(&amount(0, 0), now));
        // The store was away.
        assert!(watch.is_due(&amount(0, 0), now));
        watch.note_published(CommitSequence(0), 0);
        assert!(!watch.is_due(&amount(0, 0), now + Duration::from_secs(1000)));
        let mut watch = PublishWatch::new(SERVICE, CommitSequence(0), false);
        assert!(!watch.is_due(&amount(0, 0), now + Duration::from_secs(1000)));
    }

    #[test]
    fn what_publishing_cannot_remove_from_the_log_is_no_reason_to_publish() {
        let now = Instant::now();
        let mut watch = PublishWatch::new(SERVICE, CommitSequence(1), false);
        // A temporary file of 100 MiB that is open and has no name.
        watch.note_published(CommitSequence(2), 100 << 20);
        assert!(!watch.is_due(&amount(3, 101 << 20), now));
        assert!(watch.is_due(&amount(4, 165 << 20), now));
        // It is closed.
        watch.note_published(CommitSequence(4), 100 << 20);
        assert!(!watch.is_due(&amount(5, 1 << 20), now));
        assert!(watch.is_due(&amount(6, 66 << 20), now));
    }

    #[test]
    fn a_user_can_say_how_old_a_change_may_become() {
        let within =
            |is_remote, seconds| PublishSchedule::for_store(is_remote, Some(Duration::from_secs(seconds)));
        for is_remote in [false, true] {
            assert_eq!(seconds_until_due(within(is_remote, 3), 1), 4);
            assert_eq!(seconds_until_due(within(is_remote, 10), 1000), 11);
        }
        // Longer than usual, too: each publish of a service is paid for. Quiet times do not become longer by it.
        assert_eq!(seconds_until_due(within(false, 600), 0), 6);
        assert_eq!(seconds_until_due(within(true, 600), 1000), 601);
    }
}
