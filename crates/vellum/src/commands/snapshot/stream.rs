//! `vellum snapshot --from-stdin`: a snapshot of what a program writes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vellum_checkout::{CheckoutError, StreamSnapshotRequest, create_stream_snapshot};
use vellum_host::escape::format_path;
use vellum_volume::volume::name_outside_line;

use super::{Args, SnapshotHooks, check_new_tags, read_note, report_snapshot};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::progress::ProgressTask;

/// How long a stream is waited for before Ctrl-C is looked for.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Makes the snapshot.
pub fn snapshot_stream(args: &Args, name: &OsString, context: &CommandContext) -> Result<CommandOutcome> {
    check_words(args)?;
    let properties = args.properties.to_change()?;
    let note = read_note(args)?;
    let volume = context.open_volume()?;
    check_new_tags(args, &volume)?;
    let name = name.as_encoded_bytes().to_vec();
    let line = name_outside_line(&name);
    let hooks = SnapshotHooks { state: &volume.state, worktree: &line, directory: &context.cwd, context };
    hooks.run_before()?;
    let request = StreamSnapshotRequest { name, note };
    let task = ProgressTask { first: "Reading", verb: "Storing", item: "file" };
    let made = match args.stdin_from_command {
        true => {
            let mut producer = Producer::start(&args.paths, context)?;
            let mut source = StoppableSource { source: producer.take_output()? };
            context.run_with_progress(task, |meter| {
                // Asked before the snapshot is made: what a program wrote before it failed must not look like a whole
                // file.
                let confirm = || producer.check_end();
                create_stream_snapshot(&volume, &request, &mut source, confirm, meter)
            })
        }
        false => {
            // A descriptor of its own: what the standard library reads ahead could not be waited for.
            let input = io::stdin().as_fd().try_clone_to_owned();
            let input = input.map_err(CliError::io_error("read", "standard input"))?;
            let mut source = StoppableSource { source: File::from(input) };
            context.run_with_progress(task, |meter| {
                create_stream_snapshot(&volume, &request, &mut source, || Ok(()), meter)
            })
        }
    }
    .with_resume_hint(
        "no snapshot was made; run the command again: what was stored already is not stored twice",
    )?;
    args.tags.iter().try_for_each(|tag| volume.add_tag(tag, made.id))?;
    if !properties.is_empty() {
        volume.annotate_snapshot(made.id, &properties)?;
    }
    let id = made.id.to_string();
    let outcome = report_snapshot(context, &volume, made)?;
    Ok(outcome.max(hooks.run_after(&id)?))
}

fn check_words(args: &Args) -> Result<()> {
    if args.note.as_deref() == Some("-") {
        return Err(CliError::usage_error(
            "standard input cannot be both the file and the note",
            "type the note: -m NOTE",
        ));
    }
    match (args.stdin_from_command, args.paths.is_empty()) {
        (true, false) | (false, true) => Ok(()),
        (true, true) => Err(CliError::usage_error(
            "--stdin-from-command runs a command, and none was typed",
            "'vellum snapshot --from-stdin NAME --stdin-from-command -- COMMAND ARGUMENT...'",
        )),
        (false, false) => Err(CliError::usage_error(
            "--from-stdin records standard input, and no PATHs",
            "leave out the PATHs; '--stdin-from-command -- COMMAND' runs a command and records what it writes",
        )),
    }
}

/// A program whose output is recorded. If it is given up, it is killed.
struct Producer {
    child: Child,
    shown: String,
}

impl Producer {
    fn start(words: &[OsString], context: &CommandContext) -> Result<Self> {
        let mut words = words.iter();
        let program = words.next().cloned().unwrap_or_default();
        let shown = format_path(program.as_encoded_bytes());
        let mut command = Command::new(program);
        command.args(words).current_dir(&context.cwd).stdout(Stdio::piped());
        let child = command.spawn().map_err(CliError::io_error("run", shown.clone()))?;
        Ok(Self { child, shown })
    }

    fn take_output(&mut self) -> Result<ChildStdout> {
        let missing = || CliError::io_error("read the output of", self.shown.clone())(Errno::BADF.into());
        self.child.stdout.take().ok_or_else(missing)
    }

    /// It has closed its output: what it wrote is worth something only if it succeeded.
    fn check_end(&mut self) -> vellum_checkout::Result<()> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(CheckoutError::Producer(format!("{} failed ({status})", self.shown))),
            Err(error) => Err(CheckoutError::Stream(error)),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // One that has ended already is not found any more.
        let _ = self.child.kill();
        // Collected, because this process may go on with reports and hooks.
        let _ = self.child.wait();
    }
}

/// Waits for a stream, and looks for Ctrl-C meanwhile.
struct StoppableSource<S> {
    source: S,
}

impl<S: Read + AsFd> Read for StoppableSource<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut waited = [PollFd::new(&self.source, PollFlags::IN)];
        match poll(&mut waited, Some(&LOOK_EVERY)) {
            // Whoever reads tries again after this error, and looks at the meter in between: a Ctrl-C is noticed while
            // nothing comes.
            Ok(0) | Err(Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
            Ok(_) => self.source.read(buffer),
            Err(error) => Err(error.into()),
        }
    }
}
