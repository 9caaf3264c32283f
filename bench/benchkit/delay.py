#!/usr/bin/env python3
"""A slow line in front of a command: delay.py SECONDS COUNTS COMMAND... passes standard input and output on, each piece
after SECONDS, and writes the bytes of both ways to the file COUNTS. For ssh's ProxyCommand."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time


def pump(source, target, delay, counts, place):
    """Passes on until the end, and counts."""
    pieces = queue.Queue()

    def write():
        while True:
            due, piece = pieces.get()
            if not piece:
                break
            time.sleep(max(0, due - time.monotonic()))
            try:
                while piece:
                    piece = piece[os.write(target, piece) :]
            except OSError:
                break
        os.close(target)

    writer = threading.Thread(target=write)
    writer.start()
    while True:
        try:
            piece = os.read(source, 1 << 18)
        except OSError:
            piece = b""
        counts[place] += len(piece)
        pieces.put((time.monotonic() + delay, piece))
        if not piece:
            break
    writer.join()


def main():
    """Runs the command behind the line."""
    # ssh hangs up before all that it sent was counted.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    delay, file, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    counts = [0, 0]
    there = threading.Thread(target=pump, args=(0, child.stdin.fileno(), delay, counts, 0), daemon=True)
    back = threading.Thread(target=pump, args=(child.stdout.fileno(), 1, delay, counts, 1))
    there.start()
    back.start()
    back.join()
    with open(f"{file}.new", "w", encoding="utf-8") as out:
        out.write(f"{sum(counts)}\n")
    # Whoever waits for the file finds it whole.
    os.rename(f"{file}.new", file)
    os._exit(0)


if __name__ == "__main__":
    main()
