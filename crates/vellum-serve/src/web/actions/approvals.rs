//! What agents ask for, shown to the person at the page, and answered by them.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vellum_library::{ApprovalAnswer, ApprovalRequest};

use super::questions::parse_body;
use crate::web::answer::{Answer, ApiError, Freshness, json_answer};
use crate::web::api::ApiState;

#[derive(Serialize)]
struct ShownRequestJson {
    #[serde(flatten)]
    request: ApprovalRequest,
    /// Of what is shown: the answer has it, too.
    check: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalAnswerBody {
    answer: PersonAnswer,
    check: String,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum PersonAnswer {
    Approved,
    Refused,
}

#[derive(Serialize)]
struct AnsweredJson {
    id: String,
}

/// The requests that wait.
pub fn approvals_json(state: &ApiState) -> Result<Value, ApiError> {
    let shown = |request: ApprovalRequest| ShownRequestJson { check: compute_check(&request), request };
    let requests: Vec<_> = state.volume.approvals().list_requests()?.into_iter().map(shown).collect();
    Ok(json!({ "requests": requests }))
}

/// Records what the person said.
pub fn answer_approval(state: &ApiState, id: &str, body: &[u8]) -> Result<Answer, ApiError> {
    let ApprovalAnswerBody { answer, check } = parse_body(body)?;
    let approvals = state.volume.approvals();
    let found = approvals.list_requests()?.into_iter().find(|request| request.id == id);
    let missing = || {
        let message = "this request was answered, has expired, or was withdrawn";
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    };
    let request = found.ok_or_else(missing)?;
    // A request that was replaced after it was shown is one that the person has not seen.
    if compute_check(&request) != check {
        let message = "the request is not the one that was shown";
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
    }
    let answer = match answer {
        PersonAnswer::Approved => ApprovalAnswer::Approved,
        PersonAnswer::Refused => ApprovalAnswer::Refused,
    };
    approvals.write_answer(&request, answer)?;
    json_answer(&AnsweredJson { id: request.id }, &Freshness::Now)
}

fn compute_check(request: &ApprovalRequest) -> String {
    // Of strings and numbers alone: this cannot fail, and an empty text would match no request.
    let bytes = serde_json::to_vec(request).unwrap_or_default();
    blake3::hash(&bytes).to_hex().to_string()
}
