//! `vellum approve`: what agents ask for, and a person decides.

use std::fs::File;
use std::io::IsTerminal;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_library::{ApprovalAnswer, ApprovalFolder, ApprovalRequest};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;
use crate::ui::answer::read_answer_line;
use crate::ui::format;

/// Steps that are shown of a request.
const SHOWN: usize = 40;

/// Approve what an agent asks for
///
/// Without ID, lists what the agents of 'vellum mcp' ask for. With ID, shows what would be done, and asks for a code that it
/// shows: this needs a terminal. An approval holds for 10 minutes, and for one time; anything but the code refuses.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The request, as the agent or the list shows it
    #[arg(value_name = "ID")]
    id: Option<String>,
}

#[derive(Serialize)]
struct RequestsJson {
    requests: Vec<RequestJson>,
}

#[derive(Serialize)]
struct RequestJson {
    id: String,
    client: String,
    directory: String,
    target: String,
    paths: Vec<String>,
    steps: u64,
    unsaved: u64,
}

impl RequestJson {
    fn new(request: &ApprovalRequest) -> Self {
        Self {
            id: request.id.clone(),
            client: request.client.clone(),
            directory: request.directory.clone(),
            target: request.target.clone(),
            paths: request.paths.clone(),
            steps: request.step_count,
            unsaved: request.unsaved,
        }
    }
}

/// Lists requests, or asks about one.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let approvals = ApprovalFolder::of_volume(&context.open_volume()?);
    let requests = approvals.list_requests().map_err(library_error)?;
    let Some(id) = &args.id else { return list_requests(&requests, context) };
    // The whole id is needed: the beginning of one could mean a request that came a moment ago.
    let found = requests.iter().find(|request| request.id == *id);
    let request = found.ok_or_else(|| {
        let message = format!("no request {} waits for an answer", format_path(id.as_bytes()));
        CliError::usage_error(message, "'vellum approve' lists those that wait; they expire after 10 minutes")
    })?;
    let answer = ask_person(request, context)?;
    approvals.write_answer(request, answer).map_err(library_error)?;
    context.ui.print_line(match answer {
        ApprovalAnswer::Approved => "Approved, once: the agent can do it within 10 minutes",
        ApprovalAnswer::Refused => "Refused",
    })?;
    Ok(CommandOutcome::Done)
}

fn list_requests(requests: &[ApprovalRequest], context: &CommandContext) -> Result<CommandOutcome> {
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&RequestsJson { requests: requests.iter().map(RequestJson::new).collect() })?;
        return Ok(CommandOutcome::Done);
    }
    for request in requests {
        ui.print_line(format!("{}  {}", request.id, describe_request(request)))?;
    }
    if requests.is_empty() {
        ui.print_note("no agent asks for anything")?;
    }
    Ok(CommandOutcome::Done)
}

fn describe_request(request: &ApprovalRequest) -> String {
    let steps = format::format_count(request.step_count, "path");
    let client = format_path(request.client.as_bytes());
    let directory = format_path(request.directory.as_bytes());
    let target = format_path(format::shorten_id(&request.target).as_bytes());
    format!("{client} wants to restore {directory} from {target}: {steps}")
}

/// Shows what would be done, and waits for the code. The person has to be at the terminal that this process belongs to: input
/// that another program pipes in is none.
fn ask_person(request: &ApprovalRequest, context: &CommandContext) -> Result<ApprovalAnswer> {
    let has_terminal = std::io::stdout().is_terminal() && File::open("/dev/tty").is_ok();
    if !context.ui.can_prompt() || !has_terminal {
        return Err(CliError::usage_error(
            "an approval needs a person at a terminal",
            format!("run 'vellum approve {}' in a terminal of yours", format_path(request.id.as_bytes())),
        ));
    }
    let ui = &context.ui;
    ui.print_line(describe_request(request))?;
    for step in request.steps.iter().take(SHOWN) {
        let path = format_path(step.path.as_bytes());
        ui.print_line(format!("{:<8} {path}", format_path(step.action.as_bytes())))?;
    }
    let shown = request.steps.len().min(SHOWN) as u64;
    if request.step_count > shown {
        ui.print_line(format!("... and {} more", format::format_number(request.step_count - shown)))?;
    }
    if request.unsaved > 0 {
        let count = format::format_count(request.unsaved, "path");
        ui.print_line(format!("{count} that no snapshot holds would be snapshotted first"))?;
    }
    // Before the question: the lines above are in a buffer.
    ui.flush_output()?;
    let code = draw_code()?;
    let flag = interrupt::install_signal_handlers();
    ui.print_prompt(&format!("Type {code} to approve this; anything else refuses it: "))?;
    let typed = read_answer_line(&flag)?.unwrap_or_default();
    Ok(if typed.trim() == code { ApprovalAnswer::Approved } else { ApprovalAnswer::Refused })
}

/// Six digits that nobody can type without having seen them.
fn draw_code() -> Result<String> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| CliError::io_error("get", "random bytes")(errno.into()))?;
    Ok(format!("{:06}", u32::from_le_bytes(bytes) % 1_000_000))
}

fn library_error(error: vellum_library::Error) -> CliError {
    match error {
        vellum_library::Error::Volume(error) => error.into(),
        other => CliError::io_error("use", "the requests of agents")(std::io::Error::from(other)),
    }
}
