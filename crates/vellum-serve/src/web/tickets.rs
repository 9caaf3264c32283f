//! Tickets with which a browser downloads a file: a link cannot show the token.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::web::route::PathInSnapshot;

/// How long a ticket holds.
const TICKET_TIME: Duration = Duration::from_secs(60);
/// Most tickets at once: the oldest goes first.
const TICKETS_MAX: usize = 1024;

/// What became of a ticket.
#[derive(Debug, PartialEq, Eq)]
pub enum TicketUse {
    /// It was good for this, once.
    Granted(PathInSnapshot),
    /// It was used already, is too old, or was never given out.
    Gone,
}

/// The tickets that were given out.
#[derive(Default)]
pub struct TicketBox {
    tickets: Mutex<HashMap<String, (PathInSnapshot, Instant)>>,
}

impl TicketBox {
    /// A ticket for one file, for a minute, for one use. None: the system has no random bytes.
    pub fn issue(&self, place: PathInSnapshot) -> Option<String> {
        // 192 bits: nobody guesses one within its minute.
        let mut bytes = [0; 24];
        getrandom::fill(&mut bytes).ok()?;
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        let now = Instant::now();
        let mut tickets = self.tickets.lock();
        // Here and by no timer: tickets take memory only when some are issued.
        tickets.retain(|_, (_, issued)| now.duration_since(*issued) < TICKET_TIME);
        // Only a client that asks for so many within a minute comes here, so that no order of the tickets is kept.
        if tickets.len() >= TICKETS_MAX
            && let Some(oldest) =
                tickets.iter().min_by_key(|(_, (_, issued))| *issued).map(|(ticket, _)| ticket.clone())
        {
            tickets.remove(&oldest);
        }
        tickets.insert(text.clone(), (place, now));
        Some(text)
    }

    /// Uses a ticket up.
    pub fn redeem(&self, ticket: &str, now: Instant) -> TicketUse {
        // Removed in the same step, so that of two requests with one ticket only one is answered. A link stays in the
        // history of the browser, and must not work from there.
        match self.tickets.lock().remove(ticket) {
            Some((place, issued)) if now.saturating_duration_since(issued) < TICKET_TIME => {
                TicketUse::Granted(place)
            }
            Some(_) | None => TicketUse::Gone,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once_and_for_a_minute() {
        let tickets = TicketBox::default();
        let id = "00".repeat(32).parse().unwrap();
        let place = PathInSnapshot { snapshot: id, path: b"a".to_vec() };
        let now = Instant::now();
        let ticket = tickets.issue(place.clone()).unwrap();
        assert_eq!(tickets.redeem(&ticket, now), TicketUse::Granted(place.clone()));
        assert_eq!(tickets.redeem(&ticket, now), TicketUse::Gone);
        let late = tickets.issue(place.clone()).unwrap();
        assert_eq!(tickets.redeem(&late, Instant::now() + TICKET_TIME), TicketUse::Gone);
        let first = tickets.issue(place.clone()).unwrap();
        (0..TICKETS_MAX).for_each(|_| assert!(tickets.issue(place.clone()).is_some()));
        assert_eq!(tickets.redeem(&first, now), TicketUse::Gone);
    }
}
