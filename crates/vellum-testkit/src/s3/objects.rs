//! The objects of the server, and what correct answers are.

use std::collections::BTreeMap;

use super::http::{HttpReply, HttpRequest};

/// Keys in one answer to a listing, a count: few, so that tests see several.
const PAGE: usize = 100;

/// An object with the version that its tag names.
struct S3Object {
    bytes: Vec<u8>,
    version: u64,
}

impl S3Object {
    fn tag(&self) -> String {
        format!("\"v{}\"", self.version)
    }
}

/// All objects by key.
#[derive(Default)]
pub(super) struct S3Objects {
    objects: BTreeMap<String, S3Object>,
    versions: u64,
}

impl S3Objects {
    /// Stores an object, and returns its tag.
    pub fn put_object(&mut self, key: &str, bytes: Vec<u8>) -> String {
        self.versions += 1;
        let object = S3Object { bytes, version: self.versions };
        let tag = object.tag();
        self.objects.insert(key.to_owned(), object);
        tag
    }

    /// The bytes of an object.
    pub fn find_bytes(&self, key: &str) -> Option<&[u8]> {
        self.objects.get(key).map(|object| object.bytes.as_slice())
    }

    /// Carries a request out. Conditions are ignored on demand.
    pub fn carry_out(&mut self, request: &HttpRequest, checks_conditions: bool) -> HttpReply {
        let key = request.key();
        if checks_conditions && let Some(refusal) = self.check_conditions(request, &key) {
            return refusal;
        }
        match request.operation() {
            "LIST" => self.list_objects(request, &key),
            "PUT" => {
                let tag = self.put_object(&key, request.body.clone());
                HttpReply { headers: vec![("etag", tag)], ..HttpReply::new(200) }
            }
            "DELETE" => {
                self.objects.remove(&key);
                HttpReply::new(204)
            }
            "GET" => self.read_object(request, &key),
            "HEAD" => match self.objects.get(&key) {
                Some(object) => HttpReply {
                    headers: vec![("etag", object.tag())],
                    announced: Some(object.bytes.len()),
                    ..HttpReply::new(200)
                },
                None => HttpReply::new(404),
            },
            _ => HttpReply::for_error(405, "MethodNotAllowed"),
        }
    }

    fn check_conditions(&self, request: &HttpRequest, key: &str) -> Option<HttpReply> {
        let current = self.objects.get(key);
        let refused = || Some(HttpReply::for_error(412, "PreconditionFailed"));
        match (request.header("if-none-match"), request.header("if-match")) {
            (Some("*"), _) if request.method == "PUT" && current.is_some() => refused(),
            (_, Some(tag)) if current.is_none_or(|object| object.tag() != tag) => refused(),
            _ => None,
        }
    }

    fn read_object(&self, request: &HttpRequest, key: &str) -> HttpReply {
        let Some(object) = self.objects.get(key) else {
            return HttpReply::for_error(404, "NoSuchKey");
        };
        let len = object.bytes.len() as u64;
        let mut reply = match request.range() {
            None => HttpReply::with_body(200, object.bytes.clone()),
            Some((first, _)) if first >= len => return HttpReply::for_error(416, "InvalidRange"),
            Some((first, last)) => {
                let end = last.map_or(len, |last| (last + 1).min(len));
                let bytes = object.bytes[first as usize..end as usize].to_vec();
                let range = format!("bytes {first}-{}/{len}", end - 1);
                HttpReply { headers: vec![("content-range", range)], ..HttpReply::with_body(206, bytes) }
            }
        };
        reply.headers.push(("etag", object.tag()));
        reply
    }

    fn list_objects(&self, request: &HttpRequest, prefix: &str) -> HttpReply {
        let after = request.parameter("continuation-token").or_else(|| request.parameter("start-after"));
        let is_listed =
            |key: &str| key.starts_with(prefix) && after.as_deref().is_none_or(|after| key > after);
        let mut found = self.objects.iter().filter(|(key, _)| is_listed(key));
        let page: Vec<_> = found.by_ref().take(PAGE).collect();
        let is_truncated = found.next().is_some();
        let mut body =
            format!("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
        if is_truncated && let Some((last, _)) = page.last() {
            body.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
        }
        for (key, object) in &page {
            body.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{}</Size><ETag>{}</ETag>\
                 <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>",
                object.bytes.len(),
                object.tag().replace('"', "&quot;"),
            ));
        }
        body.push_str("</ListBucketResult>");
        HttpReply::with_body(200, body.into_bytes())
    }
}
