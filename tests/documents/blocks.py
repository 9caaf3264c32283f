"""The blocks of commands in documents."""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Fences of these kinds, or of none, hold commands.
SHELL_KINDS = {"", "sh", "bash", "console"}


@dataclass
class Command:
    """What is typed, and what the document says that it prints."""

    line: int
    text: str
    output: list = field(default_factory=list)


@dataclass
class Block:
    """A fenced block."""

    document: str
    line: int
    lines: list

    @property
    def first(self) -> str:
        """What a block is known by."""
        return self.lines[0].strip() if self.lines else ""

    def commands(self) -> list:
        """What is typed: the lines with a prompt if there are any, and otherwise all."""
        prompts = ("$ ", "# ")
        has_prompt = self.lines[0].startswith(prompts)
        found = []
        for number, line in enumerate(self.lines, self.line + 1):
            if not has_prompt:
                if line.strip():
                    found.append(Command(number, line))
            elif line.startswith(prompts):
                found.append(Command(number, line[2:]))
            elif found:
                found[-1].output.append(line)
        return found


def read_blocks(document: str) -> list:
    """The blocks of a document that may be commands."""
    lines = (ROOT / document).read_text().splitlines()
    blocks, start, kind = [], None, ""
    for number, line in enumerate(lines):
        fence = re.match(r"\s*```(\S*)", line)
        if not fence:
            continue
        if start is None:
            start, kind = number, fence.group(1)
        else:
            if kind in SHELL_KINDS:
                blocks.append(Block(document, start + 1, lines[start + 1 : number]))
            start = None
    return blocks


def list_documents() -> list:
    """All documents for users and developers. A page that is made of another has the same blocks."""
    docs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"] + [
        name for name in docs if not name.endswith(".in.md")
    ]
