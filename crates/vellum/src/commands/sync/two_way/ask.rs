//! Asking who wins.
//!
//! Invariant: while the user is asked nothing has been done; Ctrl-C then leaves both sides as they are.

use jiff::Timestamp;
use vellum_host::escape::format_path;
use vellum_sync::two_way::{
    ConflictAnswer, ConflictAnswers, EntryConflict, TwoWayListings, TwoWayPlan, TwoWaySide,
};

use crate::context::CommandContext;
use crate::error::Result;
use crate::interrupt;
use crate::ui::answer::read_answer_line;
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
                // No answer leaves the conflict open: both versions stay as they are, and the next run asks again.
                "s" => break,
                _ => continue,
            };
            answers.insert(conflict.path.clone(), answer);
            break;
        }
    }
    Ok(answers)
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
