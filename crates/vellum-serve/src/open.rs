//! Opening the page in a browser, without the token in any program's arguments.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Result, ServeError};

/// A file that leads a browser to the page. It is removed when this is dropped.
pub struct BrowserRedirect {
    path: PathBuf,
}

impl BrowserRedirect {
    /// Writes it into a directory that only this user can read. Arguments of programs can be read by everybody on a machine:
    /// the browser gets the name of the file instead of the address.
    pub fn write_file(dir: &Path, address: &str) -> Result<Self> {
        let path = dir.join("web.html");
        // One that a killed process left.
        let _ = fs::remove_file(&path);
        let write = |mut file: File| {
            write!(
                file,
                // A file has no headers, so the redirection has to be in the page itself.
                "<!doctype html><meta charset=utf-8><meta name=referrer content=no-referrer>\
                 <meta http-equiv=refresh content=\"0;url={address}\"><title>Vellum</title>"
            )
        };
        // With its mode from the beginning: between creation and a later change of mode, others could open it.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(write);
        made.map_err(ServeError::for_action("write the file for the browser"))?;
        Ok(Self { path })
    }

    /// Asks the desktop to show it.
    pub fn open_in_browser(&self) -> std::io::Result<()> {
        let mut command = Command::new("xdg-open");
        command.arg(&self.path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // It ends when the browser has the file; nobody waits for that.
        std::thread::spawn(move || child.wait());
        Ok(())
    }
}

impl Drop for BrowserRedirect {
    fn drop(&mut self) {
        // One that stays can be read by this user only, and the next start replaces it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_user_can_read_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let redirect = BrowserRedirect::write_file(dir.path(), "http://127.0.0.1:1/#token=x").unwrap();
        let path = redirect.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains("url=http://127.0.0.1:1/#token=x"));
        drop(redirect);
        assert!(!path.exists());
    }
}
