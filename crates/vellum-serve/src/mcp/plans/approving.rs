//! Asking a person.

use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema};
use rmcp::service::{ElicitationMode, Peer};
use serde_json::{Value, json};
use vellum_host::escape::format_path;
use vellum_library::{ApprovalAnswer, ApprovalRequest, ApprovalStep};

use super::{APPROVAL_TIME, RestorePlan, no_such_plan};
use crate::mcp::answer::{ToolError, ToolResult};
use crate::mcp::connection::SharedTools;
use crate::planned_restore::{PlannedRestore, PlannedRestoreStep};

/// A person reads and types for longer than this. What comes faster was answered by a program.
const PERSON_TIME: Duration = Duration::from_millis(300);
/// How long a form waits for its answer.
const FORM_TIME: Duration = Duration::from_secs(300);
/// How often a client is asked about one plan: nobody gets more guesses at the code.
const FORMS_MAX: u32 = 3;
/// Steps that a form shows.
const FORM_STEPS: usize = 12;
/// Steps that a request shows.
const REQUEST_STEPS: usize = 500;

impl SharedTools {
    /// None: the plan may be carried out. Otherwise what the tool answers instead.
    pub(super) async fn ask_for_approval(
        &self,
        plan: &RestorePlan,
        client: &str,
        peer: &Peer<RoleServer>,
    ) -> ToolResult<Option<Value>> {
        let approvals = self.volume.approvals();
        // The same one that was written: the answer has a hash of it, with the time at which it expires.
        let request = plan.request.clone().unwrap_or_else(|| build_request(plan, client));
        // First of all: a person may have answered on a terminal since the last call.
        match approvals.take_answer(&request) {
            Some(ApprovalAnswer::Approved) => return Ok(None),
            Some(ApprovalAnswer::Refused) => {
                // A plan that was refused is not asked for again.
                self.plans.take(&plan.id).map(drop)?;
                approvals.remove_request(&plan.id);
                return Err(ToolError::new("denied", "a person has refused this restore"));
            }
            None => {}
        }
        if self.ask_client(plan, client, peer).await? {
            return Ok(None);
        }
        // Written once: a second one would expire at another time, and an answer to the first would fit no longer.
        if plan.request.is_none() {
            approvals.write_request(&request)?;
            self.plans.change(&plan.id, |plan| {
                plan.deadline = Instant::now() + APPROVAL_TIME;
                plan.request = Some(request);
            });
        }
        let directory = format_path(plan.restore.question.directory.as_os_str().as_encoded_bytes());
        Ok(Some(json!({
            "status": "pending",
            "message": "A person has to approve this restore. Show them the command; when they have run it, call 'restore' again.",
            "command": format!("vellum -C {} approve {}", quote_word(&directory), plan.id),
        })))
    }

    /// Whether a person has typed the code into a form of the client.
    async fn ask_client(
        &self,
        plan: &RestorePlan,
        client: &str,
        peer: &Peer<RoleServer>,
    ) -> ToolResult<bool> {
        if !peer.supported_elicitation_modes().contains(&ElicitationMode::Form) {
            return Ok(false);
        }
        let mut is_asked = false;
        // Counted under the lock: calls at the same time share the tries.
        self.plans.change(&plan.id, |plan| {
            is_asked = plan.forms < FORMS_MAX;
            plan.forms += 1;
        });
        if !is_asked {
            return Ok(false);
        }
        let code = draw_code()?;
        let schema = ElicitationSchema::builder()
            .required_string_with("code", |field| field.title("Code").description("The six digits above"))
            .build()
            .map_err(|_| no_such_plan())?;
        let message = describe_for_person(plan, client, &code);
        let form =
            ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema: schema };
        let begin = Instant::now();
        // A client that cannot ask, or whose person does not answer, is as one that has nobody.
        let answer = peer.create_elicitation_with_timeout(form, Some(FORM_TIME)).await;
        Ok(answer.is_ok_and(|answer| is_approved(&answer, &code, begin.elapsed())))
    }
}

fn is_approved(answer: &ElicitResult, code: &str, waited: Duration) -> bool {
    let typed = answer.content.as_ref().and_then(|content| content["code"].as_str());
    answer.action == ElicitationAction::Accept
        && waited >= PERSON_TIME
        // Whoever copies the code may copy blanks with it.
        && typed.is_some_and(|typed| typed.trim() == code)
}

/// What a person is told. Names are shown in one line each, whatever they contain.
fn describe_for_person(plan: &RestorePlan, client: &str, code: &str) -> String {
    let directory = format_path(plan.restore.question.directory.as_os_str().as_encoded_bytes());
    let target = plan.restore.question.target.get(..8).unwrap_or_default();
    let mut text = format!("{client} wants to restore {directory} from the snapshot {target}:\n");
    let steps = &plan.restore.steps;
    for step in steps.iter().take(FORM_STEPS) {
        text.push_str(&format!("  {} {}\n", step.action, format_path(step.path.path.as_bytes())));
    }
    if steps.len() > FORM_STEPS {
        text.push_str(&format!("  and {} more\n", steps.len() - FORM_STEPS));
    }
    text.push_str(&format!(
        "{} paths have content that no snapshot has; it is saved first.\nType {code} to approve this.",
        plan.restore.unsaved.len()
    ));
    text
}

fn build_request(plan: &RestorePlan, client: &str) -> ApprovalRequest {
    let PlannedRestore { question, steps, unsaved, .. } = &plan.restore;
    let directory = question.directory.display().to_string();
    let mut request =
        ApprovalRequest::new(plan.id.clone(), client.into(), directory, question.target.clone());
    let step =
        |step: &PlannedRestoreStep| ApprovalStep { action: step.action.into(), path: step.path.path.clone() };
    request.paths = question.paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    request.steps = steps.iter().take(REQUEST_STEPS).map(step).collect();
    request.step_count = steps.len() as u64;
    request.unsaved = unsaved.len() as u64;
    request
}

/// Six digits.
fn draw_code() -> ToolResult<String> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|_| ToolError::new("io", "the system has no random bytes"))?;
    // 2^32 is 4,294 times a million and some: no code is noticeably more frequent than another.
    Ok(format!("{:06}", u32::from_le_bytes(bytes) % 1_000_000))
}

/// A word as a shell takes it.
fn quote_word(word: &str) -> String {
    let is_plain = |symbol: char| symbol.is_ascii_alphanumeric() || "/._-".contains(symbol);
    match word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_person_with_the_code_approves() {
        let accept = |content: Value| ElicitResult::new(ElicitationAction::Accept).with_content(content);
        let right = accept(json!({ "code": " 123456 " }));
        let slow = Duration::from_secs(1);
        assert!(is_approved(&right, "123456", slow));
        // A client that accepts everything by itself.
        assert!(!is_approved(&right, "123456", Duration::from_millis(5)));
        for wrong in
            [json!({ "code": "123457" }), json!({ "code": 123456 }), json!({ "confirm": true }), json!(null)]
        {
            assert!(!is_approved(&accept(wrong), "123456", slow));
        }
        assert!(!is_approved(&ElicitResult::new(ElicitationAction::Accept), "123456", slow));
        for action in [ElicitationAction::Decline, ElicitationAction::Cancel] {
            let answer = ElicitResult::new(action).with_content(json!({ "code": "123456" }));
            assert!(!is_approved(&answer, "123456", slow));
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quote_word("/srv/a-b_c.d"), "/srv/a-b_c.d");
        assert_eq!(quote_word("/a b/it's"), "'/a b/it'\\''s'");
    }
}
