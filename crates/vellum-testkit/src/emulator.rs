//! Emulators of clouds: Azurite, and fake-gcs-server.
//!
//! Invariant: they end when they are dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ports::{find_free_port, wait_for_port};

/// The bucket or container.
const BUCKET: &str = "vellum-test";
/// Azurite's account, which is the same everywhere.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// Creates a container, with the signature that Azure asks for.
const CREATE_CONTAINER: &str = r#"
import sys, hmac, hashlib, base64, http.client, email.utils
port, account, key, container = sys.argv[1:]
date = email.utils.formatdate(usegmt=True)
text = ("PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:" + date + "\nx-ms-version:2021-08-06\n/" + account + "/" + account + "/"
    + container + "\nrestype:container")
signature = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request("PUT", "/" + account + "/" + container + "?restype=container", headers={"x-ms-date": date,
    "x-ms-version": "2021-08-06", "Content-Length": "0", "Authorization": "SharedKey " + account + ":" + signature})
sys.exit(0 if connection.getresponse().status == 201 else 1)
"#;

/// A server with one bucket.
pub struct CloudEmulator {
    process: Child,
    port: u16,
    scheme: &'static str,
}

impl CloudEmulator {
    /// The content of a credentials file for Azurite.
    pub const AZURE_CREDENTIALS: &str = concat!(
        // `concat!` takes literals only, so that account and key stand here once more.
        "account = devstoreaccount1\n",
        "account-key = Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==\n"
    );
    /// The content of a credentials file for fake-gcs-server, which accepts any.
    pub const GCS_CREDENTIALS: &str = "token = vellum-test\n";

    /// Starts Azurite, the emulator of Azure Blob Storage, with its data in this directory.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make services` installs it.
    #[must_use]
    pub fn start_azure(dir: &Path) -> Self {
        let program = find_tool("azurite/node_modules/azurite/dist/src/blob/main.js");
        let port = find_free_port();
        let mut command = Command::new("node");
        command.arg(program).args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--silent"]);
        // It refuses versions of the protocol that are newer than itself, and sends telemetry, unless it is told.
        command.args(["--skipApiVersionCheck", "--disableTelemetry", "--location"]).arg(dir);
        let emulator = Self::start(command, port, "az");
        let mut create = Command::new("python3");
        create.args(["-c", CREATE_CONTAINER, &port.to_string(), AZURE_ACCOUNT, AZURE_KEY, BUCKET]);
        assert!(create.status().expect("python3").success(), "the container cannot be created");
        emulator
    }

    /// Starts fake-gcs-server, an emulator of Google Cloud Storage.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make services` installs it.
    #[must_use]
    pub fn start_gcs() -> Self {
        let port = find_free_port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(find_tool("fake-gcs-server/fake-gcs-server"));
        command.args(["-scheme", "http", "-host", "127.0.0.1", "-backend", "memory", "-log-level", "error"]);
        command.args(["-port", &port.to_string(), "-public-host", &address]);
        command.args(["-external-url", &format!("http://{address}")]);
        let emulator = Self::start(command, port, "gs");
        let body = format!(r#"{{"name":"{BUCKET}"}}"#);
        let mut connection = TcpStream::connect(&address).expect("a connection to the server");
        write!(
            connection,
            "POST /storage/v1/b?project=test HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("a request to the server");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("an answer of the server");
        assert!(answer.starts_with("HTTP/1.1 200"), "the bucket cannot be created: {answer}");
        emulator
    }

    fn start(mut command: Command, port: u16, scheme: &'static str) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let mut emulator = Self { process, port, scheme };
        wait_for_port(&mut emulator.process, port);
        emulator
    }

    /// The address of a store in its bucket.
    #[must_use]
    pub fn store_url(&self, folder: &str) -> String {
        self.bucket_url(BUCKET, folder)
    }

    /// The address of a store in a bucket that it may not have.
    #[must_use]
    pub fn bucket_url(&self, bucket: &str, folder: &str) -> String {
        let Self { port, scheme, .. } = self;
        // In Azurite, the account is not a part of the host's name.
        let path = if *scheme == "az" { format!("/{AZURE_ACCOUNT}") } else { String::new() };
        format!("{scheme}://{bucket}/{folder}?endpoint=http://127.0.0.1:{port}{path}")
    }
}

impl Drop for CloudEmulator {
    fn drop(&mut self) {
        // It is waited for, or it would remain as a zombie for as long as the tests run.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program that `make services` installed.
fn find_tool(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let tool = target.join("tools").join(name);
    assert!(tool.exists(), "{} does not exist: run 'make services'", tool.display());
    tool
}
