//! Engines that go away, fail over and lose everything.

use std::time::Instant;

use super::memory_log::LogFault;
use super::*;

/// Writes and syncs while the engine goes wrong, then compares with what another machine gets.
fn write_among_faults(log: &Arc<MemoryLog>, rounds: u8, mut before: impl FnMut(u8)) -> Arc<HeldClaim> {
    let disk = Disk::new();
    let (files, held) = begin(&disk, log, SharedFilesLimits::default());
    files.set_replaced_log_hook(|_| Ok(true));
    let meta = files.folder(LoggedFolder::Metadata);
    let file = meta.create_file("a").unwrap();
    for number in 0..rounds {
        before(number);
        file.write_at(&[number + 1; 100], 100 * u64::from(number)).unwrap();
        file.sync_file().unwrap();
        assert_eq!(held.failure(), None);
    }
    assert_eq!(log.faults_left(), 0, "everything went wrong that was to");
    let (other, ..) = take_over(log, 2);
    assert_eq!(other.contents(), disk.contents());
    held
}

#[test]
fn an_append_whose_answer_was_lost_is_found() {
    let log = MemoryLog::new();
    write_among_faults(&log, 8, |_| log.inject_faults([LogFault::AnswerLost]));
}

#[test]
fn an_append_that_failed_is_tried_again() {
    let log = MemoryLog::new();
    let faults = [LogFault::Away, LogFault::Away, LogFault::AnswerLost, LogFault::Full];
    write_among_faults(&log, 3, |_| log.inject_faults(faults));
}

#[test]
fn what_a_failover_lost_is_appended_again() {
    let log = MemoryLog::new();
    write_among_faults(&log, 8, |number| {
        if number % 3 == 2 {
            log.inject_faults([LogFault::FailsOver(usize::from(number) / 2)]);
        }
    });
}

#[test]
fn a_log_that_is_lost_begins_anew_with_everything() {
    let log = MemoryLog::new();
    let held = write_among_faults(&log, 5, |number| {
        if number == 3 {
            log.inject_faults([LogFault::Flushed]);
        }
    });
    assert_eq!(held.current().incarnation, LogIncarnation([2; 16]));
}

/// Who renews the claim finds out first, and has a base appended.
#[test]
fn a_log_that_a_base_finds_lost_begins_anew() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let limits = SharedFilesLimits { sync_wait: Duration::from_secs(60), ..SharedFilesLimits::default() };
    let (files, held) = begin(&disk, &log, limits);
    files.set_replaced_log_hook(|_| Ok(true));
    let file = files.folder(LoggedFolder::Metadata).create_file("a").unwrap();
    for number in 1..4 {
        let before = held.current().incarnation;
        log.inject_faults([LogFault::Flushed]);
        files.files.queue.request_base();
        let begun = Instant::now();
        while held.current().incarnation == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody finds out");
        }
        file.write_at(&[number; 100], 0).unwrap();
        file.sync_file().unwrap();
    }
    let (other, ..) = take_over(&log, 2);
    assert_eq!(other.contents(), disk.contents());
}

#[test]
fn nothing_of_a_new_log_is_acknowledged_before_the_worktree_names_it() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, held) = begin(&disk, &log, SharedFilesLimits::default());
    let named = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let hook = named.clone();
    let base = log.clone();
    files.set_replaced_log_hook(move |incarnation| {
        let mut named = hook.lock();
        named.push((incarnation, base.end()));
        // The store is away at first.
        Ok(named.len() > 2)
    });
    let meta = files.folder(LoggedFolder::Metadata);
    let file = meta.create_file("a").unwrap();
    file.write_at(&[1; 500], 0).unwrap();
    log.inject_faults([LogFault::Flushed]);
    file.sync_file().unwrap();
    let named = named.lock().clone();
    assert_eq!(named.len(), 3);
    assert!(named.iter().all(|(incarnation, end)| *incarnation == held.current().incarnation && *end > 500));
}

#[test]
fn a_lost_log_of_a_worktree_that_was_taken_over_is_not_replaced() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, held) = begin(&disk, &log, SharedFilesLimits::default());
    files.set_replaced_log_hook(|_| {
        Err(LogFailure { reason: "another host has the lease".into(), is_fenced: true })
    });
    let file = files.folder(LoggedFolder::Metadata).create_file("a").unwrap();
    log.inject_faults([LogFault::Flushed]);
    let error = file.sync_file().unwrap_err();
    assert!(error.to_string().contains("another host has the lease"), "{error}");
    assert!(held.failure().is_some_and(|failure| failure.is_fenced));
}

#[test]
fn syncs_wait_for_an_engine_that_is_away_and_nothing_is_lost() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let limits = SharedFilesLimits { sync_wait: Duration::from_millis(100), ..SharedFilesLimits::default() };
    let (files, held) = begin(&disk, &log, limits);
    let file = files.folder(LoggedFolder::Metadata).create_file("a").unwrap();
    log.set_away(true);
    file.write_at(b"while it is away", 0).unwrap();
    let error = file.sync_file().unwrap_err();
    assert!(vellum_live::folder::SyncDelayed::is_cause(&error), "{error}");
    assert!(error.to_string().contains("it is away"), "{error}");
    assert_eq!(held.failure(), None, "a delay is no failure");
    log.set_away(false);
    let begun = Instant::now();
    while file.sync_file().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not go on");
    }
    let (other, ..) = take_over(&log, 2);
    assert_eq!(other.contents(), disk.contents());
}

#[test]
fn writers_wait_when_the_queue_is_full() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let limits = SharedFilesLimits { queue: 200 << 10, ..SharedFilesLimits::default() };
    let (files, _held) = begin(&disk, &log, limits);
    let folder = files.folder(LoggedFolder::WriteLog);
    let file = folder.create_file("a").unwrap();
    log.set_away(true);
    let (sender, written) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        for number in 0..10_u8 {
            file.write_at(&[number + 1; 100 << 10], u64::from(number) * (100 << 10)).unwrap();
            sender.send(number).unwrap();
        }
    });
    // Two fit.
    let first: Vec<u8> = written.iter().take(2).collect();
    assert_eq!(first, [0, 1]);
    assert!(files.usage().queued < 400 << 10);
    log.set_away(false);
    // Nobody syncs: room is made because somebody waits for it.
    writer.join().unwrap();
    files.sync_all().unwrap();
    let (other, ..) = take_over(&log, 2);
    assert_eq!(other.contents(), disk.contents());
}

#[test]
fn one_append_carries_what_many_wait_for() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, _held) = begin(&disk, &log, SharedFilesLimits::default());
    let meta = files.folder(LoggedFolder::Metadata);
    let before = log.acknowledged();
    log.set_away(true);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let meta = meta.clone();
            scope.spawn(move || {
                let file = meta.create_file(&format!("file-{number}")).unwrap();
                file.write_at(b"some content", 0).unwrap();
                file.sync_file().unwrap();
            });
        }
        while files.usage().queued < 16 * 20 {
            std::thread::yield_now();
        }
        log.set_away(false);
    });
    let appends = log.acknowledged() - before;
    assert!(appends <= 4, "{appends} appends for 16 syncs that waited together");
}

#[test]
fn the_log_stays_as_long_as_the_files_while_work_goes_on() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    let (files, _held) =
        begin(&disk, &log, SharedFilesLimits { log: 64 << 10, ..SharedFilesLimits::default() });
    let meta = files.folder(LoggedFolder::Metadata);
    let keep = meta.create_file("keep").unwrap();
    keep.write_at(&[7; 20 << 10], 0).unwrap();
    for number in 0..200_u64 {
        let file = meta.create_file(&format!("file-{number}")).unwrap();
        file.write_at(&vec![1; 8 << 10], 0).unwrap();
        file.sync_file().unwrap();
        keep.write_at(&number.to_le_bytes(), number * 8).unwrap();
        meta.remove_file(&format!("file-{number}")).unwrap();
        // What is written must not run away from who shortens the log.
        let begun = Instant::now();
        while log.kept_len() > 400 << 10 {
            meta.sync_folder().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes are kept", log.kept_len());
        }
    }
    meta.sync_folder().unwrap();
    assert!(log.discard_count() > 2, "{} times", log.discard_count());
    let (other, ..) = take_over(&log, 2);
    assert_eq!(other.contents(), disk.contents());
}

#[test]
fn the_log_becomes_as_short_as_the_files_when_nobody_works() {
    let disk = Disk::new();
    let log = MemoryLog::new();
    // More than is written, so that only the rest can be the reason.
    let rest = Duration::from_millis(20);
    let limits = SharedFilesLimits { log: 4 << 20, rest, ..SharedFilesLimits::default() };
    let (files, _held) = begin(&disk, &log, limits);
    let (meta, write_log) = (files.folder(LoggedFolder::Metadata), files.folder(LoggedFolder::WriteLog));
    let segment = write_log.create_file("segment").unwrap();
    segment.write_at(&[7; 2 << 20], 0).unwrap();
    meta.sync_folder().unwrap();
    // It was published. Nobody waits for its removal to be durable, and nothing comes after it.
    write_log.remove_file("segment").unwrap();
    let begun = Instant::now();
    while log.kept_len() > 64 << 10 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes are kept", log.kept_len());
        std::thread::sleep(Duration::from_millis(5));
    }
    // And then nothing is done any more.
    let acknowledged = log.acknowledged();
    std::thread::sleep(10 * rest);
    assert_eq!(log.acknowledged(), acknowledged);
    let (other, ..) = take_over(&log, 2);
    assert_eq!(other.contents(), disk.contents());
}
