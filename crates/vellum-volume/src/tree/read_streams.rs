//! Which files are read in sequence, and what of them to fetch ahead.
//!
//! Invariant: it only counts; whoever reads decides what is fetched. Deliberately absent: the content.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// What is fetched ahead of a reader at first, bytes.
const WINDOW_MIN: u64 = 512 << 10;

/// A first read of so many bytes is taken for the beginning of all of the file: it is as much as the kernel asks for when
/// a program reads in large pieces.
const EAGER: u64 = 128 << 10;

/// So much of the window is asked for at once at most, bytes: one request to a service. The rest of the window is under
/// way meanwhile, so that a reader never waits for a whole window.
const STEP_MAX: u64 = 4 << 20;

/// How far a read may be from where the last one ended and still be in sequence: the kernel asks for several at once.
const SLACK: u64 = 1 << 20;

/// Files of which it is known how far they were read: those read lately, twice as many at most.
const STREAMS: usize = 256;

/// How much is fetched ahead, by what a request to the store takes.
#[derive(Debug, Clone, Copy)]
pub struct PrefetchLimits {
    /// What is fetched ahead of a reader at most, bytes.
    pub window: u64,
    /// How many times what was fetched ahead is fetched next, until that is the window.
    pub growth: u64,
    /// Chunks that one thread fetches ahead together at most: one request where they are neighbours.
    pub batch: usize,
    /// Threads that fetch ahead.
    pub threads: usize,
}

impl PrefetchLimits {
    /// Returns the limits for a store of which so many requests are worth having under way at once. In a directory threads do not wait, but
    /// open and decompress; of a service, eight requests of some 4 MiB hide its latency.
    #[must_use]
    pub fn for_requests_at_once(count: usize) -> Self {
        match count {
            0 | 1 => Self {
                window: 8 << 20,
                growth: 2,
                batch: 8,
                threads: std::thread::available_parallelism().map_or(1, usize::from).min(4),
            },
            // The first windows are a wait for the service each: they grow fast. Chunks of a step vary in length; all of
            // them are to be one request.
            _ => Self { window: 32 << 20, growth: 4, batch: 96, threads: count },
        }
    }
}

/// How far a file was read in sequence, and how far ahead it is being fetched: all who read it share that.
#[derive(Debug, Default)]
struct ReadStream {
    /// Where the last read ended.
    read_to: AtomicU64,
    /// Up to where chunks were asked for.
    fetched_to: AtomicU64,
    /// How much to ask for next, bytes.
    window: AtomicU64,
}

/// What a read tells of those that will follow.
#[derive(Debug, PartialEq, Eq)]
pub struct NotedRead {
    /// The range of the file to fetch ahead, bytes, if it is time to.
    pub ahead: Option<Range<u64>>,
    /// How the file is read.
    pub pattern: ReadPattern,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// From where the last read ended, or from its beginning.
    InOrder,
    /// The same, to the end of the file.
    ToEnd,
    /// Here and there.
    Scattered,
}

/// How far files were read, those that were read lately. `K` tells one file from another.
#[derive(Debug)]
pub struct ReadStreams<K> {
    limits: PrefetchLimits,
    generations: Mutex<StreamGenerations<K>>,
}

#[derive(Debug)]
struct StreamGenerations<K> {
    young: HashMap<K, Arc<ReadStream>>,
    old: HashMap<K, Arc<ReadStream>>,
}

impl<K: Eq + Hash> ReadStreams<K> {
    /// Starts without any files.
    #[must_use]
    pub fn new(limits: PrefetchLimits) -> Self {
        let generations = StreamGenerations { young: HashMap::new(), old: HashMap::new() };
        Self { limits, generations: Mutex::new(generations) }
    }

    /// Notes that a range of a file was read, bytes, and whether the file ends there.
    pub fn note_read(&self, file: K, range: &Range<u64>, is_file_end: bool) -> NotedRead {
        self.get_stream(file).note_read(range, is_file_end, &self.limits)
    }

    fn get_stream(&self, file: K) -> Arc<ReadStream> {
        let mut table = self.generations.lock();
        if let Some(stream) = table.young.get(&file) {
            return stream.clone();
        }
        // Two generations instead of a list in order of use: a file that is still read moves to the young one, and
        // the rest goes with its generation, all at once.
        let stream = table.old.remove(&file).unwrap_or_default();
        if table.young.len() >= STREAMS {
            table.old = std::mem::take(&mut table.young);
        }
        table.young.insert(file, stream.clone());
        stream
    }
}

impl ReadStream {
    /// As [`ReadStreams::note_read`]. Threads that race here fetch too much or too
    /// little, and nothing worse.
    fn note_read(&self, range: &Range<u64>, is_file_end: bool, limits: &PrefetchLimits) -> NotedRead {
        let read_to = self.read_to.swap(range.end, Ordering::Relaxed);
        let is_first = range.start == 0 && read_to == 0;
        // Who begins with a large piece goes on; who wants a little may want no more than that.
        let is_hesitant = is_first && range.end < EAGER;
        let is_jump = range.start.abs_diff(read_to) > SLACK;
        // A file that is read again from its beginning is not read here and there.
        let pattern = if is_jump && range.start > 0 {
            ReadPattern::Scattered
        } else if is_file_end {
            ReadPattern::ToEnd
        } else {
            ReadPattern::InOrder
        };
        if is_jump || is_hesitant {
            // A jump: whoever reads here and there gains nothing from what lies behind.
            self.window.store(0, Ordering::Relaxed);
            self.fetched_to.store(range.end, Ordering::Relaxed);
            return NotedRead { ahead: None, pattern };
        }
        NotedRead { ahead: self.next_prefetch_range(range, limits), pattern }
    }

    /// What to fetch ahead of a reader in order, if it is time to.
    fn next_prefetch_range(&self, range: &Range<u64>, limits: &PrefetchLimits) -> Option<Range<u64>> {
        let window = self.window.load(Ordering::Relaxed).max(WINDOW_MIN);
        let fetched_to = self.fetched_to.load(Ordering::Relaxed).max(range.end);
        // Asking in large pieces lets neighbours in a pack be one request.
        if fetched_to - range.end > window - (window / 2).min(STEP_MAX) {
            return None;
        }
        let ahead = fetched_to..range.end.saturating_add(window);
        self.fetched_to.store(ahead.end, Ordering::Relaxed);
        self.window.store((window * limits.growth).min(limits.window), Ordering::Relaxed);
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(window: u64, growth: u64) -> PrefetchLimits {
        PrefetchLimits { window, growth, batch: 8, threads: 1 }
    }

    /// Reads a file in steps from its beginning; gives what is fetched ahead, and checks that it is without gaps.
    fn read_in_order(streams: &ReadStreams<u8>, step: u64, end: u64) -> Vec<Range<u64>> {
        let reads = (0..end / step).map(|number| number * step..(number + 1) * step);
        let ahead: Vec<_> = reads.filter_map(|range| streams.note_read(1, &range, false).ahead).collect();
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "{ahead:?}");
        ahead
    }

    #[test]
    fn what_is_fetched_ahead_of_a_reader_in_sequence_grows_to_the_limit() {
        let ahead = read_in_order(&ReadStreams::new(limits(4 << 20, 2)), 128 << 10, 64 << 20);
        assert_eq!(ahead.first(), Some(&(128 << 10..640 << 10)));
        let longest = ahead.iter().map(|range| range.end - range.start).max();
        assert!(longest.is_some_and(|longest| (2 << 20..=4 << 20).contains(&longest)), "{longest:?}");
        assert!(ahead.last().is_some_and(|last| last.end >= 64 << 20), "it keeps ahead");
    }

    #[test]
    fn of_a_service_the_window_is_soon_full_and_stays_full() {
        let limits = PrefetchLimits::for_requests_at_once(8);
        let streams = ReadStreams::new(limits);
        let step = 128 << 10;
        let mut fetched_to = 0;
        for number in 0..(256 << 20) / step {
            let read_to = (number + 1) * step;
            if let Some(ahead) = streams.note_read(1, &(number * step..read_to), false).ahead {
                fetched_to = ahead.end;
            }
            if read_to > 4 << 20 {
                assert!(
                    fetched_to - read_to >= limits.window - STEP_MAX,
                    "after {read_to} bytes: {fetched_to}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_fetched_ahead_of_small_and_scattered_reads() {
        let streams = ReadStreams::new(limits(32 << 20, 4));
        let note = |range: Range<u64>| streams.note_read(1, &range, false);
        let expect = |pattern| NotedRead { ahead: None, pattern };
        assert_eq!(note(0..4096), expect(ReadPattern::InOrder), "it may want no more");
        assert_eq!(note(50 << 20..(50 << 20) + 4096), expect(ReadPattern::Scattered));
        assert_eq!(note(9 << 20..(9 << 20) + 4096), expect(ReadPattern::Scattered));
        // Another file is another stream.
        assert!(streams.note_read(2, &(0..1 << 20), false).ahead.is_some());
    }

    #[test]
    fn a_file_is_read_to_its_end_in_one_read_or_in_several() {
        let streams = ReadStreams::new(limits(32 << 20, 4));
        let pattern =
            |file: u8, range: Range<u64>, is_file_end| streams.note_read(file, &range, is_file_end).pattern;
        assert_eq!(pattern(1, 0..5000, true), ReadPattern::ToEnd);
        assert_eq!(pattern(2, 0..4 << 20, false), ReadPattern::InOrder);
        assert_eq!(pattern(2, 4 << 20..5 << 20, true), ReadPattern::ToEnd);
        assert_eq!(pattern(2, 0..4 << 20, false), ReadPattern::InOrder, "it is read again");
        assert_eq!(pattern(3, 8 << 20..9 << 20, true), ReadPattern::Scattered, "only its end is read");
    }
}
