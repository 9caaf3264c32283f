//! Encrypted connections to the engines: the server must prove who it is.

use std::net::SocketAddr;
use std::sync::LazyLock;

use vellum_shared_log::SharedLogError;
use vellum_testkit::{EtcdServer, PostgresServer, RedisServer, ServerCertificate, TlsServer};

use crate::outages::{open, try_open};

/// Puts credentials of a store into a directory of configuration of this process, and returns their name.
pub(super) fn write_credentials(name: &'static str, content: &str) -> &'static str {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    static CONFIG: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let credentials = dir.path().join("vellum/credentials");
        std::fs::create_dir_all(&credentials).unwrap();
        std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
        // SAFETY: the tests of this program that read it come through here first, and none of them changes it.
        unsafe { std::env::set_var("XDG_CONFIG_HOME", dir.path()) };
        dir
    });
    let path = CONFIG.path().join("vellum/credentials").join(name);
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    std::io::Write::write_all(&mut file, content.as_bytes()).unwrap();
    name
}

/// An engine behind TLS, with the scheme that an address needs then.
fn check_tls(scheme: &str, port: u16) {
    let dir = tempfile::tempdir().unwrap();
    let upstream = SocketAddr::from(([127, 0, 0, 1], port));
    let tls = TlsServer::start(dir.path(), upstream, ServerCertificate::Valid);
    let place = tls.url().replace("https://", &format!("{scheme}://"));
    let ca = tls.authority_file().display().to_string();
    open(&format!("{place}?ca={ca}"), "tls").create().unwrap();
    // The system does not know the authority.
    let error = try_open(&place, "tls").err().unwrap();
    assert!(matches!(error, SharedLogError::Unreachable { .. }), "{error}");
    let unreadable = try_open(&format!("{place}?ca=/nothing/there"), "tls").err().unwrap();
    assert!(
        unreadable.to_string().contains("the certificates in /nothing/there cannot be read"),
        "{unreadable}"
    );
    let other = TlsServer::start(&dir.path().join("other"), upstream, ServerCertificate::OtherHost);
    let place = other.url().replace("https://", &format!("{scheme}://"));
    let ca = other.authority_file().display().to_string();
    let error = try_open(&format!("{place}?ca={ca}"), "tls").err().unwrap();
    assert!(matches!(error, SharedLogError::Unreachable { .. }), "{error}");
}

#[test]
fn redis_is_reached_through_tls() {
    let dir = tempfile::tempdir().unwrap();
    check_tls("rediss", RedisServer::start(dir.path(), &[]).port());
}

#[test]
fn etcd_is_reached_through_tls() {
    let dir = tempfile::tempdir().unwrap();
    check_tls("etcds", EtcdServer::start(dir.path(), &[]).port());
}

#[test]
fn postgresql_is_reached_through_tls() {
    let dir = tempfile::tempdir().unwrap();
    // In front of nothing: only its certificate is used.
    let tls = |name: &str, certificate| {
        TlsServer::start(&dir.path().join(name), ([127, 0, 0, 1], 9).into(), certificate)
    };
    let valid = tls("valid", ServerCertificate::Valid);
    let server = PostgresServer::start_encrypted(&valid);
    let trusting = |tls: &TlsServer| format!("?sslmode=verify-full&ca={}", tls.authority_file().display());
    let log = open(&format!("{}{}", server.url(), trusting(&valid)), "tls");
    log.create().unwrap();
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE \
                     application_name = 'vellum'";
    assert_eq!(server.run(encrypted), "t\n");
    let other = tls("other", ServerCertificate::OtherHost);
    let elsewhere = PostgresServer::start_encrypted(&other);
    let plain = PostgresServer::start(&[]);
    for url in [
        // The system does not know the authority.
        format!("{}?sslmode=require", server.url()),
        format!("{}{}", server.url(), trusting(&other)),
        format!("{}{}", elsewhere.url(), trusting(&other)),
        format!("{}?sslmode=require", plain.url()),
    ] {
        let error = try_open(&url, "tls").err().unwrap();
        assert!(matches!(error, SharedLogError::Unreachable { .. }), "{error}");
    }
}
