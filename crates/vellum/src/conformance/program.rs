//! This program, run as a user would run it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{TrialResult, TrialStop, expect};
use crate::commands::sync::profile_config_path;

/// For how long a command may run: each has little to do.
const TIME_MAX: Duration = Duration::from_secs(120);
/// The folder of credentials beside the settings of a user.
const CREDENTIALS: &str = "credentials";
const TICK: Duration = Duration::from_millis(2);

/// Runs this program with the settings and the state of nobody.
#[derive(Debug, Clone)]
pub struct TrialProgram {
    /// Where what it prints goes, and what it keeps for users.
    home: PathBuf,
}

/// A command that has run.
pub struct ProgramRun {
    words: String,
    /// Its exit code; None: it was killed.
    pub code: Option<i32>,
    /// What it printed.
    pub out: String,
    err: String,
}

impl TrialProgram {
    /// Keeps what it needs in a directory.
    pub fn new(home: &Path) -> Self {
        Self { home: home.into() }
    }

    /// Lets it find the credentials of the user, and nothing else of theirs.
    pub fn share_credentials(&self) -> io::Result<()> {
        let config = profile_config_path();
        let Some(credentials) = config.and_then(|path| Some(path.parent()?.join(CREDENTIALS))) else {
            return Ok(());
        };
        let own = self.home.join("XDG_CONFIG_HOME/vellum");
        std::fs::create_dir_all(&own)?;
        // A link, and no copy: secrets must not be left behind if the run is killed.
        std::os::unix::fs::symlink(credentials, own.join(CREDENTIALS))
    }

    /// Starts a command in a directory. Each running command has an output of its own, by `number`.
    pub fn spawn(&self, directory: &Path, args: &[&str], number: usize) -> io::Result<Child> {
        // Not by its path, where another program may be by now.
        let mut command = Command::new("/proc/self/exe");
        command.args(args).current_dir(directory).stdin(Stdio::null());
        for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
            command.env(name, self.home.join(name));
        }
        // These would change what the program does or prints, if the run itself is logged or tried.
        for name in ["VELLUM_LOG", "VELLUM_TRY", "VELLUM_TRY_STATE"] {
            command.env_remove(name);
        }
        // Files, and not pipes, which a mount in the background would hold open.
        command.stdout(File::create(self.output_path("out", number))?);
        command.stderr(File::create(self.output_path("err", number))?);
        command.spawn()
    }

    fn output_path(&self, kind: &str, number: usize) -> PathBuf {
        self.home.join(format!("{kind}-{number}"))
    }

    /// Waits for the end of a command that was started.
    pub fn wait(&self, mut child: Child, args: &[&str], number: usize) -> TrialResult<ProgramRun> {
        let words = args.join(" ");
        let until = Instant::now() + TIME_MAX;
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > until => {
                    child.kill()?;
                    // What the kernel holds does not end, and is not waited for.
                    let reason = format!("'vellum {words}' did not end within {} s", TIME_MAX.as_secs());
                    return Err(TrialStop::Broken(reason));
                }
                None => std::thread::sleep(TICK),
            }
        };
        let read = |kind| {
            let bytes = std::fs::read(self.output_path(kind, number))?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(ProgramRun { words, code: status.code(), out: read("out")?, err: read("err")? })
    }

    /// Runs a command.
    pub fn run(&self, directory: &Path, args: &[&str]) -> TrialResult<ProgramRun> {
        self.wait(self.spawn(directory, args, 0)?, args, 0)
    }

    /// Runs a command that has to succeed. Returns what it printed, without the last line feed.
    pub fn run_ok(&self, directory: &Path, args: &[&str]) -> TrialResult<String> {
        Ok(self.run(directory, args)?.expect_code(&[0])?.out.trim_end().to_owned())
    }

    /// Runs a command that has to succeed, and to print JSON.
    pub fn run_json(&self, directory: &Path, args: &[&str]) -> TrialResult<Value> {
        let ran = self.run(directory, &[&["--json"], args].concat())?.expect_code(&[0, 1])?;
        let words = ran.words;
        serde_json::from_str(&ran.out)
            .map_err(|error| TrialStop::Broken(format!("'vellum {words}' printed no JSON: {error}")))
    }

    /// Starts a command, and kills it after some time. Returns whether it was still running.
    pub fn run_killed(&self, directory: &Path, args: &[&str], after: Duration) -> TrialResult<bool> {
        let mut child = self.spawn(directory, args, 0)?;
        let until = Instant::now() + after;
        while Instant::now() < until && child.try_wait()?.is_none() {
            std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
        let was_running = child.try_wait()?.is_none();
        child.kill()?;
        // Collected before the next command: a process that is being killed still has its locks.
        child.wait()?;
        Ok(was_running)
    }
}

impl ProgramRun {
    /// Fails unless it ended with one of these exit codes.
    pub fn expect_code(self, codes: &[i32]) -> TrialResult<Self> {
        let is_expected = self.code.is_some_and(|code| codes.contains(&code));
        expect(is_expected, || {
            let ended = self.code.map_or("was killed".into(), |code| format!("ended with {code}"));
            let said = self.err.lines().find(|line| line.contains("error")).unwrap_or_default();
            format!("'vellum {}' {ended}: {said}", self.words)
        })?;
        Ok(self)
    }
}
