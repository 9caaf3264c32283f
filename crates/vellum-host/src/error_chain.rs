//! Error messages with their causes.
//!
//! Invariant: each cause occurs once. Deliberately absent: hints and kinds, which the error types of each crate
//! provide.

use std::error::Error;

/// Returns the message of an error and those of its causes, in one line.
#[must_use]
pub fn format_error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some errors, also in libraries, repeat their cause in their own message.
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the file cannot be read")]
    struct UnreadableError(#[source] RepeatingError);

    #[derive(Debug, thiserror::Error)]
    #[error("reading failed: {0}")]
    struct RepeatingError(#[source] std::io::Error);

    #[test]
    fn each_cause_is_named_once() {
        let error = UnreadableError(RepeatingError(std::io::Error::other("no answer")));
        assert_eq!(format_error_chain(&error), "the file cannot be read: reading failed: no answer");
    }
}
