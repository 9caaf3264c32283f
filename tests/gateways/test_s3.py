"""S3: what clients do, and what must not be possible."""

import asyncio
import base64
import binascii
import datetime
import hashlib
import hmac
import os
import re
import resource
import signal
import urllib.parse
import xml.etree.ElementTree as ElementTree

from stand import NAMES, Answer, GatewayTest

S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"
PART = 5 << 20
EMPTY = hashlib.sha256().hexdigest()


def encode(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


class S3Client:
    """Signs requests by version 4, also such as no client sends."""

    def __init__(self, gateway, user=None, bucket="live"):
        self.gateway = gateway
        self.name, self.secret = (user or gateway.user).split(":")
        self.bucket = bucket

    def signature(self, date, text):
        key = ("AWS4" + self.secret).encode()
        for part in [date[:8], "us-east-1", "s3", "aws4_request"]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        scope = f"{date[:8]}/us-east-1/s3/aws4_request"
        signed = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(text.encode()).hexdigest()}"
        return scope, hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()

    def sign(self, method, path, query, headers, sha256, minutes=0):
        """The target and the headers of a request."""
        date = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ")
        headers = {"Host": f"127.0.0.1:{self.gateway.port}", "x-amz-date": date, "x-amz-content-sha256": sha256, **headers}
        low = {name.lower(): value.strip() for name, value in headers.items()}
        names = ";".join(sorted(low))
        pairs = "&".join(f"{encode(name)}={encode(value)}" for name, value in sorted((query or {}).items()))
        lines = [method, path, pairs, *(f"{name}:{low[name]}" for name in sorted(low)), "", names, sha256]
        scope, signature = self.signature(date, "\n".join(lines))
        shown = f"AWS4-HMAC-SHA256 Credential={self.name}/{scope}, SignedHeaders={names}, Signature={signature}"
        return path + ("?" + pairs if pairs else ""), {**headers, "Authorization": shown}

    def presign(self, key, seconds, minutes=0):
        """An address that whoever has it can read."""
        path = self.path(key)
        date = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{date[:8]}/us-east-1/s3/aws4_request"
        query = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{self.name}/{scope}", "X-Amz-Date": date,
            "X-Amz-Expires": str(seconds), "X-Amz-SignedHeaders": "host",
        }
        pairs = "&".join(f"{encode(name)}={encode(value)}" for name, value in sorted(query.items()))
        text = "\n".join(["GET", path, pairs, f"host:127.0.0.1:{self.gateway.port}", "", "host", "UNSIGNED-PAYLOAD"])
        return f"{path}?{pairs}&X-Amz-Signature={self.signature(date, text)[1]}"

    def path(self, key=None):
        return f"/{self.bucket}" + ("" if key is None else "/" + encode(key, "-_.~/"))

    def ask(self, method, key=None, query=None, headers=None, body=b"", sha256=None, minutes=0):
        digest = sha256 or hashlib.sha256(body).hexdigest()
        target, signed = self.sign(method, self.path(key), query, headers or {}, digest, minutes)
        if method in ("PUT", "POST"):
            signed.setdefault("Content-Length", str(len(body)))
        return self.gateway.ask(method, target, signed, body)

    def keys(self, **query):
        """All rows of a listing, page by page: keys, and prefixes."""
        rows = []
        query = {"list-type": "2", **{name.replace("_", "-"): str(value) for name, value in query.items()}}
        while True:
            answer = self.ask("GET", query=query)
            assert answer.status == 200, answer.body
            root = ElementTree.fromstring(answer.body)
            page = [found.text for found in root.iter(S3 + "Key")]
            page += [found.find(S3 + "Prefix").text for found in root.iter(S3 + "CommonPrefixes")]
            assert len(page) == int(root.find(S3 + "KeyCount").text)
            page = [urllib.parse.unquote(row) for row in page] if "encoding-type" in query else page
            rows += sorted(page, key=str.encode)
            if root.find(S3 + "IsTruncated").text == "false":
                return rows
            query["continuation-token"] = root.find(S3 + "NextContinuationToken").text

    def begin(self, key, headers=None):
        answer = self.ask("POST", key, {"uploads": ""}, headers)
        assert answer.status == 200, answer.body
        return ElementTree.fromstring(answer.body).find(S3 + "UploadId").text

    def part(self, key, upload, number, body, headers=None):
        return self.ask("PUT", key, {"partNumber": str(number), "uploadId": upload}, headers, body)

    def complete(self, key, upload, parts, headers=None):
        rows = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts)
        body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
        return self.ask("POST", key, {"uploadId": upload}, headers, body)


def code(answer):
    """The status and the code of an error."""
    found = re.search(rb"<Code>(\w+)</Code>", answer.body)
    return answer.status, found and found.group(1).decode()


def crc32(body):
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


class S3Test(GatewayTest):
    def rclone(self, gateway, *words, check=True):
        name, password = gateway.user.split(":")
        remote = f":s3,provider=Other,endpoint='{gateway.ready['address']}',access_key_id={name},secret_access_key={password}:"
        words = [word.replace("REMOTE:", remote) for word in words]
        return self.command("rclone", "--retries", "1", *words, check=check)

    def aws(self, gateway, *words, check=True):
        name, password = gateway.user.split(":")
        own = {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": password, "AWS_DEFAULT_REGION": "us-east-1"}
        environment = {**self.volume.environment, **own, "AWS_EC2_METADATA_DISABLED": "true"}
        command = [os.environ["AWS"], "--endpoint-url", gateway.ready["address"], *words]
        return self.command(*command, check=check, environment=environment)

    def test_snapshots_are_read_by_rclone_and_aws(self):
        gateway = self.serve("s3", "main@v1")
        self.assertEqual((gateway.ready["writable"], gateway.ready["bucket"]), (False, "main"))
        copy = self.base / "copy"
        # Version 1 of listings is what older rclones ask for by themselves.
        for words in [["--s3-list-version", "1"], ["--s3-list-version", "2"]]:
            self.rclone(gateway, "sync", *words, "REMOTE:main/dir", str(copy))
            self.assertEqual((copy / "inner/deep.bin").read_bytes(), bytes(range(256)) * 4000)
            self.assertEqual((copy / "empty").read_bytes(), b"")
            self.rclone(gateway, "check", "--download", *words, "REMOTE:main/dir", str(copy))
            listed = self.rclone(gateway, "lsf", *words, "REMOTE:main").stdout.decode().split()
            self.assertEqual(sorted(listed), ["dir/", "in", "names/", "notes.txt", "old"])
        self.assertEqual(self.rclone(gateway, "lsf", "REMOTE:").stdout.decode().split(), ["main/"])
        self.assertEqual(self.rclone(gateway, "cat", "--offset", "4", "REMOTE:main/notes.txt").stdout, b"two\n")
        self.assertNotEqual(self.rclone(gateway, "copy", str(copy), "REMOTE:main/new", check=False).returncode, 0)
        self.assertIn("PRE dir/", self.aws(gateway, "s3", "ls", "s3://main/").stdout.decode())
        self.assertIn("main", self.aws(gateway, "s3", "ls").stdout.decode())
        other = self.base / "other"
        self.aws(gateway, "s3", "sync", "s3://main/dir", str(other))
        self.assertEqual((other / "inner/deep.bin").read_bytes(), bytes(range(256)) * 4000)
        self.assertEqual(self.aws(gateway, "s3", "sync", "s3://main/dir", str(other)).stdout, b"")
        refused = self.aws(gateway, "s3", "cp", str(copy / "empty"), "s3://main/new", check=False)
        self.assertEqual((refused.returncode, b"can only be read" in refused.stderr), (1, True), refused.stderr)
        self.assertEqual(gateway.stop(), 0)

    def test_a_live_worktree_is_written_by_aws_and_kept(self):
        gateway = self.serve("s3", "live")
        self.assertTrue(gateway.ready["writable"])
        source = self.base / "source"
        (source / "below").mkdir(parents=True)
        # Beyond 8 MiB it is sent in parts.
        (source / "below/big").write_bytes(os.urandom(20 << 20))
        (source / "small.txt").write_bytes(b"small")
        # Times of objects are of whole seconds: what is younger than a second would be sent twice.
        for path in ["below/big", "small.txt"]:
            os.utime(source / path, (1_600_000_000, 1_600_000_000))
        self.aws(gateway, "s3", "sync", str(source), "s3://live/in")
        self.assertEqual(self.aws(gateway, "s3", "sync", str(source), "s3://live/in").stdout, b"")
        self.aws(gateway, "s3", "mv", "s3://live/in/small.txt", "s3://live/in/moved")
        self.aws(gateway, "s3", "cp", "s3://live/in/below/big", "s3://live/in/copied")
        put = self.aws(gateway, "s3api", "put-object", "--bucket", "live", "--key", "new", "--if-none-match", "*", "--body", str(source / "small.txt"))
        self.assertIn(b"ETag", put.stdout)
        again = self.aws(gateway, "s3api", "put-object", "--bucket", "live", "--key", "new", "--if-none-match", "*", check=False)
        self.assertIn(b"PreconditionFailed", again.stderr)
        self.assertEqual(self.aws(gateway, "s3api", "list-multipart-uploads", "--bucket", "live").stdout.count(b"UploadId"), 0)
        self.assertEqual(gateway.stop(), 0)
        again = self.serve("s3", "live")
        client = S3Client(again)
        self.assertEqual(client.ask("GET", "in/moved").body, b"small")
        self.assertEqual(client.ask("GET", "in/copied").body, (source / "below/big").read_bytes())
        # It is a directory of files like any other.
        self.assertEqual(client.keys(), ["in/below/big", "in/copied", "in/moved", "new"])
        self.aws(again, "s3", "rm", "--recursive", "s3://live/")
        self.assertEqual(client.keys(), [])

    def test_a_live_worktree_is_written_by_rclone_with_its_times(self):
        gateway = self.serve("s3", "live")
        source = self.base / "source"
        (source / "below").mkdir(parents=True)
        (source / "below/big").write_bytes(os.urandom(12 << 20))
        (source / "small").write_bytes(b"small")
        os.utime(source / "small", ns=(0, 1_600_000_000_123_456_789))
        parts = ["--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M"]
        self.rclone(gateway, "sync", *parts, str(source), "REMOTE:live/in")
        self.rclone(gateway, "check", "--download", str(source), "REMOTE:live/in")
        copy = self.base / "copy"
        self.rclone(gateway, "sync", "REMOTE:live/in", str(copy))
        self.assertEqual((copy / "small").stat().st_mtime_ns, 1_600_000_000_123_456_789)
        # Nothing has to be sent again.
        again = self.rclone(gateway, "sync", "-v", *parts, str(source), "REMOTE:live/in").stderr
        self.assertIn(b"nothing to transfer", again)
        self.rclone(gateway, "moveto", "REMOTE:live/in/small", "REMOTE:live/in/moved")
        self.rclone(gateway, "copyto", "REMOTE:live/in/below/big", "REMOTE:live/copied")
        self.assertEqual(S3Client(gateway).ask("GET", "copied").body, (source / "below/big").read_bytes())
        self.rclone(gateway, "purge", "REMOTE:live/in")
        self.assertEqual(S3Client(gateway).keys(), ["copied"])

    def test_ranges_and_conditions_hold(self):
        client = S3Client(self.serve("s3", "main@v1"), bucket="main")
        whole = client.ask("GET", "notes.txt")
        tag = whole.headers["etag"]
        self.assertEqual((whole.status, whole.body), (200, b"one\ntwo\n"))
        # Clients take 32 hexadecimal digits for an MD5.
        self.assertRegex(tag, r'^"[0-9a-f]+-[0-9a-f]+-1"$')
        for value, status, body in [
            ("bytes=0-2", 206, b"one"), ("bytes=4-", 206, b"two\n"), ("bytes=-4", 206, b"two\n"), ("bytes=4-99", 206, b"two\n"),
            ("bytes=-99", 206, whole.body), ("bytes=8-", 416, None), ("bytes=-0", 416, None),
        ]:
            answer = client.ask("GET", "notes.txt", headers={"Range": value})
            self.assertEqual((answer.status, answer.body if body is not None else None), (status, body), value)
        for name, value, status in [
            ("If-None-Match", tag, 304), ("If-None-Match", '"other"', 200), ("If-Match", tag, 200), ("If-Match", '"other"', 412),
            ("If-Modified-Since", "Fri, 31 Dec 2100 00:00:00 GMT", 304), ("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT", 412),
        ]:
            for method in ["GET", "HEAD"]:
                self.assertEqual(client.ask(method, "notes.txt", headers={name: value}).status, status, (name, value))
        head = client.ask("HEAD", "notes.txt")
        self.assertEqual((head.headers["content-length"], head.headers["etag"]), ("8", tag))
        empty = client.ask("GET", "dir/empty")
        self.assertEqual((empty.status, empty.body), (200, b""))
        self.assertEqual(client.ask("GET", "dir/empty", headers={"Range": "bytes=0-"}).status, 416)

    def test_keys_are_in_the_order_of_bytes_and_come_once(self):
        tree = self.volume.data / "order"
        paths = ["a-b", "a.b", "a0", "a b", "ab", "ü", "z", "a/1", "a/2/3", "a/.x", "b/c/d/e", "b/c-d"]
        for path in paths:
            self.volume.write("order/" + path, b"x")
        (tree / "void").mkdir()
        self.volume.run("snapshot", "--quiet", "-m", "order")
        expected = sorted(["order/" + path for path in paths] + ["order/void/"], key=str.encode)
        client = S3Client(self.serve("s3", "main"), bucket="main")
        for rows in [1, 2, 3, 7, 1000]:
            found = client.keys(encoding_type="url", max_keys=rows, prefix="order/")
            self.assertEqual(found, expected, rows)
        top = {"order/" + path.split("/")[0] + ("/" if "/" in path else "") for path in paths} | {"order/void/"}
        for rows in [1, 3, 1000]:
            found = client.keys(delimiter="/", encoding_type="url", max_keys=rows, prefix="order/")
            self.assertEqual(found, sorted(top, key=str.encode), rows)
        self.assertEqual(client.keys(prefix="order/a/"), ["order/a/.x", "order/a/1", "order/a/2/3"])
        self.assertEqual(client.keys(prefix="order/a/", start_after="order/a/1"), ["order/a/2/3"])
        self.assertEqual(client.keys(prefix="order/a/", start_after="order/a/"), ["order/a/.x", "order/a/1", "order/a/2/3"])
        self.assertEqual(client.keys(prefix="order/b/c"), ["order/b/c-d", "order/b/c/d/e"])
        self.assertEqual(client.keys(prefix="order/void/"), ["order/void/"])
        for prefix in ["nothing", "nothing/", "order/a/1/", "../", "/", "order//", "order/../"]:
            self.assertEqual(client.keys(prefix=prefix), [], prefix)
        for name, value, status in [("continuation-token", "x", 400), ("continuation-token", "k%ff", 400), ("max-keys", "-1", 400), ("delimiter", "x", 501)]:
            self.assertEqual(client.ask("GET", query={"list-type": "2", name: value}).status, status, (name, value))
        # Version 1, by markers.
        marker, found = "", []
        while True:
            answer = client.ask("GET", query={"prefix": "order/", "delimiter": "/", "max-keys": "2", "marker": marker, "encoding-type": "url"})
            root = ElementTree.fromstring(answer.body)
            found += [urllib.parse.unquote(row.text) for row in root.iter() if row.tag in (S3 + "Key", S3 + "Prefix") and row.text != "order/"]
            if root.find(S3 + "IsTruncated").text == "false":
                break
            marker = urllib.parse.unquote(root.find(S3 + "NextMarker").text)
        self.assertEqual(sorted(found, key=str.encode), sorted(top, key=str.encode))

    def test_every_name_is_listed_and_read(self):
        gateway = self.serve("s3", "main@v1")
        client = S3Client(gateway, bucket="main")
        found = client.keys(encoding_type="url", prefix="names/")
        self.assertEqual(sorted(found), sorted("names/" + name for name in NAMES))
        # Without the encoding a listing is XML all the same.
        self.assertEqual(len(client.keys(prefix="names/")), len(NAMES))
        for number, name in enumerate(NAMES):
            self.assertEqual(client.ask("GET", "names/" + name).body, str(number).encode(), name)
        copy = self.base / "copy"
        # Of providers that it does not know it asks for names as they are.
        self.rclone(gateway, "copy", "--s3-list-url-encode=true", "REMOTE:main/names", str(copy))
        self.assertEqual(sorted((copy / name).read_bytes() for name in os.listdir(copy)), sorted(str(n).encode() for n in range(len(NAMES))))

    def test_only_signed_requests_read_and_only_those_who_may_write(self):
        for words in [("main@v1",), ("main",), ("live", "--read-only")]:
            client = S3Client(self.serve("s3", *words), bucket=words[0].split("@")[0])
            for method, key, query in [
                ("PUT", "new", None), ("DELETE", "notes.txt", None), ("POST", "new", {"uploads": ""}), ("POST", None, {"delete": ""}),
                ("PUT", "new", {"partNumber": "1", "uploadId": "0"}), ("PUT", None, None), ("DELETE", None, None), ("PUT", "new", {"acl": ""}),
            ]:
                self.assertEqual(code(client.ask(method, key, query)), (403, "AccessDenied"), (words, method, query))
            client.gateway.stop()
        gateway = self.serve("s3", "main@v1")
        client = S3Client(gateway, bucket="main")
        for user in ["vellum:wrong", "other:" + gateway.user.split(":")[1], gateway.user + "0"]:
            answer = S3Client(gateway, user, "main").ask("GET", "notes.txt")
            self.assertEqual((answer.status, b"one" in answer.body), (403, False))
            # Without a message, clients show "Unknown".
            expected = "the signature is wrong" if user.startswith("vellum:") else "there is no such access key"
            self.assertIn(expected, answer.body.decode())
        for path in ["/", "/main", "/main/notes.txt", "/main?list-type=2"]:
            for header in [None, gateway.basic(), "AWS x:y"]:
                answer = gateway.ask("GET", path, {"Authorization": header})
                self.assertEqual((answer.status, b"one" in answer.body), (403, False), (path, header))
        self.assertEqual([code(client.ask("GET", "notes.txt", minutes=minutes)) for minutes in (-16, 16)], [(403, "RequestTimeTooSkewed")] * 2)
        for host in ["evil.com", "127.0.0.1.evil.com"]:
            target, headers = client.sign("GET", "/main/notes.txt", None, {"Host": host}, EMPTY)
            self.assertEqual(gateway.ask("GET", target, headers).status, 403)
        address = client.presign("notes.txt", 60)
        self.assertEqual(gateway.ask("GET", address, {"Authorization": None}).body, b"one\ntwo\n")
        self.assertEqual(gateway.ask("GET", address.replace("notes", "other"), {"Authorization": None}).status, 403)
        self.assertEqual(gateway.ask("GET", client.presign("notes.txt", 60, minutes=-5), {"Authorization": None}).status, 403)
        with open(f"/proc/{gateway.process.pid}/cmdline", "rb") as words:
            self.assertNotIn(gateway.user.split(":")[1].encode(), words.read())
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"]:
            refused = self.volume.run("serve", "s3", "main", "--listen", address, check=False)
            self.assertEqual((refused.returncode, "ssh -L" in refused.stderr), (2, True), address)

    def test_users_and_the_bucket_are_as_given(self):
        users = self.base / "users"
        users.write_text("ann correct-horse-1\nbob other-horse-22 read\n")
        users.chmod(0o600)
        gateway = self.serve("s3", "live", "--credentials", str(users), "--bucket", "my-bucket")
        self.assertEqual((gateway.ready["bucket"], "password" in gateway.ready), ("my-bucket", False))
        ann, bob = (S3Client(gateway, user, "my-bucket") for user in ("ann:correct-horse-1", "bob:other-horse-22"))
        self.assertEqual([ann.ask("PUT", "new", body=b"x").status, bob.ask("PUT", "new", body=b"y").status], [200, 403])
        self.assertEqual(bob.ask("GET", "new").body, b"x")
        self.assertEqual(code(S3Client(gateway, "ann:correct-horse-1", "other").ask("GET", "new")), (404, "NoSuchBucket"))
        self.assertEqual(code(ann.ask("PUT")), (409, "BucketAlreadyOwnedByYou"))
        for name in ["No", "a_b", "x", "a/b"]:
            refused = self.volume.run("serve", "s3", "main", "--bucket", name, check=False)
            self.assertEqual((refused.returncode, "--bucket" in refused.stderr), (2, True), name)

    def test_nothing_leads_out_of_the_tree(self):
        gateway = self.serve("s3", "main@v1")
        client = S3Client(gateway, bucket="main")
        for key in ["../data", "../../etc/passwd", "dir/../notes.txt", "dir//empty", "./notes.txt", "out", "up", "loop", "fifo", "dir",
                    "notes.txt/", "notes.txt/x", "nothing", "a\0b", ".vellum", ".vellum/", "x" * 300]:
            self.assertEqual(code(client.ask("GET", key)), (404, "NoSuchKey"), key)
        self.assertEqual(code(client.ask("GET", "x" * 1025)), (400, "KeyTooLongError"))
        self.assertEqual(client.ask("GET", "in").body, b"one\ntwo\n")
        self.assertEqual(client.ask("GET", "dir/").body, b"")
        gateway = self.serve("s3", "live")
        client = S3Client(gateway)
        for key in ["../new", "a/../../new", "a//b", "/a", "a/./b", "a\0b", ".vellum/new", ".vellum-upload-0"]:
            self.assertEqual(code(client.ask("PUT", key, body=b"x")), (400, "InvalidArgument"), key)
            self.assertEqual(code(client.ask("DELETE", key)), (400, "InvalidArgument"), key)
            self.assertEqual(code(client.ask("POST", key, {"uploads": ""})), (400, "InvalidArgument"), key)
        self.assertEqual(code(client.ask("PUT", "x" * 300, body=b"x")), (400, "KeyTooLongError"))
        # A link is replaced, not followed; a directory by a link is.
        self.assertEqual(client.ask("PUT", "out", body=b"x").status, 200)
        self.assertEqual(client.ask("GET", "out").body, b"x")
        self.assertFalse((self.volume.data.parent / "new").exists())

    def test_objects_are_files_and_what_is_said_of_them_is_kept(self):
        client = S3Client(self.serve("s3", "live"))
        headers = {"Content-Type": "text/plain", "x-amz-meta-mine": "a value", "x-amz-meta-mtime": "1600000000.5", "Cache-Control": "no-cache"}
        put = client.ask("PUT", "deep/er/file", headers=headers, body=b"content")
        self.assertEqual(put.status, 200, put.body)
        got = client.ask("GET", "deep/er/file")
        self.assertEqual((got.body, got.headers["etag"]), (b"content", put.headers["etag"]))
        for name, value in [("content-type", "text/plain"), ("x-amz-meta-mine", "a value"), ("cache-control", "no-cache"),
                            ("x-amz-meta-mtime", "1600000000.500000000"), ("last-modified", "Sun, 13 Sep 2020 12:26:40 GMT")]:
            self.assertEqual(got.headers[name], value)
        copy = client.ask("PUT", "copy", headers={"x-amz-copy-source": "/live/deep/er/file"})
        self.assertEqual((copy.status, client.ask("GET", "copy").headers["x-amz-meta-mine"]), (200, "a value"))
        source = {"x-amz-copy-source": "live/copy"}
        self.assertEqual(code(client.ask("PUT", "copy", headers=source)), (400, "InvalidRequest"))
        replaced = {**source, "x-amz-metadata-directive": "REPLACE", "x-amz-meta-other": "b", "Content-Type": "text/html"}
        self.assertEqual(client.ask("PUT", "copy", headers=replaced).status, 200)
        got = client.ask("GET", "copy")
        self.assertEqual((got.body, got.headers["x-amz-meta-other"], got.headers.get("x-amz-meta-mine")), (b"content", "b", None))
        self.assertTrue(got.headers["content-security-policy"].startswith("sandbox"))
        for name, value, expected in [("x-amz-copy-source-if-match", '"other"', 412), ("x-amz-copy-source-if-none-match", got.headers["etag"], 412)]:
            self.assertEqual(client.ask("PUT", "never", headers={**source, name: value}).status, expected)
        for source, expected in [("live/nothing", 404), ("other/copy", 404), ("live/../x", 404), ("live/copy?versionId=1", 501)]:
            self.assertEqual(client.ask("PUT", "never", headers={"x-amz-copy-source": source}).status, expected, source)
        # A path cannot be a file and a directory.
        for key in ["copy/below", "deep", "deep/er"]:
            self.assertEqual(code(client.ask("PUT", key, body=b"x")), (409, "PathConflict"), key)
        self.assertEqual(code(client.ask("PUT", "made/", body=b"x")), (400, "InvalidArgument"))
        self.assertEqual(client.ask("PUT", "made/").status, 200)
        self.assertEqual(client.keys(), ["copy", "deep/er/file", "made/"])
        for name, value in [("x-amz-server-side-encryption", "AES256"), ("x-amz-acl", "public-read"), ("x-amz-tagging", "a=b")]:
            self.assertEqual(client.ask("PUT", "never", headers={name: value}).status, 501, name)
        self.assertEqual(code(client.ask("PUT", "never", headers={"x-amz-meta-a": "b" * 2100})), (400, "MetadataTooLarge"))
        # The last object of a directory takes it along.
        self.assertEqual([client.ask("DELETE", key).status for key in ("deep/er/file", "deep/er/file", "made/", "nothing", "copy/x")], [204] * 5)
        self.assertEqual(client.keys(), ["copy"])

    def test_conditions_of_writers_are_one_step(self):
        client = S3Client(self.serve("s3", "live"))
        self.assertEqual(code(client.ask("PUT", "a", headers={"If-Match": '"x"'}, body=b"0")), (404, "NoSuchKey"))
        tag = client.ask("PUT", "a", headers={"If-None-Match": "*"}, body=b"1").headers["etag"]
        self.assertEqual(code(client.ask("PUT", "a", headers={"If-None-Match": "*"}, body=b"2")), (412, "PreconditionFailed"))
        self.assertEqual(code(client.ask("PUT", "a", headers={"If-None-Match": tag}, body=b"2")), (501, "NotImplemented"))
        second = client.ask("PUT", "a", headers={"If-Match": tag}, body=b"2").headers["etag"]
        self.assertNotEqual(tag, second)
        self.assertEqual(code(client.ask("PUT", "a", headers={"If-Match": tag}, body=b"3")), (412, "PreconditionFailed"))
        self.assertEqual(code(client.ask("DELETE", "a", headers={"If-Match": tag})), (412, "PreconditionFailed"))
        self.assertEqual(client.ask("GET", "a").body, b"2")
        # Of many who want to be the first, one is.
        request = lambda number: client.sign("PUT", client.path("first"), None, {"If-None-Match": "*"}, hashlib.sha256(b"%02d" % number).hexdigest())

        async def put(number):
            target, headers = request(number)
            reader, writer = await asyncio.open_connection("127.0.0.1", client.gateway.port)
            writer.write(client.gateway.head("PUT", target, {**headers, "Content-Length": "2"}) + b"%02d" % number)
            answer = Answer(await reader.read(-1))
            writer.close()
            return answer.status

        async def put_all():
            return await asyncio.gather(*(put(number) for number in range(30)))

        statuses = asyncio.run(put_all())
        self.assertEqual(sorted(statuses), [200] + [412] * 29)
        self.assertEqual(client.ask("GET", "first").body, b"%02d" % statuses.index(200))

    def test_an_upload_that_breaks_off_or_is_wrong_changes_nothing(self):
        gateway = self.serve("s3", "live")
        client = S3Client(gateway)
        client.ask("PUT", "file", body=b"old")
        target, headers = client.sign("PUT", "/live/file", None, {}, "UNSIGNED-PAYLOAD")
        with gateway.connect() as connection:
            connection.sendall(gateway.head("PUT", target, {**headers, "Content-Length": "1000000"}) + b"new" * 1000)
        md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        self.assertEqual(code(client.ask("PUT", "file", body=b"new", sha256=EMPTY)), (400, "XAmzContentSHA256Mismatch"))
        self.assertEqual(code(client.ask("PUT", "file", headers={"Content-MD5": md5}, body=b"new")), (400, "BadDigest"))
        wrong, right = {"x-amz-checksum-crc32": crc32(b"other")}, {"x-amz-checksum-crc32": crc32(b"good")}
        self.assertEqual(code(client.ask("PUT", "file", headers=wrong, body=b"new")), (400, "BadDigest"))

        def chunked(content, checksum):
            body = b"%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % (len(content), content, checksum.encode())
            own = {"x-amz-decoded-content-length": str(len(content)), "x-amz-trailer": "x-amz-checksum-crc32", "Content-Encoding": "aws-chunked"}
            return client.ask("PUT", "file", headers=own, body=body, sha256="STREAMING-UNSIGNED-PAYLOAD-TRAILER")

        self.assertEqual(code(chunked(b"new", crc32(b"other"))), (400, "BadDigest"))
        answer = client.ask("GET", "file")
        self.assertEqual((answer.body, client.keys()), (b"old", ["file"]))
        self.assertEqual(chunked(b"good", crc32(b"good")).status, 200)
        self.assertEqual((client.ask("GET", "file").body, "content-encoding" in client.ask("HEAD", "file").headers), (b"good", False))
        self.assertEqual(client.ask("PUT", "file", headers=right, body=b"good").headers["x-amz-checksum-crc32"], crc32(b"good"))

    def test_many_objects_are_deleted_at_once(self):
        client = S3Client(self.serve("s3", "live"))
        for key in ["a/1", "a/2", "b"]:
            client.ask("PUT", key, body=b"x")
        rows = "".join(f"<Object><Key>{key}</Key></Object>" for key in ["a/1", "a/2", "nothing", "../x"])
        body = f"<Delete>{rows}</Delete>".encode()
        md5 = {"Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode()}
        answer = client.ask("POST", query={"delete": ""}, headers=md5, body=body)
        root = ElementTree.fromstring(answer.body)
        self.assertEqual([row.find(S3 + "Key").text for row in root.iter(S3 + "Deleted")], ["a/1", "a/2", "nothing"])
        self.assertEqual([row.find(S3 + "Key").text for row in root.iter(S3 + "Error")], ["../x"])
        self.assertEqual(client.keys(), ["b"])
        for body in [b"<Delete>" + b"<Object><Key>x</Key></Object>" * 1001 + b"</Delete>", b"nonsense", b"<!DOCTYPE x [<!ENTITY a 'b'>]><Delete>&a;</Delete>"]:
            self.assertEqual(client.ask("POST", query={"delete": ""}, body=body).status, 400, body[:40])

    def test_uploads_in_parts_are_joined(self):
        client = S3Client(self.serve("s3", "live"))
        first, last = os.urandom(PART + 3), os.urandom(1000)
        client.ask("PUT", "source", body=first)
        upload = client.begin("in/parts", {"x-amz-meta-mine": "kept"})
        tags = [client.part("in/parts", upload, number, body).headers["etag"] for number, body in [(2, b"wrong"), (2, first), (7, last)]]
        copied = client.part("in/parts", upload, 5, b"", {"x-amz-copy-source": "live/source", "x-amz-copy-source-range": f"bytes=1-{PART}"})
        tag = re.search(rb"<ETag>(.*)</ETag>", copied.body).group(1).decode()
        listed = ElementTree.fromstring(client.ask("GET", "in/parts", {"uploadId": upload, "max-parts": "2"}).body)
        self.assertEqual([int(row.text) for row in listed.iter(S3 + "PartNumber")], [2, 5])
        self.assertEqual(listed.find(S3 + "NextPartNumberMarker").text, "5")
        uploads = ElementTree.fromstring(client.ask("GET", query={"uploads": "", "prefix": "in/"}).body)
        self.assertEqual([row.text for row in uploads.iter(S3 + "UploadId")], [upload])
        # Nothing of it is seen before.
        self.assertEqual(client.keys(), ["source"])
        whole = [(2, tags[1]), (5, tag), (7, tags[2])]
        for parts, expected in [
            ([], (400, "MalformedXML")), ([(5, tag), (2, tags[1])], (400, "InvalidPartOrder")), ([(2, tags[0])], (400, "InvalidPart")),
            ([(3, tag)], (400, "InvalidPart")), ([(0, tag)], (400, "InvalidArgument")),
        ]:
            self.assertEqual(code(client.complete("in/parts", upload, parts)), expected, parts)
        small = client.part("in/parts", upload, 1, b"1").headers["etag"]
        self.assertEqual(code(client.complete("in/parts", upload, [(1, small), *whole])), (400, "EntityTooSmall"))
        self.assertEqual(code(client.complete("in/other", upload, whole)), (404, "NoSuchUpload"))
        self.assertEqual(code(client.complete("in/parts", upload, whole, {"If-Match": '"x"'})), (404, "NoSuchKey"))
        wrong = {"x-amz-checksum-crc32": crc32(b"other")}
        self.assertEqual(code(client.complete("in/parts", upload, whole, wrong)), (400, "BadDigest"))
        content = first + first[1 : PART + 1] + last
        right = {"x-amz-checksum-crc32": crc32(content), "x-amz-mp-object-size": str(len(content)), "If-None-Match": "*"}
        done = client.complete("in/parts", upload, whole, right)
        self.assertEqual(done.status, 200, done.body)
        got = client.ask("GET", "in/parts")
        self.assertEqual((got.body == content, got.headers["x-amz-meta-mine"]), (True, "kept"))
        # The answer may have been lost: the same request has the same answer.
        self.assertEqual(client.complete("in/parts", upload, whole, right).body, done.body)
        self.assertEqual(code(client.part("in/parts", upload, 1, b"x")), (404, "NoSuchUpload"))
        for number in (0, 10_001):
            self.assertEqual(code(client.part("in/parts", upload, number, b"x")), (400, "InvalidArgument"))
        other = client.begin("in/parts")
        client.part("in/parts", other, 1, b"x")
        self.assertEqual([client.ask("DELETE", "in/parts", {"uploadId": other}).status for _ in range(2)], [204, 404])
        self.assertEqual(client.ask("GET", "in/parts").body, content)
        self.assertEqual(client.keys(), ["in/parts", "source"])

    def test_nothing_is_left_of_a_gateway_that_is_killed(self):
        gateway = self.serve("s3", "live")
        client = S3Client(gateway)
        client.ask("PUT", "kept", body=b"kept")
        upload = client.begin("parts")
        self.assertEqual(client.part("parts", upload, 1, os.urandom(PART)).status, 200)
        target, headers = client.sign("PUT", "/live/file", None, {}, "UNSIGNED-PAYLOAD")
        with gateway.connect() as connection:
            connection.sendall(gateway.head("PUT", target, {**headers, "Content-Length": "1000000"}) + os.urandom(500_000))
            # The server has begun with it: what was sent before is answered.
            self.assertEqual(client.ask("GET", "kept").status, 200)
            gateway.process.send_signal(signal.SIGKILL)
            gateway.process.communicate()
        again = S3Client(self.serve("s3", "live"))
        self.assertEqual((again.keys(), again.ask("GET", "kept").body), (["kept"], b"kept"))
        self.assertEqual(code(again.part("parts", upload, 1, b"x")), (404, "NoSuchUpload"))
        self.assertEqual(again.gateway.stop(), 0)
        # Not by keys, which leave out what the gateway needs for itself.
        other = self.serve("webdav", "live")
        self.assertEqual(other.ask("PROPFIND", "/", {"Depth": "1"}).body.count(b"<D:response"), 2)
        self.assertEqual(other.stop(), 0)
        self.volume.run("verify")

    def test_a_thousand_clients_are_served_within_bounds(self):
        gateway = self.serve("s3", "main@v1")
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 8192), limit[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        client = S3Client(gateway, bucket="main")
        target, headers = client.sign("GET", "/main/dir/inner/deep.bin", None, {}, EMPTY)
        request = gateway.head("GET", target, headers)

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
        self.assertEqual(client.ask("GET", "notes.txt").status, 200)
        for connection in silent:
            connection.close()
