//! Answers that a user types.

use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{CliError, Result};
use crate::interrupt;

/// The next line that is typed; None at the end of input. Ctrl-C ends the wait: nothing has been done yet.
pub fn read_answer_line(flag: &AtomicBool) -> Result<Option<String>> {
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
