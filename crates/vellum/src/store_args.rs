//! How commands take the address of a store, and the name of what opens it.

use std::path::Path;

use vellum_store::{StoreError, StoreLocation};

/// The name of the credentials, beside an address.
#[derive(Debug, Clone, clap::Args)]
pub struct CredentialsArgs {
    /// Credentials for the service, from ~/.config/vellum/credentials/NAME [default: those of the service's own
    /// programs: environment, profile, role of the machine]
    #[arg(long, value_name = "NAME")]
    pub credentials: Option<String>,
}

impl CredentialsArgs {
    /// The location of a store whose address was typed in `directory`.
    pub fn locate_store(&self, url: &str, directory: &Path) -> Result<StoreLocation, StoreError> {
        StoreLocation { url: url.to_owned(), credentials: self.credentials.clone() }
            .resolve_against(directory)
    }
}
