"""WebDAV: what clients do, and what must not be possible."""

import asyncio
import os
import resource
import urllib.parse
import xml.etree.ElementTree as ElementTree

from stand import NAMES, Answer, GatewayTest

DAV = "{DAV:}"
WRITING = ["PUT", "DELETE", "MKCOL", "COPY", "MOVE", "PROPPATCH", "LOCK", "UNLOCK"]


def listed(answer):
    """The paths of a listing, as bytes, and the names of their properties."""
    assert answer.status == 207 and answer.is_whole, (answer.status, answer.body)
    found = {}
    for response in ElementTree.fromstring(answer.body).iter(DAV + "response"):
        path = urllib.parse.unquote_to_bytes(response.find(DAV + "href").text)
        found[path] = {prop.tag.removeprefix(DAV): prop.text for prop in response.iter() if prop.tag.startswith(DAV)}
    return found


class WebdavTest(GatewayTest):
    def rclone(self, gateway, *words, check=True):
        name, password = gateway.user.split(":")
        obscured = self.command("rclone", "obscure", password).stdout.decode().strip()
        remote = f":webdav,url='{gateway.ready['address']}',user={name},pass={obscured},vendor=other:"
        words = [word.replace("REMOTE:", remote) for word in words]
        return self.command("rclone", "--retries", "1", *words, check=check)

    def test_snapshots_are_read_by_rclone_and_curl(self):
        gateway = self.serve("webdav", "main@v1")
        self.assertFalse(gateway.ready["writable"])
        copy = self.base / "copy"
        self.rclone(gateway, "copy", "REMOTE:dir", str(copy))
        self.assertEqual((copy / "inner/deep.bin").read_bytes(), bytes(range(256)) * 4000)
        self.assertEqual((copy / "empty").read_bytes(), b"")
        self.rclone(gateway, "check", "--download", "REMOTE:dir", str(copy))
        top = self.rclone(gateway, "lsf", "REMOTE:").stdout.decode().split("\n")
        self.assertEqual(sorted(filter(None, top)), ["dir/", "names/", "notes.txt", "old"])
        address = gateway.ready["address"] + "notes.txt"
        read = self.command("curl", "-sS", "--fail", "-u", gateway.user, address)
        self.assertEqual(read.stdout, b"one\ntwo\n")
        part = self.command("curl", "-sS", "--fail", "-u", gateway.user, "-r", "4-6", address)
        self.assertEqual(part.stdout, b"two")
        self.assertEqual(gateway.stop(), 0)

    def test_ranges_and_conditions_are_those_of_http(self):
        gateway = self.serve("webdav", "main@v1")
        whole = gateway.ask("GET", "/notes.txt")
        tag = whole.headers["etag"]
        self.assertEqual((whole.status, whole.body), (200, b"one\ntwo\n"))
        for value, status, body in [
            ("bytes=0-2", 206, b"one"), ("bytes=4-", 206, b"two\n"), ("bytes=-4", 206, b"two\n"), ("bytes=4-99", 206, b"two\n"),
            ("bytes=8-", 416, b""), ("bytes=99-", 416, b""), ("bytes=-0", 416, b""), ("bytes=3-1", 416, b""),
            ("bytes=0-18446744073709551615", 200, whole.body), ("bytes=0-1,0-1", 200, whole.body), ("lines=1-2", 200, whole.body),
        ]:
            answer = gateway.ask("GET", "/notes.txt", {"Range": value})
            self.assertEqual((answer.status, answer.body), (status, body), value)
        for name, value, status in [
            ("If-None-Match", tag, 304), ("If-None-Match", "*", 304), ("If-None-Match", '"other"', 200),
            ("If-Match", tag, 200), ("If-Match", '"other"', 412), ("If-Match", "*", 200),
            ("If-Modified-Since", "Fri, 31 Dec 2100 00:00:00 GMT", 304), ("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT", 412),
        ]:
            self.assertEqual(gateway.ask("GET", "/notes.txt", {name: value}).status, status, (name, value))
        self.assertEqual(gateway.ask("HEAD", "/notes.txt").headers["content-length"], "8")
        self.assertEqual(gateway.ask("GET", "/dir/empty", {"Range": "bytes=0-"}).status, 416)
        other = self.serve("webdav", "main")
        self.assertEqual(other.ask("GET", "/notes.txt").body, b"one\n2\n")
        self.assertNotEqual(other.ask("GET", "/notes.txt").headers["etag"], tag)

    def test_nothing_writes_to_a_snapshot(self):
        for words in [("main@v1",), ("main",), ("main@HEAD~1",), ("live", "--read-only")]:
            gateway = self.serve("webdav", *words)
            for method in WRITING:
                headers = {"Destination": "/other", "Depth": "infinity"}
                self.assertEqual(gateway.ask(method, "/notes.txt", headers, b"").status, 403, (words, method))
            for method in ["PATCH", "POST", "REPORT", "TRACE"]:
                self.assertEqual(gateway.ask(method, "/notes.txt").status, 405, (words, method))
            gateway.stop()

    def test_only_those_with_a_password_come_in(self):
        gateway = self.serve("webdav", "main@v1")
        for user in ["vellum:wrong", "vellum:", gateway.user[:-1], gateway.user + "0", "other:" + gateway.user.split(":")[1]]:
            answer = gateway.ask("GET", "/notes.txt", user=user)
            self.assertEqual((answer.status, answer.body.count(b"one")), (401, 0))
            self.assertIn("Basic", answer.headers["www-authenticate"])
        self.assertEqual(gateway.ask("GET", "/notes.txt", {"Authorization": None}).status, 401)
        with open(f"/proc/{gateway.process.pid}/cmdline", "rb") as words:
            self.assertNotIn(gateway.user.split(":")[1].encode(), words.read())
        for host in ["evil.com", "127.0.0.1.evil.com", "localhost.evil.com:1"]:
            self.assertEqual(gateway.ask("GET", "/notes.txt", {"Host": host}).status, 403)
        self.assertEqual(gateway.ask("GET", "/notes.txt", {"Origin": "http://evil.com"}).status, 403)
        self.assertEqual(gateway.ask("GET", "/notes.txt", {"Sec-Fetch-Site": "cross-site"}).status, 403)
        answer = gateway.ask("GET", "/notes.txt")
        self.assertTrue(answer.headers["content-security-policy"].startswith("sandbox"))

    def test_users_are_those_of_a_private_file(self):
        users = self.base / "users"
        users.write_text("# mine\nann correct-horse-1\nbob other-horse-22 read\n")
        refused = self.volume.run("serve", "webdav", "live", "--credentials", str(users), check=False)
        self.assertEqual((refused.returncode, "not 0600" in refused.stderr), (2, True))
        users.chmod(0o600)
        gateway = self.serve("webdav", "live", "--credentials", str(users))
        self.assertNotIn("password", gateway.ready)
        put = lambda user: gateway.ask("PUT", "/new", body=b"x", user=user).status
        self.assertEqual([put("bob:other-horse-22"), put("ann:wrong"), put("ann:correct-horse-1")], [403, 401, 201])
        self.assertEqual(gateway.ask("GET", "/new", user="bob:other-horse-22").body, b"x")
        link = self.base / "link"
        os.symlink(users, link)
        refused = self.volume.run("serve", "webdav", "main", "--credentials", str(link), check=False)
        self.assertIn("symlink", refused.stderr)
        os.environ["VELLUM_SERVE_CREDENTIALS"] = "eve third-horse-333"
        self.addCleanup(os.environ.pop, "VELLUM_SERVE_CREDENTIALS")
        gateway = self.serve("webdav", "main")
        self.assertEqual(gateway.ask("GET", "/notes.txt", user="eve:third-horse-333").status, 200)

    def test_other_machines_cannot_be_let_in(self):
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"]:
            refused = self.volume.run("serve", "webdav", "main", "--listen", address, check=False)
            self.assertEqual((refused.returncode, "ssh -L" in refused.stderr), (2, True), address)

    def test_nothing_leads_out_of_the_tree(self):
        gateway = self.serve("webdav", "main@v1")
        for path in ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/dir/../../etc/passwd", "/notes.txt%00", "/dir%2Finner"]:
            self.assertEqual(gateway.ask("GET", path).status, 400, path)
        # Of symlinks the slash is the root of the tree, and nothing is above that.
        for path, status in [("/out", 404), ("/up", 404), ("/loop", 508), ("/fifo", 403), ("/in", 200), ("/in/x", 404)]:
            answer = gateway.ask("GET", path)
            self.assertEqual((answer.status, b"root:" in answer.body), (status, False), path)
        self.assertEqual(gateway.ask("GET", "/in").body, b"one\ntwo\n")
        self.assertEqual(gateway.ask("GET", "/" + "a/" * 3000).status, 414)

    def test_every_name_is_listed_and_read(self):
        gateway = self.serve("webdav", "main@v1")
        found = listed(gateway.ask("PROPFIND", "/names/", {"Depth": "1"}))
        expected = {name.encode(): str(number).encode() for number, name in enumerate(NAMES)} | {b"not \xff utf-8": b"raw"}
        self.assertEqual(found.keys(), {b"/names/"} | {b"/names/" + name for name in expected})
        for name, content in expected.items():
            answer = gateway.ask("GET", "/names/" + urllib.parse.quote_from_bytes(name, safe=""))
            self.assertEqual((answer.status, answer.body), (200, content), name)
        # Dates of HTTP begin in 1970.
        self.assertEqual(gateway.ask("GET", "/old").headers["last-modified"], "Thu, 01 Jan 1970 00:00:00 GMT")
        self.assertIn(b"/old", listed(gateway.ask("PROPFIND", "/", {"Depth": "1"})))

    def test_large_directories_are_listed_whole_and_trees_are_not(self):
        for number in range(10_000):
            (self.volume.data / "dir" / f"f{number:05}").touch()
        self.volume.run("snapshot", "--quiet", "-m", "many")
        gateway = self.serve("webdav", "main")
        answer = gateway.ask("PROPFIND", "/dir", {"Depth": "1"})
        self.assertEqual(len(listed(answer)), 10_003)
        self.assertEqual(answer.body.count(b"<D:response"), 10_003)
        for headers in [{"Depth": "infinity"}, {"Depth": "infinity", "X-Litmus": "1"}, {}]:
            self.assertEqual(gateway.ask("PROPFIND", "/", headers).status, 403, headers)

    def test_hostile_xml_is_refused(self):
        gateway = self.serve("webdav", "main@v1")
        entity = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
        start = '<?xml version="1.0"?>'
        for body, status in [
            (f'{start}{entity}<propfind xmlns="DAV:"><prop><a>&a;</a></prop></propfind>', 400),
            (f'{start}<propfind xmlns="DAV:"><prop>{"<a>" * 20000}', 413),
            (f'{start}<propfind xmlns="DAV:"><prop>{"<a>" * 300}{"</a>" * 300}</prop></propfind>', 207),
            ("x" * (65 << 10), 413), ("nonsense", 400), ("<propfind/>", 400),
        ]:
            answer = gateway.ask("PROPFIND", "/", {"Depth": "0"}, body.encode())
            self.assertEqual((answer.status, b"root:" in answer.body), (status, False), body[:80])
        self.assertEqual(gateway.ask("GET", "/notes.txt").status, 200)

    def test_a_live_worktree_is_written_and_kept(self):
        gateway = self.serve("webdav", "live")
        self.assertTrue(gateway.ready["writable"])
        source = self.base / "source"
        (source / "below").mkdir(parents=True)
        (source / "below/big").write_bytes(os.urandom(5 << 20))
        (source / "small").write_bytes(b"small")
        self.rclone(gateway, "copy", str(source), "REMOTE:in")
        self.rclone(gateway, "check", "--download", str(source), "REMOTE:in")
        self.rclone(gateway, "moveto", "REMOTE:in/small", "REMOTE:in/moved")
        self.rclone(gateway, "copyto", "REMOTE:in/below/big", "REMOTE:in/copied")
        self.assertEqual(gateway.ask("PUT", "/in/moved", body=b"replaced").status, 204)
        self.assertEqual(gateway.ask("PUT", "/in/moved", {"If-None-Match": "*"}, b"x").status, 412)
        self.assertEqual(gateway.ask("PUT", "/in/new", {"If-Match": "*"}, b"x").status, 412)
        self.assertEqual(gateway.ask("PUT", "/nowhere/new", body=b"x").status, 409)
        self.assertEqual(gateway.ask("PUT", "/in/moved", {"Content-Range": "bytes 0-0/8"}, b"x").status, 400)
        self.assertEqual(gateway.ask("MKCOL", "/in/made").status, 201)
        self.assertEqual(gateway.ask("MKCOL", "/in/made").status, 405)
        self.assertEqual(gateway.ask("DELETE", "/").status, 403)
        held = self.volume.run("serve", "webdav", "live", check=False)
        self.assertEqual((held.returncode, "live@HEAD" in held.stderr), (2, True), held.stderr)
        self.assertEqual(gateway.stop(), 0)
        again = self.serve("webdav", "live")
        self.assertEqual(again.ask("GET", "/in/moved").body, b"replaced")
        self.assertEqual(again.ask("GET", "/in/copied").body, (source / "below/big").read_bytes())
        self.rclone(again, "purge", "REMOTE:in")
        self.assertEqual(list(listed(again.ask("PROPFIND", "/", {"Depth": "1"}))), [b"/"])

    def test_moves_do_not_lose_what_they_move(self):
        gateway = self.serve("webdav", "live")
        for path in ["/a", "/a/b"]:
            self.assertEqual(gateway.ask("MKCOL", path).status, 201)
        gateway.ask("PUT", "/a/b/file", body=b"kept")
        for source, target, status in [("/a/b", "/a", 403), ("/a", "/a/b/c", 403), ("/a", "/", 403), ("/a", "http://evil.com/c", 502)]:
            for method in ["MOVE", "COPY"]:
                self.assertEqual(gateway.ask(method, source, {"Destination": target}).status, status, (method, source, target))
        self.assertEqual(gateway.ask("GET", "/a/b/file").body, b"kept")
        target = gateway.ready["address"] + "c"
        self.assertEqual(gateway.ask("COPY", "/a", {"Destination": target}).status, 201)
        self.assertEqual(gateway.ask("MOVE", "/a", {"Destination": "/c", "Overwrite": "F"}).status, 412)
        self.assertEqual(gateway.ask("GET", "/c/b/file").body, b"kept")

    def test_an_upload_that_breaks_off_changes_nothing(self):
        gateway = self.serve("webdav", "live")
        gateway.ask("PUT", "/file", body=b"old")
        for headers, body in [
            ({"Content-Length": "1000000"}, b"new" * 1000),
            ({"Transfer-Encoding": "chunked"}, b"5\r\nnew12\r\n"),
        ]:
            with gateway.connect() as connection:
                connection.sendall(gateway.head("PUT", "/file", headers) + body)
        short = {"Transfer-Encoding": "chunked", "X-Expected-Entity-Length": "100"}
        self.assertEqual(gateway.ask("PUT", "/file", short, b"3\r\nnew\r\n0\r\n\r\n").status, 500)
        self.assertEqual(gateway.ask("GET", "/file").body, b"old")
        self.assertEqual(list(listed(gateway.ask("PROPFIND", "/", {"Depth": "1"}))), [b"/", b"/file"])

    def test_locks_keep_others_from_writing(self):
        gateway = self.serve("webdav", "live")
        gateway.ask("PUT", "/file", body=b"old")
        wish = b'<lockinfo xmlns="DAV:"><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>'
        locked = gateway.ask("LOCK", "/file", {"Timeout": "Second-600"}, wish)
        self.assertEqual(locked.status, 200)
        token = locked.headers["lock-token"]
        self.assertEqual(gateway.ask("PUT", "/file", body=b"other").status, 423)
        self.assertEqual(gateway.ask("PUT", "/file", {"If": f"({token})"}, b"own").status, 204)
        self.assertEqual(gateway.ask("UNLOCK", "/file", {"Lock-Token": token}).status, 204)
        self.assertEqual(gateway.ask("GET", "/file").body, b"own")
        # Of a free name: an empty file, into which whoever has the lock writes.
        locked = gateway.ask("LOCK", "/new", {"Timeout": "Second-600"}, wish)
        self.assertEqual((locked.status, gateway.ask("GET", "/new").body), (201, b""))
        self.assertEqual(gateway.ask("PUT", "/new", {"If": f"({locked.headers['lock-token']})"}, b"own").status, 204)
        self.assertEqual(gateway.ask("GET", "/new").body, b"own")

    def test_a_thousand_clients_are_served_within_bounds(self):
        gateway = self.serve("webdav", "main@v1")
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 8192), limit[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        request = gateway.head("GET", "/dir/inner/deep.bin", {})

        async def read_whole():
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(request)
            answer = Answer(await reader.read(-1))
            writer.close()
            return answer.status if answer.is_whole else 0

        async def read_all():
            return await asyncio.gather(*(read_whole() for _ in range(1000)))

        silent = [gateway.connect() for _ in range(100)]
        statuses = asyncio.run(read_all())
        self.assertTrue(set(statuses) <= {200, 503} and 200 in statuses, set(statuses))
        self.assertLess(gateway.peak_memory(), 256 << 20)
        self.assertEqual(gateway.ask("GET", "/notes.txt").status, 200)
        for connection in silent:
            connection.close()
