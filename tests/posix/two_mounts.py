#!/usr/bin/env python3
"""What fsx does with one file, by two processes on two mounts of one filesystem, each operation under a lock.

Usage: two_mounts.py FILE SAME_FILE EXPECTED OPERATIONS

FILE and SAME_FILE are one file on two mounts, EXPECTED is a file on a disk of this machine, in which whoever has the lock
keeps what must be in it. SEED in the environment repeats a run. Each process uses one descriptor all the time and another one
that it opens anew now and then.
"""

import fcntl
import mmap
import os
import random
import subprocess
import sys
import time

SIZE_MAX = 262144
WRITE_MAX = 65536


def change(data, file, chance):
    """Does an operation to the file and to what it must hold."""
    what = chance.choice(["write", "write", "append", "truncate", "read", "read", "map", "sync"])
    start = chance.randrange(SIZE_MAX - WRITE_MAX)
    if what in ("write", "append"):
        start = min(len(data), SIZE_MAX - WRITE_MAX) if what == "append" else start
        piece = chance.randbytes(chance.randrange(1, WRITE_MAX))
        assert os.pwrite(file, piece, start) == len(piece)
        data.extend(bytes(max(0, start + len(piece) - len(data))))
        data[start:start + len(piece)] = piece
    elif what == "truncate":
        size = chance.randrange(SIZE_MAX)
        os.ftruncate(file, size)
        data.extend(bytes(max(0, size - len(data))))
        del data[size:]
    elif what == "sync":
        os.fsync(file)
    elif what == "map" and data:
        # What is mapped is as it was when it was read first: the file is opened anew.
        fresh = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
        with mmap.mmap(fresh, len(data)) as mapped:
            assert mapped[:] == data, "mapped"
        os.close(fresh)
    return what


def work(path, expected, operations, seed):
    chance = random.Random(seed)
    kept = os.open(path, os.O_RDWR)
    for number in range(operations):
        fcntl.flock(kept, fcntl.LOCK_EX)
        with open(expected, "r+b") as model:
            data = bytearray(model.read())
            file = os.open(path, os.O_RDWR) if chance.random() < 0.3 else kept
            found = os.pread(file, SIZE_MAX + 1, 0)
            size = os.fstat(file).st_size
            if found != data or size != len(data):
                wrong = next((i for i, (a, b) in enumerate(zip(found, data)) if a != b), min(len(found), len(data)))
                sys.exit(f"{path}: operation {number}: {size} bytes instead of {len(data)}, another byte at {wrong}")
            change(data, file, chance)
            if file != kept:
                os.close(file)
            model.seek(0)
            model.truncate()
            model.write(data)
        fcntl.flock(kept, fcntl.LOCK_UN)


def main():
    if sys.argv[1] == "work":
        return work(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    paths, expected, operations = sys.argv[1:3], sys.argv[3], sys.argv[4]
    seed = os.environ.get("SEED", str(time.time_ns()))
    for path in [paths[0], expected]:
        open(path, "wb").close()
    words = [[sys.executable, __file__, "work", path, expected, operations, f"{seed} {path}"] for path in paths]
    processes = [subprocess.Popen(each) for each in words]
    if any([process.wait() for process in processes]):
        sys.exit(f"two mounts and one file: failed with SEED={seed}")
    os.unlink(paths[0])
    print(f"two mounts and one file under locks: {operations} operations each: no failure")


if __name__ == "__main__":
    main()
