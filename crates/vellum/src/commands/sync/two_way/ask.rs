//! Asking who wins.
//!
//! Invariant: while the user is asked nothing has been done; Ctrl-C then leaves both sides as they are.

use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vellum_host::escape::format_path;
use vellum_sync::two_way::{
    ConflictAnswer, ConflictAnswers, EntryConflict, TwoWayListings, TwoWayPlan, TwoWaySide,
};

use crate::context::CommandContext;
use crate::error::{CliError, Result};
use crate::interrupt;
use crate::ui::format;

/// Asks about every conflict that waits for an answer; what is skipped has none.
pub fn ask_about_conflicts(
    plan: &TwoWayPlan,
    sight: &TwoWayListings,
    context: &CommandContext,
) -> Result<ConflictAnswers> {
    let mut answers = ConflictAnswers::new();
    let flag = interrupt::install_signal_handlers();
    for conflict in plan.open_conflicts() {
        context.ui.print_prompt(&format_question(conflict, sight))?;
        loop {
            context.ui.print_prompt("keep the [1]st, the [2]nd, [b]oth, or [s]kip? ")?;
            // The end of input skips all that is left.
            let Some(line) = read_answer_line(&flag)? else {
                context.ui.print_prompt("\n")?;
                return Ok(answers);
            };
            let answer = match line.trim() {
                "1" => ConflictAnswer::Side(TwoWaySide::First),
                "2" => ConflictAnswer::Side(TwoWaySide::Second),
                "b" => ConflictAnswer::Both,
                "s" => break,
                _ => continue,
            };
            answers.insert(conflict.path.clone(), answer);
            break;
        }
    }
    Ok(answers)
}

/// The next line that is typed; None at the end of input. Ctrl-C ends the wait: nothing has been done yet.
fn read_answer_line(flag: &AtomicBool) -> Result<Option<String>> {
    /// How often the program checks whether to stop: too short to be noticed.
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let input = std::io::stdin();
    loop {
        if interrupt::is_stop_requested(flag) {
            return Err(CliError::Stopped { resume: "nothing was done: run the command again".into() });
        }
        // A terminal hands over line by line, so that nothing waits in the buffer here.
        let mut polled = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut polled, Some(&LOOK)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => {
                let mut line = String::new();
                let count = input.read_line(&mut line).map_err(CliError::io_error("read", "the answer"))?;
                return Ok((count > 0).then_some(line));
            }
            Err(errno) => return Err(CliError::io_error("read", "the answer")(errno.into())),
        }
    }
}

fn format_question(conflict: &EntryConflict, sight: &TwoWayListings) -> String {
    let mut text = format!("'{}' was changed on both sides\n", format_path(&conflict.path));
    for (number, which) in ["1st", "2nd"].into_iter().zip(TwoWaySide::BOTH) {
        let entry = which
            .select_from(&conflict.entries)
            .and_then(|id| which.select_from(&sight.both_listings()).get(id));
        let Some(entry) = entry else { continue };
        let time =
            Timestamp::from_second(entry.mtime().secs).map(|time| time.strftime("%F %T UTC").to_string());
        // Files may have times that no calendar expresses.
        let time = time.unwrap_or_else(|_| entry.mtime().secs.to_string());
        let what = match entry.is_dir() {
            true => "a directory".into(),
            false => format!("{}, last changed {time}", format::format_size(entry.size())),
        };
        text += &format!("  {number}: {what}\n");
    }
    text
}
