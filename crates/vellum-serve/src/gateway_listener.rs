//! What all gateways have in common: connections, at most so many at once, and their end.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::end_signal::EndSignal;
use crate::error::{Result, ServeError};

/// Connections at once. Those beyond wait in the kernel.
const CONNECTIONS: usize = 1000;
/// Requests under way at once.
const REQUESTS: usize = 64;
/// Time that a request waits to be one of them.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// Threads that read and write the tree.
const THREADS: usize = 32;
/// Time for requests that are under way when the gateway ends.
const END_TIME: Duration = Duration::from_secs(10);

/// A gateway that listens.
pub struct GatewayListener {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    signal: EndSignal,
}

/// Becomes true when a gateway ends.
pub type GatewayEnding = watch::Receiver<bool>;

/// The places for requests that are under way.
#[derive(Clone)]
pub struct RequestPlaces(Arc<Semaphore>);

impl RequestPlaces {
    /// As many as there are.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(REQUESTS)))
    }

    /// Waits for one. None: there was none for too long.
    pub async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        tokio::time::timeout(REQUEST_WAIT, self.0.clone().acquire_owned()).await.ok()?.ok()
    }
}

impl Default for RequestPlaces {
    fn default() -> Self {
        Self::new()
    }
}

impl GatewayListener {
    /// Begins to listen.
    pub fn bind(listen: SocketAddr) -> Result<Self> {
        let refused = |source| ServeError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let runtime = Builder::new_multi_thread()
            // These only move bytes. Whatever reads from the tree may wait for a store, and has threads of its own.
            .worker_threads(2)
            // `dav-server` descends into XML and directories by recursion.
            .thread_stack_size(8 << 20)
            .max_blocking_threads(THREADS)
            .enable_all()
            .build()
            .map_err(ServeError::for_action("start threads"))?;
        let signal = EndSignal::install().map_err(ServeError::for_action("catch signals"))?;
        Ok(Self { runtime, listener, address, signal })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves connections until a signal asks it to end. A connection that `serve` has been given is to end soon after it was
    /// told of the end: it has so long.
    pub fn run<F, T>(self, serve: F) -> Result<()>
    where
        F: Fn(TcpStream, GatewayEnding) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        let Self { runtime, listener, address, signal } = self;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|source| ServeError::Listen { address, source })?;
            let connections = Arc::new(Semaphore::new(CONNECTIONS));
            let (end, ending) = watch::channel(false);
            tokio::select! {
                () = accept_connections(&listener, &serve, &connections, &ending) => {}
                waited = signal.wait() => waited.map_err(ServeError::for_action("wait for a signal"))?,
            }
            drop(listener);
            // Those that are idle end at once, the others with the answer that is under way.
            let _ = end.send(true);
            let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
            let _ = tokio::time::timeout(END_TIME, connections.acquire_many(all)).await;
            Ok(())
        })
    }
}

async fn accept_connections<F, T>(
    listener: &tokio::net::TcpListener,
    serve: &F,
    connections: &Arc<Semaphore>,
    ending: &GatewayEnding,
) where
    F: Fn(TcpStream, GatewayEnding) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    // A semaphore that nobody closes always gives a permit at last.
    while let Ok(permit) = connections.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                // An answer's head is sent before its content is read. The kernel would keep a short content back until the
                // client has acknowledged the head, for which clients take 40 ms.
                let _ = stream.set_nodelay(true);
                let serving = serve(stream, ending.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            // Of one connection, or for want of file descriptors, which others give back.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
