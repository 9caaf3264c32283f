//! `vellum serve s3`: a gateway for programs that speak S3.

use super::gateway::GatewayArgs;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};

/// Serve a worktree or a snapshot over S3
///
/// There is one bucket, called as the worktree is, whose keys are paths. A snapshot can be read. A live worktree can be read and
/// written, and is this program's until it ends: it must not be mounted meanwhile. Of a worktree that is checked out, the newest
/// snapshot is served. Only this machine can connect, with an access key and a secret key: the names and passwords of the file,
/// else of VELLUM_SERVE_CREDENTIALS ('NAME PASSWORD'), else a pair that is printed once. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Call the bucket NAME; by default as the worktree
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,
}

/// Becomes the program that has the gateway.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    match &args.bucket {
        Some(name) => args.gateway.become_gateway("s3", &["--bucket", name], context),
        None => args.gateway.become_gateway("s3", &[], context),
    }
}
