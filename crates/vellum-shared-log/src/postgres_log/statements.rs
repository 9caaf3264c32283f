//! What PostgreSQL is asked to do, each in one statement, which is a transaction by itself.
//!
//! Two tables: a row for each log with its state, and a row for each append. A statement that changes something changes
//! the log's row too, or locks it, on the condition that it is the expected log and the epoch is the current one. So a
//! statement that waited for a claim finds the new epoch, and does nothing.

/// Without parameters, and so one transaction of several statements. An advisory lock, since two sessions that create a
/// table at once may both fail.
// The row of a log changes with each append: in a page with room, its new version needs no new entry in an
// index. Appends are sealed, so that compressing them would gain nothing.
pub(super) const CREATE_TABLES: &str = "
SELECT pg_advisory_xact_lock(8386668312146767201);
CREATE TABLE IF NOT EXISTS vellum_logs (
    name text PRIMARY KEY,
    incarnation bytea NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    log_start bigint NOT NULL DEFAULT 0,
    log_end bigint NOT NULL DEFAULT 0,
    server bytea NOT NULL DEFAULT '',
    instance bytea NOT NULL DEFAULT '',
    released boolean NOT NULL DEFAULT false,
    renewed timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS vellum_log_appends (
    incarnation bytea NOT NULL,
    position bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (incarnation, position)
);
ALTER TABLE vellum_log_appends ALTER COLUMN bytes SET STORAGE EXTERNAL;
";

/// Whether the tables are there.
// `to_regclass` gives null for a table that is not there, where a cast would fail.
pub(super) const FIND_TABLES: &str =
    "SELECT to_regclass('vellum_logs') IS NOT NULL AND to_regclass('vellum_log_appends') IS NOT NULL";

/// What decides whether the server can hold a log.
pub(super) const DESCRIBE_SERVER: &str = "
SELECT current_setting('server_version_num')::int, current_setting('fsync'), current_setting('synchronous_commit'),
    pg_is_in_recovery()";

/// Name, incarnation.
pub(super) const CREATE: &str =
    "INSERT INTO vellum_logs (name, incarnation) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";

/// Name. Says why another statement did nothing.
pub(super) const STATE: &str =
    "SELECT incarnation, epoch, log_start, log_end FROM vellum_logs WHERE name = $1";

/// Name, incarnation, epoch that was seen, next epoch, server, instance.
// The second case is that of a claim whose answer was lost.
pub(super) const CLAIM: &str = "
UPDATE vellum_logs SET epoch = $4, server = $5, instance = $6, released = false, renewed = clock_timestamp()
WHERE name = $1 AND incarnation = $2 AND (epoch = $3 OR (epoch = $4 AND instance = $6 AND NOT released))
RETURNING log_start, log_end";

/// Name, incarnation (or null), epoch.
pub(super) const RENEW: &str = "
UPDATE vellum_logs SET renewed = clock_timestamp()
WHERE name = $1 AND ($2::bytea IS NULL OR incarnation = $2) AND epoch = $3 RETURNING incarnation";

/// Name, incarnation (or null), epoch.
pub(super) const RELEASE: &str = "
UPDATE vellum_logs SET released = true
WHERE name = $1 AND ($2::bytea IS NULL OR incarnation = $2) AND epoch = $3 RETURNING incarnation";

/// Name, incarnation (or null), epoch, where to append, the new end, the bytes.
// An append of nothing gets no row, since the next one has the same position.
pub(super) const APPEND: &str = "
WITH log AS (
    UPDATE vellum_logs SET log_end = $5
    WHERE name = $1 AND ($2::bytea IS NULL OR incarnation = $2) AND epoch = $3 AND log_end = $4
    RETURNING incarnation
), appended AS (
    INSERT INTO vellum_log_appends (incarnation, position, bytes) SELECT incarnation, $4, $6 FROM log WHERE $4 < $5
)
SELECT incarnation FROM log";

/// Name, position, most bytes. The log's state, and in each row an append, from the one that contains the position on.
// A left join, so that the state comes also where no append does.
pub(super) const READ: &str = "
SELECT log.incarnation, log.epoch, log.log_start, log.log_end, append.position, append.bytes
FROM vellum_logs log LEFT JOIN LATERAL (
    SELECT found.position, found.bytes FROM vellum_log_appends found, (
        SELECT max(position) AS position FROM vellum_log_appends
        WHERE incarnation = log.incarnation AND position <= $2
    ) first
    WHERE found.incarnation = log.incarnation AND found.position >= first.position
        AND (found.position = first.position OR found.position + octet_length(found.bytes) <= $2 + $3)
        AND log.log_start <= $2 AND $2 < log.log_end
    ORDER BY found.position LIMIT 4096
) append ON true
WHERE log.name = $1 ORDER BY append.position";

/// Name, incarnation (or null), epoch, position. If the log grows meanwhile, an append more than necessary may stay.
pub(super) const DISCARD: &str = "
WITH log AS (
    SELECT name, incarnation, CASE WHEN log_end = $4 THEN log_end ELSE (
        SELECT max(position) FROM vellum_log_appends append
        WHERE append.incarnation = vellum_logs.incarnation AND position <= $4
    ) END AS boundary
    FROM vellum_logs
    WHERE name = $1 AND ($2::bytea IS NULL OR incarnation = $2) AND epoch = $3 AND log_end >= $4 FOR UPDATE
), moved AS (
    UPDATE vellum_logs SET log_start = log.boundary FROM log
    WHERE vellum_logs.name = log.name AND log.boundary > vellum_logs.log_start
    RETURNING vellum_logs.incarnation, vellum_logs.log_start
), discarded AS (
    DELETE FROM vellum_log_appends append USING moved
    WHERE append.incarnation = moved.incarnation AND append.position < moved.log_start
)
SELECT incarnation FROM log";

/// Name. The age is in microseconds.
// The clock of the server may have been set back since.
pub(super) const SERVER: &str = "
SELECT incarnation, epoch, server, released,
    greatest(0, extract(epoch FROM clock_timestamp() - renewed) * 1000000)::bigint
FROM vellum_logs WHERE name = $1";

/// Name, incarnation (or null), epoch.
pub(super) const REMOVE: &str = "
WITH gone AS (
    DELETE FROM vellum_logs
    WHERE name = $1 AND ($2::bytea IS NULL OR incarnation = $2) AND epoch = $3 RETURNING incarnation
), cleared AS (
    DELETE FROM vellum_log_appends append USING gone WHERE append.incarnation = gone.incarnation
)
SELECT incarnation FROM gone";
