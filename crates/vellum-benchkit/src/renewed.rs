//! A state that grows with each operation, made anew before it grows too large.
//!
//! Invariant: making and dropping a state is never in the figure. Without it a bench that appends would write as many
//! gigabytes as the machine is fast.

use std::time::Duration;

/// Something that takes a number of operations and is replaced then.
pub struct RenewedFixture<S, F> {
    make: F,
    limit: u64,
    held: Option<(S, u64)>,
}

impl<S, F: FnMut() -> S> RenewedFixture<S, F> {
    /// States that `make` makes, each for at most `limit` operations.
    pub fn new(limit: u64, make: F) -> Self {
        Self { make, limit, held: None }
    }

    /// Does something so many times, each with the number of operations that its state has behind it. What it takes is
    /// measured by `clock`, for example [`crate::measure_wall_time`].
    pub fn measure_operations(
        &mut self,
        times: u64,
        clock: impl Fn(&mut dyn FnMut()) -> Duration,
        mut each: impl FnMut(&mut S, u64),
    ) -> Duration {
        let mut left = times;
        let mut took = Duration::ZERO;
        while left > 0 {
            if self.held.as_ref().is_none_or(|(_, done)| *done >= self.limit) {
                // The old one goes first: two at once would take twice the room.
                self.held = None;
                self.held = Some(((self.make)(), 0));
            }
            // It was made above, which the type does not say.
            let Some((state, done)) = &mut self.held else { break };
            let now = left.min(self.limit - *done);
            let numbers = *done..*done + now;
            took += clock(&mut || numbers.clone().for_each(|number| each(state, number)));
            *done += now;
            left -= now;
        }
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_state_takes_more_than_its_limit_and_nothing_is_left_out() {
        let mut made = 0;
        let mut seen = Vec::new();
        let clock = |work: &mut dyn FnMut()| {
            work();
            Duration::from_secs(1)
        };
        let mut renewed = RenewedFixture::new(3, || {
            made += 1;
            made
        });
        let first = renewed.measure_operations(2, clock, |state, number| seen.push((*state, number)));
        let second = renewed.measure_operations(5, clock, |state, number| seen.push((*state, number)));
        assert_eq!(seen, [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0)]);
        assert_eq!((first, second), (Duration::from_secs(1), Duration::from_secs(3)));
    }
}
