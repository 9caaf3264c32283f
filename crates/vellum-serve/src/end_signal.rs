//! The signal that asks a server to end.

use std::io;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Arrives with SIGINT or SIGTERM, which no longer kill the process from then on.
pub struct EndSignal {
    arrived: UnixStream,
}

impl EndSignal {
    /// Catches the signals.
    pub fn install() -> io::Result<Self> {
        let (arrived, sender) = UnixStream::pair()?;
        arrived.set_nonblocking(true)?;
        for signal in [SIGINT, SIGTERM] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { arrived })
    }

    /// Waits for one. Has to be called within the runtime.
    pub async fn wait(self) -> io::Result<()> {
        tokio::net::UnixStream::from_std(self.arrived)?.readable().await
    }
}
