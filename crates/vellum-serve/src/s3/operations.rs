//! What `s3s` asks for, one operation a method.

use std::time::UNIX_EPOCH;

use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, Bucket, Checksum, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult,
    CreateBucketInput, CreateBucketOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    ETagCondition, Error, GetBucketLocationInput, GetBucketLocationOutput, GetObjectInput, GetObjectOutput,
    HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListBucketsInput,
    ListBucketsOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsInput,
    ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, ListPartsInput, ListPartsOutput,
    MultipartUpload, PutObjectInput, PutObjectOutput, Timestamp, UploadPartCopyInput, UploadPartCopyOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use super::attributes::ObjectAttributes;
use super::bucket::{NewContent, NewObject, TreeBucket, encode_key};
use super::checksums::ExpectedChecksums;
use super::conditions::ReadConditions;
use super::errors::{parse_key, run_blocking};
use super::listing::{KeyPosition, KeyQuery, KeyRow};
use super::multipart::{UploadCompletion, part_number};
use super::objects::{byte_count, stream_part};
use super::upload::{WriteConditions, receive_content};

/// Most rows of a listing.
const ROWS_MAX: usize = 1000;
/// What content is without a type of its own.
const CONTENT_TYPE: &str = "application/octet-stream";

/// How many rows a listing may have.
fn row_limit(asked: Option<i32>) -> S3Result<usize> {
    let asked = asked.map_or(Ok(ROWS_MAX), usize::try_from);
    asked
        .map(|limit| limit.min(ROWS_MAX))
        .map_err(|_| s3_error!(InvalidArgument, "the number of rows is negative"))
}

fn row_count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn is_delimited(delimiter: Option<&str>) -> S3Result<bool> {
    match delimiter {
        None | Some("") => Ok(false),
        Some("/") => Ok(true),
        Some(_) => Err(s3_error!(NotImplemented, "keys are divided by '/' only")),
    }
}

/// The value of `x-amz-trailer`: the names of headers behind the content.
fn trailer_names<T>(request: &S3Request<T>) -> Option<String> {
    let value = request.headers.get("x-amz-trailer").and_then(|value| value.to_str().ok());
    value.map(str::to_owned)
}

/// Fails if an option is asked for that would change what is kept, or for whom, and is not offered.
fn refuse_options(options: &[(bool, &str)]) -> S3Result<()> {
    match options.iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, option)) => Err(s3_error!(NotImplemented, "{option} is not offered here")),
    }
}

/// Whether a canned list of access rights gives anything to others.
fn is_shared(acl: Option<&str>) -> bool {
    !matches!(acl, None | Some("private" | "bucket-owner-full-control"))
}

#[async_trait::async_trait]
impl S3 for TreeBucket {
    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let creation_date = Some(Timestamp::from(UNIX_EPOCH));
        let bucket = Bucket { name: Some(self.name.clone()), creation_date, ..Bucket::default() };
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(vec![bucket]), ..ListBucketsOutput::default() }))
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        // Some clients make their bucket before they write into it.
        self.check_name(&request.input.bucket)?;
        Err(s3_error!(BucketAlreadyOwnedByYou))
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.check_name(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.check_name(&request.input.bucket)?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let asked = request.input;
        let is_delimited = is_delimited(asked.delimiter.as_deref())?;
        let limit = row_limit(asked.max_keys)?;
        let marker = asked.marker.clone().filter(|marker| !marker.is_empty());
        // What NextMarker of such a listing says stands for all keys that begin so.
        let after = marker.map(|marker| match is_delimited && marker.ends_with('/') {
            true => KeyPosition::Prefix(marker),
            false => KeyPosition::Key(marker),
        });
        let prefix = asked.prefix.clone().unwrap_or_default();
        let page = self.list(&asked.bucket, KeyQuery { prefix, is_delimited, after, limit }).await?;
        let more = page.more;
        let last = page.rows.last().map(KeyRow::position).filter(|_| more);
        let encoding = asked.encoding_type.as_ref();
        let (contents, common_prefixes) = self.describe_rows(page, encoding);
        let next_marker = last.map(|last| match last {
            KeyPosition::Key(key) | KeyPosition::Prefix(key) => encode_key(&key, encoding),
        });
        let encoded = |text: Option<String>| text.map(|text| encode_key(&text, encoding));
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(asked.bucket),
            max_keys: Some(row_count(limit)),
            is_truncated: Some(more),
            next_marker,
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            prefix: encoded(asked.prefix),
            marker: encoded(asked.marker),
            delimiter: encoded(asked.delimiter),
            encoding_type: asked.encoding_type.clone(),
            ..ListObjectsOutput::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let asked = request.input;
        let limit = row_limit(asked.max_keys)?;
        let bad_token = || s3_error!(InvalidArgument, "the continuation token is not of this gateway");
        let after = match &asked.continuation_token {
            Some(token) => Some(KeyPosition::from_token(token).ok_or_else(bad_token)?),
            None => asked.start_after.clone().filter(|after| !after.is_empty()).map(KeyPosition::Key),
        };
        let query = KeyQuery {
            prefix: asked.prefix.clone().unwrap_or_default(),
            is_delimited: is_delimited(asked.delimiter.as_deref())?,
            after,
            limit,
        };
        let page = self.list(&asked.bucket, query).await?;
        let more = page.more;
        let next = page.rows.last().map(KeyRow::position).filter(|_| more);
        let encoding = asked.encoding_type.as_ref();
        let (contents, common_prefixes) = self.describe_rows(page, encoding);
        let encoded = |text: Option<String>| text.map(|text| encode_key(&text, encoding));
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(asked.bucket),
            max_keys: Some(row_count(limit)),
            key_count: Some(row_count(contents.len() + common_prefixes.len())),
            is_truncated: Some(more),
            next_continuation_token: next.as_ref().map(KeyPosition::to_token),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            prefix: encoded(asked.prefix),
            delimiter: encoded(asked.delimiter),
            start_after: encoded(asked.start_after),
            continuation_token: asked.continuation_token,
            encoding_type: asked.encoding_type.clone(),
            ..ListObjectsV2Output::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let asked = request.input;
        let has_version = asked.part_number.is_some() || asked.version_id.is_some();
        refuse_options(&[(has_version, "a part or a version of an object")])?;
        let conditions = ReadConditions {
            if_match: asked.if_match,
            if_none_match: asked.if_none_match,
            if_modified_since: asked.if_modified_since,
            if_unmodified_since: asked.if_unmodified_since,
        };
        let found = self.find(&asked.bucket, asked.key, conditions).await?;
        let part = found.part(asked.range)?;
        let metadata = found.attributes.to_metadata();
        let attributes = found.attributes;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some(byte_count(part.len)),
            content_range: part.content_range,
            content_type: Some(attributes.content_type.unwrap_or_else(|| CONTENT_TYPE.into())),
            cache_control: attributes.cache_control,
            content_disposition: attributes.content_disposition,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            metadata: Some(metadata),
            e_tag: Some(found.tag),
            last_modified: Some(found.modified),
            ..HeadObjectOutput::default()
        }))
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let asked = request.input;
        let has_version = asked.part_number.is_some() || asked.version_id.is_some();
        refuse_options(&[(has_version, "a part or a version of an object")])?;
        let conditions = ReadConditions {
            if_match: asked.if_match,
            if_none_match: asked.if_none_match,
            if_modified_since: asked.if_modified_since,
            if_unmodified_since: asked.if_unmodified_since,
        };
        let found = self.find(&asked.bucket, asked.key, conditions).await?;
        let part = found.part(asked.range)?;
        let metadata = found.attributes.to_metadata();
        let attributes = found.attributes;
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some(byte_count(part.len)),
            body: found.file.map(|file| stream_part(file, &part)),
            content_range: part.content_range,
            content_type: Some(attributes.content_type.unwrap_or_else(|| CONTENT_TYPE.into())),
            cache_control: attributes.cache_control,
            content_disposition: attributes.content_disposition,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            metadata: Some(metadata),
            e_tag: Some(found.tag),
            last_modified: Some(found.modified),
            ..GetObjectOutput::default()
        }))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let trailer = trailer_names(&request);
        let asked = request.input;
        let is_encrypted = asked.server_side_encryption.is_some() || asked.sse_customer_algorithm.is_some();
        refuse_options(&[
            (is_encrypted, "encryption by the server"),
            (is_shared(asked.acl.as_ref().map(|acl| acl.as_str())), "access for others"),
            (asked.tagging.is_some(), "tagging"),
            (asked.object_lock_mode.is_some(), "locking"),
            (asked.website_redirect_location.is_some(), "redirecting"),
            (asked.write_offset_bytes.is_some(), "writing into an object"),
        ])?;
        let attributes = ObjectAttributes {
            content_type: asked.content_type,
            cache_control: asked.cache_control,
            content_disposition: asked.content_disposition,
            content_encoding: asked.content_encoding,
            content_language: asked.content_language,
            ..ObjectAttributes::default()
        };
        let new = NewObject {
            bucket: asked.bucket,
            key: asked.key,
            attributes: attributes.with_metadata(asked.metadata)?,
            conditions: WriteConditions { if_match: asked.if_match, if_none_match: asked.if_none_match },
        };
        let head = Checksum {
            checksum_crc32: asked.checksum_crc32,
            checksum_crc32c: asked.checksum_crc32c,
            checksum_crc64nvme: asked.checksum_crc64nvme,
            checksum_sha1: asked.checksum_sha1,
            checksum_sha256: asked.checksum_sha256,
            checksum_type: None,
        };
        let trailing_headers = request.trailing_headers;
        let expected = ExpectedChecksums { head, md5: asked.content_md5, trailer, trailing_headers };
        let content = NewContent { body: asked.body, expected, length: asked.content_length };
        let (placed, received) = self.put(new, content).await?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(placed.tag),
            checksum_crc32: received.checksum.checksum_crc32,
            checksum_crc32c: received.checksum.checksum_crc32c,
            checksum_crc64nvme: received.checksum.checksum_crc64nvme,
            checksum_sha1: received.checksum.checksum_sha1,
            checksum_sha256: received.checksum.checksum_sha256,
            ..PutObjectOutput::default()
        }))
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let asked = request.input;
        let is_encrypted = asked.server_side_encryption.is_some() || asked.sse_customer_algorithm.is_some();
        refuse_options(&[
            (is_encrypted, "encryption by the server"),
            (is_shared(asked.acl.as_ref().map(|acl| acl.as_str())), "access for others"),
            (asked.tagging.is_some(), "tagging"),
        ])?;
        let placed = self.copy(asked).await?;
        let result = CopyObjectResult {
            e_tag: Some(placed.tag),
            last_modified: Some(placed.modified),
            ..CopyObjectResult::default()
        };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..CopyObjectOutput::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let asked = request.input;
        refuse_options(&[
            (asked.version_id.is_some(), "a version of an object"),
            (
                asked.if_match_size.is_some() || asked.if_match_last_modified_time.is_some(),
                "such a condition",
            ),
        ])?;
        let conditions = WriteConditions { if_match: asked.if_match, if_none_match: None };
        self.delete(&asked.bucket, &asked.key, conditions).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let asked = request.input;
        self.writable(&asked.bucket)?;
        if asked.delete.objects.len() > ROWS_MAX {
            return Err(s3_error!(MalformedXML, "more than {ROWS_MAX} objects"));
        }
        let is_quiet = asked.delete.quiet.unwrap_or(false);
        let mut deleted = Vec::new();
        let mut errors = Vec::new();
        for object in asked.delete.objects {
            let key = object.key;
            let if_match = object.e_tag.map(ETagCondition::ETag);
            let done = match object.version_id {
                Some(_) => Err(s3_error!(NotImplemented, "objects have no versions here")),
                None => {
                    self.delete(&asked.bucket, &key, WriteConditions { if_match, if_none_match: None }).await
                }
            };
            match done {
                Ok(()) if is_quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(Error {
                    key: Some(key),
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    ..Error::default()
                }),
            }
        }
        let output = DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        };
        Ok(S3Response::new(output))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let asked = request.input;
        self.writable(&asked.bucket)?;
        let key = parse_key(&asked.key)?;
        if key.is_dir() {
            return Err(s3_error!(
                InvalidArgument,
                "a key that ends in '/' is a directory, which has no content"
            ));
        }
        let is_encrypted = asked.server_side_encryption.is_some() || asked.sse_customer_algorithm.is_some();
        refuse_options(&[
            (is_encrypted, "encryption by the server"),
            (is_shared(asked.acl.as_ref().map(|acl| acl.as_str())), "access for others"),
            (asked.tagging.is_some(), "tagging"),
            (asked.object_lock_mode.is_some(), "locking"),
            (asked.website_redirect_location.is_some(), "redirecting"),
        ])?;
        let attributes = ObjectAttributes {
            content_type: asked.content_type,
            cache_control: asked.cache_control,
            content_disposition: asked.content_disposition,
            content_encoding: asked.content_encoding,
            content_language: asked.content_language,
            ..ObjectAttributes::default()
        };
        let id = self.uploads.create(key, attributes.with_metadata(asked.metadata)?)?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(asked.bucket),
            key: Some(asked.key),
            upload_id: Some(id),
            checksum_algorithm: asked.checksum_algorithm,
            checksum_type: asked.checksum_type,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let trailer = trailer_names(&request);
        let asked = request.input;
        let tree = self.writable(&asked.bucket)?;
        let key = parse_key(&asked.key)?;
        let number = part_number(asked.part_number)?;
        // Before anything is received.
        self.uploads.check(&key, &asked.upload_id)?;
        let head = Checksum {
            checksum_crc32: asked.checksum_crc32,
            checksum_crc32c: asked.checksum_crc32c,
            checksum_crc64nvme: asked.checksum_crc64nvme,
            checksum_sha1: asked.checksum_sha1,
            checksum_sha256: asked.checksum_sha256,
            checksum_type: None,
        };
        let trailing_headers = request.trailing_headers;
        let expected = ExpectedChecksums { head, md5: asked.content_md5, trailer, trailing_headers };
        let received = receive_content(&tree.worktree, asked.body, expected, asked.content_length).await?;
        let tag = self.file_tag(&received.file)?;
        let checksum = received.checksum.clone();
        self.uploads.add_part(&key, &asked.upload_id, number, received, tag.clone())?;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(tag),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..UploadPartOutput::default()
        }))
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let (tag, modified) = self.copy_part(request.input).await?;
        let result =
            CopyPartResult { e_tag: Some(tag), last_modified: Some(modified), ..CopyPartResult::default() };
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            ..UploadPartCopyOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let asked = request.input;
        let tree = self.writable(&asked.bucket)?;
        let checksum = Checksum {
            checksum_crc32: asked.checksum_crc32,
            checksum_crc32c: asked.checksum_crc32c,
            checksum_crc64nvme: asked.checksum_crc64nvme,
            checksum_sha1: asked.checksum_sha1,
            checksum_sha256: asked.checksum_sha256,
            checksum_type: None,
        };
        let completion = UploadCompletion {
            key: parse_key(&asked.key)?,
            id: asked.upload_id,
            parts: asked.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default(),
            size: asked.mpu_object_size,
            checksum: checksum.clone(),
            conditions: WriteConditions { if_match: asked.if_match, if_none_match: asked.if_none_match },
        };
        let uploads = self.uploads.clone();
        let tag = run_blocking(move || uploads.complete(&tree, &completion)).await?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", asked.bucket, encode_key(&asked.key, None))),
            bucket: Some(asked.bucket),
            key: Some(asked.key),
            e_tag: Some(tag),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let asked = request.input;
        self.check_name(&asked.bucket)?;
        let key = parse_key(&asked.key)?;
        let uploads = self.uploads.clone();
        run_blocking(move || uploads.abort(&key, &asked.upload_id)).await?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let asked = request.input;
        self.check_name(&asked.bucket)?;
        let key = parse_key(&asked.key)?;
        let limit = row_limit(asked.max_parts)?;
        let after = u32::try_from(asked.part_number_marker.unwrap_or(0)).unwrap_or(0);
        let (parts, more) = self.uploads.list_parts(&key, &asked.upload_id, after, limit)?;
        let last = parts.last().and_then(|part| part.part_number);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(asked.bucket),
            key: Some(asked.key),
            upload_id: Some(asked.upload_id),
            max_parts: Some(row_count(limit)),
            part_number_marker: asked.part_number_marker,
            next_part_number_marker: last.filter(|_| more),
            is_truncated: Some(more),
            parts: Some(parts),
            ..ListPartsOutput::default()
        }))
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let asked = request.input;
        self.check_name(&asked.bucket)?;
        refuse_options(&[(
            asked.delimiter.as_ref().is_some_and(|delimiter| !delimiter.is_empty()),
            "a delimiter",
        )])?;
        let limit = row_limit(asked.max_uploads)?;
        let mut rows = self.uploads.list(asked.prefix.as_deref().unwrap_or_default());
        let key_marker = asked.key_marker.as_deref().unwrap_or_default();
        let id_marker = asked.upload_id_marker.as_deref().unwrap_or_default();
        // Without an id, all uploads of the key of the marker are passed over.
        rows.retain(|row| {
            let is_behind = !id_marker.is_empty() && row.key == key_marker && row.id.as_str() > id_marker;
            row.key.as_str() > key_marker || is_behind
        });
        let more = rows.len() > limit;
        rows.truncate(limit);
        let encoding = asked.encoding_type.as_ref();
        let last = rows.last().filter(|_| more);
        let next_key_marker = last.map(|row| encode_key(&row.key, encoding));
        let next_upload_id_marker = last.map(|row| row.id.clone());
        let uploads = rows.into_iter().map(|row| MultipartUpload {
            key: Some(encode_key(&row.key, encoding)),
            upload_id: Some(row.id),
            initiated: Some(row.begun),
            ..MultipartUpload::default()
        });
        let uploads = uploads.collect();
        let encoded = |text: Option<String>| text.map(|text| encode_key(&text, encoding));
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(asked.bucket),
            prefix: encoded(asked.prefix),
            key_marker: encoded(asked.key_marker),
            upload_id_marker: asked.upload_id_marker,
            next_key_marker,
            next_upload_id_marker,
            max_uploads: Some(row_count(limit)),
            is_truncated: Some(more),
            uploads: Some(uploads),
            encoding_type: asked.encoding_type.clone(),
            ..ListMultipartUploadsOutput::default()
        }))
    }
}
