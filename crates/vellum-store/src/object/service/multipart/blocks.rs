//! The requests of Azure about uploads in parts, which are called blocks there.
//!
//! Invariant: a block of another upload becomes no part: its name begins with another id. An upload has no state at the
//! service but its blocks, so it is begun without a request, and a service without any of them has forgotten it.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Response};
use opendal::raw::{build_abs_path, percent_encode_path};
use opendal::{Buffer, ErrorKind as DalKind, Operator};
use reqsign_azure_storage::Credential;
use reqsign_core::Signer;

use super::answer::{PartPage, find_block_sizes, format_block_list};
use super::{
    BegunUpload, MultipartRequest, UploadFinish, add_condition, parse_header_name, parse_header_value,
    unusable_answer,
};

/// The version of the protocol, which is that of OpenDAL.
const PROTOCOL_VERSION: &str = "2022-11-02";
/// Digits of an id, a count.
const ID_DIGITS: usize = 13;
/// Digits of a part's number, a count.
const NUMBER_DIGITS: usize = 8;
/// What ends the name of a block. Names are base64, all of the same length; digits are base64 as they stand, and with this
/// end they stand for 16 bytes, as those of OpenDAL do: Azure takes no blocks of other lengths beside one that it has.
const NAME_END: &str = "A==";

/// Sends requests about uploads in parts to Azure.
#[derive(Clone)]
pub(in crate::object::service) struct AzureBlockClient {
    signer: Signer<Credential>,
    operator: Operator,
    /// The address of the container.
    container: String,
}

impl AzureBlockClient {
    /// Requests for objects of the operator, whose container is at this address.
    pub fn new(signer: Signer<Credential>, operator: Operator, container: String) -> Self {
        Self { signer, operator, container }
    }

    /// Chooses an id. Nothing is sent.
    pub(super) fn begin_upload(&self) -> opendal::Result<BegunUpload> {
        let random = getrandom::u64().map_err(|error| {
            opendal::Error::new(DalKind::Unexpected, "no random number")
                .set_source(std::io::Error::other(error))
        })?;
        // As many bits as the digits have.
        let id = format!("{:0ID_DIGITS$x}", random >> (64 - 4 * ID_DIGITS));
        Ok(BegunUpload { id, has_hashes: false })
    }

    /// Sends a part; returns the name of its block.
    pub(super) async fn send_part(
        &self,
        path: &str,
        upload: &str,
        number: u32,
        body: Bytes,
    ) -> opendal::Result<String> {
        let name = name_block(upload, number);
        let query = format!("comp=block&blockid={}", percent_encode_path(&name));
        self.send_request(path, MultipartRequest { body, ..MultipartRequest::new(Method::PUT, query) })
            .await?;
        Ok(name)
    }

    /// All parts that the service has.
    pub(super) async fn list_parts(&self, path: &str, upload: &str) -> opendal::Result<PartPage> {
        let query = "comp=blocklist&blocklisttype=uncommitted".to_owned();
        let answer = match self.send_request(path, MultipartRequest::new(Method::GET, query)).await {
            // Neither an object nor blocks of one.
            Err(error) if error.kind() == DalKind::NotFound => return Ok(PartPage::default()),
            answer => answer?,
        };
        let found = find_block_sizes(&answer.into_body().to_bytes());
        let found = found.ok_or_else(|| unusable_answer("it lists no blocks"))?;
        let parts = found.into_iter().filter_map(|block| {
            let number = parse_block_name(upload, &block.tag)?;
            Some(super::StoredPart { number, ..block })
        });
        Ok(PartPage { parts: parts.collect(), next: None })
    }

    /// Makes an object of parts.
    pub(super) async fn finish_upload(&self, path: &str, finish: &UploadFinish) -> opendal::Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        let (name, value) = &finish.metadata;
        headers.insert(parse_header_name(&format!("x-ms-meta-{name}"))?, parse_header_value(value)?);
        add_condition(&mut headers, finish.condition.as_ref())?;
        let body = format_block_list(&finish.tags).into();
        let query = "comp=blocklist".to_owned();
        let request = MultipartRequest { headers, body, ..MultipartRequest::new(Method::PUT, query) };
        self.send_request(path, request).await.map(drop)
    }

    async fn send_request(
        &self,
        path: &str,
        mut request: MultipartRequest,
    ) -> opendal::Result<Response<Buffer>> {
        let version = HeaderName::from_static("x-ms-version");
        request.headers.insert(version, HeaderValue::from_static(PROTOCOL_VERSION));
        let key = build_abs_path(&self.operator.info().root(), path);
        let address = format!("{}/{}", self.container, percent_encode_path(&key));
        request.send_signed(&address, &self.signer, &self.operator).await
    }
}

fn name_block(upload: &str, number: u32) -> String {
    format!("{upload}{number:0NUMBER_DIGITS$x}{NAME_END}")
}

/// The number of a part of this upload.
fn parse_block_name(upload: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(upload)?.strip_suffix(NAME_END)?;
    let number = u32::from_str_radix(digits, 16).ok()?;
    // Another spelling of the number is the name of another block.
    (number > 0 && name_block(upload, number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_the_upload_are_its_parts() {
        let upload = "0123456789abc";
        for number in [1, 255, 9_000] {
            let name = name_block(upload, number);
            assert_eq!((name.len(), parse_block_name(upload, &name)), (24, Some(number)));
            assert_eq!(parse_block_name("0123456789abd", &name), None);
        }
        for other in ["", "0123456789abc", "0123456789abc0000000AA==", "0123456789abc+0000001A==", "Zm9v"] {
            assert_eq!(parse_block_name(upload, other), None, "{other}");
        }
        assert_eq!(parse_block_name(upload, &name_block(upload, 0)), None);
    }
}
