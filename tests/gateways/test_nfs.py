"""NFS: what clients do, and what must not be possible."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import unittest

import nfs_client as nfs
from nfs_client import Client, Failed, Refused, changes, long, opaque, word
from stand import NAMES, GatewayTest

# Bytes that a gateway may need, whatever clients do.
MEMORY = 256 << 20


def load_libnfs():
    """The library of nfs-ls and nfs-cp."""
    lib = ctypes.CDLL("libnfs.so.13")
    for name in ["nfs_init_context", "nfs_parse_url_dir"]:
        getattr(lib, name).restype = ctypes.c_void_p
    lib.nfs_get_error.restype = ctypes.c_char_p
    return lib


class Libnfs:
    """A mount by libnfs, whose calls fail with its own words."""

    class Url(ctypes.Structure):
        _fields_ = [("server", ctypes.c_char_p), ("path", ctypes.c_char_p), ("file", ctypes.c_char_p)]

    def __init__(self, port):
        self.lib = load_libnfs()
        self.context = ctypes.c_void_p(self.lib.nfs_init_context())
        address = f"nfs://127.0.0.1/?version=3&nfsport={port}&mountport={port}".encode()
        url = self.lib.nfs_parse_url_dir(self.context, address)
        url = ctypes.cast(url, ctypes.POINTER(self.Url)).contents
        self.do("nfs_mount", url.server, url.path)

    def do(self, name, *arguments):
        result = getattr(self.lib, name)(self.context, *arguments)
        if result < 0:
            raise OSError(-result, f"{name}: {self.lib.nfs_get_error(self.context)}")
        return result

    def open(self, path, flags):
        file = ctypes.c_void_p()
        self.do("nfs_open" if not flags & os.O_CREAT else "nfs_creat", path, *([0o644] if flags & os.O_CREAT else [flags]), ctypes.byref(file))
        return file

    def write(self, file, offset, data):
        while data:
            count = self.do("nfs_pwrite", file, ctypes.c_uint64(offset), ctypes.c_uint64(len(data)), data)
            offset, data = offset + count, data[count:]

    def read(self, path):
        file, data = self.open(path, os.O_RDONLY), b""
        buffer = ctypes.create_string_buffer(1 << 20)
        while count := self.do("nfs_pread", file, ctypes.c_uint64(len(data)), ctypes.c_uint64(1 << 20), buffer):
            data += buffer.raw[:count]
        self.do("nfs_close", file)
        return data

    def end(self):
        self.lib.nfs_destroy_context(self.context)


class NfsTest(GatewayTest):
    def serve_nfs(self, *words):
        return self.serve("nfs", *words)

    def client(self, gateway, uid=None):
        client = Client(gateway.port, uid)
        self.addCleanup(client.socket.close)
        return client

    def mounted(self, *words):
        """A gateway, a client and the handle of the root."""
        gateway = self.serve_nfs(*words)
        client = self.client(gateway)
        return gateway, client, client.mount()

    def url(self, gateway, path=""):
        # libnfs mounts nothing for a file of the root unless a second slash stands for it.
        return f"nfs://127.0.0.1/{path}?version=3&nfsport={gateway.port}&mountport={gateway.port}"

    def assert_status(self, status, call, *arguments, **named):
        with self.assertRaises(Failed) as failed:
            call(*arguments, **named)
        self.assertEqual(failed.exception.status, status)

    def make_live(self, count):
        """The live worktree gets a directory 'many' with so many files."""
        gateway, client, root = self.mounted("live")
        many = client.made(nfs.MKDIR, opaque(root), opaque(b"many"), changes())
        sent = [client.send(nfs.CREATE, opaque(many) + opaque(b"name %d" % number) + word(nfs.GUARDED) + changes()) for number in range(min(count, 8))]
        for number in range(8, count):
            client.answer()
            sent.append(client.send(nfs.CREATE, opaque(many) + opaque(b"name %d" % number) + word(nfs.GUARDED) + changes()))
        for _ in range(min(count, 8)):
            client.answer()
        return gateway, client, many

    # Reading.

    def test_snapshots_are_read_by_libnfs(self):
        gateway = self.serve_nfs("main@v1")
        self.assertFalse(gateway.ready["writable"])
        self.assertIn(f"port={gateway.port},mountproto=tcp,mountport={gateway.port},nolock", gateway.ready["mount"]["options"])
        self.assertEqual(gateway.ready["mount"]["source"], "127.0.0.1:/")
        listed = self.command("nfs-ls", self.url(gateway)).stdout.decode()
        self.assertEqual(sorted(line.split()[-1] for line in listed.splitlines()), sorted(["dir", "fifo", "in", "loop", "names", "notes.txt", "old", "out", "up"]))
        self.assertEqual(self.command("nfs-cat", self.url(gateway, "/notes.txt")).stdout, b"one\ntwo\n")
        copy = self.base / "copy"
        self.command("nfs-cp", self.url(gateway, "dir/inner/deep.bin"), str(copy))
        self.assertEqual(copy.read_bytes(), bytes(range(256)) * 4000)
        other = self.serve_nfs("main")
        self.assertEqual(self.command("nfs-cat", self.url(other, "/notes.txt")).stdout, b"one\n2\n")
        self.assertEqual((gateway.stop(), other.stop()), (0, 0))

    def test_all_names_and_attributes_are_there(self):
        _, client, root = self.mounted("main@v1")
        names = client.find(root, b"names")
        expected = {name.encode() for name in NAMES} | {b"not \xff utf-8"}
        self.assertEqual(set(client.names(names)), expected)
        page, is_end = client.page_plus(names)
        self.assertTrue(is_end)
        for name, known, handle, _ in page[2:]:
            self.assertEqual(client.find(names, name), handle)
            self.assertEqual(client.stat(handle), known)
            content = b"raw" if name.startswith(b"not") else str(NAMES.index(name.decode())).encode()
            self.assertEqual(client.read(handle), (content, True))
        kinds = {name: client.stat(client.find(root, name))["type"] for name in [b"dir", b"notes.txt", b"out", b"fifo"]}
        self.assertEqual(kinds, {b"dir": 2, b"notes.txt": 1, b"out": 5, b"fifo": 7})
        # From before 1970: the nearest that there is.
        self.assertEqual(client.stat(client.find(root, b"old"))["mtime"], (0, 0))
        deep = client.find(root, b"dir", b"inner", b"deep.bin")
        self.assertEqual(client.read(deep, 1_000_000, 1 << 20), (bytes(range(256)) * 4000)[1_000_000:] and ((bytes(range(256)) * 4000)[1_000_000:], True))
        self.assertEqual(client.read(deep, 256, 256), (bytes(range(256)), False))
        self.assertEqual(client.read(deep, 1 << 40, 10), (b"", True))
        self.assertEqual(client.find(client.find(root, b"dir"), b".."), root)
        self.assertEqual(client.find(root, b".."), root)

    def test_nobody_leaves_the_tree(self):
        _, client, root = self.mounted("main@v1")
        for path in [b"/out", b"/up", b"/in", b"/loop", b"/notes.txt", b"/dir/none"]:
            self.assertRaises(Failed, client.mount, path)
        self.assertEqual(client.mount(b"/../../../"), root)
        self.assertEqual(client.mount(b"dir//inner/"), client.find(root, b"dir", b"inner"))
        out = client.find(root, b"out")
        reply = client.call(nfs.READLINK, opaque(out))
        reply.known()
        # Clients follow symlinks themselves, in their own tree.
        self.assertEqual(reply.opaque(), b"/etc/passwd")
        self.assert_status(22, client.read, out)
        for name in [b"dir/inner", b"../etc", b"/etc/passwd", b"no\0tes", b"", b"n" * 256, b"n" * 4096]:
            self.assertRaises(Failed, client.find, root, name)
        self.assert_status(nfs.NOTDIR, client.find, client.find(root, b"notes.txt"), b"x")

    def test_nothing_writes_to_a_snapshot(self):
        for words in [("main@v1",), ("main",), ("main@HEAD~1",), ("live", "--read-only")]:
            if words[0] == "live":
                gateway, client, root = self.mounted("live")
                client.create(root, b"notes.txt")
                client.made(nfs.MKDIR, opaque(root), opaque(b"dir"), changes())
                gateway.stop()
            gateway, client, root = self.mounted(*words)
            notes = client.find(root, b"notes.txt")
            before = client.read(notes), sorted(client.names(root)), client.stat(root)
            place = opaque(root) + opaque(b"new")
            for procedure, arguments in [
                (nfs.SETATTR, opaque(notes) + changes(mode=0) + word(0)),
                (nfs.WRITE, opaque(notes) + long(0) + word(1, 0) + opaque(b"x")),
                (nfs.CREATE, place + word(nfs.UNCHECKED) + changes()),
                (nfs.MKDIR, place + changes()),
                (nfs.SYMLINK, place + changes() + opaque(b"x")),
                (nfs.MKNOD, place + word(7) + changes()),
                (nfs.REMOVE, opaque(root) + opaque(b"notes.txt")),
                (nfs.RMDIR, opaque(root) + opaque(b"dir")),
                (nfs.RENAME, opaque(root) + opaque(b"notes.txt") + place),
                (nfs.LINK, opaque(notes) + place),
            ]:
                self.assert_status(nfs.ROFS, client.call, procedure, arguments)
            client.commit(notes)
            reply = client.call(nfs.ACCESS, opaque(root), word(63))
            reply.known()
            self.assertEqual(reply.word(), 3)
            self.assertEqual((client.read(notes), sorted(client.names(root)), client.stat(root)), before)
            gateway.stop()
        self.assertEqual(self.volume.run("diff", "v1", "HEAD", "--json", check=False).returncode, 1)

    # Handles.

    def test_handles_stay_the_same(self):
        handles = {}
        gateway, client, root = self.mounted("live")
        directory = client.made(nfs.MKDIR, opaque(root), opaque(b"dir"), changes())
        inner = client.made(nfs.MKDIR, opaque(directory), opaque(b"inner"), changes())
        client.write(client.create(inner, b"deep.bin"), b"\0\1\2")
        gateway.stop()
        for words in [("main@v1",), ("main@HEAD~1",), ("live",)]:
            gateway, client, root = self.mounted(*words)
            handles[words] = [root, client.find(root, b"dir", b"inner", b"deep.bin")]
            fsid = client.stat(root)["fsid"]
            gateway.stop()
            gateway, client, root = self.mounted(*words)
            self.assertEqual(root, handles[words][0])
            self.assertEqual(client.read(handles[words][1], 0, 3)[0], b"\0\1\2")
            self.assertEqual(client.stat(root)["fsid"], fsid)
            gateway.stop()
        # The same snapshot by two names, and another tree.
        self.assertEqual(handles["main@v1",], handles["main@HEAD~1",])
        self.assertNotEqual(handles["main@v1",], handles["live",])
        gateway, client, root = self.mounted("main")
        for handle in handles["live",] + handles["main@v1",]:
            self.assert_status(nfs.BADHANDLE, client.stat, handle)

    def test_handles_that_stand_for_nothing(self):
        gateway, client, root = self.mounted("live")
        for forged in [b"", b"\0", root[:-1], root + b"\0", bytes(32), bytes(64), root[:31] + bytes([root[31] ^ 1]), bytes([root[0] ^ 2]) + root[1:]]:
            self.assert_status(nfs.BADHANDLE, client.stat, forged)
        # Longer than a handle may be: the arguments are wrong.
        with self.assertRaises(Refused) as refused:
            client.stat(bytes(65))
        self.assertEqual(refused.exception.args, ("accepted", 4))
        file = client.create(root, b"short-lived")
        directory = client.made(nfs.MKDIR, opaque(root), opaque(b"short-lived too"), changes())
        client.call(nfs.REMOVE, opaque(root), opaque(b"short-lived"))
        client.call(nfs.RMDIR, opaque(root), opaque(b"short-lived too"))
        for call in [client.stat, client.read, lambda handle: client.write(handle, b"x"), client.commit]:
            self.assert_status(nfs.STALE, call, file)
        self.assert_status(nfs.STALE, client.page, directory)
        self.assert_status(nfs.STALE, client.create, directory, b"x")
        # A name that is used again is another file.
        self.assertNotEqual(client.create(root, b"short-lived"), file)
        # After a start, the numbers that were given out are those of others, or of nobody.
        gateway.stop()
        _, client, _ = self.mounted("live")
        self.assert_status(nfs.STALE, client.stat, file)

    # Listings.

    def test_a_listing_goes_on_after_what_was_removed(self):
        gateway, client, many = self.make_live(500)
        everything = {b"name %d" % number for number in range(500)}
        page, is_end = client.page(many, 0, 1024)
        self.assertFalse(is_end)
        seen = {name for name, _, _ in page} - {b".", b".."}
        # The name behind which it goes on, and one that was not shown yet.
        last = page[-1][0]
        gone = sorted(everything - seen)[0]
        for name in [last, gone]:
            client.call(nfs.REMOVE, opaque(many), opaque(name))
        client.create(many, b"added")
        rest = []
        cookie = page[-1][2]
        # In another process, which has no listing from before.
        gateway.stop()
        gateway = self.serve_nfs("live")
        client = self.client(gateway)
        while not is_end:
            page, is_end = client.page(many, cookie, 1024)
            rest += [name for name, _, _ in page]
            cookie = page[-1][2] if page else cookie
        self.assertEqual(len(rest), len(set(rest)))
        self.assertEqual(set(rest) - {b"added"}, everything - seen - {gone})
        # Who removes page by page, as rm does, comes to the end.
        removed = []

        def remove(page):
            for name, _, _ in page:
                if name not in (b".", b".."):
                    client.call(nfs.REMOVE, opaque(many), opaque(name))
                    removed.append(name)

        client.names(many, 1024, remove)
        self.assertEqual(len(removed), 499)
        self.assertEqual(client.names(many), [])

    def test_links_are_listed_twice_and_pages_are_as_small_as_wanted(self):
        _, client, root = self.mounted("live")
        directory = client.made(nfs.MKDIR, opaque(root), opaque(b"links"), changes())
        file = client.create(directory, b"one")
        client.call(nfs.LINK, opaque(file), opaque(directory), opaque(b"two"))
        self.assertEqual(client.stat(file)["nlink"], 2)
        self.assertEqual(sorted(client.names(directory, 140)), [b"one", b"two"])
        # A place is a number with a sign in some clients.
        page, _ = client.page(directory)
        self.assertTrue(all(place < 1 << 63 for _, _, place in page))
        for count in [0, 1, 64, 103, 120]:
            self.assert_status(nfs.TOOSMALL, client.page, directory, 0, count)
            self.assert_status(nfs.TOOSMALL, client.page_plus, directory, 0, count, count)
        # Few bytes of names are a wish, and a page with one name is its least.
        page, is_end = client.page_plus(directory, 0, 1, 4096)
        self.assertEqual(([name for name, *_ in page], is_end), ([b"."], False))
        self.assert_status(nfs.NOTDIR, client.page, file)
        # Behind the last place there is nothing.
        self.assertEqual(client.page(directory, (1 << 63) - 1), ([], True))
        self.assertEqual(client.page(directory, (1 << 64) - 1), ([], True))

    def test_a_hundred_thousand_names_are_there_once(self):
        count = 100_000
        (self.volume.data / "many").mkdir()
        for number in range(count):
            (self.volume.data / f"many/{number}").touch()
        self.volume.run("snapshot", "--quiet")
        gateway, client, root = self.mounted("main")
        many = client.find(root, b"many")
        expected = sorted(b"%d" % number for number in range(count))
        self.assertEqual(sorted(client.names(many, 8192)), expected)
        listed = self.command("nfs-ls", self.url(gateway, "many")).stdout.split(b"\n")
        self.assertEqual(sorted(line.split()[-1] for line in listed if line), expected)
        self.assertLess(gateway.peak_memory(), MEMORY)

    # Writing.

    def test_worktrees_are_written_by_libnfs(self):
        gateway = self.serve_nfs("live")
        mount = Libnfs(gateway.port)
        for path in [b"/notes.txt", b"/old"]:
            file = mount.open(path, os.O_CREAT)
            mount.write(file, 0, b"one\ntwo\n")
            mount.do("nfs_close", file)
        content = os.urandom(5 << 20) + b"end"
        mount.do("nfs_mkdir", b"/new")
        file = mount.open(b"/new/file", os.O_CREAT)
        mount.write(file, 0, content)
        mount.do("nfs_fsync", file)
        mount.write(file, 100, b"changed")
        mount.do("nfs_close", file)
        content = content[:100] + b"changed" + content[107:]
        self.assertEqual(mount.read(b"/new/file"), content)
        mount.do("nfs_rename", b"/new/file", b"/new/renamed")
        mount.do("nfs_link", b"/new/renamed", b"/linked")
        mount.do("nfs_symlink", b"new/renamed", b"/soft")
        mount.do("nfs_chmod", b"/linked", 0o600)
        mount.do("nfs_truncate", b"/notes.txt", ctypes.c_uint64(3))
        mount.do("nfs_unlink", b"/old")
        self.assertRaises(OSError, mount.do, "nfs_rmdir", b"/new")
        self.assertRaises(OSError, mount.open, b"/old", os.O_RDONLY)
        local = self.base / "local"
        local.write_bytes(content)
        self.command("nfs-cp", str(local), self.url(gateway, "/copied"))
        mount.end()
        self.assertEqual(gateway.stop(), 0)
        # What was written was put into the store, and is what others see.
        _, client, root = self.mounted("live")
        for name in [b"linked", b"copied"]:
            handle = client.find(root, name)
            found = b""
            while len(found) < len(content):
                found += client.read(handle, len(found))[0]
            self.assertEqual(found, content)
        known = client.stat(client.find(root, b"linked"))
        self.assertEqual((known["mode"], known["nlink"], known["uid"]), (0o600, 2, os.geteuid()))
        self.assertEqual(client.read(client.find(root, b"notes.txt")), (b"one", True))
        self.assertNotIn(b"old", client.names(root))

    def test_only_what_is_committed_counts_after_a_kill(self):
        gateway, client, root = self.mounted("live")
        file = client.create(root, b"new")
        committed, verifier = client.write(file, b"first")
        self.assertEqual(committed, nfs.UNSTABLE)
        self.assertEqual(client.write(file, b"2nd", 5, nfs.FILE_SYNC), (nfs.FILE_SYNC, verifier))
        self.assertEqual(client.commit(file), verifier)
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait()
        _, client, _ = self.mounted("live")
        other = client.commit(file)
        # The client learns that what it did not commit has to be written again.
        self.assertNotEqual(other, verifier)
        self.assertEqual(client.write(file, b"again", 8), (nfs.UNSTABLE, other))
        self.assertEqual(client.commit(file), other)
        self.assertEqual(client.read(file), (b"first2ndagain", True))

    def test_files_are_made_as_asked(self):
        _, client, root = self.mounted("live")
        file = client.create(root, b"guarded", mode=0o640, size=7)
        self.assertEqual((client.stat(file)["mode"], client.stat(file)["size"]), (0o640, 7))
        self.assert_status(nfs.EXIST, client.create, root, b"guarded")
        # What is there is opened, and only cut.
        client.write(file, b"content")
        self.assertEqual(client.create(root, b"guarded", nfs.UNCHECKED, mode=0o777), file)
        self.assertEqual((client.read(file)[0], client.stat(file)["mode"]), (b"content", 0o640))
        client.made(nfs.MKDIR, opaque(root), opaque(b"dir"), changes())
        client.create(root, b"guarded", nfs.UNCHECKED, size=0)
        self.assertEqual(client.read(file), (b"", True))
        self.assert_status(nfs.EXIST, client.create, root, b"dir", nfs.UNCHECKED)
        # The same request again makes nothing new; another one fails.
        verifier = b"\xff\xff\xff\xff\x12\x34\x56\x78"
        once = client.create(root, b"once", nfs.EXCLUSIVE, verifier)
        self.assertEqual(client.create(root, b"once", nfs.EXCLUSIVE, verifier), once)
        self.assert_status(nfs.EXIST, client.create, root, b"once", nfs.EXCLUSIVE, b"12345678")
        for kind, number in [(7, 7), (6, 6)]:
            node = client.made(nfs.MKNOD, opaque(root), opaque(b"node %d" % kind), word(kind), changes(mode=0o600))
            self.assertEqual((client.stat(node)["type"], client.stat(node)["mode"]), (number, 0o600))
        device = client.made(nfs.MKNOD, opaque(root), opaque(b"null"), word(4), changes(), word(1, 3))
        self.assertEqual((client.stat(device)["type"], client.stat(device)["rdev"]), (4, (1, 3)))
        self.assert_status(10007, client.call, nfs.MKNOD, opaque(root), opaque(b"x"), word(1))
        for name in [b".", b"..", b"a/b", b"", b"n" * 256, b"no\0"]:
            self.assertRaises(Failed, client.create, root, name)

    def test_attributes_are_set_if_nobody_else_has(self):
        _, client, root = self.mounted("live")
        file = client.create(root, b"new")
        seen = client.stat(file)["ctime"]
        guard = word(1, *seen)
        client.call(nfs.SETATTR, opaque(file), changes(mode=0o600, uid=12, gid=13, size=9, atime=5, mtime=6), guard)
        known = client.stat(file)
        self.assertEqual([known[name] for name in ["mode", "uid", "gid", "size", "atime", "mtime"]], [0o600, 12, 13, 9, (5, 0), (6, 0)])
        self.assert_status(nfs.NOTSYNC, client.call, nfs.SETATTR, opaque(file), changes(mode=0), guard)
        self.assertEqual(client.stat(file)["mode"], 0o600)
        # To what the server's clock says.
        client.call(nfs.SETATTR, opaque(file), word(0, 0, 0, 0, 1, 1), word(0))
        self.assertGreater(client.stat(file)["mtime"][0], 1_000_000_000)
        self.assertRaises(Failed, client.call, nfs.SETATTR, opaque(root), changes(size=1), word(0))
        # Sizes that no file has, and a hole.
        self.assertRaises(Failed, client.write, file, b"x", (1 << 63) - 1)
        self.assertRaises(Failed, client.write, file, b"x", (1 << 64) - 1)
        client.write(file, b"x", 1 << 40)
        known = client.stat(file)
        self.assertEqual(known["size"], (1 << 40) + 1)
        self.assertLess(known["used"], 1 << 20)
        self.assertEqual(client.read(file, (1 << 40) - 1), (b"\0x", True))

    def test_directories_change_as_on_linux(self):
        _, client, root = self.mounted("live")
        place = lambda name: opaque(root) + opaque(name)
        client.create(root, b"notes.txt")
        one = client.made(nfs.MKDIR, place(b"one"), changes(mode=0o700))
        self.assertEqual(client.stat(one)["mode"], 0o700)
        client.create(one, b"file")
        self.assert_status(nfs.NOTEMPTY, client.call, nfs.RMDIR, place(b"one"))
        self.assert_status(nfs.ISDIR, client.call, nfs.REMOVE, place(b"one"))
        self.assert_status(nfs.NOTDIR, client.call, nfs.RMDIR, place(b"notes.txt"))
        self.assert_status(nfs.NOENT, client.call, nfs.REMOVE, place(b"none"))
        self.assertRaises(Failed, client.call, nfs.RENAME, place(b"one"), opaque(one) + opaque(b"within"))
        client.call(nfs.RENAME, opaque(one) + opaque(b"file"), place(b"notes.txt"))
        self.assertEqual(client.read(client.find(root, b"notes.txt")), (b"", True))
        client.call(nfs.RMDIR, place(b"one"))
        soft = client.made(nfs.SYMLINK, place(b"soft"), changes(), opaque(b"../../etc"))
        reply = client.call(nfs.READLINK, opaque(soft))
        reply.known()
        self.assertEqual(reply.opaque(), b"../../etc")
        self.assertRaises(Failed, client.call, nfs.LINK, opaque(root), place(b"again"))
        reply = client.call(nfs.FSSTAT, opaque(root))
        reply.known()
        total, free = reply.long(), reply.long()
        self.assertTrue(0 < free <= total)
        reply = client.call(nfs.FSINFO, opaque(root))
        reply.known()
        self.assertEqual(reply.word(), 1 << 20)
        reply = client.call(nfs.PATHCONF, opaque(root))
        reply.known()
        reply.word()
        self.assertEqual(reply.word(), 255)

    # Who comes in.

    def test_only_users_of_the_list_are_let_in(self):
        gateway, client, root = self.mounted("live", "--allow-uid", "1234", "--squash", "70:71", "--allow-uid", str(os.getuid()))
        other = self.client(gateway, 1235)
        # To mount gives nobody anything.
        self.assertEqual(other.mount(), root)
        for _ in range(3):
            with self.assertRaises(Refused) as refused:
                other.stat(root)
            self.assertEqual(refused.exception.args, ("denied", 1, 2))
        other.auth = word(0, 0)
        with self.assertRaises(Refused) as refused:
            other.stat(root)
        self.assertEqual(refused.exception.args, ("denied", 1, 5))
        self.assertEqual(len(other.ask(nfs.NULL, b"").data), 24)
        other.auth = nfs.auth(1234)
        made = other.create(root, b"new", mode=0o600)
        self.assertEqual([client.stat(made)[name] for name in ["uid", "gid"]], [70, 71])
        gateway.process.send_signal(signal.SIGTERM)
        errors = gateway.process.communicate(timeout=60)[1].splitlines()
        # One line of each connection, without names.
        self.assertEqual(len(errors), 1)
        self.assertIn("--allow-uid", errors[0])

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_connections_of_other_users_are_refused(self):
        gateway, client, root = self.mounted("main@v1", "--allow-uid", "65533", "--allow-uid", "0")

        def ask_as(uid):
            """Whether a program of this user, which says to be root, is answered."""
            code = f"import nfs_client as n; c = n.Client({gateway.port}, 0); print(c.stat(c.mount())['type'])"
            ask = ["setpriv", f"--reuid={uid}", "--regid=65534", "--clear-groups", sys.executable, "-c", code]
            done = subprocess.run(ask, capture_output=True, text=True, env={"PYTHONPATH": os.path.dirname(__file__) or "."}, cwd=os.path.dirname(os.path.abspath(__file__)))
            return done.stdout.strip() == "2"

        self.assertEqual([ask_as(65533), ask_as(65534), ask_as(65533)], [True, False, True])
        self.assertEqual(client.stat(root)["type"], 2)
        gateway.process.send_signal(signal.SIGTERM)
        errors = gateway.process.communicate(timeout=60)[1].splitlines()
        self.assertEqual((len(errors), "--allow-uid" in errors[0]), (1, True))

    def test_other_machines_are_let_in_only_knowingly(self):
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"]:
            refused = self.volume.run("serve", "nfs", "main", "--listen", address, check=False)
            self.assertEqual((refused.returncode, "no authentication" in refused.stderr), (3, True), refused.stderr)
        gateway = self.serve_nfs("main", "--listen", "0.0.0.0:0", "--i-know-nfs-has-no-authentication")
        self.assertEqual(self.client(gateway).stat(self.client(gateway).mount())["type"], 2)
        taken = self.volume.run("serve", "nfs", "main", "--listen", f"127.0.0.1:{gateway.port}", check=False)
        self.assertIn("another port", taken.stderr)
        for owner in ["root", "1", "1:", "-1:0", "1:2:3"]:
            self.assertEqual(self.volume.run("serve", "nfs", "main", f"--squash={owner}", check=False).returncode, 3)

    def test_other_calls_are_refused(self):
        gateway, client, root = self.mounted("main@v1")
        for procedure, program, version, expected in [
            (0, nfs.NFS, 4, ("accepted", 2)), (0, nfs.NFS, 2, ("accepted", 2)), (22, nfs.NFS, 3, ("accepted", 3)),
            (6, nfs.MOUNT, 3, ("accepted", 3)), (0, nfs.MOUNT, 1, ("accepted", 2)), (0, 100227, 3, ("accepted", 1)),
            (0, 100000, 2, ("accepted", 1)), (0, 100021, 4, ("accepted", 1)),
        ]:
            with self.assertRaises(Refused) as refused:
                client.ask(procedure, b"", program, version)
            self.assertEqual(refused.exception.args, expected)
        for procedure in range(1, 22):
            with self.assertRaises(Refused) as refused:
                client.ask(procedure, b"\0\0\0")
            self.assertEqual(refused.exception.args, ("accepted", 4))
        # What libnfs asks for.
        self.assertEqual((client.mount(b""), client.ask(5, b"", nfs.MOUNT).word()), (root, 0))
        client.ask(3, opaque(b"/"), nfs.MOUNT)
        # A message in pieces is one message.
        data = word(99, 0, 2, nfs.NFS, 3, nfs.GETATTR) + client.auth + word(0, 0) + opaque(root)
        for byte in data[:-1]:
            client.socket.sendall(word(1) + bytes([byte]))
        client.socket.sendall(word(1 << 31 | 1) + data[-1:])
        self.assertEqual(client.answer()[0], 99)

    # Limits.

    def test_bytes_that_are_no_calls_harm_nobody(self):
        gateway, client, root = self.mounted("main@v1")
        for junk in [
            b"GET / HTTP/1.1\r\n\r\n", word(0xFFFFFFFF), word(0x7FFFFFFF) + bytes(100), word(1 << 31 | (2 << 20)), os.urandom(4096),
            word(1 << 31), word(1 << 31 | 8) + bytes(8), word(1 << 31 | 8) + word(1, 1), word(1 << 31 | 40) + word(7, 0, 3) + bytes(28),
        ]:
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
                connection.sendall(junk)
                # It may be closed before all of that was read.
                with contextlib.suppress(ConnectionError):
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(4096)
        self.assertEqual(client.stat(root)["type"], 2)
        self.assertLess(gateway.peak_memory(), MEMORY)

    def test_a_thousand_clients_are_served_in_bounded_memory(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        gateway, client, root = self.mounted("main@v1")
        deep = client.find(root, b"dir", b"inner", b"deep.bin")
        call = client.auth + word(0, 0) + opaque(deep) + long(0) + word(1 << 20)
        ask = word(5, 0, 2, nfs.NFS, 3, nfs.READ) + call
        ask = word(1 << 31 | len(ask)) + ask
        # 500 announce a long message and send half of it; 300 ask for 16 MiB and take nothing.
        connect = lambda: socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
        everybody = []
        self.addCleanup(lambda: [connection.close() for connection in everybody])
        half = [connect() for _ in range(500)]
        everybody += half
        for connection in half:
            connection.sendall(word(1 << 31 | (1 << 20)) + bytes(32 << 10))
        full = [connect() for _ in range(300)]
        everybody += full
        for connection in full:
            connection.sendall(ask * 16)
        many = [Client(gateway.port) for _ in range(190)]
        everybody += [each.socket for each in many]
        # Others are answered, and read on piece by piece.
        for each in many:
            self.assertEqual(each.stat(root)["type"], 2)
        data, is_end = many[0].read(deep)
        self.assertGreater(len(data), 0)
        self.assertEqual(data, (bytes(range(256)) * 4000)[: len(data)])
        self.assertLess(gateway.peak_memory(), MEMORY)
        for connection in everybody:
            connection.close()
        self.assertEqual(client.stat(root)["type"], 2)
        self.assertEqual(gateway.stop(), 0)

    def test_what_is_under_way_is_finished(self):
        gateway, client, root = self.mounted("live")
        file = client.create(root, b"new")
        sent = [client.send(nfs.WRITE, opaque(file) + long(number << 20) + word(1 << 20, nfs.FILE_SYNC) + opaque(bytes(1 << 20))) for number in range(4)]
        first = client.answer()[0]
        gateway.process.send_signal(signal.SIGTERM)
        answered = {first}
        try:
            while True:
                answered.add(client.answer()[0])
        except (EOFError, ConnectionResetError):
            pass
        self.assertEqual(gateway.stop(), 0)
        self.assertTrue(answered <= set(sent))
        # All that was answered is there.
        _, client, root = self.mounted("live")
        last = max(answered) - min(sent)
        self.assertGreaterEqual(client.stat(client.find(root, b"new"))["size"], (last + 1) << 20)

    def test_many_clients_write_at_once(self):
        gateway, client, root = self.mounted("live")
        failures = []

        def work(number):
            try:
                with Client(gateway.port) as own:
                    directory = own.made(nfs.MKDIR, opaque(root), opaque(b"client %d" % number), changes())
                    for file in range(20):
                        handle = own.create(directory, b"%d" % file)
                        own.write(handle, b"%d %d" % (number, file))
                    own.commit(handle)
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        for number in range(30):
            directory = client.find(root, b"client %d" % number)
            self.assertEqual(len(client.names(directory)), 20)
            self.assertEqual(client.read(client.find(directory, b"7"))[0], b"%d 7" % number)
