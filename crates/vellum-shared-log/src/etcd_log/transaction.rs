//! Transactions of etcd: conditions on values, operations, and what they return.

use serde_json::{Value, json};

use super::gateway::{decode_bytes, decode_number, encode_bytes};

/// A transaction that is being written down.
#[derive(Default)]
pub(super) struct EtcdTransaction {
    conditions: Vec<Value>,
    success: Vec<Value>,
    failure: Vec<Value>,
}

/// A key and its value, as etcd returns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EtcdEntry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// The lease that removes it, 0 if none does.
    pub lease: i64,
}

/// The answer to a transaction.
#[derive(Debug)]
pub(super) struct EtcdOutcome {
    /// Whether the conditions were true, and the operations for that case carried out.
    pub succeeded: bool,
    /// The number of the last change that the answer knows.
    pub revision: i64,
    /// What each operation found, in their order; nothing for those that read nothing.
    pub found: Vec<Vec<EtcdEntry>>,
}

/// Keys to be read.
pub(super) struct EtcdRange<'a> {
    /// The first key.
    pub first: &'a str,
    /// The key behind the last one.
    pub end: &'a str,
    /// Most keys; 0 for all.
    pub limit: u32,
    /// Whether the last keys come first.
    pub is_descending: bool,
    /// Whether values are left out.
    pub keys_only: bool,
    /// As of which change; 0 for now.
    pub revision: i64,
}

impl<'a> EtcdRange<'a> {
    /// All keys with a prefix that ends with `/`.
    pub fn between(first: &'a str, end: &'a str) -> Self {
        Self { first, end, limit: 0, is_descending: false, keys_only: false, revision: 0 }
    }

    fn to_operation(&self) -> Value {
        json!({ "request_range": {
            "key": encode_bytes(self.first.as_bytes()),
            "range_end": encode_bytes(self.end.as_bytes()),
            // The gateway takes and gives numbers of 64 bits as texts.
            "limit": self.limit.to_string(),
            "sort_target": "KEY",
            "sort_order": if self.is_descending { "DESCEND" } else { "ASCEND" },
            "keys_only": self.keys_only,
            "revision": self.revision.to_string(),
        }})
    }
}

impl EtcdTransaction {
    /// Adds the condition that a key has a value.
    pub fn expect_value(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.conditions.push(json!({
            "key": encode_bytes(key.as_bytes()), "target": "VALUE", "result": "EQUAL", "value": encode_bytes(value),
        }));
        self
    }

    /// Adds the condition that there is no such key.
    pub fn expect_absent(&mut self, key: &str) -> &mut Self {
        self.conditions.push(json!({
            // A key that does not exist was created by revision 0.
            "key": encode_bytes(key.as_bytes()), "target": "CREATE", "result": "EQUAL", "create_revision": "0",
        }));
        self
    }

    /// If the conditions are true, puts a value. It ends with the lease, if there is one.
    pub fn put(&mut self, key: &str, value: &[u8], lease: Option<i64>) -> &mut Self {
        self.success.push(json!({ "request_put": {
            "key": encode_bytes(key.as_bytes()),
            "value": encode_bytes(value),
            "lease": lease.unwrap_or(0).to_string(),
        }}));
        self
    }

    /// If the conditions are true, deletes the keys from `first` to before `end`.
    pub fn delete(&mut self, first: &str, end: &str) -> &mut Self {
        self.success.push(json!({ "request_delete_range": {
            "key": encode_bytes(first.as_bytes()), "range_end": encode_bytes(end.as_bytes()),
        }}));
        self
    }

    /// If the conditions are true, reads keys.
    pub fn read(&mut self, range: &EtcdRange<'_>) -> &mut Self {
        self.success.push(range.to_operation());
        self
    }

    /// If a condition is not true, reads keys.
    pub fn read_otherwise(&mut self, range: &EtcdRange<'_>) -> &mut Self {
        self.failure.push(range.to_operation());
        self
    }

    /// The request.
    pub fn to_request(&self) -> Value {
        json!({ "compare": self.conditions, "success": self.success, "failure": self.failure })
    }
}

impl EtcdOutcome {
    /// Parses an answer; None if it is none.
    pub fn parse(answer: &Value) -> Option<Self> {
        let revision = decode_number(answer.get("header")?.get("revision"))?;
        // The gateway leaves out fields that are false, zero or empty.
        let succeeded = answer.get("succeeded").and_then(Value::as_bool).unwrap_or(false);
        let responses = answer.get("responses").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let found = responses.iter().map(parse_entries).collect::<Option<_>>()?;
        Some(Self { succeeded, revision, found })
    }
}

fn parse_entries(response: &Value) -> Option<Vec<EtcdEntry>> {
    let entries = response.get("response_range").and_then(|range| range.get("kvs")).and_then(Value::as_array);
    let entries = entries.map_or(&[][..], Vec::as_slice).iter().map(|entry| {
        Some(EtcdEntry {
            key: decode_bytes(entry.get("key"))?,
            value: decode_bytes(entry.get("value"))?,
            lease: decode_number(entry.get("lease"))?,
        })
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::{EtcdEntry, EtcdOutcome};

    #[test]
    fn answers_are_read_although_zeros_are_left_out() {
        let answer = json!({
            "header": { "revision": "12" },
            "responses": [
                { "response_range": { "kvs": [{ "key": "YQ==", "value": "YmI=", "lease": "7" }, { "key": "Yw==" }] } },
                { "response_put": { "header": {} } },
            ],
        });
        let outcome = EtcdOutcome::parse(&answer).unwrap();
        assert!(!outcome.succeeded);
        assert_eq!(outcome.revision, 12);
        let entry =
            |key: &[u8], value: &[u8], lease| EtcdEntry { key: key.into(), value: value.into(), lease };
        assert_eq!(outcome.found, [vec![entry(b"a", b"bb", 7), entry(b"c", b"", 0)], vec![]]);
        assert!(EtcdOutcome::parse(&json!({})).is_none());
        let garbled =
            json!({ "header": {}, "responses": [{ "response_range": { "kvs": [{ "key": "%" }] } }] });
        assert!(EtcdOutcome::parse(&garbled).is_none());
    }
}
