//! What the page changes: planned first, so that a person sees what would be done, and carried out only if they confirm it and
//! if it would still do the same.
//!
//! The command line carries it out, the program that started this one: a mounted worktree and a plain directory are the same to
//! the page, hooks run, and every change is an operation that can be undone.
//!
//! Invariant: nothing that a request said becomes an option of a command, and no plan is carried out twice. Deliberately absent:
//! actions that discard what no snapshot has, and every `--force`.

mod approvals;
mod forgetting;
mod plan_table;
mod questions;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use vellum_types::SnapshotId;

pub use self::approvals::{answer_approval, approvals_json};
pub use self::forgetting::{ForgetQuestion, KeepRules};
use self::forgetting::{collect_planned, forget_planned, plan_collection, plan_forget};
use self::plan_table::{PLAN_TIME, PlanTable, TakenPlan};
pub use self::questions::{ActionQuestion, PlanKind, RestoreBody, parse_body};
use crate::command_line::CommandRunner;
use crate::plan_folder::{PlanFolder, draw_id};
use crate::planned_restore::{PlannedRestore, PlannedRestorePath, PlannedRestoreStep, RestoreQuestion};
use crate::web::answer::{Answer, ApiError, Freshness, json_answer};
use crate::web::api::{ApiState, WorktreePlace};
use crate::web::reports::{
    FindParameters, HealthPart, VerifyState, answer_find, answer_health, read_live, start_verify, verify_json,
};

/// How long a command may take. A restore that is cut off has to be begun again, so that only one that hangs is.
const COMMAND_TIME: Duration = Duration::from_secs(24 * 3600);
/// Most rows of a preview.
const ROWS_MAX: usize = 1000;

/// What a request asks the command line for.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandRequest {
    /// What an action would do; the body says which.
    Plan(PlanKind),
    /// To do what was planned.
    Run(String),
    /// The snapshots that are pinned.
    Pins,
    /// Names in snapshots.
    Find(FindParameters),
    /// How the volume is.
    Health(HealthPart),
    /// What its mounts do.
    Live,
    /// To verify; the body says how much.
    StartVerify,
    /// What was verified.
    Verify,
}

/// Where commands run.
#[derive(Debug, Clone)]
pub struct ActionSettings {
    /// The root of the worktree.
    pub worktree: PathBuf,
    /// The command line, of the same version.
    pub program: PathBuf,
    /// Whether the worktree is a mount.
    pub is_mounted: bool,
    /// Whether the page only shows.
    pub is_read_only: bool,
}

impl ActionSettings {
    /// What is told of the worktree.
    #[must_use]
    pub fn place(&self) -> WorktreePlace {
        WorktreePlace {
            root: self.worktree.display().to_string(),
            is_mounted: self.is_mounted,
            is_read_only: self.is_read_only,
        }
    }
}

/// What all actions use.
pub struct ActionState {
    settings: ActionSettings,
    commands: CommandRunner,
    folder: PlanFolder,
    plans: PlanTable<PlannedAction>,
    /// Held while something is changed: commands of one page follow one another.
    // Of tokio: the command is awaited while it is held.
    changing: tokio::sync::Mutex<()>,
    /// The verification of this process.
    pub verify: VerifyState,
}

/// An action that was planned.
enum PlannedAction {
    /// The command line checks that nothing has changed.
    Restore(PlannedRestore),
    /// Planned again, and carried out if the preview is the same.
    Command { question: ActionQuestion, preview: Value },
    /// Planned again, and these are forgotten if it would be the same ones.
    Forget { question: ForgetQuestion, forgotten: Value },
    /// The command line deletes only what is in this file.
    Collect(PathBuf),
}

/// The preview of a restore.
#[derive(Serialize)]
struct RestorePreviewJson<'a> {
    kind: &'static str,
    target: &'a str,
    directory: String,
    is_whole: bool,
    counts: StepCountsJson,
    steps: &'a [PlannedRestoreStep],
    step_count: usize,
    unsaved: &'a [PlannedRestorePath],
    unsaved_count: usize,
}

#[derive(Serialize, Default)]
struct StepCountsJson {
    create: usize,
    replace: usize,
    change: usize,
    delete: usize,
}

impl StepCountsJson {
    fn count(steps: &[PlannedRestoreStep]) -> Self {
        let of = |action: &str| steps.iter().filter(|step| step.action == action).count();
        Self { create: of("create"), replace: of("replace"), change: of("change"), delete: of("delete") }
    }
}

impl ActionState {
    /// For a worktree.
    #[must_use]
    pub fn new(settings: ActionSettings) -> Self {
        let commands = CommandRunner::new(settings.program.clone(), COMMAND_TIME);
        Self {
            settings,
            commands,
            folder: PlanFolder::default(),
            plans: PlanTable::default(),
            changing: tokio::sync::Mutex::default(),
            verify: VerifyState::default(),
        }
    }

    /// Waits until nothing is being changed.
    pub async fn finish_changes(&self) {
        let _alone = self.changing.lock().await;
    }

    /// Removes what plans have on the disk: none is carried out any more.
    pub fn remove_plan_files(&self) {
        self.folder.remove();
    }

    /// Whether the page only shows.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.settings.is_read_only
    }

    /// Runs a command in the worktree that answers in JSON.
    pub async fn run_command<W: Into<OsString>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Value, ApiError> {
        let words = words.into_iter().map(Into::into).collect();
        Ok(self.commands.run_for_json(&self.settings.worktree, words).await?)
    }

    async fn plan_restore(&self, asked: RestoreBody) -> Result<(PlannedAction, Value), ApiError> {
        let question = RestoreQuestion {
            id: draw_id()?,
            directory: self.settings.worktree.clone(),
            target: asked.target.to_string(),
            paths: asked.paths,
        };
        let planned = PlannedRestore::plan(&self.commands, &self.folder, question).await?;
        let RestoreQuestion { target, directory, paths, .. } = &planned.question;
        let preview = serde_json::to_value(RestorePreviewJson {
            kind: PlanKind::Restore.name(),
            target,
            directory: directory.display().to_string(),
            is_whole: paths.is_empty(),
            counts: StepCountsJson::count(&planned.steps),
            steps: first_rows(&planned.steps),
            step_count: planned.steps.len(),
            unsaved: first_rows(&planned.unsaved),
            unsaved_count: planned.unsaved.len(),
        })
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", error.to_string()))?;
        Ok((PlannedAction::Restore(planned), preview))
    }
}

/// Fails if the page only shows.
pub fn check_may_change(is_read_only: bool) -> Result<(), ApiError> {
    match is_read_only {
        false => Ok(()),
        true => Err(ApiError::new(StatusCode::FORBIDDEN, "denied", "this page only shows the volume")
            .with_hint("'vellum web' without --read-only, by the user whose directory it is, changes it")),
    }
}

fn changed_since() -> ApiError {
    let message = "something has changed since the preview was made";
    ApiError::new(StatusCode::CONFLICT, "conflict", message).with_hint("look at a new one")
}

fn first_rows<T>(rows: &[T]) -> &[T] {
    rows.get(..ROWS_MAX).unwrap_or(rows)
}

/// Answers what needs the command line. `api` and `actions` are those of the server.
pub async fn answer_command(
    api: &Arc<ApiState>,
    actions: &Arc<ActionState>,
    asked: CommandRequest,
    body: &[u8],
) -> Result<Answer, ApiError> {
    match asked {
        CommandRequest::Plan(kind) => plan_action(api, actions, kind, body).await,
        CommandRequest::Run(id) => run_plan(api, actions, &id, body).await,
        CommandRequest::Pins => {
            let mut pins = actions.run_command(["pins"]).await?;
            json_answer(&json!({ "snapshots": pins["snapshots"].take() }), &Freshness::Now)
        }
        CommandRequest::Find(asked) => answer_find(actions, &asked).await,
        CommandRequest::Health(part) => answer_health(actions, part).await,
        CommandRequest::Live => {
            let live = read_live(actions, &api.volume.describe_store()).await?;
            json_answer(&live, &Freshness::Now)
        }
        CommandRequest::StartVerify => start_verify(actions, body),
        CommandRequest::Verify => json_answer(&verify_json(actions), &Freshness::Now),
    }
}

async fn plan_action(
    api: &Arc<ApiState>,
    actions: &Arc<ActionState>,
    kind: PlanKind,
    body: &[u8],
) -> Result<Answer, ApiError> {
    check_may_change(actions.is_read_only())?;
    let planned = match kind {
        PlanKind::Restore => {
            let asked = RestoreBody::parse(body)?;
            // The command would take a part of an id, too, and say that there is none in other words.
            find_snapshot(api, asked.target).await?;
            actions.plan_restore(asked).await?
        }
        PlanKind::Forget => {
            let question = ForgetQuestion::parse(body)?;
            if let ForgetQuestion::Named(ids) = &question {
                for id in ids {
                    find_snapshot(api, *id).await?;
                }
            }
            plan_forget(actions, question).await?
        }
        PlanKind::Gc => plan_collection(actions, body).await?,
        PlanKind::Fork
        | PlanKind::Tag
        | PlanKind::Untag
        | PlanKind::Pin
        | PlanKind::Unpin
        | PlanKind::Note => {
            let question = ActionQuestion::parse(kind, body)?;
            let preview = preview_question(api, actions, question.clone()).await?;
            (PlannedAction::Command { question, preview: preview.clone() }, preview)
        }
    };
    let mut answer = planned.1;
    answer["plan"] = json!(actions.plans.add(planned.0, Instant::now())?);
    answer["expires_in"] = json!(PLAN_TIME.as_secs());
    json_answer(&answer, &Freshness::Now)
}

async fn find_snapshot(api: &Arc<ApiState>, id: SnapshotId) -> Result<(), ApiError> {
    let api = Arc::clone(api);
    run_on_thread(move || Ok(api.volume.find_snapshot(id).map(drop)?)).await
}

async fn preview_question(
    api: &Arc<ApiState>,
    actions: &Arc<ActionState>,
    question: ActionQuestion,
) -> Result<Value, ApiError> {
    let api = Arc::clone(api);
    let actions = Arc::clone(actions);
    run_on_thread(move || question.preview(&api.volume, &actions.settings)).await
}

/// Reads from the volume on a thread that may wait.
async fn run_on_thread<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // This fails only if the thread panicked, or the server is ending.
    let failed =
        |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", "the request could not be carried out");
    tokio::task::spawn_blocking(read).await.map_err(failed)?
}

async fn run_plan(
    api: &Arc<ApiState>,
    actions: &Arc<ActionState>,
    id: &str,
    body: &[u8],
) -> Result<Answer, ApiError> {
    check_may_change(actions.is_read_only())?;
    parse_body::<questions::EmptyBody>(body)?;
    let planned = match actions.plans.take(id, Instant::now()) {
        TakenPlan::Granted(planned) => planned,
        TakenPlan::Used => {
            return Err(ApiError::new(StatusCode::CONFLICT, "conflict", "this was carried out already"));
        }
        TakenPlan::Expired => {
            let message = "this preview is older than ten minutes";
            return Err(ApiError::new(StatusCode::GONE, "not_found", message).with_hint("look at a new one"));
        }
        TakenPlan::Unknown => {
            return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such plan"));
        }
    };
    let api = Arc::clone(api);
    let actions = Arc::clone(actions);
    // On its own: a page that is closed meanwhile must not stop a restore in the middle.
    let running = tokio::spawn(async move {
        let _alone = actions.changing.lock().await;
        carry_out(&api, &actions, planned).await
    });
    let failed =
        |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", "the action could not be carried out");
    json_answer(&json!({ "result": running.await.map_err(failed)?? }), &Freshness::Now)
}

async fn carry_out(
    api: &Arc<ApiState>,
    actions: &Arc<ActionState>,
    planned: PlannedAction,
) -> Result<Value, ApiError> {
    match planned {
        PlannedAction::Restore(restore) => Ok(restore.carry_out(&actions.commands).await?),
        PlannedAction::Command { question, preview } => {
            if preview_question(api, actions, question.clone()).await? != preview {
                return Err(changed_since());
            }
            actions.run_command(question.words(actions.settings.is_mounted)).await
        }
        PlannedAction::Forget { question, forgotten } => forget_planned(actions, &question, &forgotten).await,
        PlannedAction::Collect(file) => collect_planned(actions, &file).await,
    }
}
