//! Two trees that a holder of the key could have made, circles and shared directories among them: walking, looking up,
//! comparing and checking them ends, and meets no directory twice.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{StateDir, Volume};

fn volume() -> &'static Volume {
    static VOLUME: OnceLock<Volume> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("vellum-fuzz-tree-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let state = StateDir::create(&dir).expect("a state directory");
        let new = NewWorktree { store: None, name: "main".into(), encrypted: false, is_in_device_line: false, chunk_sizes: None };
        let made = Volume::init_volume(&state, &new, || unreachable!("a plain volume asks for nothing"));
        // What is read is in memory from here on.
        let volume = made.expect("a volume").volume;
        let _ = std::fs::remove_dir_all(dir);
        volume
    })
}

fuzz_target!(|bytes: &[u8]| vellum_volume::fuzzing::fuzz_trees(volume(), bytes));
