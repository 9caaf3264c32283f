"""Performs what it is asked to do with locks on some files, and prints the results: lock_worker.py FILE..."""

import errno
import fcntl
import os
import signal
import struct
import sys

LAST = (1 << 63) - 1
# struct flock of 64-bit Linux, with its padding.
FLOCK = "hhqqi0q"
TYPES = {"shared": fcntl.F_RDLCK, "exclusive": fcntl.F_WRLCK, "unlock": fcntl.F_UNLCK}
FLOCKS = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX, "unlock": fcntl.LOCK_UN}
SET = {"posix": fcntl.F_SETLK, "ofd": fcntl.F_OFD_SETLK}
WAIT = {"posix": fcntl.F_SETLKW, "ofd": fcntl.F_OFD_SETLKW}
TEST = {"posix": fcntl.F_GETLK, "ofd": fcntl.F_OFD_GETLK}


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


def record(mode, start, end):
    length = 0 if end == LAST else end - start + 1
    return struct.pack(FLOCK, TYPES[mode], os.SEEK_SET, start, length, 0)


def set_lock(fd, kind, mode, start, end, wait):
    if kind == "flock":
        fcntl.flock(fd, FLOCKS[mode] | (0 if wait else fcntl.LOCK_NB))
    else:
        fcntl.fcntl(fd, (WAIT if wait else SET)[kind], record(mode, start, end))
    return "ok"


def test_lock(fd, kind, mode, start, end):
    answer = fcntl.fcntl(fd, TEST[kind], record(mode, start, end))
    found, _, start, length, pid = struct.unpack(FLOCK, answer)
    if found == fcntl.F_UNLCK:
        return "free"
    mode = "shared" if found == fcntl.F_RDLCK else "exclusive"
    return f"{mode} {start} {LAST if length == 0 else start + length - 1} {pid}"


def main():
    signal.signal(signal.SIGUSR1, interrupt)
    # Two open files of each file.
    paths = [path for path in sys.argv[1:] for _ in range(2)]
    fds = [os.open(path, os.O_RDWR) for path in paths]
    print("ready", flush=True)
    for line in sys.stdin:
        what, number, *rest = line.split()
        number = int(number)
        try:
            if what == "close":
                # Descriptors keep their numbers, so that the other end needs to know none.
                os.close(fds[number])
                fds[number] = os.open(paths[number], os.O_RDWR)
                answer = "ok"
            else:
                kind, mode, start, end = rest[0], rest[1], int(rest[2]), int(rest[3])
                if what == "test":
                    answer = test_lock(fds[number], kind, mode, start, end)
                else:
                    answer = set_lock(fds[number], kind, mode, start, end, what == "wait")
        except Interrupted:
            answer = "EINTR"
        except OSError as error:
            answer = errno.errorcode[error.errno]
        print(answer, flush=True)


main()
