//! The shared log in Redis 7.0 or newer, or Valkey.
//!
//! Each operation is one script, which Redis runs alone: an append compares the epoch, so that one that was sent before
//! a claim and arrives after it is refused. What Redis acknowledged survives a crash of Redis, since it writes its
//! append-only file before it answers; whether it survives a power cut, [`SharedLog::wait_until_durable`] waits for
//! where Redis can tell.
//!
//! Deliberately absent: clusters, and fail-over by Sentinel, which can lose a claim that was acknowledged.

mod fitness;
mod scripts;

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Client, Connection, ErrorKind, RedisError, Script, ServerErrorKind, Value};
use vellum_crypto::fill_random;
use vellum_types::{FieldReader, FieldWriter};

use self::fitness::{RedisDurability, check_redis};
use self::scripts::RedisScripts;
use crate::address::{LogAddress, read_authorities};
use crate::binding::LogBinding;
use crate::error::SharedLogError;
use crate::key_space::LogKeySpace;
use crate::log::{
    APPEND_MAX, LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog,
};

/// Timeout of a connection, and of each wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long Redis may wait for its disk, milliseconds: it answers before this side gives up.
const DISK_TIMEOUT: u64 = 8_000;
/// Interval at which who waits for another server asks for it.
const POLL: Duration = Duration::from_millis(200);
/// Idle connections that are kept, a count: appends, renewals and a reader need one each.
const IDLE_MAX: usize = 4;
/// Longest script error that is shown, characters.
const REASON_MAX: usize = 300;

/// The log of one worktree in Redis.
pub struct RedisLog {
    client: Client,
    /// For messages.
    engine: String,
    state_key: String,
    appends_key: String,
    scripts: RedisScripts,
    durability: RedisDurability,
    idle: Mutex<Vec<Connection>>,
    binding: LogBinding,
}

/// What a script returned besides success.
enum RedisAnswer {
    /// What belongs to the success.
    Done(Vec<Vec<u8>>),
    /// The epoch is another one.
    Fenced(LogEpoch),
    /// The log ends elsewhere.
    Moved(LogPosition),
    /// The log begins later.
    Discarded(LogPosition),
}

impl RedisLog {
    /// Connects, and checks whether this Redis can hold a log.
    pub fn open(address: &LogAddress, key_space: &LogKeySpace) -> Result<Self, SharedLogError> {
        if address.has_tls {
            // An error means that the process has chosen one already.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let engine = format!("Redis at {}", address.describe_hosts());
        let authorities = read_authorities(address, &engine)?;
        let client = build_client(address, authorities).map_err(|error| wrap_redis_error(&engine, &error))?;
        let mut connection = connect(&client).map_err(|error| wrap_redis_error(&engine, &error))?;
        let durability = check_redis(&mut connection, &engine, |error| wrap_first_error(&engine, error))?;
        Ok(Self {
            client,
            engine,
            // One hash tag: the keys of a log are always in one place.
            state_key: format!("vellum:{{{key_space}}}:state"),
            appends_key: format!("vellum:{{{key_space}}}:appends"),
            scripts: RedisScripts::new(),
            durability,
            idle: Mutex::new(vec![connection]),
            binding: LogBinding::default(),
        })
    }

    /// Does something with a connection, and does it once more with a new one if an idle one turns out to be broken.
    fn use_connection<T>(
        &self,
        work: impl Fn(&mut Connection) -> Result<T, RedisError>,
    ) -> Result<T, SharedLogError> {
        let idle = self.idle.lock().pop();
        let was_idle = idle.is_some();
        let mut done = idle.map_or_else(|| connect(&self.client), Ok).and_then(|mut connection| {
            let done = work(&mut connection)?;
            self.keep_connection(connection);
            Ok(done)
        });
        // A timeout is left out below: a server that stands still would let a second try wait as long again.
        let is_broken = |error: &RedisError| error.is_connection_dropped() || error.kind() == ErrorKind::Io;
        if was_idle && done.as_ref().is_err_and(|error| is_broken(error) && !error.is_timeout()) {
            // The others are as old.
            self.idle.lock().clear();
            // A script may run twice by this. A second append finds the end moved, and the caller reads how
            // the log stands.
            done = connect(&self.client).and_then(|mut connection| {
                let done = work(&mut connection)?;
                self.keep_connection(connection);
                Ok(done)
            });
        }
        done.map_err(|error| wrap_redis_error(&self.engine, &error))
    }

    fn keep_connection(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Runs a script on the log that is expected. `arguments` follow the incarnation.
    fn run_script(&self, script: &Script, arguments: &[&[u8]]) -> Result<RedisAnswer, SharedLogError> {
        let expected = self.binding.expected();
        let expected = expected.as_ref().map_or(&[][..], |expected| &expected.0);
        let answer = self.use_connection(|connection| {
            self.prepare_script(script, expected, arguments).invoke::<Value>(connection)
        })?;
        self.judge_answer(answer)
    }

    fn prepare_script<'a>(
        &self,
        script: &'a Script,
        expected: &[u8],
        arguments: &[&[u8]],
    ) -> redis::ScriptInvocation<'a> {
        let mut invocation = script.prepare_invoke();
        invocation.key(&self.state_key).key(&self.appends_key).arg(expected);
        for argument in arguments {
            invocation.arg(*argument);
        }
        invocation
    }

    fn judge_answer(&self, answer: Value) -> Result<RedisAnswer, SharedLogError> {
        let mut fields = read_fields(answer).ok_or_else(|| self.garbled_error("an answer"))?.into_iter();
        let word = fields.next().unwrap_or_default();
        let incarnation = fields.next().unwrap_or_default();
        let incarnation = match <[u8; 16]>::try_from(incarnation) {
            Ok(incarnation) => Some(LogIncarnation(incarnation)),
            Err(other) if other.is_empty() => None,
            Err(_) => return Err(self.garbled_error("the log's incarnation")),
        };
        self.binding.check(&self.engine, incarnation)?;
        let rest: Vec<_> = fields.collect();
        let number = || self.parse_number(rest.first());
        match word.as_slice() {
            b"ok" => Ok(RedisAnswer::Done(rest)),
            b"fenced" => Ok(RedisAnswer::Fenced(LogEpoch(number()?))),
            b"moved" => Ok(RedisAnswer::Moved(LogPosition(number()?))),
            b"discarded" => Ok(RedisAnswer::Discarded(LogPosition(number()?))),
            b"torn" => Err(self.missing_error()),
            _ => Err(self.garbled_error("an answer")),
        }
    }

    /// Runs a script as the server with an epoch.
    fn run_as_server(
        &self,
        script: &Script,
        epoch: LogEpoch,
        arguments: &[&[u8]],
    ) -> Result<RedisAnswer, SharedLogError> {
        // What stands for no epoch is nobody's, also while nobody has claimed the log.
        let epoch_text = if epoch.0 == 0 { "none".to_owned() } else { epoch.0.to_string() };
        let mut all = vec![epoch_text.as_bytes()];
        all.extend_from_slice(arguments);
        match self.run_script(script, &all)? {
            RedisAnswer::Fenced(current) => Err(SharedLogError::Fenced { epoch, current }),
            answer => Ok(answer),
        }
    }

    /// The result of a script that has no other outcomes at this place.
    fn expect_done(&self, answer: RedisAnswer) -> Result<Vec<Vec<u8>>, SharedLogError> {
        match answer {
            RedisAnswer::Done(fields) => Ok(fields),
            RedisAnswer::Fenced(_) | RedisAnswer::Moved(_) | RedisAnswer::Discarded(_) => {
                Err(self.garbled_error("an answer"))
            }
        }
    }

    fn parse_number(&self, field: Option<&Vec<u8>>) -> Result<u64, SharedLogError> {
        let text = field.and_then(|field| std::str::from_utf8(field).ok());
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.garbled_error("a number"))
    }

    /// Joins what the reading script returned.
    fn join_appends(&self, from: LogPosition, fields: &[Vec<u8>]) -> Result<Vec<u8>, SharedLogError> {
        let mut bytes = Vec::new();
        let mut next = None;
        for pair in fields.chunks(2) {
            let [id, append] = pair else { return Err(self.garbled_error("an append")) };
            // An entry of a stream has an id of two numbers, of which the first is the position.
            let position = id.split(|byte| *byte == b'-').next().map(<[u8]>::to_vec);
            let at = self.parse_number(position.as_ref())?;
            if next.is_some_and(|next| next != at) || at > from.0 && next.is_none() {
                return Err(self.missing_error());
            }
            next = Some(at.saturating_add(append.len() as u64));
            // The first one may begin before what is asked for.
            let before = usize::try_from(from.0.saturating_sub(at)).unwrap_or(usize::MAX);
            let part = append.get(before..).filter(|part| !part.is_empty());
            bytes.extend_from_slice(part.ok_or_else(|| self.missing_error())?);
        }
        Ok(bytes)
    }

    fn describe_server(&self, fields: &[Vec<u8>]) -> Result<Option<ServerSighting>, SharedLogError> {
        let [epoch, server, released, renewed, now] = fields else {
            return Err(self.garbled_error("the server"));
        };
        let epoch = self.parse_number(Some(epoch))?;
        if epoch == 0 {
            return Ok(None);
        }
        let mut reader = FieldReader::new(server);
        let server = ServerRecord::decode(&mut reader).map_err(|_| self.garbled_error("the server"))?;
        // If the clock of Redis was set back, a claim looks younger than it is, which only lets others wait.
        let age = self.parse_number(Some(now))?.saturating_sub(self.parse_number(Some(renewed))?);
        let released = released == b"1";
        Ok(Some(ServerSighting { server, epoch: LogEpoch(epoch), age: Duration::from_micros(age), released }))
    }

    fn garbled_error(&self, what: &str) -> SharedLogError {
        let reason = format!("{what} is not what Vellum stored: does another program use its keys?");
        SharedLogError::Damaged { engine: self.engine.clone(), reason }
    }

    fn missing_error(&self) -> SharedLogError {
        let reason = format!("appends are missing in {}: somebody removed them", self.appends_key);
        SharedLogError::Damaged { engine: self.engine.clone(), reason }
    }
}

impl SharedLog for RedisLog {
    fn create(&self) -> Result<LogIncarnation, SharedLogError> {
        let mut incarnation = [0; 16];
        fill_random(&mut incarnation);
        let answer = self.use_connection(|connection| {
            self.prepare_script(&self.scripts.create, &incarnation, &[]).invoke::<Value>(connection)
        })?;
        // Not judged as other answers are: the log that is there is the expected one from now on.
        let fields = read_fields(answer).unwrap_or_default();
        let found = fields.get(1).and_then(|found| <[u8; 16]>::try_from(found.as_slice()).ok());
        let found = LogIncarnation(found.ok_or_else(|| self.garbled_error("the log's incarnation"))?);
        self.binding.expect(found);
        Ok(found)
    }

    fn claim(
        &self,
        expected: LogIncarnation,
        server: &ServerRecord,
        after: Option<LogEpoch>,
    ) -> Result<LogClaim, SharedLogError> {
        self.binding.expect(expected);
        let after = after.unwrap_or(LogEpoch(0));
        // The claimant names the epoch, so that a claim whose answer was lost is recognised when it is repeated.
        let next = LogEpoch(after.0 + 1);
        let mut writer = FieldWriter::new();
        server.encode(&mut writer);
        let numbers = [after.0.to_string(), next.0.to_string()];
        let [seen, claimed] = &numbers;
        let arguments = [seen.as_bytes(), claimed.as_bytes(), writer.as_slice(), &server.instance];
        match self.run_script(&self.scripts.claim, &arguments)? {
            RedisAnswer::Fenced(current) => Err(SharedLogError::Fenced { epoch: after, current }),
            answer => {
                let fields = self.expect_done(answer)?;
                let start = LogPosition(self.parse_number(fields.first())?);
                let end = LogPosition(self.parse_number(fields.get(1))?);
                Ok(LogClaim { epoch: next, incarnation: expected, start, end })
            }
        }
    }

    fn renew(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        let answer = self.run_as_server(&self.scripts.renew, epoch, &[])?;
        self.expect_done(answer).map(drop)
    }

    fn release(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        let answer = self.run_as_server(&self.scripts.release, epoch, &[])?;
        self.expect_done(answer).map(drop)
    }

    fn append(
        &self,
        epoch: LogEpoch,
        at: LogPosition,
        records: &[u8],
    ) -> Result<LogPosition, SharedLogError> {
        if records.len() > APPEND_MAX {
            return Err(SharedLogError::Oversized { len: records.len() });
        }
        let end = LogPosition(at.0 + records.len() as u64);
        let positions = [at.0.to_string(), end.0.to_string()];
        let [at_text, end_text] = &positions;
        let arguments = [at_text.as_bytes(), end_text.as_bytes(), records];
        match self.run_as_server(&self.scripts.append, epoch, &arguments)? {
            RedisAnswer::Moved(end) => Err(SharedLogError::Moved { at, end }),
            answer => self.expect_done(answer).map(|_| end),
        }
    }

    fn wait_until_durable(&self, upto: LogPosition) -> Result<(), SharedLogError> {
        match self.durability {
            // It is durable already, or this Redis cannot tell when it is.
            RedisDurability::BeforeAnswer | RedisDurability::EverySecond => return Ok(()),
            RedisDurability::Awaited => {}
        }
        let expected = self.binding.expected();
        let expected = expected.as_ref().map_or(&[][..], |expected| &expected.0);
        let (answer, (synced, _)) = self.use_connection(|connection| {
            let answer =
                self.prepare_script(&self.scripts.touch, expected, &[]).invoke::<Value>(connection)?;
            // WAITAOF waits for what its own connection has written. So a write that changes nothing goes before it over
            // the same connection: all earlier ones, of any connection, stand before that in the append-only file.
            let wait = redis::cmd("WAITAOF").arg(1).arg(0).arg(DISK_TIMEOUT).to_owned();
            Ok((answer, wait.query::<(u64, u64)>(connection)?))
        })?;
        let fields = self.judge_answer(answer).and_then(|answer| self.expect_done(answer))?;
        let end = LogPosition(self.parse_number(fields.first())?);
        // Redis has lost what it had acknowledged, as when it was restarted from an older file.
        if end < upto {
            return Err(SharedLogError::Moved { at: upto, end });
        }
        // Redis has waited for as long as it was asked to, and its file is still not on the disk.
        if synced == 0 {
            let reason = "its disk takes too long".to_owned();
            return Err(SharedLogError::Unreachable { engine: self.engine.clone(), reason });
        }
        Ok(())
    }

    fn read(&self, from: LogPosition, max: usize) -> Result<Vec<u8>, SharedLogError> {
        let numbers = [from.0.to_string(), max.to_string()];
        let [from_text, max_text] = &numbers;
        match self.run_script(&self.scripts.read, &[from_text.as_bytes(), max_text.as_bytes()])? {
            RedisAnswer::Moved(end) => Err(SharedLogError::Moved { at: from, end }),
            RedisAnswer::Discarded(start) => Err(SharedLogError::Discarded { from, start }),
            answer => self.join_appends(from, &self.expect_done(answer)?),
        }
    }

    fn discard_before(&self, epoch: LogEpoch, before: LogPosition) -> Result<(), SharedLogError> {
        let position = before.0.to_string();
        match self.run_as_server(&self.scripts.discard, epoch, &[position.as_bytes()])? {
            RedisAnswer::Moved(end) => Err(SharedLogError::Moved { at: before, end }),
            answer => self.expect_done(answer).map(drop),
        }
    }

    fn current_server(
        &self,
        known: Option<LogEpoch>,
        wait: Duration,
    ) -> Result<Option<ServerSighting>, SharedLogError> {
        let begun = Instant::now();
        loop {
            let sighting = match self.run_script(&self.scripts.server, &[]) {
                Ok(answer) => self.describe_server(&self.expect_done(answer)?)?,
                Err(SharedLogError::NoLog { .. }) => None,
                Err(error) => return Err(error),
            };
            let left = wait.saturating_sub(begun.elapsed());
            // Who waits is woken by another epoch, and also by a release, after which the epoch stays.
            let is_known = sighting.as_ref().map(|sighting| sighting.epoch) == known;
            if !is_known || sighting.as_ref().is_some_and(|sighting| sighting.released) || left.is_zero() {
                return Ok(sighting);
            }
            // Asked again and again: a blocking command would need a key that each claim writes for those who wait.
            std::thread::sleep(POLL.min(left));
        }
    }

    fn remove(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        let answer = self.run_as_server(&self.scripts.remove, epoch, &[])?;
        self.expect_done(answer).map(drop)
    }
}

fn build_client(address: &LogAddress, authorities: Option<Vec<u8>>) -> Result<Client, RedisError> {
    let host = address.hosts.first().ok_or((ErrorKind::InvalidClientConfig, "no server is named"))?;
    let place = match address.has_tls {
        false => redis::ConnectionAddr::Tcp(host.host.clone(), host.port),
        true => redis::ConnectionAddr::TcpTls {
            host: host.host.clone(),
            port: host.port,
            insecure: false,
            tls_params: None,
        },
    };
    // `LogAddress::parse` has refused what is not a number.
    let database = address.database.as_deref().and_then(|number| number.parse().ok()).unwrap_or(0);
    let mut settings = redis::RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password.as_str());
    }
    let info = redis::IntoConnectionInfo::into_connection_info(place)?.set_redis_settings(settings);
    match authorities {
        None => Client::open(info),
        Some(pem) => {
            Client::build_with_tls(info, redis::TlsCertificates { client_tls: None, root_cert: Some(pem) })
        }
    }
}

fn connect(client: &Client) -> Result<Connection, RedisError> {
    let connection = client.get_connection_with_timeout(TIMEOUT)?;
    // Without these a server whose machine is gone would hold the thread for as long as TCP repeats itself.
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// The fields of a script's answer, which are texts; None if it is something else.
fn read_fields(answer: Value) -> Option<Vec<Vec<u8>>> {
    let Value::Array(values) = answer else { return None };
    let texts = values.into_iter().map(|value| match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    });
    texts.collect()
}

/// What the first answer of a server says, from which it is seen whether it is Redis at all.
fn wrap_first_error(engine: &str, error: &RedisError) -> SharedLogError {
    let wrapped = wrap_redis_error(engine, error);
    let SharedLogError::Unreachable { engine, reason } = wrapped else { return wrapped };
    match error.kind() {
        ErrorKind::Parse => SharedLogError::Unfit {
            engine,
            reason: format!("what answers there is not Redis ({reason}): correct the address"),
        },
        ErrorKind::Server(ServerErrorKind::ResponseError) => SharedLogError::Unfit {
            engine,
            reason: format!(
                "it refuses INFO, by which Vellum sees whether it keeps what it is given ({reason}): allow this command under \
                 its own name"
            ),
        },
        // A Redis that is being stopped does the same, so this may pass.
        _ => SharedLogError::Unreachable {
            engine,
            reason: format!("{reason}; it did not answer the first request: see whether Redis listens there"),
        },
    }
}

fn wrap_redis_error(engine: &str, error: &RedisError) -> SharedLogError {
    let engine = engine.to_owned();
    let reason: String = error.to_string().chars().take(REASON_MAX).collect();
    match (error.kind(), error.code()) {
        (_, Some("OOM")) => SharedLogError::Full {
            engine,
            reason: "its 'maxmemory' is reached: raise it, or remove other keys".to_owned(),
        },
        // Redis refuses writes since it could not save to its disk, mostly because that is full. It says so itself.
        (_, Some("MISCONF")) => SharedLogError::Full { engine, reason },
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
            let reason =
                format!("it refuses the user or the password, or forbids scripts to this user: {reason}");
            SharedLogError::Unfit { engine, reason }
        }
        (
            ErrorKind::Server(
                ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::CrossSlot
                | ServerErrorKind::ClusterDown,
            ),
            _,
        ) => SharedLogError::Unfit {
            engine,
            reason: "it is part of a cluster: name a Redis that stands alone".to_owned(),
        },
        _ => SharedLogError::Unreachable { engine, reason },
    }
}
