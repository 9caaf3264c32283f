//! From an address and credentials to an OpenDAL operator.
//!
//! Invariant: nothing is sent. Secrets go into the operator only.

use std::sync::Arc;
use std::time::Duration;

use opendal::services::{Azblob, Gcs, Http, S3, Webdav};
use opendal::{Executor, HttpTransporter, OperationContext, Operator};
use reqsign_aws_v4::{
    DefaultCredentialProvider, DefaultCredentialProviderBuilder, RequestSigner, StaticCredentialProvider,
};
use reqsign_azure_storage::StaticCredentialProvider as AzureCredentialProvider;
use reqsign_core::{Context, ProvideCredentialChain, Signer};
use vellum_types::ErrorKind;

use super::credentials::ServiceCredentials;
use super::multipart::{AzureBlockClient, MultipartClient, S3PartClient};
use super::runtime::RuntimeSpawner;
use super::transport::ServiceTransport;
use crate::error::StoreError;
use crate::object::RequestLimits;
use crate::object::address::{AddressingStyle, ServiceAddress, ServiceKind};
use crate::object::bandwidth::BandwidthMeter;
use crate::object::traffic::TrafficMeter;

/// Time to connect, a part of the time without progress that is allowed.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The region for servers that have none: what most of them expect in signatures.
const REGION_WITH_ENDPOINT: &str = "us-east-1";

/// Builds the operator of a folder in a service.
pub(super) fn build_operator(
    address: &ServiceAddress,
    credentials: Option<&str>,
    limits: &RequestLimits,
    bandwidth: &Arc<BandwidthMeter>,
    traffic: &Arc<TrafficMeter>,
) -> Result<Operator, StoreError> {
    let credentials = credentials.map(ServiceCredentials::load).transpose()?;
    let get = |field: &str| credentials.as_ref().and_then(|credentials| credentials.get_field(field));
    let root = format!("/{}", address.folder);
    let built = match address.kind {
        ServiceKind::S3 => Operator::new(build_s3(address, &root, credentials.is_some(), get)),
        ServiceKind::Gcs => Operator::new(build_gcs(address, &root, credentials.is_some(), get)),
        ServiceKind::Azure => Operator::new(build_azure(address, &root, get)),
        ServiceKind::WebDavs => Operator::new(build_webdav(address, "https", &root, get)),
        ServiceKind::WebDav => Operator::new(build_webdav(address, "http", &root, get)),
        ServiceKind::Https | ServiceKind::Http => Operator::new(build_http(address, &root, get)),
    };
    let operator = built.map_err(|error| {
        let reason = match error.message() {
            message if message.contains("region is missing") => {
                "the region of the bucket is unknown: add '?region=NAME' to the address, or set AWS_REGION"
            }
            message => message,
        };
        unusable_address(address, reason)
    })?;
    let transport = ServiceTransport::new(
        build_client(address, limits)?,
        limits.silence_max,
        Arc::clone(bandwidth),
        Arc::clone(traffic),
    );
    let context = OperationContext::new()
        .with_http_transport(HttpTransporter::new(transport))
        .with_executor(Executor::with(RuntimeSpawner));
    Ok(operator.with_context(context))
}

/// What sends requests about uploads in parts to S3 and Azure; none for other services, and for directory buckets, whose
/// sessions are signed in another way. Google's uploads in parts have no conditions.
pub(super) fn build_multipart_client(
    address: &ServiceAddress,
    credentials: Option<&str>,
    operator: &Operator,
) -> Result<Option<MultipartClient>, StoreError> {
    let credentials = credentials.map(ServiceCredentials::load).transpose()?;
    let credentials = credentials.as_ref();
    Ok(match address.kind {
        ServiceKind::S3 if address.bucket.ends_with("--x-s3") => None,
        ServiceKind::S3 => Some(MultipartClient::S3(build_s3_part_client(address, credentials, operator))),
        ServiceKind::Azure => {
            build_azure_block_client(address, credentials, operator).map(MultipartClient::Azure)
        }
        ServiceKind::Gcs
        | ServiceKind::WebDavs
        | ServiceKind::WebDav
        | ServiceKind::Https
        | ServiceKind::Http => None,
    })
}

fn build_s3_part_client(
    address: &ServiceAddress,
    credentials: Option<&ServiceCredentials>,
    operator: &Operator,
) -> S3PartClient {
    let get = |field: &str| credentials.and_then(|credentials| credentials.get_field(field));
    // The same sources, in the same order, as OpenDAL has them by `build_s3`.
    let mut sources = DefaultCredentialProvider::builder();
    if credentials.is_some() && get("profile").is_none() {
        sources = sources.no_env().no_profile().no_imds();
    }
    sources = get("profile").into_iter().fold(sources, DefaultCredentialProviderBuilder::with_profile);
    let mut chain = ProvideCredentialChain::new().push(sources.build());
    if let (Some(id), Some(secret)) = (get("access-key-id"), get("secret-access-key")) {
        let named = StaticCredentialProvider::new(id, secret);
        chain = chain.push_front(match get("session-token") {
            Some(token) => named.with_session_token(token),
            None => named,
        });
    }
    // OpenDAL's operator was built, so there is a region.
    let region = find_s3_region(address).unwrap_or_default();
    let signer = Signer::new(Context::new(), chain, RequestSigner::new("s3", &region));
    S3PartClient::new(signer, operator.clone())
}

/// None if the address of the container is not known.
fn build_azure_block_client(
    address: &ServiceAddress,
    credentials: Option<&ServiceCredentials>,
    operator: &Operator,
) -> Option<AzureBlockClient> {
    let get = |field: &str| credentials.and_then(|credentials| credentials.get_field(field));
    let account = find_azure_account(get);
    let endpoint = find_azure_endpoint(address, account.as_deref())?;
    // The same sources, in the same order, as OpenDAL has them by `build_azure`.
    let mut chain =
        ProvideCredentialChain::new().push(reqsign_azure_storage::DefaultCredentialProvider::new());
    // OpenDAL takes the account from the endpoint, too.
    let host = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, host)| host);
    let account = account.as_deref().or_else(|| Some(host.split_once(".blob.")?.0));
    if let (Some(account), Some(key)) = (account, get("account-key")) {
        chain = chain.push_front(AzureCredentialProvider::new_shared_key(account, key));
    }
    if let Some(token) = get("sas-token") {
        chain = chain.push_front(AzureCredentialProvider::new_sas_token(token));
    }
    let signer = Signer::new(Context::new(), chain, reqsign_azure_storage::RequestSigner::new());
    let container = format!("{}/{}", endpoint.trim_end_matches('/'), address.bucket);
    Some(AzureBlockClient::new(signer, operator.clone(), container))
}

/// The region of the address or of the environment, or the one of servers that have none.
fn find_s3_region(address: &ServiceAddress) -> Option<String> {
    let options = &address.options;
    let set = |name| std::env::var(name).ok();
    options
        .region
        .clone()
        .or_else(|| set("AWS_REGION"))
        .or_else(|| options.endpoint.as_ref().map(|_| REGION_WITH_ENDPOINT.to_owned()))
        .or_else(|| set("AWS_DEFAULT_REGION"))
}

/// Credentials that were named are the only ones that are used: others that happen to be in the environment could be
/// those of another account.
fn build_s3<'a>(
    address: &ServiceAddress,
    root: &str,
    has_credentials: bool,
    get: impl Fn(&str) -> Option<&'a str>,
) -> S3 {
    let options = &address.options;
    let mut builder = S3::default().bucket(&address.bucket).root(root);
    builder = options.endpoint.iter().fold(builder, |builder, endpoint| builder.endpoint(endpoint));
    builder = find_s3_region(address).into_iter().fold(builder, |builder, region| builder.region(&region));
    // Servers other than Amazon's seldom have a host name for each bucket.
    let style = options.style.unwrap_or(match options.endpoint {
        Some(_) => AddressingStyle::Path,
        None => AddressingStyle::Virtual,
    });
    if style == AddressingStyle::Virtual {
        builder = builder.enable_virtual_host_style();
    }
    // Otherwise the environment, and the role of the machine, would fill in what the named credentials leave out.
    if has_credentials && get("profile").is_none() {
        builder = builder.disable_config_load().disable_ec2_metadata();
    }
    builder = get("profile").into_iter().fold(builder, S3::profile);
    builder = get("access-key-id").into_iter().fold(builder, S3::access_key_id);
    builder = get("secret-access-key").into_iter().fold(builder, S3::secret_access_key);
    get("session-token").into_iter().fold(builder, S3::session_token)
}

fn build_gcs<'a>(
    address: &ServiceAddress,
    root: &str,
    has_credentials: bool,
    get: impl Fn(&str) -> Option<&'a str>,
) -> Gcs {
    let mut builder = Gcs::default().bucket(&address.bucket).root(root);
    builder = address.options.endpoint.iter().fold(builder, |builder, endpoint| builder.endpoint(endpoint));
    if has_credentials {
        builder = builder.disable_config_load().disable_vm_metadata();
    }
    builder = get("service-account-file").into_iter().fold(builder, Gcs::credential_path);
    get("token").into_iter().fold(builder, |builder, token| builder.token(token.to_owned()))
}

fn build_azure<'a>(address: &ServiceAddress, root: &str, get: impl Fn(&str) -> Option<&'a str>) -> Azblob {
    let mut builder = Azblob::default().container(&address.bucket).root(root);
    let account = find_azure_account(&get);
    let endpoint = find_azure_endpoint(address, account.as_deref());
    builder = endpoint.iter().fold(builder, |builder, endpoint| builder.endpoint(endpoint));
    builder = account.iter().fold(builder, |builder, account| builder.account_name(account));
    builder = get("account-key").into_iter().fold(builder, Azblob::account_key);
    get("sas-token").into_iter().fold(builder, Azblob::sas_token)
}

/// The account, which is a part of the host name, so that it is needed before any request.
fn find_azure_account<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    get("account").map(str::to_owned).or_else(|| std::env::var("AZURE_STORAGE_ACCOUNT").ok())
}

fn find_azure_endpoint(address: &ServiceAddress, account: Option<&str>) -> Option<String> {
    let given = address.options.endpoint.clone();
    given.or_else(|| Some(format!("https://{}.blob.core.windows.net", account?)))
}

fn build_webdav<'a>(
    address: &ServiceAddress,
    scheme: &str,
    root: &str,
    get: impl Fn(&str) -> Option<&'a str>,
) -> Webdav {
    let mut builder = Webdav::default().endpoint(&format!("{scheme}://{}", address.bucket)).root(root);
    builder = get("user").into_iter().fold(builder, Webdav::username);
    builder = get("password").into_iter().fold(builder, Webdav::password);
    get("token").into_iter().fold(builder, Webdav::token)
}

fn build_http<'a>(address: &ServiceAddress, root: &str, get: impl Fn(&str) -> Option<&'a str>) -> Http {
    let endpoint = format!("{}://{}", address.kind.scheme(), address.bucket);
    let mut builder = Http::default().endpoint(&endpoint).root(root);
    builder = get("user").into_iter().fold(builder, Http::username);
    builder = get("password").into_iter().fold(builder, Http::password);
    get("token").into_iter().fold(builder, Http::token)
}

/// The HTTP client: no redirects, no encodings, and the certificates of the system or of the address.
fn build_client(address: &ServiceAddress, limits: &RequestLimits) -> Result<reqwest::Client, StoreError> {
    let fail = |reason: String| unusable_address(address, &reason);
    // Fails if another store of this process has installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        // A redirect would send headers and content, of which some are secret, to a server that the user has not
        // named.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX.min(limits.silence_max))
        .user_agent(concat!("vellum/", env!("CARGO_PKG_VERSION")))
        // Idle connections are closed by services after a minute or less; a request on one of these fails.
        .pool_idle_timeout(Duration::from_secs(20));
    if let Some(path) = &address.options.ca {
        let shown = path.display();
        let pem = std::fs::read(path).map_err(|e| fail(format!("cannot read {shown}: {e}")))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem)
            .map_err(|e| fail(format!("{shown} is not a file of certificates: {e}")))?;
        // Without any, each server would be refused, as if it were at fault.
        if certificates.is_empty() {
            return Err(fail(format!("{shown} has no certificate: 'ca' names a file in the PEM format")));
        }
        // Only these: whoever names a private authority does not want the public ones to vouch for this server too.
        builder = builder.tls_certs_only(certificates);
    }
    builder.build().map_err(|e| fail(format!("HTTP is not available: {e}")))
}

fn unusable_address(address: &ServiceAddress, reason: &str) -> StoreError {
    StoreError::Address { url: address.to_string(), reason: reason.to_owned(), kind: ErrorKind::Usage }
}
