#!/usr/bin/env python3
"""Writes fuzz/seeds: a few valid inputs for each target, made from docs/format.md alone, so that a fuzzer starts behind the
magic numbers, and so that the page and the code are held against each other (see fuzz/README.md)."""

import json
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAP_GOLDEN = HERE / "../crates/vellum-map/tests/golden"
RUN_GOLDEN = HERE / "../crates/vellum-store/tests/golden/plain/local"


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def signed(n):
    return varint(2 * n if n >= 0 else -2 * n - 1)


def bytestr(data):
    return varint(len(data)) + data


def moment(secs=1_700_000_000, nanos=5):
    return signed(secs) + varint(nanos)


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def key(ino, tag, suffix=b""):
    return struct.pack(">QB", ino, tag) + suffix


def nfs_call(procedure, arguments=b"", program=100_003):
    """A message to a gateway for NFS, of a user."""
    user = struct.pack(">II4s4I", 0, 4, b"host", 1000, 100, 0, 0)[:24]
    return struct.pack(">8I", 7, 0, 2, program, 3, procedure, 1, len(user)) + user + bytes(8) + arguments


def xdr(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def attr(kind, flags, size, name=b"name", parent=1, rest=b"", times=b""):
    fields = varint(0o644) + varint(1000) + varint(100) + varint(size) + varint(1) + varint(parent)
    return bytes([kind, flags]) + fields + bytestr(name) + moment() + times + rest


def tree_step(parts, directory, ino, name):
    return bytes([0xC0 | parts, directory, ino, 1]) + bytestr(name)


def agreed(size):
    return varint(0o644) + varint(1000) + varint(100) + varint(size) + moment()


def statcache():
    """One directory with one file, without the checksum, which the target adds."""
    def record(name_len, kind, block, size):
        return (u64(2) + u64(77) + u64(size) + 3 * u64(1_700_000_000) + 3 * u32(5) + u32(0) + u32(0) + u32(1)
                + u32(0) + u32(block) + struct.pack("<HH", 0, 0o644) + bytes([kind, 0, name_len, 0]))
    header = b"VLMSTATC" + u32(1) + u32(0) + bytes(32) + u64(1_700_000_100) + u32(0) + u32(0) + u64(42)
    blocks = record(0, 1, 0, 0) + record(1, 0, 0xFFFFFFFF, 3) + b"f"
    return header + blocks + u64(42) + u64(72 + 88) + u32(1) + u32(1) + u64(1) + u32(1) + u32(1)


def fuse(opcode, body):
    """A request of the kernel, as linux/fuse.h has it."""
    return u32(40 + len(body)) + u32(opcode) + u64(7) + u64(1) + u32(0) * 4 + body


SLOT = (b"VLMSLOT\n" + u32(1) + bytes(16) + bytes(16) + bytes([1]) + u32(64 << 10) + u32(3) + u32(4) + bytes(32)
        + bytestr(b"a passphrase") + bytes(72))
PARAMS = bytes.fromhex("01808001808004808010")
HEAD = bytes([1]) + bytes(32) + moment() + bytestr(b"host") + bytestr(b"/somewhere") + bytes(6)
FOOTER = u32(40) + b"vlmE"

LOG_HEAD = b"vlm-lgh\1" + bytes(range(16))

SEEDS = {
    "key": [key(7, 0), key(1, 1, b"name"), key(7, 2, b"user.x"), key(7, 3, struct.pack(">Q", 65536))],
    "attr": [
        attr(0, 32, 3, rest=b"abc"),
        attr(1, 0, 0),
        attr(2, 0, 6, rest=bytestr(b"target")),
        attr(5, 8, 0, rest=varint(259)),
        attr(0, 1 | 2 | 4 | 16 | 64, 99999, times=moment(1) + moment(-2) + moment(3), rest=varint(9)),
        attr(1, 0, 0, name=b"", parent=0),
    ],
    "dentry": [bytes([0]) + varint(2), bytes([1]) + varint(1 << 40)],
    "extent": [
        bytes([0]) + varint(4096),
        bytes([1]) + varint(65536) + bytes(32) + varint(0),
        bytes([2]) + varint(1) + varint(2) + varint(3),
    ],
    "super_record": [varint(2), varint(1 << 63)],
    "node": [path.read_bytes() for path in sorted(MAP_GOLDEN.iterdir())],
    "pack": [b"vlm-pack" + u32(1) + bytes([1, 0, 0, 0]), FOOTER, varint(0), varint(1) + bytes(32) + varint(50)],
    "index_record": [
        bytes(4),
        varint(1) + bytes(32) + varint(1) + bytes(32) + varint(1_700_000_000)
        + varint(1) + bytes(32) + bytes([1])
        + varint(2) + bytes(32) + varint(0) + varint(16) + varint(100)
        + bytes([1] * 32) + varint(0) + varint(116) + varint(200),
    ],
    "local_run": [path.read_bytes() for path in sorted(RUN_GOLDEN.iterdir())],
    "blob_body": [
        b"\0raw",
        # A frame of one raw block, and one of a run of a byte.
        b"\1\3" + bytes.fromhex("28b52ffd2003190000616263"),
        b"\1" + varint(100) + bytes.fromhex("28b52ffd2064230300") + b"x",
    ],
    "key_slot": [SLOT, bytestr(SLOT) + bytestr(bytes(200))],
    "store_identity": [
        bytes([1]) + bytes(16) + bytes([1, 0]),
        bytes([2]) + bytes(16) + bytes([1, 0]) + bytestr(b"https://example.org/a") + bytes([1]) + bytestr(b"reader"),
    ],
    "device": [bytes([1]) + bytestr(b"laptop") + moment()],
    "key_epoch": [
        b"VLMEPOCH" + u32(1) + bytes(16) + u32(1) + moment() + varint(2) + bytes(240) + bytestr(bytes(136)),
        bytestr(b"") + bytestr(bytes(73)),
        bytestr(u32(1) + bytes(104)) + bytestr(bytes(73)),
        bytes([1]) + varint(2) + bytes(64) + bytes([1] * 64),
        bytes([1]) + bytes(32),
        bytes(64),
    ],
    "recovery_code": [b"00000-00000-00000-00000-00000-00000-00000", b"0oO0-Il 1"],
    "config": [b"VLMCONF\0" + u32(1) + bytes(16) + bytes([sealed]) + PARAMS + bytes([3]) + bytestr(bytes(56))
               for sealed in (0, 1)],
    "snapshot_record": [
        bytes([1]) + bytes(32) + varint(1) + bytes(32) + varint(2) + moment() + bytestr(b"main") + bytestr(b"ann")
        + bytestr(b"host") + bytestr(b"a note") + bytes([0]) + varint(1) + bytestr(b"some/path")
        + b"".join(varint(n) for n in (1, 2, 3, 4, 5, 6)),
    ],
    "operation": [
        bytes([1]) + varint(2) + bytes([1]) + varint(1) + bytes(32) + moment() + bytestr(b"host") + bytestr(b"ann") + u32(1)
        + bytestr(b"main") + varint(1) + bytestr(b"snapshot") + varint(4)
        + bytes([1, 2]) + bytestr(b"v1") + varint(1) + bytestr(b"") + bytestr(bytes(32)) + bytes([2]) + bytes(32)
        + bytes([3]) + varint(1) + bytes(32) + bytes([4, 1]) + bytestr(b"laptop"),
    ],
    "ref": [HEAD, bytes([2]) + HEAD + bytes(3) + bytes([1]) + varint(7) + bytes(32),
            bytes([1]) + varint(3) + bytestr(b"main") + bytestr(HEAD), bytes([1, 1]) + bytestr(b"t") + bytestr(bytes(32)),
            bytes([1, 1]) + moment() + bytes([1]) + moment() + bytestr(b"ann") + bytestr(b"host") + bytestr(b"why"),
            bytes([1, 2]) + bytestr(b"retention.keep-last") + varint(1) + bytestr(b"3") + bytestr(b"safety.keep-last") + varint(0),
            bytes([1, 2]) + bytestr(b"") + moment() + bytes([1]) + bytestr(b"note") + bytestr(b"ann") + bytestr(b"host")
            + bytestr(b"k") + moment() + bytes([0]) + bytestr(b"ann") + bytestr(b"host")],
    "session": [bytes([1]) + bytestr(b"host") + bytestr(b"boot pid:[1]") + u32(1) + varint(5) + signed(1_700_000_000)],
    # Steps (see vellum_volume::fuzzing): which of two trees, and an inode with its place, its place alone, or its name alone.
    "tree": [tree_step(3, 0, 1, b"") + tree_step(3, 1, 2, b"a") + tree_step(3, 2, 3, b"b"),
             tree_step(1, 0, 1, b"") + tree_step(3, 3, 2, b"a") + tree_step(3, 2, 3, b"b"),
             tree_step(1, 0, 1, b"") + tree_step(3, 1, 2, b"a") + tree_step(2, 2, 2, b"b")
             + bytes([0xC0]) + bytestr(key(2, 0)) + bytestr(attr(1, 0, 0))],
    "stat_cache": [statcache()],
    # Without the checksum, which the target adds.
    "restore_plan": [json.dumps({
        "format": "vellum-restore-plan", "version": 1, "volume": "0" * 32, "worktree": "main", "head": None,
        "target": "1" * 64, "paths": [{"path": "a"}], "only": [], "discard": False,
        "steps": [
            {"action": "create", "path": "a/new"},
            {"action": "replace", "path": "caf\ufffd", "path_hex": "636166e9", "saw": "2" * 64},
            {"action": "change", "path": "", "saw": "3" * 64},
            {"action": "delete", "path": "gone", "saw": "4" * 64},
        ],
        "unsaved": [{"path": "gone"}], "check": "5" * 64,
    }).encode()],
    "absent_paths": [b"VLMABSNT" + u32(1) + varint(3) + varint(0) + bytestr(b"docs") + varint(0) + bytestr(b"src/a")
                     + varint(4) + bytestr(b"b/c")],
    "sync_archive": [
        b"VLMPAIRS" + u32(1) + bytes(32) + varint(3)
        + bytestr(b"d") + bytes([1, 8]) + varint(0o755) + bytes(5) + bytestr(b"f") + bytes([0, 7]) + agreed(5) + agreed(5)
        + u64(1) + u64(2) + bytes(32) + bytestr(b"l") + bytes([2, 0]) + agreed(0) + bytestr(b"to")
        + varint(1) + bytestr(b"n") + bytes([5, 0]) + agreed(0) + varint(259),
    ],
    # The first byte says what the rest is (see the target): a record, a checkpoint's frames, a run's block, index, end.
    "live_files": [
        b"\0" + bytes([1]) + u64(7) + varint(1) + bytestr(b"l") + bytestr(b"key") + varint(6) + b"value" + bytestr(b"gone") + varint(0),
        b"\0" + bytes([2]) + u64(7),
        b"\1" + bytestr(bytes([1]) + u64(3) + varint(1) + u64(1) + bytestr(b"layer-001"))
        + bytestr(bytes([2]) + bytestr(b"a") + bytestr(b"1") + bytestr(b"b") + bytestr(b""))
        + bytestr(bytes([3]) + u64(5) + u64(2)),
        b"\2" + varint(0) + bytestr(b"name 1") + bytestr(b"x") + varint(5) + bytestr(b"2") + bytestr(b"y"),
        b"\3" + varint(2) + bytestr(b"a") + varint(36) + varint(100) + bytestr(b"b") + varint(136) + varint(50),
        b"\4" + bytes([9]) + b"layer-001" + u64(2) + u64(100) + u64(200),
    ],
    # After the greeting the XXH3 of frames is not made here: a reader stops there.
    "sync_stream": [
        b"VELLUM-SYNC\n" + bytes([1, 0, 1, 0, 0, 0, 0, 0]) + u32(0) + b"\0" + u32(0),
        b"VELLUM-SYNC\n" + bytes([1, 0, 1, 0, 1, 0, 0, 0]),
    ],
    # Payloads with their lengths in front: the root, a directory's entries, the end.
    "sync_listing": [b"\x04" + bytes([0x27, 0, 0, 0]) + bytes([2 + 6 + 6]) + bytes([0, 2]) + bytes([7, 0, 1]) + b"a" + bytes([0, 9]) +
                     bytes([7, 0, 1]) + b"b" + bytes([0, 0]) + b"\0"],
    # Steps; a signature.
    "sync_plan": [bytes([3, 1, 0, 1, 0, 0]), bytes([5, 10, 0, 0, 2, 0]), u32(1024) + u64(1500) + bytes(24)],
    "fuse_request": [
        fuse(1, b"name\0"), fuse(4, u32(0x1ff) + bytes(84)), fuse(12, u64(1) + b"from\0to\0"),
        fuse(16, u64(0) + u64(4096) + u32(3) + u32(4) + bytes(16) + b"abc"),
        fuse(21, u32(2) + u32(0) + b"user.x\0va"), fuse(26, u32(7) + u32(45) + u32(1 << 17) + u32(1 << 30) + bytes(48)),
        fuse(42, u32(1) + u32(0) + u64(7) + u64(2)), fuse(51, u32(0) + u32(0o600) + u32(0o22) + u32(0) + b"/\0"),
        fuse(53, bytes(56)),
    ],
    # What a file is; a name; a part of a file to read and to write; a file to make; a page of a directory; what to mount.
    "nfs_call": [
        nfs_call(1, xdr(bytes(32))), nfs_call(3, xdr(bytes(32)) + xdr(b"name")), nfs_call(6, xdr(bytes(32)) + bytes(10) + b"\1\0"),
        nfs_call(7, xdr(bytes(32)) + bytes(11) + b"\3" + bytes(4) + xdr(b"abc")),
        nfs_call(8, xdr(bytes(32)) + xdr(b"name") + bytes(4) + struct.pack(">3I", 1, 0o644, 0) + bytes(16)),
        nfs_call(17, xdr(bytes(32)) + bytes(16) + struct.pack(">II", 8192, 8192)), nfs_call(1, xdr(b"/"), 100_005),
    ],
    "cluster_frame": [
        b"\1" + bytes(16) + u32(7) + b"\2\0h1" + b"\4\0/mnt" + b"\2\0/s" + b"\0\0" + b"\6\0/store",
        b"\2" + u64(1) + u32(1) + u64(1) + u32(0) + u32(0) + b"name\0", b"\3", b"\4" + u32(1) + u64(7), b"\5",
        b"\1" + bytes([9]) * 16 + b"\1", b"\2" + u64(44) + u32(0) + u64(7) + bytes(152), b"\2" + u64(1) + u32(2),
        b"vlmshare" + b"\1\0" + b"\0\0" + u32(0),
    ],
    "access_log": [
        b"1700000000.250000 [uid:5,gid:6,pid:7] read (17,4096,8192): ok 4096 <0.000120>",
        b'1700000000.250000 [uid:5,gid:6,pid:7] rename (17,"a\\"): ok <1>",19,"b\\n",0x1): '
        b"No such file or directory (os error 2) <0.000120>\n# lines were dropped\n1.0 [uid:0,gid",
    ],
    # A new log; one with a sealed epoch, an open one and a server; a value of etcd that has parts. The XXH3 of an append is
    # not made here.
    "stored_log": [
        LOG_HEAD + bytes(3) + varint(0) + varint(0) + varint(0) + b"\0",
        LOG_HEAD + varint(5) + varint(9) + b"\1" + varint(1) + varint(1) + varint(0) + varint(300) + varint(300) +
        varint(1) + varint(2) + b"\1" + bytes(range(16)) + bytestr(b"host") + b"\1" + bytestr(b"10.0.0.1:7788"),
        b"\1" + u64(7) + u64(3 << 20),
        b"\0whole",
    ],
    "chunker_params": [PARAMS, bytes([1]) + varint(1024) + varint(8192) + varint(16384) + bytes(2000)],
}

for target, seeds in SEEDS.items():
    folder = HERE / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"{number}").write_bytes(seed)
