//! The objects of the server, and the correct replies.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant};

use super::generated::GeneratedObjects;
use super::http::{HttpReply, HttpRequest};

/// Parts in one reply to a listing of those of an upload, a count.
const PART_PAGE: usize = 3;
/// Keys in one reply to a listing, a count: few, so that tests see several replies.
const PAGE: usize = 100;

/// An object in a listing.
struct ListedObject {
    key: String,
    size: usize,
    tag: String,
    uploaded: Duration,
}

impl ListedObject {
    fn generate(key: String) -> Self {
        Self { key, size: 1, tag: "\"generated\"".to_owned(), uploaded: Duration::ZERO }
    }
}

/// The conditions that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum S3Conditions {
    /// All conditions.
    All,
    /// Only the condition that an object does not exist.
    Absence,
    /// None.
    None,
}

/// An object with the version that its tag names.
struct S3Object {
    bytes: Vec<u8>,
    version: u64,
    /// When it was stored, after the start of the server.
    uploaded: Duration,
    /// The modification time of a file, from the object's metadata.
    mtime: Option<String>,
}

/// A multipart upload in progress.
pub(super) struct S3Upload {
    mtime: Option<String>,
    pub parts: BTreeMap<u32, Vec<u8>>,
}

/// The header with the modification time of a file.
const MTIME_HEADER: &str = "x-amz-meta-mtime";

impl S3Object {
    fn list_as(&self, key: &str) -> ListedObject {
        ListedObject { key: key.to_owned(), size: self.bytes.len(), tag: self.tag(), uploaded: self.uploaded }
    }

    fn tag(&self) -> String {
        format!("\"v{}\"", self.version)
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let uploaded = format!("Thu, 01 Jan 2026 {} GMT", format_time_of_day(self.uploaded));
        let mut headers = vec![("etag", self.tag()), ("last-modified", uploaded)];
        headers.extend(self.mtime.iter().map(|mtime| (MTIME_HEADER, mtime.clone())));
        headers
    }
}

/// The server's clock shows the same day whenever it is started: what tests see depends on no other clock.
fn format_time_of_day(since_start: Duration) -> String {
    let seconds = since_start.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// All objects by key.
pub(super) struct S3Objects {
    started: Instant,
    objects: BTreeMap<String, S3Object>,
    versions: u64,
    /// Parts by their numbers.
    pub uploads: BTreeMap<String, S3Upload>,
    /// Keys in one reply to a listing.
    pub page: usize,
    pub generated: Vec<GeneratedObjects>,
}

impl Default for S3Objects {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            objects: BTreeMap::new(),
            versions: 0,
            uploads: BTreeMap::new(),
            page: PAGE,
            generated: Vec::new(),
        }
    }
}

impl S3Objects {
    /// Makes these all objects.
    pub fn replace_objects(&mut self, objects: &BTreeMap<String, Vec<u8>>) {
        self.objects.clear();
        for (key, bytes) in objects {
            // As a new version: a tag that a client has from before must not match it.
            self.put_object(key, bytes.clone());
        }
    }

    /// Stores an object, and returns its tag.
    pub fn put_object(&mut self, key: &str, bytes: Vec<u8>) -> String {
        self.put_with_mtime(key, bytes, None)
    }

    fn put_with_mtime(&mut self, key: &str, bytes: Vec<u8>, mtime: Option<String>) -> String {
        self.versions += 1;
        let object = S3Object { bytes, version: self.versions, uploaded: self.started.elapsed(), mtime };
        let tag = object.tag();
        self.objects.insert(key.to_owned(), object);
        tag
    }

    /// The bytes of an object.
    pub fn find_bytes(&self, key: &str) -> Option<&[u8]> {
        self.objects.get(key).map(|object| object.bytes.as_slice())
    }

    /// The modification time of the file that an object is a copy of.
    pub fn find_mtime(&self, key: &str) -> Option<&str> {
        self.objects.get(key)?.mtime.as_deref()
    }

    /// All keys.
    pub fn list_keys(&self) -> Vec<String> {
        self.objects.keys().cloned().collect()
    }

    /// Carries out a request.
    pub fn carry_out(&mut self, request: &HttpRequest, checked: S3Conditions) -> HttpReply {
        let key = request.key();
        if let Some(refusal) = self.check_conditions(request, &key, checked) {
            return refusal;
        }
        let upload = request.parameter("uploadId");
        match request.operation() {
            "LIST" => self.list_objects(request, &key),
            "POST" => match upload {
                None => self.begin_upload(request),
                Some(upload) => self.finish_upload(&upload, &key),
            },
            "PUT" if upload.is_some() => self.keep_part(request, &upload.unwrap_or_default()),
            "DELETE" if upload.is_some() => match self.uploads.remove(&upload.unwrap_or_default()) {
                Some(_) => HttpReply::new(204),
                None => HttpReply::for_error(404, "NoSuchUpload"),
            },
            "PUT" => {
                let mtime = request.header(MTIME_HEADER).map(str::to_owned);
                let tag = self.put_with_mtime(&key, request.body.clone(), mtime);
                HttpReply { headers: vec![("etag", tag)], ..HttpReply::new(200) }
            }
            "DELETE" => {
                // S3 gives the same answer whether there was an object or not.
                self.objects.remove(&key);
                HttpReply::new(204)
            }
            "GET" if upload.is_some() => self.list_parts(request, &upload.unwrap_or_default()),
            "GET" => self.read_object(request, &key),
            "HEAD" => match self.objects.get(&key) {
                Some(object) => HttpReply {
                    headers: object.headers(),
                    announced: Some(object.bytes.len()),
                    ..HttpReply::new(200)
                },
                // A reply to `HEAD` has no body that could name the error.
                None => HttpReply::new(404),
            },
            _ => HttpReply::for_error(405, "MethodNotAllowed"),
        }
    }

    fn check_conditions(&self, request: &HttpRequest, key: &str, checked: S3Conditions) -> Option<HttpReply> {
        let current = self.objects.get(key);
        let refused = || Some(HttpReply::for_error(412, "PreconditionFailed"));
        let (absence, tag) = match checked {
            S3Conditions::All => (request.header("if-none-match"), request.header("if-match")),
            S3Conditions::Absence => (request.header("if-none-match"), None),
            S3Conditions::None => (None, None),
        };
        match (absence, tag) {
            // Uploads in parts are finished by POST and have the same condition.
            (Some("*"), _) if matches!(request.method.as_str(), "PUT" | "POST") && current.is_some() => {
                refused()
            }
            (Some(known), _)
                if request.method == "GET" && current.is_some_and(|object| object.tag() == known) =>
            {
                Some(HttpReply::new(304))
            }
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
            // HTTP knows this error only for ranges of which no byte exists.
            Some((first, _)) if first >= len => return HttpReply::for_error(416, "InvalidRange"),
            Some((first, last)) => {
                // In HTTP the last byte belongs to the range, and it may lie behind the end of the object.
                let end = last.map_or(len, |last| (last + 1).min(len));
                let bytes = object.bytes[first as usize..end as usize].to_vec();
                let range = format!("bytes {first}-{}/{len}", end - 1);
                HttpReply { headers: vec![("content-range", range)], ..HttpReply::with_body(206, bytes) }
            }
        };
        reply.headers.extend(object.headers());
        reply
    }

    fn begin_upload(&mut self, request: &HttpRequest) -> HttpReply {
        // Counted with the versions of objects, so that no two uploads have the same id.
        self.versions += 1;
        let id = format!("upload{}", self.versions);
        let mtime = request.header(MTIME_HEADER).map(str::to_owned);
        self.uploads.insert(id.clone(), S3Upload { mtime, parts: BTreeMap::new() });
        let body = format!(
            "<?xml version=\"1.0\"?><InitiateMultipartUploadResult><UploadId>{id}</UploadId>\
             </InitiateMultipartUploadResult>"
        );
        HttpReply::with_body(200, body.into_bytes())
    }

    fn keep_part(&mut self, request: &HttpRequest, upload: &str) -> HttpReply {
        let (Some(upload), Some(number)) = (self.uploads.get_mut(upload), request.part_number()) else {
            return HttpReply::for_error(404, "NoSuchUpload");
        };
        // As in S3, a part that is sent again replaces the earlier one.
        upload.parts.insert(number, request.body.clone());
        HttpReply { headers: vec![("etag", format!("\"part{number}\""))], ..HttpReply::new(200) }
    }

    fn list_parts(&self, request: &HttpRequest, upload: &str) -> HttpReply {
        let Some(upload) = self.uploads.get(upload) else {
            return HttpReply::for_error(404, "NoSuchUpload");
        };
        let after =
            request.parameter("part-number-marker").and_then(|number| number.parse().ok()).unwrap_or(0);
        let mut found = upload.parts.iter().filter(|(number, _)| **number > after);
        let page: Vec<_> = found.by_ref().take(PART_PAGE).collect();
        let is_truncated = found.next().is_some();
        // The root has an attribute, as that of S3 has: clients must not look for its bare name.
        let mut body = format!(
            "<?xml version=\"1.0\"?><ListPartsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <IsTruncated>{is_truncated}</IsTruncated>"
        );
        if let Some((last, _)) = page.last() {
            body.push_str(&format!("<NextPartNumberMarker>{last}</NextPartNumberMarker>"));
        }
        for (number, bytes) in page {
            body.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>&quot;part{number}&quot;</ETag><Size>{}</Size></Part>",
                bytes.len()
            ));
        }
        body.push_str("</ListPartsResult>");
        HttpReply::with_body(200, body.into_bytes())
    }

    fn finish_upload(&mut self, upload: &str, key: &str) -> HttpReply {
        let Some(upload) = self.uploads.remove(upload) else {
            return HttpReply::for_error(404, "NoSuchUpload");
        };
        // In the order of their numbers, whatever the order in which they came.
        let bytes = upload.parts.into_values().flatten().collect();
        // Services escape the quotation marks of tags in XML, so clients have to undo that.
        let tag = self.put_with_mtime(key, bytes, upload.mtime).replace('"', "&quot;");
        let body = format!(
            "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
        );
        HttpReply::with_body(200, body.into_bytes())
    }

    fn list_objects(&self, request: &HttpRequest, prefix: &str) -> HttpReply {
        // One rule for both, since the tokens of this server are keys.
        let after = request.parameter("continuation-token").or_else(|| request.parameter("start-after"));
        let after = after.unwrap_or_default();
        // Not before the prefix: what is taken below ends at the first key without it.
        let first = if after.as_str() < prefix { Bound::Included(prefix) } else { Bound::Excluded(&*after) };
        let real = self.objects.range::<str, _>((first, Bound::Unbounded));
        let real = real.take_while(|(key, _)| key.starts_with(prefix));
        // One more than a page has, to see whether there is more.
        let mut page: Vec<_> = real.take(self.page + 1).map(|(key, object)| object.list_as(key)).collect();
        for generated in &self.generated {
            // Not a filter: it would go through all that sort before the prefix.
            let names = generated.keys_behind(prefix.max(&after)).take_while(|key| key.starts_with(prefix));
            page.extend(names.take(self.page + 1).map(ListedObject::generate));
        }
        page.sort_by(|a, b| a.key.cmp(&b.key));
        let is_truncated = page.len() > self.page;
        page.truncate(self.page);
        let mut body =
            format!("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
        // Only if there is more does the answer have a token, as in S3.
        if is_truncated && let Some(last) = page.last() {
            body.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", last.key));
        }
        for ListedObject { key, size, tag, uploaded } in &page {
            body.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{}</ETag>\
                 <LastModified>2026-01-01T{}.{:03}Z</LastModified></Contents>",
                tag.replace('"', "&quot;"),
                format_time_of_day(*uploaded),
                uploaded.subsec_millis(),
            ));
        }
        body.push_str("</ListBucketResult>");
        HttpReply::with_body(200, body.into_bytes())
    }
}
