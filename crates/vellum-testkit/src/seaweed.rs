//! SeaweedFS, a real server with the protocol of S3.
//!
//! Invariant: it ends when it is dropped, and its data is removed.

use std::ffi::OsString;
use std::io;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::ports::find_free_port;

/// Its credentials.
const ACCESS_KEY: &str = "vellum-test";
const SECRET_KEY: &str = "vellum-test-secret";
/// Its bucket.
const BUCKET: &str = "vellum-test";
/// Timeout of its start: it consists of four servers, and the machine may be busy.
const START_MAX: Duration = Duration::from_secs(120);

/// A server with one bucket.
pub struct SeaweedServer {
    process: Child,
    s3_port: u16,
    dir: PathBuf,
}

impl SeaweedServer {
    /// Starts it in a temporary directory.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let weed = find_weed();
        std::fs::create_dir_all(dir.join("data")).expect("a directory for the server");
        let identities = format!(
            r#"{{"identities":[{{"name":"test","credentials":[{{"accessKey":"{ACCESS_KEY}","secretKey":"{SECRET_KEY}"}}],
            "actions":["Admin","Read","Write","List","Tagging"]}}]}}"#
        );
        std::fs::write(dir.join("s3.json"), identities).expect("the server's credentials");
        let ports = std::array::from_fn(|_| find_free_port());
        let [master, volume, filer, s3_port] = ports;
        let mut command = Command::new(&weed);
        command.args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args([
            "-filer",
            "-s3",
            // Without further servers, which would take fixed ports.
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-volume.max=50",
            "-master.volumeSizeLimitMB=128",
        ]);
        command.arg(path_argument("-dir=", &dir.join("data")));
        command.arg(path_argument("-s3.config=", &dir.join("s3.json")));
        for (name, port) in [("master", master), ("volume", volume), ("filer", filer), ("s3", s3_port)] {
            // Its second port, for gRPC, is by default 10,000 above, which may not exist.
            command.arg(format!("-{name}.port={port}")).arg(format!("-{name}.port.grpc={}", port + 4));
        }
        let log = std::fs::File::create(dir.join("log")).expect("the server's log");
        // A process group of its own: Ctrl-C in the terminal of a test does not reach the server, and a
        // signal to the group reaches all of its processes.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        let process = command.spawn().unwrap_or_else(|e| panic!("cannot start {}: {e}", weed.display()));
        let mut server = Self { process, s3_port, dir: dir.to_owned() };
        server.wait_for_port(s3_port);
        server.create_bucket(&weed, &ports);
        server
    }

    /// The address of a store in its bucket.
    #[must_use]
    pub fn store_url(&self, folder: &str) -> String {
        format!("s3://{BUCKET}/{folder}?endpoint=http://127.0.0.1:{}", self.s3_port)
    }

    /// The port of its protocol, on the loopback address.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.s3_port
    }

    /// The environment in which rclone reaches its bucket as a remote, and the path of a folder in it.
    #[must_use]
    pub fn rclone_place(&self, folder: &str) -> (Vec<(&'static str, String)>, String) {
        let environment = vec![
            ("RCLONE_CONFIG_WEED_TYPE", "s3".to_owned()),
            ("RCLONE_CONFIG_WEED_PROVIDER", "Other".to_owned()),
            ("RCLONE_CONFIG_WEED_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("RCLONE_CONFIG_WEED_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("RCLONE_CONFIG_WEED_ENDPOINT", format!("http://127.0.0.1:{}", self.s3_port)),
            // Without the configuration of the user who runs the tests.
            ("RCLONE_CONFIG", "/dev/null".to_owned()),
        ];
        (environment, format!("weed:{BUCKET}/{folder}"))
    }

    /// The content of a credentials file for it.
    #[must_use]
    pub fn credentials_file() -> String {
        format!("access-key-id = {ACCESS_KEY}\nsecret-access-key = {SECRET_KEY}\n")
    }

    /// Stops or continues its process: while stopped it keeps its connections and does not reply.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid =
            i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::process::kill_process_group(pid, signal)?)
    }

    fn wait_for_port(&mut self, port: u16) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            // A server that has ended will never answer, and its log says why.
            let ended = self.process.try_wait().expect("the state of the server");
            assert!(
                ended.is_none() && start.elapsed() < START_MAX,
                "the server did not start: {}",
                self.read_log()
            );
            // The server announces nothing that could be awaited.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn create_bucket(&self, weed: &Path, [master, _, filer, _]: &[u16; 4]) {
        let start = Instant::now();
        loop {
            // Commands may fail until the four servers have found each other.
            let mut shell = Command::new(weed);
            shell.arg("shell").arg(format!("-master=127.0.0.1:{master}.{}", master + 4));
            shell.arg(format!("-filer=127.0.0.1:{filer}.{}", filer + 4));
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut running = shell.spawn().expect("the server's shell");
            let mut input = running.stdin.take().expect("its input");
            io::Write::write_all(&mut input, format!("s3.bucket.create -name {BUCKET}\n").as_bytes())
                .expect("a command for the server's shell");
            // The shell ends when its input does.
            drop(input);
            let output = running.wait_with_output().expect("the end of the server's shell");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if text.contains("created bucket") {
                return;
            }
            assert!(start.elapsed() < START_MAX, "no bucket: {text}; {}", self.read_log());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn read_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for SeaweedServer {
    fn drop(&mut self) {
        // A test may have stopped it.
        let _ = self.signal(Signal::CONT);
        let _ = self.signal(Signal::KILL);
        let _ = self.process.wait();
        // After its end: before that it could still create files there.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn path_argument(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

/// The server's program: `$VELLUM_WEED`, or the one that `make tools` installed.
fn find_weed() -> PathBuf {
    if let Some(path) = std::env::var_os("VELLUM_WEED") {
        return path.into();
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let weed = target.join("tools/seaweedfs/bin/weed");
    assert!(weed.exists(), "{} does not exist: run 'make tools'", weed.display());
    weed
}
