//! What the kernels of clients of a shared worktree cache, and drop before another machine's change is done.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use serde_json::{Value, json};
use vellum_testkit::random::{TestRandom, choose_seed, scale_rounds};

use crate::mount_worker::MountWorker;
use crate::mounting::{Mount, hold, kill, wait_until};
use crate::shared::Cluster;
use crate::world::World;

/// Changes of the random test, a count.
const CHANGES: usize = 1000;
const DIRS: u64 = 2;
/// Names in each directory.
const NAMES: u64 = 5;
/// Bytes of a write.
const WRITTEN: usize = 3;

/// Requests of a client's kernel so far, but for those that say what it has forgotten.
fn kernel_requests(control: &str) -> u64 {
    let mut stream = UnixStream::connect(control).unwrap();
    writeln!(stream, "{}", json!({"op": "client-mount"})).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let reply: Value = serde_json::from_str(&line).unwrap();
    reply["done"]["client_mount"]["kernel_requests"].as_u64().unwrap()
}

fn control_socket(mount: &Mount<'_>) -> String {
    mount.description()["control"].as_str().unwrap().into()
}

fn path_of(mount: &Mount<'_>, name: &str) -> String {
    mount.at(name).to_str().unwrap().into()
}

/// Whether the kernel can drop all names at once; otherwise it caches none of a shared worktree.
fn kernel_drops_names() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 16)
}

#[test]
fn a_second_look_asks_neither_the_server_nor_the_process_of_the_mount() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    fs::create_dir_all(cluster.server.at("a/b")).unwrap();
    fs::write(cluster.server.at("a/b/file"), "x").unwrap();
    let control = control_socket(&one);
    let mut worker = MountWorker::start();
    let looks = [
        json!(["stat_often", path_of(&one, "a/b/file"), 1000]),
        json!(["miss_often", path_of(&one, "a/b/absent"), 1000]),
    ];
    let served = || cluster.sessions()[0]["requests"].as_u64().unwrap();
    for look in looks {
        // A term may end between the looks, and the first heartbeat has to be answered.
        wait_until("the kernel answers by itself", || {
            worker_answer(&look);
            let before = (kernel_requests(&control), served());
            let found = worker_answer(&look);
            assert!(found == json!(1) || found == json!(0));
            let after = (kernel_requests(&control), served());
            // Without names, each look asks the process of the mount, which answers without the server.
            let is_quiet = !kernel_drops_names() || after.0 == before.0;
            is_quiet && after.1 == before.1
        });
    }
    // What another machine changes is seen at once.
    fs::write(cluster.server.at("a/b/file"), "longer").unwrap();
    fs::write(cluster.server.at("a/b/absent"), "").unwrap();
    assert_eq!(worker.ask(&json!(["stat_often", path_of(&one, "a/b/file"), 1])), Ok(json!(6)));
    assert_eq!(worker.ask(&json!(["miss_often", path_of(&one, "a/b/absent"), 1])), Ok(json!(1)));
}

fn worker_answer(what: &Value) -> Value {
    MountWorker::start().ask(what).unwrap()
}

#[test]
fn a_kernel_keeps_what_it_has_cached_while_its_own_programs_change_the_directory() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    one.sh("mkdir -p d; echo x > d/looked-at");
    let control = control_socket(&one);
    let look = json!(["stat_often", path_of(&one, "d/looked-at"), 10]);
    let count = Cell::new(0);
    wait_until("a look after a change asks for attributes alone", || {
        assert_eq!(worker_answer(&look), json!(2));
        count.set(count.get() + 1);
        worker_answer(&json!(["create", path_of(&one, &format!("d/new{}", count.get()))]));
        let before = kernel_requests(&control);
        assert_eq!(worker_answer(&look), json!(2));
        // Of the directory, which has other times now.
        !kernel_drops_names() || kernel_requests(&control) <= before + 1
    });
    // A file that it moves elsewhere is not taken to stay there.
    fs::create_dir(one.at("e")).unwrap();
    fs::rename(one.at("d/looked-at"), one.at("e/moved")).unwrap();
    assert_eq!(fs::metadata(one.at("e/moved")).unwrap().len(), 2);
    fs::remove_file(cluster.server.at("e/moved")).unwrap();
    assert!(!one.at("e/moved").exists());
    assert_eq!(one.sh("ls d | wc -l; ls e"), format!("{}\n", count.get()));
}

#[test]
fn a_kernel_whose_client_is_stopped_shows_nothing_that_was_changed_since() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    fs::write(cluster.server.at("file"), "x").unwrap();
    let pid = one.pid();
    let path = path_of(&one, "file");
    let mut worker = MountWorker::start();
    for _ in 0..100 {
        assert_eq!(worker.ask(&json!(["stat_often", path, 1])), Ok(json!(1)));
    }
    hold(pid);
    // This waits until the client's term is over, and with it what its kernel was told.
    fs::write(cluster.server.at("file"), "changed").unwrap();
    worker.tell(&json!(["stat_often", path, 1]));
    kill(pid, "-CONT");
    assert_eq!(worker.answer(), Ok(json!(7)));
}

/// A file of the model.
#[derive(Debug, Clone, Default, PartialEq)]
struct ModelFile {
    content: Vec<u8>,
    mode: u32,
}

/// What there should be.
#[derive(Debug, Default)]
struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<ModelFile>,
}

impl Model {
    fn file(&mut self, name: &str) -> Option<&mut ModelFile> {
        let number = *self.names.get(name)?;
        self.files.get_mut(number)
    }

    /// What [`MountWorker`] should say of a name.
    fn look(&self, name: &str) -> Result<Value, i64> {
        let absent = i64::from(Errno::NOENT.raw_os_error());
        let number = self.names.get(name).ok_or(absent)?;
        let ModelFile { content, mode } = &self.files[*number];
        let links = self.names.values().filter(|other| *other == number).count();
        let shown: String = content.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(json!([content.len(), mode, links, shown, shown]))
    }

    fn list(&self, dir: &str) -> Result<Value, i64> {
        let names = self.names.keys().filter_map(|name| name.strip_prefix(dir)?.strip_prefix('/'));
        Ok(json!(names.collect::<Vec<_>>()))
    }

    /// Does something at random; gives what a worker has to do for it, with names instead of paths. None: it would fail.
    fn change(&mut self, random: &mut TestRandom) -> Option<(Vec<Value>, Vec<String>)> {
        let name = random_name(random);
        let other = random_name(random);
        let called = |what: &str, more: &[Value]| [&[json!(what), json!(name)], more].concat();
        let both = vec![name.clone(), other.clone()];
        let number = self.names.get(&name).copied();
        Some(match random.next_below(8) {
            0 | 1 => {
                if number.is_some() {
                    return None;
                }
                self.names.insert(name.clone(), self.files.len());
                self.files.push(ModelFile { content: Vec::new(), mode: 0o644 });
                (called("create", &[]), both)
            }
            2 | 3 => {
                let offset = random.next_below(40) as usize;
                let byte = random.next_below(256) as u8;
                let file = self.file(&name)?;
                file.content.resize(file.content.len().max(offset + WRITTEN), 0);
                file.content[offset..offset + WRITTEN].fill(byte);
                (called("write", &[json!(offset), json!(byte), json!(WRITTEN)]), both)
            }
            4 => {
                let len = random.next_below(50) as usize;
                self.file(&name)?.content.resize(len, 0);
                (called("truncate", &[json!(len)]), both)
            }
            5 => {
                let mode = random.pick_item(&[0o600, 0o644, 0o664, 0o755]);
                self.file(&name)?.mode = mode;
                (called("chmod", &[json!(mode)]), both)
            }
            6 => {
                let number = number?;
                let replaced = self.names.get(&other).copied();
                if name == other || replaced == Some(number) {
                    return None;
                }
                self.names.remove(&name);
                self.names.insert(other.clone(), number);
                (called("rename", &[json!(other)]), both)
            }
            _ => {
                let number = number?;
                if random.is_one_in(2) {
                    self.names.remove(&name);
                    (called("unlink", &[]), both)
                } else if self.names.contains_key(&other) {
                    return None;
                } else {
                    self.names.insert(other.clone(), number);
                    (called("link", &[json!(other)]), both)
                }
            }
        })
    }
}

fn random_name(random: &mut TestRandom) -> String {
    format!("d{}/n{}", random.next_below(DIRS), random.next_below(NAMES))
}

/// A mount, and who works in it.
struct ClientAtWork<'m> {
    mount: &'m Mount<'m>,
    worker: MountWorker,
}

impl ClientAtWork<'_> {
    fn ask(&mut self, call: &[Value]) -> Result<Value, i64> {
        let with_path = |argument: &Value| match argument.as_str() {
            Some(name) if name.starts_with('d') => json!(path_of(self.mount, name)),
            Some(_) | None => argument.clone(),
        };
        // The first one is what is done.
        let what: Vec<_> = call[..1].iter().cloned().chain(call[1..].iter().map(with_path)).collect();
        self.worker.ask(&Value::Array(what))
    }
}

#[test]
fn each_change_is_seen_by_the_other_client_when_the_call_returns() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    // Without a pause, kernels cache names again after each drop.
    let mounts = ["one", "two"].map(|name| cluster.client_with(name, &["--names-pause=0"]));
    (0..DIRS).for_each(|dir| fs::create_dir(cluster.server.at(&format!("d{dir}"))).unwrap());
    let mut clients = [&mounts[0], &mounts[1], &cluster.server]
        .map(|mount| ClientAtWork { mount, worker: MountWorker::start() });
    let mut random = TestRandom::new(choose_seed());
    let mut model = Model::default();
    let mut done = 0;
    while done < scale_rounds(CHANGES) {
        // Both kernels look at something, and cache it. A second look may be answered by the kernel.
        for client in &mut clients[..2] {
            let name = random_name(&mut random);
            for _ in 0..2 {
                let found = client.ask(&[json!("stat"), json!(name)]).ok();
                let expected = model.look(&name).ok().map(|found| json!(found.as_array().unwrap()[..3]));
                assert_eq!(found, expected, "{name} before change {done}");
            }
        }
        let Some((call, names)) = model.change(&mut random) else { continue };
        done += 1;
        // The mount of the server has no client, and changes what clients have cached, too.
        let by = if random.is_one_in(5) { 2 } else { done % 2 };
        assert_eq!(clients[by].ask(&call), Ok(Value::Null), "{call:?}, change {done}");
        for (number, client) in clients.iter_mut().enumerate() {
            for name in &names {
                let found = client.ask(&[json!("look"), json!(name)]);
                assert_eq!(
                    found,
                    model.look(name),
                    "{name} at {number} after {call:?} by {by}, change {done}"
                );
            }
            let dir = names[1].split('/').next().unwrap();
            let listed = client.ask(&[json!("listed"), json!(dir)]);
            assert_eq!(listed, model.list(dir), "{dir} at {number} after {call:?} by {by}, change {done}");
        }
    }
}
