//! Plans that wait for a person.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::command_line::CommandResult;
use crate::plan_folder::draw_id;

/// How long a plan may wait.
pub const PLAN_TIME: Duration = Duration::from_secs(600);
/// Most plans at once, with those that were used: the oldest goes first.
const PLANS_MAX: usize = 64;

/// What became of a plan.
#[derive(Debug, PartialEq, Eq)]
pub enum TakenPlan<T> {
    /// It is the caller's to carry out, once.
    Granted(T),
    /// It was taken before.
    Used,
    /// It is too old.
    Expired,
    /// There is no such plan, or it was long ago.
    Unknown,
}

/// Plans by id.
pub struct PlanTable<T> {
    plans: Mutex<Vec<WaitingPlan<T>>>,
}

struct WaitingPlan<T> {
    id: String,
    made: Instant,
    /// None: it was taken.
    plan: Option<T>,
}

impl<T> Default for PlanTable<T> {
    fn default() -> Self {
        Self { plans: Mutex::default() }
    }
}

impl<T> PlanTable<T> {
    /// Keeps a plan. Returns its id.
    pub fn add(&self, plan: T, now: Instant) -> CommandResult<String> {
        let id = draw_id()?;
        let mut plans = self.plans.lock();
        if plans.len() >= PLANS_MAX {
            plans.remove(0);
        }
        plans.push(WaitingPlan { id: id.clone(), made: now, plan: Some(plan) });
        Ok(id)
    }

    /// Takes a plan out. Of two requests with one id, only one gets it.
    pub fn take(&self, id: &str, now: Instant) -> TakenPlan<T> {
        let mut plans = self.plans.lock();
        let Some(found) = plans.iter_mut().find(|plan| plan.id == id) else { return TakenPlan::Unknown };
        let is_old = now.saturating_duration_since(found.made) >= PLAN_TIME;
        match found.plan.take() {
            None => TakenPlan::Used,
            // Put back, so that it stays too old instead of used.
            Some(plan) if is_old => {
                found.plan = Some(plan);
                TakenPlan::Expired
            }
            Some(plan) => TakenPlan::Granted(plan),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_carried_out_once_and_within_its_time() {
        let table = PlanTable::default();
        let now = Instant::now();
        let id = table.add(1, now).unwrap();
        assert_eq!(table.take(&id, now), TakenPlan::Granted(1));
        assert_eq!(table.take(&id, now), TakenPlan::Used);
        let late = table.add(2, now).unwrap();
        assert_eq!(table.take(&late, now + PLAN_TIME), TakenPlan::Expired);
        assert_eq!(table.take(&late, now + PLAN_TIME), TakenPlan::Expired);
        assert_eq!(table.take("0", now), TakenPlan::Unknown);
        (0..PLANS_MAX).for_each(|plan| drop(table.add(plan, now).unwrap()));
        assert_eq!(table.take(&id, now), TakenPlan::Unknown);
    }
}
