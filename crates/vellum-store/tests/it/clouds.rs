//! Google Cloud Storage and Azure, as their emulators behave. `make services` runs these tests.

use std::time::Instant;

use vellum_store::{
    ObjectKey, ObjectStore, RequestLimits, ServiceStore, StoreAddress, StoreGuarantees, StoreMode,
};
use vellum_testkit::{CloudEmulator, conformance};
use vellum_types::ErrorKind;

use crate::services::{AZURE_CREDENTIALS, GCS_CREDENTIALS, test_credentials};

fn open(url: &str, credentials: &str) -> ServiceStore {
    // It prepares the folder of credentials.
    test_credentials();
    let StoreAddress::Service(address) = StoreAddress::parse(url).unwrap() else { panic!("{url}") };
    ServiceStore::open(address, Some(credentials), &RequestLimits::default(), None).unwrap()
}

fn assert_missing_bucket(store: &ServiceStore) {
    let start = Instant::now();
    let key = ObjectKey::new("config").unwrap();
    for error in [store.get_object(&key, 9).unwrap_err(), store.put_object(&key, b"x").unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
    assert!(start.elapsed().as_secs() < 20, "a mistake in the address is not tried again");
}

#[test]
#[ignore = "services"]
fn azurite_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let server = CloudEmulator::start_azure(dir.path());
    let store = open(&server.store_url("probed"), AZURE_CREDENTIALS);
    assert_eq!(store.probe_guarantees().unwrap(), StoreGuarantees::ALL);
    assert!(store.list_keys("").unwrap().is_empty());
    conformance::check_object_store(&open(&server.store_url("suite/of/tests"), AZURE_CREDENTIALS));
    assert_missing_bucket(&open(&server.bucket_url("missing", "store"), AZURE_CREDENTIALS));
}

#[test]
#[ignore = "services"]
fn fake_gcs_server_conforms() {
    let server = CloudEmulator::start_gcs();
    let store = open(&server.store_url("probed"), GCS_CREDENTIALS);
    // The emulator does not look at the condition of a deletion.
    let found = store.probe_guarantees().unwrap();
    assert_eq!(found, StoreGuarantees { deletes: false, ..StoreGuarantees::ALL });
    assert!(store.list_keys("").unwrap().is_empty());
    let suite = open(&server.store_url("suite/of/tests"), GCS_CREDENTIALS);
    // In the mode in which a volume uses it, which the probe chooses.
    assert_eq!(found.best_mode(), Some(StoreMode::Shared));
    suite.adapt_to_guarantees(&found);
    conformance::check_object_store(&suite);
}
