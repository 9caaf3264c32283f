//! Connections that are encrypted, and servers that are not who they say they are.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use vellum_store::{ObjectStore, ServiceStore, StoreAddress, StoreError};
use vellum_testkit::{LyingS3, ServerCertificate, TlsServer, WebServer, conformance};
use vellum_types::ErrorKind;

use crate::services::{key, open_service, short_limits, test_credentials};

/// A store of S3 and one behind a web server, both with an object, reached through TLS with one certificate.
struct TlsServers {
    _s3: LyingS3,
    _web: WebServer,
    tls: [TlsServer; 2],
    urls: [String; 2],
}

impl TlsServers {
    fn start(dir: &Path, certificate: ServerCertificate) -> Self {
        let s3 = LyingS3::start().unwrap();
        s3.overwrite_object("store/config", b"sealed");
        fs::create_dir_all(dir.join("served/store")).unwrap();
        fs::write(dir.join("served/store/config"), b"sealed").unwrap();
        let web = WebServer::start(&dir.join("served"));
        let s3_tls = TlsServer::start(&dir.join("s3"), s3.address(), certificate);
        let web_tls = TlsServer::start(&dir.join("web"), web.address(), certificate);
        let urls = [s3.store_url_at("store", &s3_tls.url()), format!("{}/store", web_tls.url())];
        Self { _s3: s3, _web: web, tls: [s3_tls, web_tls], urls }
    }

    /// The addresses with the servers' own authority.
    fn trusting_urls(&self) -> [String; 2] {
        let authority = |at: usize| self.tls[at].authority_file().display().to_string();
        [format!("{}&ca={}", self.urls[0], authority(0)), format!("{}?ca={}", self.urls[1], authority(1))]
    }
}

fn read_config(url: &str) -> Result<Vec<u8>, StoreError> {
    open_service(url, &short_limits()).get_object(&key("config"), 9)
}

fn open_error(url: &str) -> StoreError {
    let StoreAddress::Service(address) = StoreAddress::parse(url).unwrap() else { panic!("{url}") };
    ServiceStore::open(address, Some(test_credentials()), &short_limits(), None).err().unwrap()
}

#[test]
fn a_server_of_a_named_authority_is_used_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let servers = TlsServers::start(dir.path(), ServerCertificate::Valid);
    for url in servers.trusting_urls() {
        assert_eq!(read_config(&url).unwrap(), b"sealed", "{url}");
    }
    // The system does not know the authority, and each server has its own.
    let other = servers.tls[1].authority_file().display().to_string();
    for url in [servers.urls[0].clone(), servers.urls[1].clone(), format!("{}&ca={other}", servers.urls[0])] {
        let start = Instant::now();
        let error = read_config(&url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("no authority that is trusted here"), "{error}");
        assert!(error.to_string().contains("'ca=/path' in the address"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5), "it is not tried again: {:?}", start.elapsed());
    }
}

#[test]
fn certificates_that_are_not_for_this_host_and_this_time_are_refused() {
    let cases = [
        (ServerCertificate::Expired, "it has expired: renew it on the server"),
        (ServerCertificate::Future, "not valid yet: is this machine's clock right?"),
        (ServerCertificate::OtherHost, "it is that of store.example.org: use this name"),
        (ServerCertificate::SelfSigned, "make one with 'basicConstraints=CA:FALSE'"),
    ];
    for (certificate, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        let servers = TlsServers::start(dir.path(), certificate);
        for (url, tls) in servers.trusting_urls().into_iter().zip(&servers.tls) {
            let authority = tls.authority_file().display().to_string();
            let own = tls.certificate_file().display().to_string();
            // Trust in the very certificate changes nothing, either.
            let url = match certificate {
                ServerCertificate::SelfSigned => url.replace(&authority, &own),
                _ => url,
            };
            let error = read_config(&url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{certificate:?}: {error}");
            assert!(error.to_string().contains(words), "{certificate:?}: {error}");
            assert!(error.to_string().contains("127.0.0.1"), "{certificate:?}: {error}");
        }
    }
}

#[test]
fn a_file_without_certificates_and_a_port_without_tls_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebServer::start(dir.path());
    let error = read_config(&web.store_url("store").replace("http://", "https://")).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS at this port"), "{error}");

    let file = dir.path().join("ca.pem");
    let url = format!("s3://bucket/store?endpoint=https://127.0.0.1:9&ca={}", file.display());
    for (content, words) in [
        (None, "cannot read"),
        (Some("nothing here\n"), "has no certificate"),
        (Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "HTTP is not available"),
    ] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let error = open_error(&url);
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_store_over_tls_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let server = LyingS3::start().unwrap();
    let tls = TlsServer::start(dir.path(), server.address(), ServerCertificate::Valid);
    let url = format!("{}&ca={}", server.store_url_at("store", &tls.url()), tls.authority_file().display());
    conformance::check_object_store(&open_service(&url, &short_limits()));
}
