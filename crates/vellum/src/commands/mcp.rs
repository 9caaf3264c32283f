//! `vellum mcp`: tools for coding agents, over standard input and output.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::serve_program::{become_program, build_serve_command, own_program};
use crate::ui::UserInterface;

/// Give a coding agent tools for this worktree, over standard input and output
///
/// Speaks the Model Context Protocol; an agent starts this program itself (docs/agents.md). The tools show what changed, record
/// and compare snapshots, read files as they were, and make forks. What the agent cannot do: forget snapshots, discard content
/// that no snapshot has, change tags, keys, settings or hooks, or anything outside the worktree and the forks that it made.
/// To restore the worktree it has to ask a person, who answers with 'vellum approve'.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worktree [default: the one of the current directory]
    #[arg(long, value_name = "DIR")]
    worktree: Option<PathBuf>,
    /// What the agent may do without asking; separated by commas
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    allow: Vec<AllowedTool>,
    /// Make forks in DIR [default: beside the worktree, in WORKTREE.forks]
    #[arg(long, value_name = "DIR")]
    forks: Option<PathBuf>,
}

/// What an agent may be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AllowedTool {
    /// Run commands in a try: they see and change only a fork of the worktree, but can do anything elsewhere
    Try,
    /// Restore the worktree without asking; what no snapshot has is saved first
    Restore,
}

impl AllowedTool {
    fn option(self) -> &'static str {
        match self {
            Self::Try => "--allow-try",
            Self::Restore => "--allow-restore",
        }
    }
}

/// Becomes the program that has the tools.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let named = args.worktree.as_deref().map_or_else(|| context.cwd.clone(), |dir| context.cwd.join(dir));
    let place =
        CommandContext::new(UserInterface::new(context.ui.voice), CommandContext::resolve_dir(Some(&named))?);
    // What a mount has not published yet is published, and a directory without a volume is refused here.
    let volume = place.open_volume()?;
    let paths = place.paths_for_volume(&volume)?;
    let worktree = paths.root();
    let forks = args.forks.as_ref().map_or_else(|| forks_beside(worktree), |forks| context.cwd.join(forks));
    let mut command = build_serve_command()?;
    command.arg("mcp").arg(volume.state.root()).arg("--worktree").arg(worktree);
    command.arg("--program").arg(own_program()?).arg("--forks").arg(forks);
    command.args(args.allow.iter().map(|allowed| allowed.option()));
    Err(become_program(command))
}

/// The directory beside a worktree in which its forks are: within it, they would be in its snapshots.
fn forks_beside(worktree: &Path) -> PathBuf {
    let mut name = worktree.file_name().unwrap_or_default().to_owned();
    name.push(".forks");
    worktree.with_file_name(name)
}
