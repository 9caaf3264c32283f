//! Volumes by the addresses of their stores.

use std::path::Path;

use vellum_store::StoreLocation;
use vellum_volume::VolumeError;
use vellum_volume::volume::StoreAccess;
use zeroize::Zeroizing;

use crate::error::Result;
use crate::volume::Volume;

/// A volume in a store of which this machine has no directory, and what opens it.
#[derive(Clone, Copy)]
pub struct VolumeAddress<'a> {
    /// The store: `s3://bucket/folder`, `sftp://host/path` and the others of docs/stores.md, `file:///path`, or a path. It
    /// holds no secret; one that seems to is refused.
    pub store: &'a str,
    /// The name of this user's credentials for the store. `None`: those of the service's own programs (environment, profile,
    /// role of the machine).
    pub credentials: Option<&'a str>,
    /// What opens an encrypted volume: a passphrase, the content of a key file, or a recovery code. It is kept in memory only.
    pub secret: Option<&'a [u8]>,
    /// Open a volume without encryption. One that is encrypted is refused then, and a plain one is refused otherwise: whoever
    /// can write to the store could have put it there.
    pub plain: bool,
    /// The folder that keeps what was seen of the store, a copy of its index, and live worktrees, but no key. `None`: the
    /// user's, `~/.local/state/vellum/stores`.
    pub state: Option<&'a Path>,
}

impl<'a> VolumeAddress<'a> {
    /// An encrypted volume in a store, which this secret opens.
    #[must_use]
    pub fn new(store: &'a str, secret: &'a [u8]) -> Self {
        Self { store, credentials: None, secret: Some(secret), plain: false, state: None }
    }

    /// A volume without encryption.
    #[must_use]
    pub fn new_plain(store: &'a str) -> Self {
        Self { store, credentials: None, secret: None, plain: true, state: None }
    }
}

impl Volume {
    /// Opens the volume in a store, as the command line opens stores: with its cache, its limits of time, and its checks of
    /// what the store keeps. A store on a web server is only read.
    ///
    /// Fails with the kind `NotFound` if there is no store or no volume, with `Denied` if the secret is missing or wrong, with
    /// `Usage` if the volume is not of the wanted sort, and with `Unsupported` if the address is of an unknown kind.
    pub fn open_by_address(address: &VolumeAddress<'_>) -> Result<Self> {
        let typed = StoreLocation {
            url: address.store.to_owned(),
            credentials: address.credentials.map(str::to_owned),
        };
        // A path is made absolute, since it tells one volume from another later.
        let here = std::env::current_dir().map_err(VolumeError::wrap_local_error("."))?;
        let location = typed.resolve_against(&here).map_err(VolumeError::from)?;
        let access = StoreAccess { location: &location, encrypted: !address.plain, state: address.state };
        let secret = || match address.secret {
            Some(secret) => Ok(Zeroizing::new(secret.to_vec())),
            None => Err(VolumeError::Locked),
        };
        Ok(Self::from_inner(vellum_volume::Volume::open_in_store(&access, secret)?))
    }
}
