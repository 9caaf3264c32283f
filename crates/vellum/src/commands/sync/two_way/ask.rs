//! Asking who wins.

use std::io::BufRead;

use jiff::Timestamp;
use vellum_sync::two_way::{Answer, Answers, Conflict, Sight, TwoWayPlan, Which};
use vellum_volume::tree::show;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::ui::format;

/// Asks about every conflict that waits for an answer; what is skipped has none.
pub fn ask(plan: &TwoWayPlan, sight: &Sight, context: &Context) -> Result<Answers> {
    let mut answers = Answers::new();
    let mut lines = std::io::stdin().lock().lines();
    for conflict in plan.open() {
        context.ui.prompt(&question(conflict, sight))?;
        loop {
            context.ui.prompt("keep the [1]st, the [2]nd, [b]oth, or [s]kip? ")?;
            // The end of input skips all that is left.
            let Some(line) = lines.next() else { return Ok(answers) };
            let line = line.map_err(CliError::io("read", "the answer"))?;
            let answer = match line.trim() {
                "1" => Answer::Side(Which::First),
                "2" => Answer::Side(Which::Second),
                "b" => Answer::Both,
                "s" => break,
                _ => continue,
            };
            answers.insert(conflict.path.clone(), answer);
            break;
        }
    }
    Ok(answers)
}

fn question(conflict: &Conflict, sight: &Sight) -> String {
    let mut text = format!("'{}' was changed on both sides\n", show(&conflict.path));
    for (number, which) in ["1st", "2nd"].into_iter().zip(Which::BOTH) {
        let entry = which.of(&conflict.entries).and_then(|id| which.of(&sight.both()).get(id));
        let Some(entry) = entry else { continue };
        let time =
            Timestamp::from_second(entry.mtime().secs).map(|time| time.strftime("%F %T UTC").to_string());
        let time = time.unwrap_or_else(|_| entry.mtime().secs.to_string());
        let what = match entry.is_dir() {
            true => "a directory".into(),
            false => format!("{}, last changed {time}", format::size(entry.size())),
        };
        text += &format!("  {number}: {what}\n");
    }
    text
}
