//! Hosts of a cluster: what they share, what they do not, and that cut means cut.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vellum_testkit::cluster::{ClusterHost, DelayingRelay, HostClock, HostSetup, TestCluster};

/// How long something may take that happens, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for something that must not happen.
const SILENCE: Duration = Duration::from_millis(300);

fn start(names: &[&str]) -> (tempfile::TempDir, TestCluster) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start(dir.path(), names);
    (dir, cluster)
}

/// A socket on a host, which receives datagrams.
fn receiver(host: &ClusterHost) -> (UdpSocket, SocketAddr) {
    let socket = host.run_in_network(|| UdpSocket::bind((host.address(), 0)).unwrap());
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Whether a datagram from a host arrives. One that is to arrive is sent again, as the first may meet an address that is
/// not resolved yet.
fn arrives(from: &ClusterHost, (socket, address): &(UdpSocket, SocketAddr), is_expected: bool) -> bool {
    let sender = from.run_in_network(|| UdpSocket::bind((from.address(), 0)).unwrap());
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let start = Instant::now();
    loop {
        // A host without a way to the address refuses to send, which is as good as lost.
        let _ = sender.send_to(b"x", address);
        let mut buffer = [0; 8];
        match socket.recv(&mut buffer) {
            Ok(_) => return true,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            }
        }
        if !is_expected || start.elapsed() > PATIENCE {
            return false;
        }
    }
}

#[test]
fn hosts_reach_each_other_and_nobody_else() {
    let (_dir, cluster) = start(&["h1", "h2"]);
    let (first, second) = (cluster.host("h1"), cluster.host("h2"));
    assert_eq!(first.sh("hostname"), "h1\n");
    assert_eq!(second.sh("getent hosts h1 | cut -d' ' -f1").trim(), first.address().to_string());
    assert!(arrives(first, &receiver(second), true));
    assert!(arrives(second, &receiver(first), true));
    // The machine itself is another network.
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = outside.local_addr().unwrap();
    assert!(first.run_in_network(|| TcpStream::connect(address)).is_err());
}

#[test]
fn mounts_and_processes_of_a_host_are_its_own() {
    let (dir, cluster) = start(&["h1", "h2"]);
    let place = dir.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let shown = place.display();
    let _ = cluster.host("h1").sh(&format!("mount -t tmpfs none {shown} && touch {shown}/mine"));
    assert_eq!(cluster.host("h1").sh(&format!("ls {shown}")), "mine\n");
    assert_eq!(cluster.host("h2").sh(&format!("ls {shown}")), "");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    let sleeping = cluster.host("h1").spawn(cluster.host("h1").command("sleep").arg("1000"));
    let count = |host: &str| cluster.host(host).sh("cat /proc/[0-9]*/comm | grep -c sleep || true");
    while count("h1") == "0\n" {
        std::thread::yield_now();
    }
    assert_eq!(count("h2"), "0\n");
    drop(sleeping);
}

#[test]
fn cut_means_cut_and_mended_means_mended() {
    let (_dir, cluster) = start(&["h1", "h2", "h3"]);
    let [first, second, third] = ["h1", "h2", "h3"].map(|name| cluster.host(name));
    let at_first = receiver(first);
    let at_second = receiver(second);
    assert!(arrives(first, &at_second, true) && arrives(second, &at_first, true));
    cluster.cut_host("h1");
    assert!(!arrives(first, &at_second, false) && !arrives(second, &at_first, false));
    assert!(arrives(third, &at_second, true));
    cluster.mend_host("h1");
    assert!(arrives(first, &at_second, true) && arrives(second, &at_first, true));
    cluster.cut_direction("h1", "h2");
    assert!(!arrives(first, &at_second, false));
    assert!(arrives(second, &at_first, true) && arrives(third, &at_first, true));
    cluster.mend_direction("h1", "h2");
    assert!(arrives(first, &at_second, true));
}

#[test]
fn a_connection_lives_through_a_cut() {
    let (_dir, cluster) = start(&["h1", "h2"]);
    let [first, second] = ["h1", "h2"].map(|name| cluster.host(name));
    let listener = second.run_in_network(|| TcpListener::bind((second.address(), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let mut client = first.run_in_network(|| TcpStream::connect(address).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    cluster.cut_host("h2");
    client.write_all(b"through").unwrap();
    let mut buffer = [0; 7];
    server.set_read_timeout(Some(SILENCE)).unwrap();
    assert!(server.read(&mut buffer).is_err());
    cluster.mend_host("h2");
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"through");
}

#[test]
fn a_host_that_is_restarted_has_lost_its_processes_and_mounts() {
    let (dir, mut cluster) = start(&["h1", "h2"]);
    let mut running = cluster.host("h1").spawn(cluster.host("h1").command("sleep").arg("1000"));
    let file = dir.path().join("file");
    let _ = cluster.host("h1").sh(&format!("mount -t tmpfs none /mnt && touch /mnt/gone {}", file.display()));
    cluster.restart_host("h1");
    assert!(!running.wait().success());
    assert!(file.exists());
    assert_eq!(cluster.host("h1").sh("ls /mnt | grep gone || true"), "");
    assert!(arrives(cluster.host("h2"), &receiver(cluster.host("h1")), true));
}

#[test]
fn processes_are_stopped_continued_and_killed() {
    let (_dir, cluster) = start(&["h1"]);
    let host = cluster.host("h1");
    let mut process = host.spawn(host.command("sleep").arg("1000"));
    let state = || host.sh("cat /proc/[0-9]*/stat | grep '(sleep)' | cut -d' ' -f3");
    let wait_for = |wanted: &str| {
        let start = Instant::now();
        while !state().ends_with(wanted) {
            assert!(start.elapsed() < PATIENCE, "{}", state());
        }
    };
    wait_for("S\n");
    process.signal(Signal::STOP);
    wait_for("T\n");
    process.signal(Signal::CONT);
    wait_for("S\n");
    host.freeze();
    wait_for("T\n");
    host.thaw();
    wait_for("S\n");
    assert!(!process.has_ended());
    process.signal(Signal::KILL);
    assert!(!process.wait().success());
}

#[test]
fn a_host_has_its_own_clock_since_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let setup = |name, ahead| HostSetup { name, clock: HostClock { ahead } };
    let hosts = [setup("h1", 0), setup("h2", 5000)];
    let cluster = TestCluster::start_with_clocks(dir.path(), &hosts);
    let uptime = |host: &str| -> f64 {
        let text = cluster.host(host).sh("cut -d' ' -f1 /proc/uptime");
        text.trim().parse().unwrap()
    };
    let ahead = uptime("h2") - uptime("h1");
    assert!((4900.0..5100.0).contains(&ahead), "{ahead}");
}

#[test]
fn a_relay_delays_and_changes_nothing() {
    const DELAY: Duration = Duration::from_millis(50);
    let (_dir, cluster) = start(&["h1", "meta"]);
    let [host, meta] = ["h1", "meta"].map(|name| cluster.host(name));
    let listener = meta.run_in_network(|| TcpListener::bind((meta.address(), 0)).unwrap());
    let relay = DelayingRelay::start(meta, 0, listener.local_addr().unwrap(), DELAY);
    let address = relay.address();
    std::thread::spawn(move || {
        let (mut server, _) = listener.accept().unwrap();
        std::io::copy(&mut server.try_clone().unwrap(), &mut server).unwrap();
    });
    let mut client = host.run_in_network(|| TcpStream::connect(address).unwrap());
    let start = Instant::now();
    let mut buffer = [0; 4];
    client.write_all(b"ping").unwrap();
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"ping");
    assert!(start.elapsed() >= 2 * DELAY, "{:?}", start.elapsed());
    relay.set_delay(Duration::ZERO);
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    let mut sending = client.try_clone().unwrap();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || {
        sending.write_all(&copy).unwrap();
        sending.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == sent);
}

#[test]
fn hosts_of_two_clusters_do_not_meet() {
    let (_first_dir, first) = start(&["h1", "h2"]);
    let (_second_dir, second) = start(&["h1", "h2"]);
    // The same address, in another network.
    let at_first = receiver(first.host("h2"));
    assert!(!arrives(second.host("h1"), &at_first, false));
    assert!(arrives(first.host("h1"), &at_first, true));
}
