//! What Redis is asked to do, each in one script, so that nothing comes between a check and what rests on it.
//!
//! Two keys: a hash with the state of the log, and a stream with one entry for each append, whose id is the append's
//! position. Each script gets both keys and, first, the incarnation that is expected (empty: any). It returns a list of
//! a word, the incarnation that is there, and what belongs to the word. Scripts that free memory, or keep a server
//! alive, are run by a full Redis, too (`allow-oom`).

use redis::Script;

/// The scripts, compiled for the client.
pub(super) struct RedisScripts {
    pub create: Script,
    pub claim: Script,
    pub renew: Script,
    pub release: Script,
    pub append: Script,
    pub touch: Script,
    pub read: Script,
    pub discard: Script,
    pub server: Script,
    pub remove: Script,
}

impl RedisScripts {
    pub fn new() -> Self {
        // While the memory is full, appends are refused. What frees memory, or keeps the claim, must go on.
        let writing = |body: &str| Script::new(&format!("#!lua\n{EXPECT}{body}"));
        let freeing = |body: &str| Script::new(&format!("#!lua flags=allow-oom\n{EXPECT}{body}"));
        // A script that says that it writes nothing runs also while Redis refuses writes.
        let reading = |body: &str| Script::new(&format!("#!lua flags=no-writes\n{EXPECT}{body}"));
        let as_server = |body: &str| freeing(&format!("{CHECK_EPOCH}{body}"));
        Self {
            create: Script::new(CREATE),
            claim: freeing(CLAIM),
            renew: as_server(RENEW),
            release: as_server(RELEASE),
            append: writing(&format!("{CHECK_EPOCH}{APPEND}")),
            touch: freeing(TOUCH),
            read: reading(READ),
            discard: as_server(DISCARD),
            server: reading(SERVER),
            remove: as_server(REMOVE),
        }
    }
}

/// Ends if the log is not the expected one.
const EXPECT: &str = "
local h = redis.call('HMGET', KEYS[1], 'incarnation', 'epoch', 'start', 'end')
if not h[1] or (ARGV[1] ~= '' and h[1] ~= ARGV[1]) then return {'gone', h[1] or ''} end
";

/// Ends if another server has claimed the log.
const CHECK_EPOCH: &str = "
if h[2] ~= ARGV[2] then return {'fenced', h[1], h[2]} end
";

/// Arguments: a new incarnation.
// The appends of a log whose head is gone are removed: a stream takes no entry before its last one.
const CREATE: &str = "#!lua
local found = redis.call('HGET', KEYS[1], 'incarnation')
if found then return {'ok', found} end
redis.call('UNLINK', KEYS[2])
redis.call('HSET', KEYS[1], 'incarnation', ARGV[1], 'epoch', '0', 'start', '0', 'end', '0', 'released', '0')
return {'ok', ARGV[1]}
";

/// Arguments: incarnation, the epoch that was seen, the next one, the server, its instance.
// A claim whose answer was lost is repeated, and has to succeed.
const CLAIM: &str = "
local s = redis.call('HMGET', KEYS[1], 'instance', 'released')
local is_repeated = h[2] == ARGV[3] and s[1] == ARGV[5] and s[2] == '0'
if h[2] ~= ARGV[2] and not is_repeated then return {'fenced', h[1], h[2]} end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'server', ARGV[4], 'instance', ARGV[5], 'released', '0',
    'renewed', t[1] .. string.format('%06d', t[2]))
return {'ok', h[1], h[3], h[4]}
";

// By the clock of Redis, which is also the one that `SERVER` tells the age by.
const RENEW: &str = "
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'renewed', t[1] .. string.format('%06d', t[2]))
return {'ok', h[1]}
";

const RELEASE: &str = "
redis.call('HSET', KEYS[1], 'released', '1')
return {'ok', h[1]}
";

/// Arguments: incarnation, epoch, where to append, the new end, the bytes. Positions are compared as text: a number of
/// Lua is exact up to 2^53 only.
// Entries have positions as their ids, with -1 behind them, since a stream has no id 0-0.
const APPEND: &str = "
if h[4] ~= ARGV[3] then return {'moved', h[1], h[4]} end
if ARGV[3] == ARGV[4] then return {'ok', h[1]} end
if h[3] ~= h[4] and redis.call('EXISTS', KEYS[2]) == 0 then return {'torn', h[1]} end
redis.call('XADD', KEYS[2], ARGV[3] .. '-1', 'b', ARGV[5])
redis.call('HSET', KEYS[1], 'end', ARGV[4])
return {'ok', h[1]}
";

/// Writes something, which WAITAOF then waits for: it waits for what its own connection has written.
const TOUCH: &str = "
redis.call('HSET', KEYS[1], 'touched', '1')
return {'ok', h[1], h[4]}
";

/// Arguments: incarnation, position, most bytes. Returns positions and bytes in turn. One entry at a time, since only
/// the first may be larger than what was asked for.
// The first entry is looked for backwards: it may begin before the position.
const READ: &str = "
local from, max = tonumber(ARGV[2]), tonumber(ARGV[3])
if from < tonumber(h[3]) then return {'discarded', h[1], h[3]} end
if from > tonumber(h[4]) then return {'moved', h[1], h[4]} end
local out = {'ok', h[1]}
if from == tonumber(h[4]) then return out end
local found = redis.call('XREVRANGE', KEYS[2], ARGV[2] .. '-1', '-', 'COUNT', 1)
if #found == 0 then return {'torn', h[1]} end
while #found == 1 and #out < 8192 do
    local id, bytes = found[1][1], found[1][2][2]
    local size = tonumber(string.match(id, '^%d+')) + #bytes - from
    if #out > 2 and size > max then break end
    out[#out + 1] = id
    out[#out + 1] = bytes
    found = redis.call('XRANGE', KEYS[2], '(' .. id, '+', 'COUNT', 1)
end
return out
";

/// Arguments: incarnation, epoch, position.
// If everything goes, no entry is left whose position is the new beginning.
const DISCARD: &str = "
local before = tonumber(ARGV[3])
if before > tonumber(h[4]) then return {'moved', h[1], h[4]} end
local boundary = h[4]
if before < tonumber(h[4]) then
    local found = redis.call('XREVRANGE', KEYS[2], ARGV[3] .. '-1', '-', 'COUNT', 1)
    if #found == 0 then return {'ok', h[1]} end
    boundary = string.match(found[1][1], '^%d+')
end
if tonumber(boundary) > tonumber(h[3]) then
    redis.call('HSET', KEYS[1], 'start', boundary)
    redis.call('XTRIM', KEYS[2], 'MINID', boundary .. '-0')
end
return {'ok', h[1]}
";

const SERVER: &str = "
local s = redis.call('HMGET', KEYS[1], 'server', 'released', 'renewed')
local t = redis.call('TIME')
return {'ok', h[1], h[2], s[1] or '', s[2], s[3] or '', t[1] .. string.format('%06d', t[2])}
";

const REMOVE: &str = "
redis.call('UNLINK', KEYS[1], KEYS[2])
return {'ok', h[1]}
";
