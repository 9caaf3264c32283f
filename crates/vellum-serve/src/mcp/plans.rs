//! Restores: planned first, and carried out only as planned; in the worktree of the user, only with a person's approval.
//!
//! Three ways lead to an approval: the client shows a form with a code that stands in no answer of a tool, and a person types it;
//! a person runs `vellum approve` on a terminal; or the server was started with `--allow restore`. An answer of the client that
//! comes faster than a person reads counts as nobody's.
//!
//! Invariant: a plan is carried out at most once, and only if planning it again gives the same plan.

mod approving;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::service::Peer;
use serde_json::{Value, json};
use vellum_library::ApprovalRequest;

use super::answer::{ToolError, ToolResult};
use super::arguments::{RestoreArguments, RestorePlanArguments, check_tool_paths};
use super::connection::SharedTools;
use super::reading::cut_rows;
use crate::plan_folder::draw_id;
use crate::planned_restore::{PlannedRestore, PlannedRestoreStep, RestoreQuestion};

/// How long a plan may wait until it is first called for.
const PLAN_TIME: Duration = Duration::from_secs(600);
/// How long it waits after that: for the answer, and for the call after the answer.
const APPROVAL_TIME: Duration = Duration::from_secs(1200);
/// Most plans at once: the oldest goes first.
const PLANS_MAX: usize = 16;

/// The plans of a connection.
#[derive(Default)]
pub struct PlanShelf {
    plans: Mutex<Vec<RestorePlan>>,
}

/// A restore that was planned.
#[derive(Clone)]
struct RestorePlan {
    id: String,
    /// Whether it is of a fork that this connection made.
    is_own_fork: bool,
    restore: PlannedRestore,
    deadline: Instant,
    /// The question that was put to a person.
    request: Option<ApprovalRequest>,
    /// How often the client was asked.
    forms: u32,
}

impl PlanShelf {
    fn add(&self, plan: RestorePlan) {
        let mut plans = self.plans.lock();
        // Here and by no timer: until then, `find` passes over plans that are too old.
        plans.retain(|plan| Instant::now() < plan.deadline);
        if plans.len() >= PLANS_MAX {
            plans.remove(0);
        }
        plans.push(plan);
    }

    fn find(&self, id: &str) -> ToolResult<RestorePlan> {
        let plans = self.plans.lock();
        let found = plans.iter().find(|plan| plan.id == id && Instant::now() < plan.deadline);
        found.cloned().ok_or_else(no_such_plan)
    }

    /// Whoever takes a plan may carry it out; nobody else can then.
    fn take(&self, id: &str) -> ToolResult<RestorePlan> {
        let mut plans = self.plans.lock();
        // `find` has looked at the time. An approval for which a person took long counts all the same.
        let place = plans.iter().position(|plan| plan.id == id).ok_or_else(no_such_plan)?;
        Ok(plans.remove(place))
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut RestorePlan)) {
        self.plans.lock().iter_mut().find(|plan| plan.id == id).map(change);
    }
}

fn no_such_plan() -> ToolError {
    ToolError::new(
        "not_found",
        "there is no such plan: it was carried out, refused, is too old, or was never made",
    )
    .with_hint("'restore_plan' makes one")
}

impl SharedTools {
    /// Says what a restore would do.
    pub async fn plan_restore(&self, asked: RestorePlanArguments) -> ToolResult<Value> {
        check_tool_paths(&asked.paths)?;
        let target = self.resolve_snapshot(Some(&asked.to)).await?.to_string();
        let directory = match &asked.fork {
            None => self.settings.worktree.clone(),
            // By the name of a fork that this connection made, never by a path: no other directory can be named.
            Some(name) => self
                .forks
                .lock()
                .get(name)
                .cloned()
                .ok_or_else(|| ToolError::new("denied", "this connection has made no such fork"))?,
        };
        let question = RestoreQuestion {
            id: draw_id()?,
            directory,
            target,
            paths: asked.paths.iter().map(OsString::from).collect(),
        };
        let id = question.id.clone();
        let restore = PlannedRestore::plan(&self.command_line, &self.plan_folder, question).await?;
        let plan = RestorePlan {
            id,
            is_own_fork: asked.fork.is_some(),
            restore,
            deadline: Instant::now() + PLAN_TIME,
            request: None,
            forms: 0,
        };
        let answer = describe_plan(&plan);
        self.plans.add(plan);
        Ok(answer)
    }

    /// Carries a plan out, or says what it waits for.
    pub async fn restore(
        &self,
        asked: RestoreArguments,
        client: &str,
        peer: &Peer<RoleServer>,
    ) -> ToolResult<Value> {
        let plan = self.plans.find(&asked.plan)?;
        if !plan.is_own_fork
            && !self.settings.allow_restore
            && let Some(answer) = self.ask_for_approval(&plan, client, peer).await?
        {
            return Ok(answer);
        }
        // Only now: a plan that waits for a person can be called again. Of two calls at once, one finds it gone.
        let plan = self.plans.take(&asked.plan)?;
        // Nobody is to be asked any more about what is carried out.
        self.volume.approvals().remove_request(&plan.id);
        let hint = |failure: ToolError| match failure.code == "conflict" && failure.hint.is_none() {
            true => failure.with_hint("'restore_plan' makes another one"),
            false => failure,
        };
        plan.restore.carry_out(&self.command_line).await.map_err(|failure| hint(failure.into()))
    }
}

fn describe_plan(plan: &RestorePlan) -> Value {
    let PlannedRestore { question, steps, unsaved, .. } = &plan.restore;
    let step = |step: &PlannedRestoreStep| json!({ "action": step.action, "path": step.path.path });
    let mut rows = Value::Array(steps.iter().map(step).collect());
    let truncated = cut_rows(&mut rows);
    json!({
        "plan": plan.id,
        "target": question.target,
        "directory": question.directory.display().to_string(),
        "step_count": steps.len(),
        "steps": rows,
        "unsaved": unsaved.len(),
        "truncated": truncated,
    })
}
