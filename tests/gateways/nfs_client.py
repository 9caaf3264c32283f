"""A client for NFS that says what it is told to, also what no other client would say."""

import os
import socket
import struct

NFS, MOUNT = 100003, 100005
(NULL, GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK, READDIR,
 READDIRPLUS, FSSTAT, FSINFO, PATHCONF, COMMIT) = range(22)
OK, NOENT, EXIST, NOTDIR, ISDIR, ROFS, NOTEMPTY, STALE, BADHANDLE, NOTSYNC, TOOSMALL = (
    0, 2, 17, 20, 21, 30, 66, 70, 10001, 10002, 10005
)
UNCHECKED, GUARDED, EXCLUSIVE = range(3)
UNSTABLE, FILE_SYNC = 0, 2


class Refused(Exception):
    """A call was not accepted: (denied, why) or (accepted, why)."""


class Failed(Exception):
    """A call has this status."""

    def __init__(self, status):
        super().__init__(status)
        self.status = status


def word(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


def long(number):
    return struct.pack(">Q", number)


def opaque(data):
    return word(len(data)) + data + b"\0" * (-len(data) % 4)


def changes(mode=None, uid=None, gid=None, size=None, atime=None, mtime=None):
    """Attributes to set."""
    text = b"".join(word(0) if value is None else word(1, value) for value in (mode, uid, gid))
    text += word(0) if size is None else word(1) + long(size)
    return text + b"".join(word(0) if time is None else word(2, time, 0) for time in (atime, mtime))


def auth(uid, gid=0):
    """Who a call says to be from (AUTH_SYS)."""
    return word(1) + opaque(word(0) + opaque(b"host") + word(uid, gid, 0))


class Reply:
    """An answer that is read value by value."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def word(self):
        self.at += 4
        return struct.unpack_from(">I", self.data, self.at - 4)[0]

    def long(self):
        self.at += 8
        return struct.unpack_from(">Q", self.data, self.at - 8)[0]

    def take(self, size):
        self.at += size
        return self.data[self.at - size : self.at]

    def opaque(self):
        size = self.word()
        data = self.take(size)
        self.at += -size % 4
        return data

    def attributes(self):
        names = ("type", "mode", "nlink", "uid", "gid")
        found = {name: self.word() for name in names}
        found |= {"size": self.long(), "used": self.long(), "rdev": (self.word(), self.word()), "fsid": self.long(), "fileid": self.long()}
        return found | {name: (self.word(), self.word()) for name in ("atime", "mtime", "ctime")}

    def known(self):
        return self.attributes() if self.word() else None

    def changed(self):
        if self.word():
            self.take(24)
        return self.known()


class Client:
    """A connection."""

    def __init__(self, port, uid=None, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=60)
        self.auth = auth(os.getuid() if uid is None else uid)
        self.xid = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def receive(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def message(self):
        """The next message."""
        data, last = b"", False
        while not last:
            mark = struct.unpack(">I", self.receive(4))[0]
            data, last = data + self.receive(mark & 0x7FFFFFFF), mark >> 31
        return data

    def send(self, procedure, arguments, program=NFS, version=3):
        """Sends a call without waiting for its answer."""
        self.xid += 1
        data = word(self.xid, 0, 2, program, version, procedure) + self.auth + word(0, 0) + arguments
        self.socket.sendall(word(1 << 31 | len(data)) + data)
        return self.xid

    def answer(self):
        """The next answer: its number, and what follows its head."""
        reply = Reply(self.message())
        xid, kind, denied = reply.word(), reply.word(), reply.word()
        assert kind == 1
        if denied:
            raise Refused("denied", reply.word(), reply.word())
        reply.word()
        reply.opaque()
        if why := reply.word():
            raise Refused("accepted", why)
        return xid, reply

    def ask(self, procedure, arguments, program=NFS, version=3):
        """An answer to the end of its head."""
        xid = self.send(procedure, arguments, program, version)
        answered, reply = self.answer()
        assert answered == xid
        return reply

    def call(self, procedure, *arguments):
        """The same of a call that has a status, which has to be a success."""
        reply = self.ask(procedure, b"".join(arguments))
        if status := reply.word():
            raise Failed(status)
        return reply

    def mount(self, path=b"/"):
        """The handle of a directory."""
        reply = self.ask(1, opaque(path), MOUNT)
        if status := reply.word():
            raise Failed(status)
        return reply.opaque()

    def stat(self, handle):
        return self.call(GETATTR, opaque(handle)).attributes()

    def find(self, directory, *names):
        """The handle of what is below a directory."""
        for name in names:
            directory = self.call(LOOKUP, opaque(directory), opaque(name)).opaque()
        return directory

    def read(self, handle, offset=0, count=1 << 20):
        """Content, and whether it is the end."""
        reply = self.call(READ, opaque(handle), long(offset), word(count))
        reply.known()
        size, is_end = reply.word(), reply.word()
        data = reply.opaque()
        assert size == len(data)
        return data, bool(is_end)

    def write(self, handle, data, offset=0, stable=UNSTABLE):
        """How safe it is, and the verifier."""
        reply = self.call(WRITE, opaque(handle), long(offset), word(len(data), stable), opaque(data))
        reply.changed()
        assert reply.word() == len(data)
        return reply.word(), reply.take(8)

    def commit(self, handle):
        reply = self.call(COMMIT, opaque(handle), long(0), word(0))
        reply.changed()
        return reply.take(8)

    def create(self, directory, name, how=GUARDED, verifier=b"", **wanted):
        """The handle of a new file."""
        tail = verifier if how == EXCLUSIVE else changes(**wanted)
        return self.made(CREATE, opaque(directory), opaque(name), word(how), tail)

    def made(self, procedure, *arguments):
        reply = self.call(procedure, *arguments)
        assert reply.word() == 1
        return reply.opaque()

    def page(self, directory, cookie=0, count=1 << 16):
        """Names, their numbers and places; and whether it is the end."""
        reply = self.call(READDIR, opaque(directory), long(cookie), bytes(8), word(count))
        reply.known()
        reply.take(8)
        found = []
        while reply.word():
            number, name = reply.long(), reply.opaque()
            found.append((name, number, reply.long()))
        return found, bool(reply.word())

    def page_plus(self, directory, cookie=0, names=1 << 16, count=1 << 16):
        """Names with their attributes, handles and places; and whether it is the end."""
        reply = self.call(READDIRPLUS, opaque(directory), long(cookie), bytes(8), word(names, count))
        reply.known()
        reply.take(8)
        found = []
        while reply.word():
            reply.long()
            name, place = reply.opaque(), reply.long()
            known = reply.known()
            found.append((name, known, reply.opaque() if reply.word() else None, place))
        is_end = bool(reply.word())
        assert len(reply.data) <= count + 100
        return found, is_end

    def names(self, directory, count=1 << 16, between=lambda page: None):
        """All names but '.' and '..', page by page."""
        cookie, all_names, is_end = 0, [], False
        while not is_end:
            page, is_end = self.page(directory, cookie, count)
            all_names += [name for name, _, _ in page]
            if page:
                cookie = page[-1][2]
            between(page)
        assert all_names[:2] == [b".", b".."]
        return all_names[2:]
