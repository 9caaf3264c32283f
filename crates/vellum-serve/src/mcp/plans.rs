//! Restores: planned first, and carried out only as planned; in the worktree of the user, only with a person's approval.
//!
//! Three ways lead to an approval: the client shows a form with a code that stands in no answer of a tool, and a person types it;
//! a person runs `vellum approve` on a terminal; or the server was started with `--allow restore`. An answer of the client that
//! comes faster than a person reads counts as nobody's.
//!
//! Invariant: a plan is carried out at most once, and only if planning it again gives the same plan.

mod approving;
mod folder;

use std::ffi::OsString;
use std::path::PathBuf;
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

pub use folder::PlanFolder;

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
    directory: PathBuf,
    target: String,
    paths: Vec<String>,
    how: PlannedWay,
    steps: Vec<(String, String)>,
    unsaved: u64,
    deadline: Instant,
    /// The question that was put to a person.
    request: Option<ApprovalRequest>,
    /// How often the client was asked.
    forms: u32,
}

/// How a plan is made sure of when it is carried out.
#[derive(Clone)]
enum PlannedWay {
    /// A file of 'vellum restore --plan', which checks everything itself.
    SavedPlan(PathBuf),
    /// In a mount: what would change, to be the same again.
    SameChanges(Value),
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
        let id = folder::draw_id()?;
        let mut plan = RestorePlan {
            id,
            is_own_fork: asked.fork.is_some(),
            directory,
            target,
            paths: asked.paths,
            // Both ways of planning below replace it.
            how: PlannedWay::SameChanges(Value::Null),
            steps: Vec::new(),
            unsaved: 0,
            deadline: Instant::now() + PLAN_TIME,
            request: None,
            forms: 0,
        };
        // Forks are plain directories, whatever the worktree is.
        match self.settings.is_mounted && !plan.is_own_fork {
            true => self.plan_in_mount(&mut plan).await?,
            false => self.plan_in_directory(&mut plan).await?,
        }
        let answer = describe_plan(&plan);
        self.plans.add(plan);
        Ok(answer)
    }

    async fn plan_in_directory(&self, plan: &mut RestorePlan) -> ToolResult<()> {
        let file = self.plan_folder.file(&plan.id)?;
        let mut option = OsString::from("--plan=");
        option.push(&file);
        let words = plan.words([OsString::from("restore"), option]);
        let planned = self.command_line.run_for_json(&plan.directory, words).await?;
        plan.steps = read_steps(&planned["steps"], |step| step["action"].as_str());
        plan.unsaved = planned["unsaved"].as_array().map_or(0, |unsaved| unsaved.len() as u64);
        plan.how = PlannedWay::SavedPlan(file);
        Ok(())
    }

    async fn plan_in_mount(&self, plan: &mut RestorePlan) -> ToolResult<()> {
        let changes = self.list_mount_changes(plan).await?;
        // Nearly in the words of a directory's plan, which knows no renaming.
        plan.steps = read_steps(&changes, |change| match change["change"].as_str() {
            Some("added") => Some("create"),
            Some("deleted") => Some("delete"),
            Some("renamed") => Some("rename"),
            Some(_) | None => Some("replace"),
        });
        let status = self.command_line.run_for_json(&plan.directory, vec!["status".into()]).await?;
        plan.unsaved = status["changes"].as_array().map_or(0, |changes| changes.len() as u64);
        plan.how = PlannedWay::SameChanges(changes);
        Ok(())
    }

    async fn list_mount_changes(&self, plan: &RestorePlan) -> ToolResult<Value> {
        let words = plan.words(["restore", "--dry-run"].map(OsString::from));
        let mut planned = self.command_line.run_for_json(&plan.directory, words).await?;
        Ok(planned["changes"].take())
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
        self.carry_out(&plan).await
    }

    async fn carry_out(&self, plan: &RestorePlan) -> ToolResult<Value> {
        let words = match &plan.how {
            PlannedWay::SavedPlan(file) => {
                let mut option = OsString::from("--run=");
                option.push(file);
                vec![OsString::from("restore"), option]
            }
            PlannedWay::SameChanges(planned) => {
                // A mount writes no plan files, so the comparison is made here. What is changed between it and the restore is in
                // the safety snapshot.
                if self.list_mount_changes(plan).await? != *planned {
                    return Err(ToolError::new("conflict", "something has changed since the plan was made")
                        .with_hint("'restore_plan' makes another one"));
                }
                plan.words([OsString::from("restore")])
            }
        };
        let mut done = self.command_line.run_for_json(&plan.directory, words).await?;
        let mut answer = json!({ "status": "restored" });
        for field in ["target", "safety", "written", "deleted", "problems"] {
            answer[field] = done[field].take();
        }
        Ok(answer)
    }
}

impl RestorePlan {
    /// The words of a command about the snapshot and the paths: what a client said stands behind '--'.
    fn words(&self, command: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let named = [OsString::from("--"), OsString::from(&self.target)];
        command.into_iter().chain(named).chain(self.paths.iter().map(OsString::from)).collect()
    }
}

fn read_steps<'a>(list: &'a Value, action: impl Fn(&'a Value) -> Option<&'a str>) -> Vec<(String, String)> {
    let read = |step: &'a Value| {
        (action(step).unwrap_or("change").to_owned(), step["path"].as_str().unwrap_or_default().to_owned())
    };
    list.as_array().into_iter().flatten().map(read).collect()
}

fn describe_plan(plan: &RestorePlan) -> Value {
    let step = |(action, path): &(String, String)| json!({ "action": action, "path": path });
    let mut steps = Value::Array(plan.steps.iter().map(step).collect());
    let truncated = cut_rows(&mut steps);
    json!({
        "plan": plan.id,
        "target": plan.target,
        "directory": plan.directory.display().to_string(),
        "step_count": plan.steps.len(),
        "steps": steps,
        "unsaved": plan.unsaved,
        "truncated": truncated,
    })
}
