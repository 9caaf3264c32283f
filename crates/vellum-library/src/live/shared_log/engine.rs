//! From what a worktree's ref says of its log to the opened log.

use std::env::VarError;
use std::sync::Arc;
use std::time::Duration;

use vellum_shared_log::{
    LogAddress, LogKeySpace, ServerSighting, SharedLog, SharedLogError, open_shared_log,
};
use vellum_store::LoginCredentials;
use vellum_volume::refs::WorktreeLog;
use vellum_volume::{Volume, VolumeError};
use zeroize::Zeroizing;

use super::LogLocation;
use crate::live::Result;

/// The environment variable with the password of a log's engine, for those who keep no file of credentials.
pub const PASSWORD_VARIABLE: &str = "VELLUM_META_PASSWORD";

impl LogLocation {
    /// Checks an address that a user wrote. Fails if it has a password: it would be stored, and seen by all who see the command
    /// line.
    pub fn parse(typed: &str, credentials: Option<String>) -> Result<Self> {
        let address = LogAddress::parse(typed)?;
        if address.password.is_some() {
            let reason = format!(
                "an address must not have a password in it: put it into a file of credentials, or into {PASSWORD_VARIABLE}"
            );
            return Err(SharedLogError::Unfit { engine: address.to_string(), reason }.into());
        }
        Ok(Self { url: address.to_string(), credentials })
    }
}

/// Opens the engine of a log.
pub fn open_engine(volume: &Volume, log: &WorktreeLog) -> Result<Arc<dyn SharedLog>> {
    let mut address = LogAddress::parse(&log.url)?;
    let password = match &log.credentials {
        Some(name) => {
            let login = LoginCredentials::load(name).map_err(VolumeError::from)?;
            address.user = login.user.or(address.user);
            login.password
        }
        None => match std::env::var(PASSWORD_VARIABLE) {
            Ok(password) => Some(Zeroizing::new(password)),
            Err(VarError::NotPresent) => None,
            // Its bytes are a secret: they are not repeated.
            Err(VarError::NotUnicode(_)) => {
                let reason = format!("the password in {PASSWORD_VARIABLE} is not valid UTF-8");
                return Err(SharedLogError::Unfit { engine: address.to_string(), reason }.into());
            }
        },
    };
    if let Some(password) = password {
        address.set_password(&password);
    }
    // The engine sees neither names nor ids: the key is random, and the volume's ref alone has it.
    let worktree: String = log.key.iter().map(|byte| format!("{byte:02x}")).collect();
    let key_space = LogKeySpace::new("volume", &worktree).ok_or_else(|| SharedLogError::Unfit {
        engine: address.to_string(),
        reason: "the log has a name that no engine takes".into(),
    })?;
    Ok(open_shared_log(&address, &key_space, volume.objects.clone())?)
}

/// The server that a worktree's log names; None if the worktree has no log, or nobody has served it yet.
pub fn find_worktree_server(volume: &Volume, worktree: &str) -> Result<Option<ServerSighting>> {
    let head = volume.read_worktree_head(worktree)?;
    let Some(log) = head.and_then(|head| head.log) else { return Ok(None) };
    Ok(open_engine(volume, &log)?.current_server(None, Duration::ZERO)?)
}

/// Looks again and again who serves a worktree.
pub struct ServerWatch {
    volume: Arc<Volume>,
    worktree: String,
    engine: Option<Arc<dyn SharedLog>>,
}

impl ServerWatch {
    /// Nothing was looked at yet.
    #[must_use]
    pub fn new(volume: Arc<Volume>, worktree: String) -> Self {
        Self { volume, worktree, engine: None }
    }

    /// The server that the worktree's log names; None if the worktree has no log, or nobody has served it yet.
    pub fn find_server(&mut self) -> Result<Option<ServerSighting>> {
        let engine = match &self.engine {
            Some(engine) => engine.clone(),
            None => {
                let head = self.volume.read_worktree_head(&self.worktree)?;
                let Some(log) = head.and_then(|head| head.log) else { return Ok(None) };
                open_engine(&self.volume, &log)?
            }
        };
        let found = engine.current_server(None, Duration::ZERO);
        // After a failure the ref is read again: it may name another log by now.
        self.engine = found.is_ok().then_some(engine);
        Ok(found?)
    }
}
