//! `vellum-serve`: what `vellum web`, `vellum mcp` and the gateways of `vellum serve` execute. Its arguments are an affair between the
//! two programs.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use vellum_host::beneath::raise_open_files_limit;
use vellum_library::{EntryOwner, Volume};
use vellum_serve::credentials::{GatewayCredentials, GeneratedPassword};
use vellum_serve::mcp::{McpSettings, serve_tools};
use vellum_serve::nfs::{NfsSenders, NfsServer, NfsSettings};
use vellum_serve::open::BrowserRedirect;
use vellum_serve::s3::{S3Server, S3Settings};
use vellum_serve::served_tree::{NamedTree, ServedTree};
use vellum_serve::token::AccessToken;
use vellum_serve::web::actions::ActionSettings;
use vellum_serve::web::{WebServer, WebSettings};
use vellum_serve::webdav::{WebdavServer, WebdavSettings};
use vellum_serve::{Result, ServeError};

/// What a command that failed ends with.
const EXIT_FAILED: u8 = 2;
/// What a command ends with whose words were wrong.
const EXIT_USAGE: u8 = 3;

/// What was asked for.
enum ServeArguments {
    Web(WebArguments),
    Webdav(GatewayArguments),
    S3(GatewayArguments),
    Nfs(GatewayArguments),
    Mcp {
        /// Where the volume is.
        directory: PathBuf,
        settings: McpSettings,
    },
}

/// How the page is to be served.
#[derive(Default)]
struct WebArguments {
    directory: PathBuf,
    listen: Option<SocketAddr>,
    token_file: Option<PathBuf>,
    open: bool,
    json: bool,
    worktree: PathBuf,
    program: Option<PathBuf>,
    is_mounted: bool,
    is_read_only: bool,
}

/// What a gateway is to serve, and how.
#[derive(Default)]
struct GatewayArguments {
    directory: PathBuf,
    tree: String,
    listen: Option<SocketAddr>,
    credentials: Option<PathBuf>,
    read_only: bool,
    bucket: Option<String>,
    squash: Option<EntryOwner>,
    allowed_uids: Vec<u32>,
    any_machine: bool,
    json: bool,
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    // 'vellum' asks for this before it executes the program: the two may only run together if they are of one version.
    if words.first().is_some_and(|word| word == "--version") {
        println!("vellum-serve {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = parse_arguments(words.into_iter()) else {
        eprintln!(
            "error: 'vellum web', 'vellum mcp' and 'vellum serve' execute this program; try 'vellum help web'"
        );
        return ExitCode::from(EXIT_USAGE);
    };
    let served = match arguments {
        ServeArguments::Web(arguments) => serve_page(&arguments),
        ServeArguments::Webdav(arguments) => serve_webdav(&arguments),
        ServeArguments::S3(arguments) => serve_s3(&arguments),
        ServeArguments::Nfs(arguments) => serve_nfs(&arguments),
        ServeArguments::Mcp { directory, settings } => {
            Volume::open(directory).map_err(ServeError::from).and_then(|volume| serve_tools(volume, settings))
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn parse_arguments(mut words: impl Iterator<Item = OsString>) -> Option<ServeArguments> {
    match words.next()?.to_str()? {
        "web" => parse_web_arguments(words).map(ServeArguments::Web),
        "mcp" => parse_mcp_arguments(words),
        "nfs" => parse_gateway_arguments(words).map(ServeArguments::Nfs),
        "s3" => parse_gateway_arguments(words).map(ServeArguments::S3),
        "webdav" => parse_gateway_arguments(words).map(ServeArguments::Webdav),
        _ => None,
    }
}

fn parse_mcp_arguments(mut words: impl Iterator<Item = OsString>) -> Option<ServeArguments> {
    let directory = words.next()?.into();
    let mut settings = McpSettings::default();
    while let Some(word) = words.next() {
        match word.to_str()? {
            "--worktree" => settings.worktree = words.next()?.into(),
            "--program" => settings.program = words.next()?.into(),
            "--forks" => settings.forks = words.next()?.into(),
            "--allow-try" => settings.allow_try = true,
            "--allow-restore" => settings.allow_restore = true,
            _ => return None,
        }
    }
    Some(ServeArguments::Mcp { directory, settings })
}

fn parse_web_arguments(mut words: impl Iterator<Item = OsString>) -> Option<WebArguments> {
    let mut arguments = WebArguments { directory: words.next()?.into(), ..WebArguments::default() };
    while let Some(word) = words.next() {
        match word.to_str()? {
            "--listen" => arguments.listen = Some(words.next()?.to_str()?.parse().ok()?),
            "--token-file" => arguments.token_file = Some(words.next()?.into()),
            "--open" => arguments.open = true,
            "--worktree" => arguments.worktree = words.next()?.into(),
            "--program" => arguments.program = Some(words.next()?.into()),
            "--mounted" => arguments.is_mounted = true,
            "--read-only" => arguments.is_read_only = true,
            "--json" => arguments.json = true,
            _ => return None,
        }
    }
    Some(arguments)
}

fn parse_gateway_arguments(mut words: impl Iterator<Item = OsString>) -> Option<GatewayArguments> {
    let directory = words.next()?.into();
    let tree = words.next()?.into_string().ok()?;
    let mut arguments = GatewayArguments { directory, tree, ..GatewayArguments::default() };
    while let Some(word) = words.next() {
        match word.to_str()? {
            "--listen" => arguments.listen = Some(words.next()?.to_str()?.parse().ok()?),
            "--credentials" => arguments.credentials = Some(words.next()?.into()),
            "--read-only" => arguments.read_only = true,
            "--bucket" => arguments.bucket = Some(words.next()?.into_string().ok()?),
            "--squash" => arguments.squash = Some(parse_owner(words.next()?.to_str()?)?),
            "--allow-uid" => arguments.allowed_uids.push(words.next()?.to_str()?.parse().ok()?),
            "--any-machine" => arguments.any_machine = true,
            "--json" => arguments.json = true,
            _ => return None,
        }
    }
    Some(arguments)
}

/// `UID:GID`.
fn parse_owner(text: &str) -> Option<EntryOwner> {
    let split = text.split_once(':')?;
    Some(EntryOwner { uid: split.0.parse().ok()?, gid: split.1.parse().ok()? })
}

fn serve_page(arguments: &WebArguments) -> Result<()> {
    let volume = Volume::open(&arguments.directory)?;
    let state = volume.state_dir();
    let token = match &arguments.token_file {
        Some(path) => AccessToken::from_file(path)?,
        None => AccessToken::generate()?,
    };
    // Other machines cannot reach this address, and for port 0 the kernel chooses a free one.
    let listen = arguments.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    // The address needs the port, which is known only when the server has the token.
    let text = token.as_text().to_owned();
    let actions = choose_actions(arguments);
    let is_read_only = actions.is_read_only;
    let server = WebServer::bind(volume, WebSettings { listen, token, actions })?;
    let address = format!("http://{}/#token={text}", server.address());
    announce(arguments, &address, is_read_only)
        .map_err(|source| ServeError::Io { action: "print the address", source })?;
    // It lives as long as the server does: a browser that has to be started first reads the file late.
    let redirect = arguments.open.then(|| BrowserRedirect::write_file(&state, &address)).transpose()?;
    if let Some(Err(error)) = redirect.as_ref().map(BrowserRedirect::open_in_browser) {
        eprintln!("warning: cannot open a browser (xdg-open: {error}); open the address yourself");
    }
    server.run()
}

/// What the page may change. What another user's directory holds is theirs to change.
fn choose_actions(arguments: &WebArguments) -> ActionSettings {
    let own = rustix::process::geteuid().as_raw();
    let is_own = std::fs::metadata(&arguments.worktree).is_ok_and(|found| found.uid() == own);
    ActionSettings {
        worktree: arguments.worktree.clone(),
        is_read_only: arguments.is_read_only || arguments.program.is_none() || !is_own,
        program: arguments.program.clone().unwrap_or_default(),
        is_mounted: arguments.is_mounted,
    }
}

/// Says where the page is, for people or programs.
fn announce(arguments: &WebArguments, address: &str, is_read_only: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(
            out,
            "{}",
            serde_json::json!({ "version": 1, "address": address, "pid": std::process::id() })
        )?;
    } else {
        let change = match is_read_only {
            true => "changes nothing",
            false => "changes what you confirm there",
        };
        writeln!(
            out,
            "The page is at {address}\nIt shows everything in the volume, and {change}. Ctrl-C ends it."
        )?;
    }
    out.flush()
}

fn serve_webdav(arguments: &GatewayArguments) -> Result<()> {
    let (credentials, generated) = GatewayCredentials::load(arguments.credentials.as_deref())?;
    let named = open_tree(arguments)?;
    let can_write = !arguments.read_only && named.tree.worktree().is_some();
    let settings =
        WebdavSettings { listen: arguments.address(), tree: named.tree.clone(), can_write, credentials };
    let server = WebdavServer::bind(settings)?;
    let ready = GatewayReady {
        named: &named,
        scheme: "http",
        address: server.address(),
        bucket: None,
        can_write,
        generated: generated.as_ref(),
    };
    ready.announce(arguments.json)?;
    server.run()?;
    publish_tree(&named)
}

fn serve_s3(arguments: &GatewayArguments) -> Result<()> {
    let (credentials, generated) = GatewayCredentials::load(arguments.credentials.as_deref())?;
    let named = open_tree(arguments)?;
    let can_write = !arguments.read_only && named.tree.worktree().is_some();
    let bucket = arguments.bucket.as_ref().unwrap_or(&named.worktree);
    let server = S3Server::bind(S3Settings {
        listen: arguments.address(),
        bucket: bucket.clone(),
        tree: named.tree.clone(),
        can_write,
        credentials,
    })?;
    let ready = GatewayReady {
        named: &named,
        scheme: "http",
        address: server.address(),
        bucket: Some(bucket),
        can_write,
        generated: generated.as_ref(),
    };
    ready.announce(arguments.json)?;
    server.run()?;
    publish_tree(&named)
}

fn serve_nfs(arguments: &GatewayArguments) -> Result<()> {
    // For each connection and for the store.
    raise_open_files_limit();
    let volume = Volume::open(&arguments.directory)?;
    let named = NamedTree::open(&volume, &arguments.tree)?;
    let can_write = !arguments.read_only && named.tree.worktree().is_some();
    let own =
        EntryOwner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    let owner = arguments.squash.unwrap_or(own);
    let uids = match arguments.allowed_uids.as_slice() {
        // And root, as which the kernel mounts.
        [] => vec![0, own.uid, owner.uid],
        listed => listed.to_vec(),
    };
    let settings = NfsSettings {
        listen: arguments.address(),
        any_machine: arguments.any_machine,
        can_write,
        owner,
        senders: NfsSenders { uids },
    };
    let server = NfsServer::bind(&volume, &named, settings)?;
    let ready = GatewayReady {
        named: &named,
        scheme: "nfs",
        address: server.address(),
        bucket: None,
        can_write,
        generated: None,
    };
    ready.announce(arguments.json)?;
    server.run()?;
    publish_tree(&named)
}

fn open_tree(arguments: &GatewayArguments) -> Result<NamedTree> {
    // For each connection and for the store.
    raise_open_files_limit();
    NamedTree::open(&Volume::open(&arguments.directory)?, &arguments.tree)
}

/// Into the store, as when a mount ends. If that fails, everything is still on this machine.
fn publish_tree(named: &NamedTree) -> Result<()> {
    named.tree.worktree().map_or(Ok(()), |worktree| Ok(worktree.flush()?))
}

impl GatewayArguments {
    fn address(&self) -> SocketAddr {
        self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }
}

/// A gateway that is ready.
struct GatewayReady<'a> {
    named: &'a NamedTree,
    scheme: &'static str,
    address: SocketAddr,
    bucket: Option<&'a String>,
    can_write: bool,
    generated: Option<&'a GeneratedPassword>,
}

impl GatewayReady<'_> {
    /// Says where it is, for people or programs.
    fn announce(&self, as_json: bool) -> Result<()> {
        let announced = if as_json { self.print_json() } else { self.print_text() };
        announced.map_err(|source| ServeError::Io { action: "print the address", source })
    }

    fn print_text(&self) -> std::io::Result<()> {
        let Self { named, scheme, address, bucket, can_write, generated } = self;
        let mut out = std::io::stdout().lock();
        let worktree = &named.worktree;
        let rights = if *can_write { "reading and writing" } else { "reading" };
        match &named.tree {
            ServedTree::Snapshot(snapshot) => writeln!(
                out,
                "The snapshot {} of the worktree {worktree} is at {scheme}://{address}/ for reading",
                snapshot.id().to_string().get(..12).unwrap_or_default()
            )?,
            ServedTree::Live(_) => {
                writeln!(out, "The worktree {worktree} is at {scheme}://{address}/ for {rights}")?
            }
        }
        match (bucket, generated) {
            (Some(bucket), Some(made)) => {
                writeln!(out, "Bucket: {bucket}  access key: {}  secret key: {}", made.name, made.password)?;
            }
            (Some(bucket), None) => writeln!(out, "Bucket: {bucket}")?,
            (None, Some(made)) => writeln!(out, "Name: {}  password: {}", made.name, made.password)?,
            (None, None) => {}
        }
        if *scheme == "nfs" {
            let options = self.mount_options();
            writeln!(out, "mount -t nfs -o {options} {} DIRECTORY", self.mount_source())?;
        }
        writeln!(out, "Ctrl-C ends it.")?;
        out.flush()
    }

    /// What `mount` has to be told for NFS: there is no port mapper to ask, and nobody keeps locks.
    fn mount_options(&self) -> String {
        let transport = if self.address.is_ipv6() { "tcp6" } else { "tcp" };
        let port = self.address.port();
        let rights = if self.can_write { "rw" } else { "ro" };
        let ports = format!("proto={transport},port={port},mountproto={transport},mountport={port}");
        format!("{rights},vers=3,{ports},nolock,noacl")
    }

    fn mount_source(&self) -> String {
        match self.address {
            SocketAddr::V4(address) => format!("{}:/", address.ip()),
            SocketAddr::V6(address) => format!("[{}]:/", address.ip()),
        }
    }

    fn print_json(&self) -> std::io::Result<()> {
        let mut json = serde_json::json!({
            "version": 1,
            "worktree": self.named.worktree,
            "snapshot": self.named.tree.snapshot_id().map(|id| id.to_string()),
            "address": format!("{}://{}/", self.scheme, self.address),
            "writable": self.can_write,
            "pid": std::process::id(),
        });
        if let Some(bucket) = self.bucket {
            json["bucket"] = bucket.as_str().into();
        }
        if self.scheme == "nfs" {
            let source = self.mount_source();
            json["mount"] = serde_json::json!({ "source": source, "options": self.mount_options() });
        }
        if let Some(GeneratedPassword { name, password }) = self.generated {
            json["name"] = name.as_str().into();
            json["password"] = password.as_str().into();
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "{json}")?;
        out.flush()
    }
}
