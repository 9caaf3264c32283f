//! Connections to PostgreSQL: made, checked, kept, with a limit on every wait.
//!
//! The asynchronous client is used on a small runtime, since the synchronous one waits for ever if the server stands
//! still.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::statements::DESCRIBE_SERVER;
use super::tls::PostgresTls;
use crate::address::{LogAddress, read_authorities};
use crate::error::SharedLogError;

/// Timeout of a connection, and of a statement: one that waits for the lock of another, or for a disk, is among them.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a connection to one of several servers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections that are kept, a count: appends, renewals and a reader need one each.
const IDLE_MAX: usize = 4;
/// The oldest version.
const OLDEST_VERSION: i32 = 120_000;

/// A statement's parameter and its type: then the server need not be asked for it.
pub(super) type TypedParameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A place for connections to one database.
pub(super) struct PostgresSessions {
    runtime: Runtime,
    config: Config,
    tls: Option<PostgresTls>,
    /// For messages.
    engine: String,
    idle: Mutex<Vec<Client>>,
}

/// Why a statement was not carried out.
pub(super) enum StatementFailure {
    /// The database has not the tables.
    NoTables,
    /// Another reason.
    Other(SharedLogError),
}

impl From<SharedLogError> for StatementFailure {
    fn from(error: SharedLogError) -> Self {
        Self::Other(error)
    }
}

/// What ended a piece of work with a connection.
enum SessionFailure {
    /// The connection is broken: another one may do.
    Broken(SharedLogError),
    /// The server refused, or does not answer.
    Final(StatementFailure),
}

impl PostgresSessions {
    /// Prepares connections. Nothing is sent.
    pub fn new(address: &LogAddress) -> Result<Self, SharedLogError> {
        let engine = format!("PostgreSQL at {}", address.describe_hosts());
        let unfit = |reason: String| SharedLogError::Unfit { engine: engine.clone(), reason };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("postgres-log")
            .enable_all()
            .build()
            .map_err(|error| unfit(format!("no thread can be started: {error}")))?;
        let authorities = read_authorities(address, &engine)?;
        let tls = address.has_tls.then(|| PostgresTls::new(authorities.as_deref())).transpose();
        let tls = tls.map_err(|error| unfit(format!("encryption cannot be set up: {error}")))?;
        Ok(Self { runtime, config: build_config(address), tls, engine, idle: Mutex::default() })
    }

    /// What messages call the server.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Connects and checks the server. The connection is kept for the first statement.
    pub fn check_server(&self) -> Result<(), SharedLogError> {
        let client = self.connect()?;
        self.keep_client(client);
        Ok(())
    }

    /// Runs one statement. If an idle connection turns out to be broken, it is run once more: each of them may be.
    pub fn query(
        &self,
        statement: &str,
        parameters: &[TypedParameter<'_>],
    ) -> Result<Vec<Row>, StatementFailure> {
        self.use_client(async |client: &Client| client.query_typed(statement, parameters).await)
    }

    /// Runs several statements without parameters.
    pub fn execute_batch(&self, statements: &str) -> Result<(), StatementFailure> {
        self.use_client(async |client: &Client| client.batch_execute(statements).await)
    }

    fn use_client<T>(
        &self,
        work: impl AsyncFn(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, StatementFailure> {
        // The newest one: what has lain the longest is the most likely to be cut by a firewall.
        let idle = self.idle.lock().pop();
        if let Some(client) = idle.filter(|client| !client.is_closed()) {
            match self.run_limited(client, &work) {
                // The others are as old.
                Err(SessionFailure::Broken(_)) => self.idle.lock().clear(),
                Err(SessionFailure::Final(failure)) => return Err(failure),
                Ok(done) => return Ok(done),
            }
        }
        // A statement may be run twice so. It is a change on the condition of epoch and position, which a second run finds
        // changed by the first, and the caller reads how the log stands.
        let client = self.connect()?;
        self.run_limited(client, &work).map_err(|failure| match failure {
            SessionFailure::Broken(error) => error.into(),
            SessionFailure::Final(failure) => failure,
        })
    }

    fn run_limited<T>(
        &self,
        client: Client,
        work: &impl AsyncFn(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, SessionFailure> {
        let limited = async { tokio::time::timeout(TIMEOUT, work(&client)).await };
        match self.runtime.block_on(limited) {
            // The connection is dropped: its answer may come at any time.
            Err(_) => Err(SessionFailure::Final(self.silent_error().into())),
            Ok(Ok(done)) => {
                self.keep_client(client);
                Ok(done)
            }
            Ok(Err(error)) if is_session_over(&client, &error) => {
                Err(SessionFailure::Broken(wrap_postgres_error(&self.engine, &error)))
            }
            Ok(Err(error)) => {
                self.keep_client(client);
                // The session goes on after an error of a statement: PostgreSQL undoes only the statement.
                let has_no_tables = error.code() == Some(&SqlState::UNDEFINED_TABLE);
                Err(SessionFailure::Final(match has_no_tables {
                    true => StatementFailure::NoTables,
                    false => wrap_postgres_error(&self.engine, &error).into(),
                }))
            }
        }
    }

    fn keep_client(&self, client: Client) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(client);
        }
    }

    /// A new connection to a server that can hold a log. What it is set to may have changed since the last one.
    fn connect(&self) -> Result<Client, SharedLogError> {
        let limited = async { tokio::time::timeout(TIMEOUT, self.connect_and_describe()).await };
        let connected =
            self.runtime.block_on(limited).map_err(|_| ask_for_address(self.silent_error(), true))?;
        let (client, report) = connected.map_err(|error| {
            let is_reached = !error.to_string().starts_with("error connecting");
            ask_for_address(wrap_postgres_error(&self.engine, &error), is_reached)
        })?;
        match report.find_objection() {
            None => Ok(client),
            Some(reason) => Err(SharedLogError::Unfit { engine: self.engine.clone(), reason }),
        }
    }

    async fn connect_and_describe(&self) -> Result<(Client, ServerReport), tokio_postgres::Error> {
        let client = match &self.tls {
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                // Its end is seen by who uses the client.
                self.runtime.spawn(async { drop(connection.await) });
                client
            }
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                self.runtime.spawn(async { drop(connection.await) });
                client
            }
        };
        // Statements rely on it: one that waited for another sees what that has done.
        client.batch_execute("SET default_transaction_isolation = 'read committed'").await?;
        let row = client.query_typed_one(DESCRIBE_SERVER, &[]).await?;
        let report = ServerReport {
            version: row.try_get(0)?,
            fsync: row.try_get(1)?,
            synchronous_commit: row.try_get(2)?,
            is_standby: row.try_get(3)?,
        };
        Ok((client, report))
    }

    fn silent_error(&self) -> SharedLogError {
        let reason = format!("it has not answered for {} seconds", TIMEOUT.as_secs());
        SharedLogError::Unreachable { engine: self.engine.clone(), reason }
    }
}

/// What a server says of itself.
struct ServerReport {
    version: i32,
    fsync: String,
    synchronous_commit: String,
    is_standby: bool,
}

impl ServerReport {
    /// Why it cannot hold a log, if it cannot.
    fn find_objection(&self) -> Option<String> {
        if self.version < OLDEST_VERSION {
            let major = self.version / 10_000;
            return Some(format!("it is version {major}, and 12 is the oldest that can: update it"));
        }
        if self.is_standby {
            return Some("it is a standby, which takes no writes: name the primary server".to_owned());
        }
        if self.fsync != "on" {
            return Some(
                "it does not wait for its disk (fsync = off): run 'ALTER SYSTEM SET fsync = on' and 'SELECT \
                 pg_reload_conf()'"
                    .to_owned(),
            );
        }
        if self.synchronous_commit == "off" {
            return Some(
                "it answers before it has written (synchronous_commit = off): run 'ALTER ROLE CURRENT_USER SET \
                 synchronous_commit = on' as this user"
                    .to_owned(),
            );
        }
        None
    }
}

fn build_config(address: &LogAddress) -> Config {
    let mut config = Config::new();
    for host in &address.hosts {
        config.host(&host.host).port(host.port);
    }
    // Of several servers, the one that takes writes.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    // `Require` asks for encryption only; that the certificate is right is checked by `PostgresTls` in any case.
    config.ssl_mode(if address.has_tls { SslMode::Require } else { SslMode::Disable });
    config.connect_timeout(CONNECT_TIMEOUT).application_name("vellum");
    if let Some(user) = &address.user {
        config.user(user);
    }
    if let Some(password) = &address.password {
        config.password(password.as_bytes());
    }
    if let Some(database) = &address.database {
        config.dbname(database);
    }
    config
}

/// Adds to the error of a server that was reached and does not speak as PostgreSQL does that another one may listen there.
fn ask_for_address(error: SharedLogError, is_reached: bool) -> SharedLogError {
    match error {
        SharedLogError::Unreachable { engine, reason } if is_reached => SharedLogError::Unreachable {
            engine,
            reason: format!("{reason}; if this lasts, see whether PostgreSQL listens there"),
        },
        error => error,
    }
}

/// Whether the connection has ended, whatever the statement was.
fn is_session_over(client: &Client, error: &tokio_postgres::Error) -> bool {
    // An administrator's command, or a crash of the server, comes as an error of the statement.
    let is_shutdown = error.code().is_some_and(|code| code.code().starts_with("57P"));
    client.is_closed() || error.as_db_error().is_none() || is_shutdown
}

fn wrap_postgres_error(engine: &str, error: &tokio_postgres::Error) -> SharedLogError {
    let engine = engine.to_owned();
    let Some(refusal) = error.as_db_error() else {
        return SharedLogError::Unreachable { engine, reason: describe_error_chain(error) };
    };
    let reason = refusal.message().to_owned();
    let code = refusal.code();
    match code.code().get(..2) {
        _ if *code == SqlState::DISK_FULL => SharedLogError::Full { engine, reason },
        // A wrong password, an unknown database, no permission.
        Some("28" | "3D") => SharedLogError::Unfit { engine, reason },
        _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            let reason = format!(
                "{reason}: 'GRANT CREATE, USAGE ON SCHEMA public TO' this user allows what Vellum needs"
            );
            SharedLogError::Unfit { engine, reason }
        }
        _ => SharedLogError::Unreachable { engine, reason },
    }
}

/// The error with its causes, since the client names only the first.
fn describe_error_chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::ServerReport;

    fn report(version: i32, fsync: &str, synchronous_commit: &str) -> ServerReport {
        ServerReport {
            version,
            fsync: fsync.to_owned(),
            synchronous_commit: synchronous_commit.to_owned(),
            is_standby: false,
        }
    }

    #[test]
    fn a_server_that_answers_early_is_objected_to() {
        assert_eq!(report(150_018, "on", "on").find_objection(), None);
        assert_eq!(report(150_018, "on", "local").find_objection(), None);
        let cases = [
            (report(110_000, "on", "on"), "version 11"),
            (report(150_018, "off", "on"), "fsync = off"),
            (report(150_018, "on", "off"), "synchronous_commit = off"),
            (ServerReport { is_standby: true, ..report(150_018, "on", "on") }, "standby"),
        ];
        for (report, reason) in cases {
            let objection = report.find_objection();
            assert!(objection.as_ref().is_some_and(|found| found.contains(reason)), "{objection:?}");
        }
    }
}
