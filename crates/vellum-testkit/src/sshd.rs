//! A real `ssh` and a real `sshd` that communicate through a pipe, so that no port is used and nothing is left when a
//! test ends.
//!
//! Invariant: nothing outside of its directory is read or written, except what sshd itself needs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};

/// A connection to this host through ssh, as if it were another one.
pub struct SshServer {
    dir: PathBuf,
}

impl SshServer {
    /// Creates keys and configurations in a new directory.
    ///
    /// # Panics
    /// Panics if OpenSSH is not installed.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir.join("pids")).expect("a directory for keys");
        for key in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            let made = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)).status();
            assert!(made.expect("openssh-client: see the Makefile").success());
        }
        // sshd reads a list of keys. This one is all of it.
        fs::copy(dir.join("user.pub"), dir.join("authorized")).expect("a user");
        if rustix::process::geteuid().is_root() {
            // The package's service creates this directory when it starts.
            fs::create_dir_all("/run/sshd").expect("sshd's directory");
        }
        let server = Self { dir: dir.to_owned() };
        fs::write(dir.join("config"), server.config()).expect("a configuration");
        let shown = dir.display();
        // The script records its own process, which `exec` turns into ssh, so that a test can stop or kill
        // the connection.
        let script = format!("#!/bin/sh\necho >{shown}/pids/$$\nexec {} \"$@\"\n", server.ssh_words(""));
        fs::write(server.program(), script).expect("a program");
        fs::set_permissions(server.program(), fs::Permissions::from_mode(0o755)).expect("a program");
        server
    }

    /// The words of an `ssh` command that reaches this host. `relay`: words before the command that starts sshd.
    #[must_use]
    pub fn ssh_words(&self, relay: &str) -> String {
        let shown = self.dir.display();
        // With `-i` sshd serves one connection on its standard input and output, and needs no port.
        let sshd = format!("{} -i -f {shown}/config -E {shown}/log", find_sshd().display());
        // Nothing of the user who runs the tests is used: no configuration, no other keys, no list of known hosts.
        format!(
            "ssh -F none -i {shown}/user -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o 'ProxyCommand={relay} {sshd}'"
        )
    }

    /// A program with the arguments of `ssh` that reaches this host for any host name.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.dir.join("ssh")
    }

    /// Sends a signal to all connections that were made by [`Self::program`].
    pub fn signal_connections(&self, signal: Signal) {
        let pids = fs::read_dir(self.dir.join("pids")).expect("a directory of pids");
        for entry in pids.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            let sent = pid.map(|pid| rustix::process::kill_process(pid, signal));
            if !matches!(sent, Some(Ok(()))) || signal == Signal::KILL {
                // It has ended: another process may get its number.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The log of sshd, for messages.
    #[must_use]
    pub fn read_log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn config(&self) -> String {
        // Without PAM an account whose password is locked may not log in; with it, some containers refuse a session.
        // Only root can read this file, and only for root does it matter.
        let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
        let locked = shadow.lines().any(|line| line.starts_with("root:!"));
        let pam = if locked { "yes" } else { "no" };
        // Temporary directories lie below one that others can write to, where sshd would refuse keys in its
        // strict mode.
        let dir = self.dir.display();
        format!(
            "HostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized\nStrictModes no\nUsePAM {pam}\n\
             PermitRootLogin yes\nPasswordAuthentication no\nPubkeyAuthentication yes\nPidFile none\n\
             Subsystem sftp internal-sftp\n"
        )
    }
}

fn find_sshd() -> PathBuf {
    let places = ["/usr/sbin/sshd", "/usr/bin/sshd", "/usr/local/sbin/sshd"];
    places.iter().map(PathBuf::from).find(|path| path.exists()).expect("openssh-server: see the Makefile")
}
