//! Who may do what.

use std::sync::Arc;

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

use crate::credentials::{GatewayCredentials, UserAccess};

/// What changes nothing.
const READING: [&str; 9] = [
    "GetBucketLocation",
    "GetObject",
    "HeadBucket",
    "HeadObject",
    "ListBuckets",
    "ListMultipartUploads",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
];

/// Finds the secret key of an access key.
pub(super) struct GatewayAuth(pub(super) Arc<GatewayCredentials>);

/// Lets those in who signed, and those write who may.
pub(super) struct GatewayAccess {
    pub(super) credentials: Arc<GatewayCredentials>,
    pub(super) can_write: bool,
}

#[async_trait::async_trait]
impl S3Auth for GatewayAuth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let found = self.0.find_user(access_key).ok_or(s3_error!(InvalidAccessKeyId))?;
        Ok(SecretKey::from(found.0))
    }
}

#[async_trait::async_trait]
impl S3Access for GatewayAccess {
    // Called before the body of a request is read, and for requests without a signature, too.
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let signed = context.credentials().and_then(|signed| self.credentials.find_user(&signed.access_key));
        let access = signed.ok_or(s3_error!(AccessDenied, "requests have to be signed"))?.1;
        // Whatever is not known to read is taken for writing.
        if READING.contains(&context.s3_op().name()) {
            return Ok(());
        }
        match (self.can_write, access) {
            (true, UserAccess::Write) => Ok(()),
            (false, _) => Err(s3_error!(
                AccessDenied,
                "this can only be read: it is a snapshot, or served with --read-only"
            )),
            (true, UserAccess::Read) => Err(s3_error!(AccessDenied, "this access key can only read")),
        }
    }
}
