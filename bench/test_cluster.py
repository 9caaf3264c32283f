"""Hosts as namespaces: they reach each other, lines delay and count, and nothing is left."""

import os
import socket
import tempfile
import threading
import time
import unittest
from pathlib import Path

from benchkit import cluster, host


def answer_once(at, port):
    """Listens on a port of a host and sends back what it gets."""
    listener = at.in_network(lambda: socket.create_server((at.address, port)))

    def serve():
        # The first connections only look whether somebody listens.
        while True:
            connection, _ = listener.accept()
            if piece := connection.recv(100):
                connection.sendall(piece)
                return

    threading.Thread(target=serve, daemon=True).start()


@unittest.skipIf(os.geteuid(), "namespaces need root's rights")
class Network(unittest.TestCase):
    """Two hosts."""

    def test_a_line_delays_and_counts(self):
        with cluster.Hosts(["one", "two"]) as hosts:
            one, two = hosts["one"], hosts["two"]
            answer_once(two, 7000)
            with hosts.line(two, 7001, (two.address, 7000), 0.1) as counts:
                link = self.enterContext(one.in_network(lambda: socket.create_connection((two.address, 7001))))
                start = time.monotonic()
                link.sendall(b"hello")
                self.assertEqual(link.recv(100), b"hello")
                self.assertGreaterEqual(time.monotonic() - start, 0.1)
                self.assertEqual(counts[0], 10)

    def test_hosts_have_names_and_mounts_of_their_own_and_end(self):
        with tempfile.TemporaryDirectory() as folder, cluster.Hosts(["one", "two"]) as hosts:
            enter = hosts.shell(Path(folder))
            self.assertEqual(host.run(enter, "two", "hostname"), "two")
            hosts["one"].run("mount", "-t", "tmpfs", "none", folder)
            hosts["one"].path(f"{folder}/file").touch()
            self.assertTrue(hosts["one"].path(f"{folder}/file").exists())
            self.assertFalse(hosts["two"].path(f"{folder}/file").exists())
            process = hosts["one"].pid
        self.assertFalse(Path(f"/proc/{process}").exists())
