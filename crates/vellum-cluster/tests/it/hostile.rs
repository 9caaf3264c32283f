//! Peers that have no key, speak something else, or break the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use proptest::prelude::*;
use vellum_cluster::ClusterError;
use vellum_cluster::client::{ClientOptions, WorktreeClient};
use vellum_cluster::connection::{Connection, connect_stream};
use vellum_cluster::protocol::frame::{ClientDescription, ClientFrame};
use vellum_cluster::protocol::preface::ClientPreface;
use vellum_cluster::protocol::{SessionId, VERSION};
use vellum_cluster::server::WorktreeServer;
use vellum_fuse::wire::{FuseRequest, RequestHeader};

use crate::stand::{GETATTR, Kernel, PATIENCE, READ, Shared, client_options, identity, serve, wait_until};

/// Whether the server still works for those who are not hostile.
fn check_served(server: &WorktreeServer) {
    let kernel = Kernel::connect(client_options(server.address()));
    assert!(kernel.lookup("z").gives_entry());
}

fn wait_for_end(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    // A connection that is reset has ended, too.
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn who_has_another_key_or_means_another_worktree_is_refused() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    for other in [identity(2, "w"), identity(1, "v")] {
        let options = ClientOptions { identity: other, ..client_options(server.address()) };
        let error = WorktreeClient::connect(options).err().unwrap();
        assert!(matches!(error, ClusterError::WrongKey), "{error}");
    }
    assert!(server.list_sessions().is_empty());
    check_served(&server);
}

#[test]
fn who_speaks_another_version_is_told_so() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(&ClientPreface { version: VERSION + 1, epoch: 0 }.encode()).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    let answer = vellum_cluster::protocol::preface::ServerPreface::decode(&answer).unwrap();
    assert_eq!(answer.version, VERSION);
    assert!(answer.check_welcome(vellum_crypto::KeyEpoch::FIRST).is_err());
    wait_for_end(&stream);
}

#[test]
fn who_speaks_something_else_is_refused() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 4096]] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        // The server may have closed it before all is written.
        let _ = stream.write_all(bytes);
        wait_for_end(&stream);
    }
    check_served(&server);
}

#[test]
fn garbage_after_the_handshake_ends_the_connection() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let stream = TcpStream::connect(server.address()).unwrap();
    let Connection { mut stream, .. } = connect_stream(stream, &identity(1, "w")).unwrap();
    stream.write_all(&[9; 100]).unwrap();
    wait_for_end(&stream);
    check_served(&server);
}

pub fn introduce(server: &WorktreeServer) -> Connection {
    let stream = TcpStream::connect(server.address()).unwrap();
    let mut connection = connect_stream(stream, &identity(1, "w")).unwrap();
    let hello = ClientFrame::Hello { session: SessionId::NONE, client: ClientDescription::default() };
    connection.writer.write_frame(&hello.encode()).unwrap();
    connection.writer.flush().unwrap();
    connection.reader.read_frame(&mut Vec::new()).unwrap();
    connection
}

pub fn request(number: u64, opcode: u32, body: &[u8]) -> Vec<u8> {
    let header = RequestHeader { opcode, unique: number, node: 1, uid: 0, gid: 0, pid: 0 };
    ClientFrame::Request(FuseRequest::from_parts(header, body)).encode()
}

#[test]
fn who_has_too_much_under_way_loses_the_connection() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let mut connection = introduce(&server);
    let mut body = [0; 40];
    body[16..20].copy_from_slice(&(1u32 << 20).to_le_bytes());
    // Reads of far more than the server lets wait, by a peer that reads no answer.
    for number in 1..=10_000 {
        let written = connection.writer.write_frame(&request(number, READ, &body));
        if written.and_then(|()| connection.writer.flush()).is_err() {
            break;
        }
    }
    wait_for_end(&connection.stream);
    check_served(&server);
}

#[test]
fn a_client_cannot_let_go_what_another_holds() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    assert!(kernel.lookup("a").gives_entry());
    let mut connection = introduce(&server);
    connection.writer.write_frame(&request(1, 2, &1000u64.to_le_bytes())).unwrap();
    let header = RequestHeader { opcode: 2, unique: 2, node: 97, uid: 0, gid: 0, pid: 0 };
    let body = 1u64.to_le_bytes();
    let frame = ClientFrame::Request(FuseRequest::from_parts(header, &body)).encode();
    connection.writer.write_frame(&frame).unwrap();
    connection.writer.write_frame(&request(4, GETATTR, &[])).unwrap();
    connection.writer.flush().unwrap();
    wait_until("the last request is answered", || {
        server.list_sessions().iter().any(|session| session.requests == 3)
    });
    assert_eq!(shared.held(), [(97, 1)]);
}

#[test]
fn requests_that_are_not_forwarded_end_the_connection() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    for opcode in [26, 38] {
        let mut connection = introduce(&server);
        connection.writer.write_frame(&request(1, opcode, &[0; 64])).unwrap();
        connection.writer.flush().unwrap();
        wait_for_end(&connection.stream);
    }
    check_served(&server);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_frames_of_a_peer_with_the_key_leave_the_server_at_work(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
    ) {
        let shared = Arc::new(Shared::default());
        let server = serve(&shared);
        let mut connection = introduce(&server);
        for frame in &frames {
            // The server may have closed the connection.
            if connection.writer.write_frame(frame).and_then(|()| connection.writer.flush()).is_err() {
                break;
            }
        }
        drop(connection);
        check_served(&server);
    }
}
