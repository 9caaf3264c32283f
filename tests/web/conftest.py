"""A volume, the programs that serve it, and a browser."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

VELLUM = os.environ["VELLUM"]
CHROMIUM = "/usr/bin/chromium"
AXE = Path(os.environ["AXE"])

HOSTILE = [
    "<script>alert(1)</script>".replace("/", "\u2215"),
    '"onload="alert(1)',
    "<img src=x onerror=alert(1)>",
    "line\nfeed",
    "\u202egnp.exe",
    "&amp;",
    "%2e%2e",
    " ",
    "a" * 255,
    "javascript:alert(1)",
]


def png(width, height, red):
    """A picture of one colour."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes([red, 90, 90]) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Volume:
    """A directory with snapshots."""

    def __init__(self, base):
        self.data = base / "data"
        self.home = base / "home"
        self.home.mkdir(parents=True)
        self.data.mkdir()
        self.run("init", "--plain", "--quiet")

    def command(self, *words):
        environment = {**os.environ, "HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home), "XDG_CACHE_HOME": str(self.home)}
        return {"args": [VELLUM, *words], "cwd": self.data, "env": environment}

    def run(self, *words):
        return subprocess.run(**self.command(*words), check=True, capture_output=True, text=True).stdout.strip()

    def write(self, path, content):
        target = self.data / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    def json(self, *words):
        return json.loads(self.run("--json", *words))

    def read(self):
        """The bytes of every file, by path."""
        files = (path for path in self.data.rglob("*") if path.is_file() and ".vellum" not in path.parts)
        return {str(path.relative_to(self.data)): path.read_bytes() for path in files}

    def snapshot(self, note, *words):
        return self.run("snapshot", "--quiet", "-m", note, *words)


@pytest.fixture(scope="session")
def volume(tmp_path_factory):
    made = Volume(tmp_path_factory.mktemp("web"))
    text = [f"line {number}\n" for number in range(60)]
    made.write("docs/guide.md", "".join(text))
    made.write("cover.png", png(40, 30, 200))
    made.write("bytes", bytes(range(256)) * 8)
    made.ids = [made.snapshot("first", "--tag", "v1")]
    text[30] = "another line\n"
    made.write("docs/guide.md", "".join(text))
    made.write("cover.png", png(50, 30, 20))
    made.write("bytes", bytes(reversed(range(256))) * 8)
    made.ids.append(made.snapshot("<img src=x onerror=alert(1)> second"))
    for name in HOSTILE:
        made.write(f"hostile/{name}", name)
    (made.data / "hostile").joinpath(os.fsdecode(b"not\xfftext")).write_bytes(b"bytes in a name")
    for number in range(1200):
        made.write(f"many/file-{number:04}", str(number))
    made.ids.append(made.snapshot("third"))
    return made


@contextmanager
def serve(volume, *words):
    """The address of the page, as `vellum web` prints it."""
    with subprocess.Popen(**volume.command("web", "--json", *words), stdout=subprocess.PIPE, text=True) as serving:
        try:
            yield json.loads(serving.stdout.readline())["address"]
        finally:
            serving.terminate()


@pytest.fixture(scope="session")
def address(volume):
    with serve(volume) as served:
        yield served


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # As root, Chromium has no sandbox of its own.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Page:
    """A tab with the page, in which nothing may go wrong unseen."""

    def __init__(self, browser, address, width=1280, height=800, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.tab = self.context.new_page()
        self.errors = []
        self.requests = []
        self.waiting = []
        self.tab.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.errors.append("a dialog"), dialog.dismiss()))
        self.tab.on("request", self.note_request)
        self.tab.on("requestfinished", self.forget_request)
        self.tab.on("requestfailed", self.forget_request)
        self.base = address.split("/#")[0]
        self.tab.goto(address)
        self.wait()

    def note_request(self, request):
        self.requests.append(request)
        # The one that has no end: the page is told of changes through it.
        if "/api/v1/events" not in request.url:
            self.waiting.append(request)

    def forget_request(self, request):
        if request in self.waiting:
            self.waiting.remove(request)

    def wait(self):
        self.tab.wait_for_selector("main[data-ready]:not([data-ready=''])")
        self.settle()

    def settle(self):
        """Waits until nothing is asked for any more."""
        for _ in range(1500):
            # What a script asks for next is asked for before the second look.
            if not self.waiting and self.tab.evaluate("new Promise((done) => setTimeout(done, 20))") is None and not self.waiting:
                return
            self.tab.evaluate("0")
            time.sleep(0.02)
        raise AssertionError(f"still waiting for {[request.url for request in self.waiting]}")

    def go(self, state):
        self.tab.evaluate("document.getElementById('main').dataset.ready = ''")
        self.tab.evaluate("state => { location.hash = state }", state)
        self.wait()

    def until(self, expression):
        """Waits until an expression is true. Playwright's own way makes code of text, which the page's policy forbids."""
        for _ in range(1500):
            if self.tab.evaluate(expression):
                return
            time.sleep(0.02)
        raise AssertionError(f"never: {expression}; the page has {self.tab.inner_text('body')!r}")

    def press(self, *keys):
        for key in keys:
            self.tab.keyboard.press(key)
        self.settle()

    def text(self):
        return self.tab.inner_text("main")


@pytest.fixture
def open_page(browser, address):
    opened = []

    def open_one(**options):
        opened.append(Page(browser, address, **options))
        return opened[-1]

    yield open_one
    for page in opened:
        page.context.close()
        assert page.errors == []
