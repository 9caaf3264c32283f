"""What is served, whatever the protocol."""

import random
import signal

from stand import GatewayTest


class ServedTest(GatewayTest):
    def old_snapshot(self):
        """A snapshot that alone has some content, and whose worktree stands on another one."""
        self.volume.write("large", bytes(range(256)) * 1000)
        name = self.volume.run("snapshot", "--quiet")
        (self.volume.data / "large").unlink()
        self.volume.run("snapshot", "--quiet")
        return name

    def test_a_snapshot_stays_while_it_is_served(self):
        name = self.old_snapshot()
        for protocol in ["webdav", "s3", "nfs"]:
            gateway = self.serve(protocol, f"main@{name}")
            refused = self.volume.run("forget", name, check=False)
            self.assertEqual(refused.returncode, 2, refused)
            self.assertIn(f"process {gateway.process.pid} reads it", refused.stderr)
            self.assertIn("--force", refused.stderr)
            self.assertEqual(gateway.stop(), 0)
        gateway = self.serve("webdav", f"main@{name}")
        self.volume.run("forget", name, "--force")
        self.assertIn("Nothing to free", self.volume.run("gc", "run"))
        # Read for the first time: it comes from the store.
        self.assertEqual(gateway.ask("GET", "/large").body, bytes(range(256)) * 1000)
        self.assertEqual(gateway.stop(), 0)
        self.assertIn("Freed", self.volume.run("gc", "run"))
        self.volume.run("verify")

    def test_a_checked_out_worktree_is_its_newest_snapshot_and_stays_too(self):
        gateway = self.serve("webdav", "main")
        served = gateway.ready["snapshot"]
        self.volume.write("notes.txt", b"three\n")
        self.volume.run("snapshot", "--quiet")
        self.assertIn("reads it", self.volume.run("forget", served, check=False).stderr)
        self.assertEqual(gateway.ask("GET", "/notes.txt").body, b"one\n2\n")
        self.assertEqual(gateway.stop(), 0)
        self.volume.run("forget", served)

    def test_a_gateway_that_was_killed_holds_nothing(self):
        name = self.old_snapshot()
        gateway = self.serve("s3", f"main@{name}")
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.communicate()
        found = self.volume.run("doctor", check=False)
        self.assertIn("had not ended its session", found.stdout + found.stderr)
        self.volume.run("doctor", "--repair")
        self.assertNotIn("session", self.volume.run("doctor"))
        self.volume.run("forget", name)
        self.assertIn("Freed", self.volume.run("gc", "run"))

    def test_one_that_was_killed_does_not_keep_a_snapshot_without_the_doctor(self):
        name = self.old_snapshot()
        gateway = self.serve("nfs", f"main@{name}")
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.communicate()
        self.volume.run("forget", name)
        self.assertIn("Freed", self.volume.run("gc", "run"))

    def test_a_long_file_is_read_at_any_offset(self):
        """Of a file of so many pieces, those around what is read are decoded."""
        block, noise = 1 << 20, random.Random(1)
        with open(self.volume.data / "long", "wb") as file:
            for number in range(90):
                file.write(noise.randbytes(block))
                if number % 9 == 8:
                    file.seek(block, 1)
            file.truncate(100 * block + 5)
        content = (self.volume.data / "long").read_bytes()
        self.volume.run("snapshot", "--quiet")
        gateway = self.serve("webdav", "main@HEAD")
        starts = [*range(0, len(content), 8 * block), 5, 9 * block - 1, 16 * block - 3, 64 * block + 7, len(content) - 9]
        for start in starts:
            end = min(start + 8 * block, len(content))
            part = gateway.ask("GET", "/long", {"Range": f"bytes={start}-{end - 1}"})
            self.assertEqual((part.status, part.body == content[start:end]), (206, True), start)
        self.assertEqual(gateway.stop(), 0)
