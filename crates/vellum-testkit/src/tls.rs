//! TLS in front of another server.
//!
//! Invariant: what a client sends and receives is passed on as it is. The certificate's authority is made for one server:
//! nobody trusts it who is not told to.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What a server says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerCertificate {
    /// The authority's, for this host, and valid.
    Valid,
    /// The authority's, and expired.
    Expired,
    /// The authority's, valid from a time that has not come yet.
    Future,
    /// The authority's, for another host.
    OtherHost,
    /// What `openssl req -x509` makes without further options: the certificate of an authority, for this host.
    SelfSigned,
}

/// A server that speaks TLS to its clients, and passes on what they send. It ends when it is dropped.
pub struct TlsServer {
    dir: PathBuf,
    port: u16,
    /// Its end closes all connections.
    _runtime: tokio::runtime::Runtime,
}

impl TlsServer {
    /// Starts in front of the server at `upstream`. Keys and certificates are made in `dir`.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs `openssl`, which makes certificates.
    #[must_use]
    pub fn start(dir: &Path, upstream: SocketAddr, certificate: ServerCertificate) -> Self {
        fs::create_dir_all(dir).expect("a directory for certificates");
        make_certificates(dir, certificate);
        let config = read_server_config(dir);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        runtime.spawn(accept_connections(listener, TlsAcceptor::from(Arc::new(config)), upstream));
        Self { dir: dir.to_owned(), port, _runtime: runtime }
    }

    /// The certificate of the authority, which clients need to trust the server.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.dir.join("authority.pem")
    }

    /// The certificate of the server.
    #[must_use]
    pub fn certificate_file(&self) -> PathBuf {
        self.dir.join("server.pem")
    }

    /// The key of the certificate of the server.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.dir.join("server.key")
    }

    /// Its address: `https://127.0.0.1:` and the port.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

async fn accept_connections(listener: TcpListener, acceptor: TlsAcceptor, upstream: SocketAddr) {
    while let Ok((client, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // Clients that do not like the certificate, and connections that are cut, are what tests are about.
            let Ok(mut client) = acceptor.accept(client).await else { return };
            let Ok(mut server) = TcpStream::connect(upstream).await else { return };
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

fn read_server_config(dir: &Path) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(dir.join("server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).expect("a key");
    // Named, since no other part of a test has to install one first.
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key))
        .expect("a key that belongs to the certificate")
}

/// The configuration of `openssl ca`, which can make certificates that are valid at any time.
fn format_configuration(names: &str) -> String {
    format!(
        "[ca]\ndefault_ca = authority\n\
         [authority]\ndatabase = issued\nnew_certs_dir = .\ncertificate = authority.pem\n\
         private_key = authority.key\ndefault_md = sha256\nrand_serial = yes\npolicy = any\n\
         [any]\ncommonName = supplied\n\
         [req]\ndistinguished_name = name\n[name]\n\
         [server]\nbasicConstraints = CA:FALSE\nsubjectAltName = {names}\n"
    )
}

fn make_certificates(dir: &Path, certificate: ServerCertificate) {
    // An elliptic curve, since finding the primes of an RSA key takes a while.
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let run = |args: String| {
        let ran = Command::new("openssl").current_dir(dir).args(args.split_ascii_whitespace()).output();
        let ran = ran.unwrap_or_else(|e| panic!("openssl: {e}: see the Makefile"));
        assert!(ran.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    run(format!("req -x509 {KEY} -subj /CN=authority -days 3 -keyout authority.key -out authority.pem"));
    let (names, from, to) = match certificate {
        ServerCertificate::Valid => ("IP:127.0.0.1", "20200101000000Z", "20980101000000Z"),
        ServerCertificate::Expired => ("IP:127.0.0.1", "20200101000000Z", "20210101000000Z"),
        ServerCertificate::Future => ("IP:127.0.0.1", "20970101000000Z", "20980101000000Z"),
        ServerCertificate::OtherHost => ("DNS:store.example.org", "20200101000000Z", "20980101000000Z"),
        ServerCertificate::SelfSigned => {
            return run(format!(
                "req -x509 {KEY} -subj /CN=server -addext subjectAltName=IP:127.0.0.1 -days 3 \
                 -keyout server.key -out server.pem"
            ));
        }
    };
    // `openssl ca` keeps a list of what it has issued, and does not create it.
    fs::write(dir.join("issued"), "").expect("a list of certificates");
    fs::write(dir.join("config"), format_configuration(names)).expect("a configuration");
    run(format!("req -config config {KEY} -subj /CN=server -keyout server.key -out request.pem"));
    run(format!(
        "ca -config config -batch -notext -extensions server -startdate {from} -enddate {to} \
         -in request.pem -out server.pem"
    ));
}
