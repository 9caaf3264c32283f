//! Large writes, which a client puts into the store by itself.

use std::error::Error;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use vellum_cluster::client::{ClientOptions, StoredWrites, WriteStore};
use vellum_fs::StoredChunk;
use vellum_fuse::wire::{
    FuseOperation, FuseRequest, Opcode, RequestHeader, WRITE_CHUNKS_MAX, encode_stored_write,
};
use vellum_types::BlobId;

use crate::relay::Relay;
use crate::stand::{Kernel, PATIENCE, Shared, UNKNOWN_CHUNKS, client_options, serve, wait_until};

/// Writes of so many bytes are stored.
const MIN: usize = 100_000;

/// A store that counts.
#[derive(Default)]
struct CountingStore {
    state: Mutex<StoreState>,
    changed: Condvar,
}

#[derive(Default)]
struct StoreState {
    /// How many writes were stored together, each time.
    stored: Vec<usize>,
    ended: usize,
    fails: bool,
    is_closed: bool,
    waiting: usize,
}

struct StoreHandle(Arc<CountingStore>);

impl WriteStore for StoreHandle {
    fn store_writes(
        &self,
        contents: &[&[u8]],
    ) -> Result<Vec<Vec<StoredChunk>>, Box<dyn Error + Send + Sync>> {
        let mut state = self.0.state.lock();
        state.waiting += 1;
        self.0.changed.notify_all();
        while state.is_closed {
            assert!(!self.0.changed.wait_for(&mut state, PATIENCE).timed_out(), "nobody opens");
        }
        state.waiting -= 1;
        if state.fails {
            return Err("the store is away".into());
        }
        state.stored.push(contents.len());
        let cut = |content: &&[u8]| {
            let chunk = |bytes: &[u8]| StoredChunk { id: BlobId([bytes[0]; 32]), len: bytes.len() as u32 };
            content.chunks(60_000).map(chunk).collect()
        };
        Ok(contents.iter().map(cut).collect())
    }

    fn end_writes(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.state.lock().ended += 1;
        Ok(())
    }
}

fn options(store: &Arc<CountingStore>, to: std::net::SocketAddr) -> ClientOptions {
    let writes = StoredWrites { store: Box::new(StoreHandle(store.clone())), min_len: MIN };
    ClientOptions { stored_writes: Some(writes), ..client_options(to) }
}

#[test]
fn the_server_is_told_where_large_writes_are_and_sent_small_ones() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(options(&store, server.address()));
    assert_eq!(kernel.write(5, 7, &[1; MIN]).written(), Some(MIN as u32));
    assert_eq!(kernel.write(5, 0, &[1; MIN - 1]).written(), Some(MIN as u32 - 1));
    assert_eq!(shared.done(), ["7+100000 in 2 chunks", "0+99999 as bytes"]);
    assert_eq!(store.state.lock().stored, [1]);
    wait_until("the store is told that nothing is under way", || store.state.lock().ended == 1);
}

#[test]
fn writes_that_come_while_others_are_stored_are_stored_together() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(options(&store, server.address()));
    store.state.lock().is_closed = true;
    let first = kernel.write(5, 0, &[1; MIN]);
    wait_until("the first is being stored", || store.state.lock().waiting == 1);
    // More than 16 MiB: the last ones wait once more.
    let rest: Vec<_> = (0..20).map(|at| kernel.write(5, at << 20, &vec![2; 1 << 20])).collect();
    store.state.lock().is_closed = false;
    store.changed.notify_all();
    assert_eq!(first.written(), Some(MIN as u32));
    assert!(rest.into_iter().all(|write| write.written() == Some(1 << 20)));
    assert_eq!(store.state.lock().stored, [1, 15, 5]);
    assert_eq!(shared.done().len(), 21);
}

#[test]
fn what_the_server_does_not_find_is_sent_once() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(options(&store, server.address()));
    assert_eq!(kernel.write(UNKNOWN_CHUNKS, 3, &[1; MIN]).written(), Some(MIN as u32));
    assert_eq!(shared.done(), ["3+100000 as bytes"]);
}

#[test]
fn what_cannot_be_stored_is_sent() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    store.state.lock().fails = true;
    let server = serve(&shared);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let report = Arc::new(move |text: &str| tell.lock().push(text.to_owned()));
    let kernel = Kernel::connect(ClientOptions { report, ..options(&store, server.address()) });
    assert_eq!(kernel.write(5, 0, &[1; MIN]).written(), Some(MIN as u32));
    // For a while, it is not even tried.
    assert_eq!(kernel.write(5, 1, &[1; MIN]).written(), Some(MIN as u32));
    assert_eq!(shared.done(), ["0+100000 as bytes", "1+100000 as bytes"]);
    let told = told.lock();
    assert!(told.len() == 1 && told[0].contains("the store is away"), "{told:?}");
}

#[test]
fn a_stored_write_whose_answer_is_lost_is_made_once() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(options(&store, relay.address));
    relay.lose_answers();
    let written = kernel.write(5, 0, &[1; MIN]);
    wait_until("it is made", || shared.done().len() == 1);
    // While it is not answered, the store must keep it.
    assert_eq!(store.state.lock().ended, 0);
    relay.cut();
    assert_eq!(written.written(), Some(MIN as u32));
    assert_eq!(shared.done(), ["0+100000 in 2 chunks"]);
}

#[test]
fn an_evicted_client_has_its_stored_write_made_in_the_next_session() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(options(&store, server.address()));
    store.state.lock().is_closed = true;
    let written = kernel.write(5, 0, &[1; MIN]);
    wait_until("it is being stored", || store.state.lock().waiting == 1);
    assert!(server.evict_session(kernel.client.session()));
    store.state.lock().is_closed = false;
    store.changed.notify_all();
    assert_eq!(written.written(), Some(MIN as u32));
    assert_eq!(shared.done(), ["0+100000 in 2 chunks"]);
}

#[test]
fn a_client_ends_while_it_stores() {
    let shared = Arc::new(Shared::default());
    let store = Arc::new(CountingStore::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(options(&store, server.address()));
    store.state.lock().is_closed = true;
    let first = kernel.write(5, 0, &[1; MIN]);
    wait_until("it is being stored", || store.state.lock().waiting == 1);
    let second = kernel.write(5, 0, &[1; MIN]);
    let opened = store.clone();
    let opener = std::thread::spawn(move || {
        opened.state.lock().is_closed = false;
        opened.changed.notify_all();
    });
    drop(kernel);
    opener.join().unwrap();
    // Whether they were made or not, somebody has answered them.
    let _ = (first.written(), second.written());
    assert_eq!(store.state.lock().ended, 1);
}

/// Chunks that make no write of the length in the head, or that are none.
#[test]
fn writes_that_do_not_name_their_chunks_are_refused() {
    let chunk = |len| StoredChunk { id: BlobId([7; 32]), len };
    let decodes = |len: u32, chunks: &[StoredChunk], cut: usize, more: &[u8]| {
        let mut head = [0; 40];
        head[16..20].copy_from_slice(&len.to_le_bytes());
        let mut body = encode_stored_write(&head, chunks);
        body.truncate(body.len() - cut);
        body.extend(more);
        let opcode = Opcode::WriteStored.number();
        let header = RequestHeader { opcode, unique: 1, node: 1, uid: 0, gid: 0, pid: 0 };
        let request = FuseRequest::from_parts(header, &body);
        matches!(request.decode_operation(), Ok(FuseOperation::WriteStored { chunks: decoded, .. })
            if decoded.iter_chunks().eq(chunks.iter().copied()))
    };
    assert!(decodes(30, &[chunk(10), chunk(20)], 0, b""));
    assert!(!decodes(31, &[chunk(10), chunk(20)], 0, b""), "longer than its chunks");
    assert!(!decodes(29, &[chunk(10), chunk(20)], 0, b""), "shorter");
    assert!(!decodes(0, &[], 0, b""), "none");
    assert!(!decodes(10, &[chunk(10), chunk(0)], 0, b""), "an empty one");
    assert!(!decodes((4 << 20) + 1, &[chunk((4 << 20) + 1)], 0, b""), "one that no chunk can be");
    assert!(
        !decodes(u32::MAX - 1, &[chunk(u32::MAX), chunk(u32::MAX)], 0, b""),
        "a sum that exceeds its type"
    );
    assert!(!decodes(30, &[chunk(10), chunk(20)], 1, b""), "cut off");
    assert!(!decodes(30, &[chunk(10), chunk(20)], 0, b"x"), "with more behind it");
    let many = vec![chunk(1); WRITE_CHUNKS_MAX + 1];
    assert!(!decodes(many.len() as u32, &many, 0, b""), "too many");
    assert!(decodes(WRITE_CHUNKS_MAX as u32, &many[1..], 0, b""));
}
