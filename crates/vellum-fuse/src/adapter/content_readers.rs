//! Who reads the content of a mount whose store is far away: programs for which nothing is fetched, and processes that look
//! into very many files, as indexers and virus scanners do.
//!
//! Invariant: it decides what is fetched and what stays on this machine, never what is read. A request has the number of a
//! thread, which is not that of its process if the program has several.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_host::process::read_program_names;
use vellum_store::FetchPolicy;

/// Bytes of a program's name that the kernel keeps.
const NAME_MAX: usize = 15;
/// A reader that looks into more files than this within [`SCAN_TIME`], a count, makes a scan.
const SCAN_FILES: usize = 1000;
/// The time in which files are counted.
const SCAN_TIME: Duration = Duration::from_mins(1);
/// Files of which so many bytes were read do not count, bytes: they were not only looked into.
const LOOK_MAX: u64 = 64 << 10;
/// Readers whose files are counted, a count.
const READERS_MAX: usize = 256;

/// The readers of a mount.
pub(crate) struct ContentReaders {
    refused: Vec<Vec<u8>>,
    /// Those of them that were refused something.
    reported: Mutex<HashSet<Vec<u8>>>,
    counts: Mutex<HashMap<u32, ReaderCount>>,
}

/// What one reader read lately.
struct ReaderCount {
    begun: Instant,
    /// Bytes that were read of each file since.
    files: HashMap<u64, u64>,
    /// Files that were only looked into.
    looked_into: usize,
    /// Whether it made a scan in the time before.
    was_scan: bool,
}

impl ContentReaders {
    /// For programs of these names, nothing is fetched.
    pub fn new(refused: &[String]) -> Self {
        let cut = |name: &String| name.as_bytes().iter().copied().take(NAME_MAX).collect();
        Self {
            refused: refused.iter().map(cut).collect(),
            reported: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// What a read may do that this thread requested.
    pub fn choose_policy(&self, thread: u32) -> FetchPolicy {
        if self.find_refused(thread).is_some() {
            return FetchPolicy::Refuse;
        }
        let counts = self.counts.lock();
        match counts.get(&thread).is_some_and(ReaderCount::is_scan) {
            true => FetchPolicy::Scan,
            false => FetchPolicy::Ordinary,
        }
    }

    /// Notes that so many bytes of a file were read for a thread.
    pub fn note_read(&self, thread: u32, node: u64, bytes: u64) {
        self.note_read_at(Instant::now(), thread, node, bytes);
    }

    fn note_read_at(&self, now: Instant, thread: u32, node: u64, bytes: u64) {
        let mut counts = self.counts.lock();
        if counts.len() >= READERS_MAX && !counts.contains_key(&thread) {
            counts.retain(|_, count| now.duration_since(count.begun) < SCAN_TIME);
            // Of so many readers at once, those that came first are counted.
            if counts.len() >= READERS_MAX {
                return;
            }
        }
        counts.entry(thread).or_insert_with(|| ReaderCount::begin(now)).note_read(now, node, bytes);
    }

    /// The name of the program of a thread that was refused something, if that was not reported yet.
    pub fn note_refusal(&self, thread: u32) -> Option<String> {
        let name = self.find_refused(thread)?;
        let text = String::from_utf8_lossy(&name).into_owned();
        self.reported.lock().insert(name).then_some(text)
    }

    fn find_refused(&self, thread: u32) -> Option<Vec<u8>> {
        if self.refused.is_empty() {
            return None;
        }
        // Read each time: a process that executes another program keeps its number.
        read_program_names(thread).into_iter().find(|name| self.refused.contains(name))
    }
}

impl ReaderCount {
    fn begin(now: Instant) -> Self {
        Self { begun: now, files: HashMap::new(), looked_into: 0, was_scan: false }
    }

    fn is_scan(&self) -> bool {
        self.was_scan || self.looked_into > SCAN_FILES
    }

    fn note_read(&mut self, now: Instant, node: u64, bytes: u64) {
        let passed = now.duration_since(self.begun);
        if passed >= SCAN_TIME {
            // A scan that goes on stays one from its first read in the next minute on.
            let was_scan = self.looked_into > SCAN_FILES && passed < 2 * SCAN_TIME;
            *self = Self { was_scan, ..Self::begin(now) };
        }
        // It is known for what it is, and the table stays small.
        if self.looked_into > SCAN_FILES {
            return;
        }
        let mut is_new = false;
        let read = self.files.entry(node).or_insert_with(|| {
            is_new = true;
            0
        });
        let before = *read;
        *read = before.saturating_add(bytes);
        self.looked_into += usize::from(is_new);
        // From here on the file counts as read. This happens once for each.
        if before < LOOK_MAX && *read >= LOOK_MAX {
            self.looked_into -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_files(readers: &ContentReaders, now: Instant, files: std::ops::Range<u64>, bytes: u64) {
        files.for_each(|node| readers.note_read_at(now, 7, node, bytes));
    }

    #[test]
    fn who_looks_into_very_many_files_makes_a_scan_for_as_long_as_that_goes_on() {
        let readers = ContentReaders::new(&[]);
        let begun = Instant::now();
        read_files(&readers, begun, 0..1000, 4096);
        assert_eq!(readers.choose_policy(7), FetchPolicy::Ordinary);
        read_files(&readers, begun, 999..1001, 4096);
        assert_eq!(readers.choose_policy(7), FetchPolicy::Scan);
        assert_eq!(readers.choose_policy(8), FetchPolicy::Ordinary);
        // The next minute begins with what the last one was.
        read_files(&readers, begun + SCAN_TIME, 2000..2001, 4096);
        assert_eq!(readers.choose_policy(7), FetchPolicy::Scan);
        read_files(&readers, begun + 2 * SCAN_TIME, 3000..3001, 4096);
        assert_eq!(readers.choose_policy(7), FetchPolicy::Ordinary);
    }

    #[test]
    fn who_reads_many_files_or_the_same_ones_makes_no_scan() {
        let readers = ContentReaders::new(&[]);
        let now = Instant::now();
        read_files(&readers, now, 0..5000, LOOK_MAX);
        (0..3000).for_each(|round| read_files(&readers, now, round % 10..round % 10 + 1, 100));
        // In parts, too.
        for _ in 0..4 {
            read_files(&readers, now, 6000..6500, LOOK_MAX / 4);
        }
        read_files(&readers, now, 9000..9900, 10);
        assert_eq!(readers.choose_policy(7), FetchPolicy::Ordinary);
    }

    #[test]
    fn the_table_of_readers_stays_small() {
        let readers = ContentReaders::new(&[]);
        let begun = Instant::now();
        (0..1000).for_each(|thread| readers.note_read_at(begun, thread, 1, 1));
        assert_eq!(readers.counts.lock().len(), READERS_MAX);
        readers.note_read_at(begun + SCAN_TIME, 5000, 1, 1);
        assert_eq!(readers.counts.lock().len(), 1);
    }

    #[test]
    fn a_program_is_refused_by_its_name_and_reported_once() {
        let own = std::process::id();
        let names = read_program_names(own);
        let name = String::from_utf8_lossy(names.last().unwrap()).into_owned();
        assert_eq!(ContentReaders::new(&["another".into()]).choose_policy(own), FetchPolicy::Ordinary);
        // The kernel has cut the name.
        let readers =
            ContentReaders::new(&["another".into(), format!("{name}{}", "x".repeat(15 - name.len()))]);
        let expected = if name.len() == NAME_MAX { FetchPolicy::Refuse } else { FetchPolicy::Ordinary };
        assert_eq!(readers.choose_policy(own), expected);
        let readers = ContentReaders::new(std::slice::from_ref(&name));
        assert_eq!(readers.choose_policy(own), FetchPolicy::Refuse);
        assert_eq!(readers.note_refusal(own), Some(name));
        assert_eq!(readers.note_refusal(own), None);
    }
}
