//! The memory limit of this process, and the share of it for caches.
//!
//! Invariant: what nobody tells is not guessed to be more than the machine has. Deliberately absent: what is free right now,
//! which changes; control groups of the first version.

use std::path::{Path, PathBuf};

use rustix::system::sysinfo;

/// Of memory, the part that is for decoded chunks: 1 in so many.
const CHUNKS_PART: u64 = 16;

/// Bytes of decoded chunks at least, which is what two readers in sequence need, and at most: beyond that, whatever is read
/// again and again is better kept by the kernel, which can take it away.
const CHUNKS: (u64, u64) = (64 << 20, 1 << 30);

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes of decoded chunks to be kept on a machine with so much memory.
pub(crate) fn chunk_cache_size(memory: u64) -> u64 {
    (memory / CHUNKS_PART).clamp(CHUNKS.0, CHUNKS.1)
}

/// Bytes of memory that this process may take: all of the machine's, or what its control groups let it.
pub(crate) fn read_memory_limit() -> u64 {
    let machine = sysinfo();
    let all = machine.totalram.saturating_mul(machine.mem_unit.into());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    read_group_limit(Path::new(GROUPS), &groups).map_or(all, |limit| limit.min(all))
}

/// The least that a process's group, or one above it, is let. `groups` is what `/proc/PID/cgroup` says.
fn read_group_limit(root: &Path, groups: &str) -> Option<u64> {
    // The line `0::` is that of version 2. Lines of version 1 name their controllers between the colons.
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group: PathBuf = root.join(group);
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    groups
        // A group without a limit says `max`, which is no number and therefore does not count.
        .filter_map(|group| std::fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn chunks_get_a_sixteenth_within_bounds() {
        let gib = 1 << 30;
        assert_eq!([gib / 2, 4 * gib, 64 * gib].map(chunk_cache_size), [64 << 20, gib / 4, gib]);
    }

    #[test]
    fn the_narrowest_group_counts() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let groups = "1:name=systemd:/\n0::/a/b\n";
        assert_eq!(read_group_limit(dir.path(), groups), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(read_group_limit(dir.path(), groups), None);
        std::fs::write(dir.path().join("a/memory.max"), "1000\n").unwrap();
        assert_eq!(read_group_limit(dir.path(), groups), Some(1000));
        std::fs::write(inner.join("memory.max"), "500\n").unwrap();
        assert_eq!(read_group_limit(dir.path(), groups), Some(500));
        assert_eq!(read_group_limit(dir.path(), "4:memory:/a\n"), None);
    }

    #[test]
    fn a_process_may_take_something() {
        assert!(read_memory_limit() > 1 << 20);
    }
}
