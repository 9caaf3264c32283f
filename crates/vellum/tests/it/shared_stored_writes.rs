//! Large writes on clients of a shared worktree that put them into the store by themselves.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mounting::{Mount, kill, wait_until};
use crate::shared::Cluster;
use crate::shared_take_over::Machine;
use crate::world::{World, noise, run};

/// Passes on what a client says to a server, and counts it.
struct CountingRelay {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
}

impl CountingRelay {
    fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let counted = sent.clone();
        let server = server.to_owned();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Nobody listens: the client sees its connection closed.
                let Ok(server) = TcpStream::connect(&server) else { continue };
                pass_on(client.try_clone().unwrap(), server.try_clone().unwrap(), counted.clone());
                pass_on(server, client, Arc::default());
            }
        });
        Self { address, sent }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, count: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            count.fetch_add(len as u64, Ordering::SeqCst);
            if to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    });
}

fn write_durably(path: &std::path::Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

fn collect(dir: &std::path::Path) {
    run(dir, &["gc", "run"], Stdio::null()).ok();
}

#[test]
fn a_large_file_of_a_client_does_not_pass_the_connection() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let relay = CountingRelay::to(&cluster.address);
    let ann = Mount::place(&world, "ann");
    let dir = cluster.attach("ann");
    let server = relay.address.to_string();
    let words = ["mount", "--shared", "work", "--server", &server, "--allow-other", "--store-writes", "256K"];
    world.run_in(&dir, &[&words[..], &[ann.path.to_str().unwrap()]].concat()).ok();
    let bob = cluster.client("bob");
    let content = noise(64 << 20);
    write_durably(&ann.at("large"), &content);
    assert!(relay.sent() < 2 << 20, "{} bytes were sent", relay.sent());
    // What only the live worktree names stays.
    collect(&world.tree());
    for mount in [&ann, &bob, &cluster.server] {
        assert!(fs::read(mount.at("large")).unwrap() == content);
    }
    // The server dies, and is started again.
    kill(cluster.server.pid(), "-KILL");
    wait_until("the mount is dead", || cluster.server.is_dead());
    collect(&world.tree());
    cluster.start_server();
    for mount in [&ann, &bob, &cluster.server] {
        assert!(fs::read(mount.at("large")).unwrap() == content);
    }
    // Small pieces, and overwritten ones, are as with any other mount.
    ann.sh("printf small > small; printf over | dd of=large bs=1 seek=1000000 conv=notrunc status=none");
    assert_eq!(bob.sh("cat small; dd if=large bs=1 skip=1000000 count=4 status=none"), "smallover");
    run(&ann.path, &["flush"], Stdio::null()).ok();
    ann.umount().ok();
    bob.umount().ok();
    cluster.server.umount().ok();
    collect(&world.tree());
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_a_client_has_stored_is_there_after_another_machine_took_over() {
    let world = World::with_snapshot();
    let [first, next, client] = ["server", "next", "client"].map(|name| Machine::attached(&world, name));
    let stores = ["--store-writes", "64K"];
    let listen = ["--listen", "127.0.0.1:0"];
    first.mounts(&[&listen[..], &stores, &["--meta", "store:"]].concat()).ok();
    next.mounts(&[&listen[..], &stores].concat()).ok().says("Stands by");
    client.mounts(&stores).ok();
    let content = noise(8 << 20);
    write_durably(&client.mount.at("from client"), &content);
    write_durably(&first.mount.at("from server"), &content);
    kill(first.mount.pid(), "-KILL");
    wait_until("the mount is dead", || first.mount.is_dead());
    collect(&world.path(&next.dir));
    for mount in [&client.mount, &next.mount] {
        assert!(fs::read(mount.at("from client")).unwrap() == content);
        assert!(fs::read(mount.at("from server")).unwrap() == content);
    }
    write_durably(&client.mount.at("later"), &content);
    assert!(fs::read(next.mount.at("later")).unwrap() == content);
    client.mount.umount().ok();
    next.mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn who_has_the_worktree_open_itself_stores_no_writes_apart() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let path = mount.path.to_str().unwrap();
    let words = ["mount", "--shared", "work", "--listen", "127.0.0.1:0", "--store-writes", "1M", path];
    world.run(&words).code(3).remarks("--store-writes works for clients");
    let words = ["mount", "--shared", "work", "--no-serve", "--store-writes", "4K", path];
    world.run(&words).code(3).remarks("write a size from 64K to 1M");
}
