"""Runs the commands of all documents as they are written, or of those that are named: run.py [DOCUMENT...].

Invariant: each block of a document is run, or stands in `scenes.NOT_RUN` with the reason; an entry there that matches nothing any
more is a failure, too. Each document has a machine of its own, see `world.sh`.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blocks import ROOT, list_documents, read_blocks
from scenes import BRIEFLY, CODES, NOT_RUN, SCENES, Scene

HERE = Path(__file__).resolve().parent
# Seconds that a document may take.
DOCUMENT_MAX = 300


@dataclass
class Typed:
    """A command as it is run."""

    where: str
    text: str
    run: str
    codes: set
    output: list


def find_reason(document: str, text: str):
    """The entry by which a block, or a command, is not run: that of its beginning."""
    return next((key for key in NOT_RUN if key[0] == document and text.startswith(key[1])), None)


def collect_commands(document: str, used: set) -> list:
    """What a document has to be run of, in its order; `used` gets the entries of the table that matched."""
    scene = SCENES.get(document, Scene())
    found = []
    for block in read_blocks(document):
        if reason := find_reason(document, block.first):
            used.add(reason)
            continue
        for command in block.commands():
            if reason := find_reason(document, command.text.strip()):
                used.add(reason)
                continue
            run = command.text
            for old, new in scene.replaced.items():
                run = run.replace(old, new)
            if run.startswith(BRIEFLY) and "--count" not in run:
                run = f"briefly env {run}" if re.match(r"[A-Z_]+=", run) else f"briefly {run}"
            before = next((text for start, text in scene.before.items() if command.text.startswith(start)), "")
            codes = next((codes for start, codes in (scene.codes | CODES).items() if command.text.startswith(start)), {0})
            where = f"{document}:{command.line}"
            found.append(Typed(where, command.text, f"{before}\n{run}" if before else run, codes, command.output))
    return found


def write_script(document: str, commands: list) -> str:
    """What bash runs on the document's machine. It writes a line to descriptor 3 for each command."""
    scene = SCENES.get(document, Scene())
    shown = "trap 'echo the scene failed; cat /tmp/setup' EXIT"
    setup = ["set -e", shown, "{", "prepare_machine", scene.setup, "} > /tmp/setup 2>&1", "trap - EXIT", "set +e"]
    lines = ['source "$HERE/world.sh"', *setup, "exec < /dev/null"]
    for number, command in enumerate(commands):
        # No subshell: a document changes directories and variables for what comes after.
        lines += ["{", command.run, f"}} > /tmp/output-{number} 2>&1", "status=$?"]
        lines.append(f'echo "{number} $status $(base64 -w 0 /tmp/output-{number})" >&3')
    return "\n".join(lines) + "\n"


def run_document(document: str, commands: list, environment: dict) -> dict:
    """Runs a document; what each command ended with and printed, by its number."""
    with tempfile.TemporaryDirectory(prefix="documents-") as scratch:
        # Beside the programs, which the machine has, too.
        script = Path(environment["PROGRAMS"]) / document.replace("/", "-")
        script.write_text(write_script(document, commands))
        enter = f'source "{HERE}/world.sh"; enter_machine "{script}"'
        read, write = os.pipe()
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "-c"]
        process = subprocess.Popen(
            ["timeout", "--signal=KILL", str(DOCUMENT_MAX), *command, f"exec 3>&{write}; {enter}"],
            env=environment | {"SCRATCH": scratch, "HERE": str(HERE)},
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
        )
        os.close(write)
        results = {}
        with os.fdopen(read) as lines:
            for line in lines:
                number, status, output = line.rstrip("\n").split(" ")
                results[int(number)] = (int(status), base64.b64decode(output).decode(errors="replace"))
        process.wait()
        return results


def shape_of(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"\b[0-9a-f]{8,}\b", "ID", line.strip())
    line = re.sub(r"\d[\d.,:]*( ?[KMGT]?i?B)?", "N", line)
    return re.sub(r"\s+", " ", line)


def check(document: str, commands: list, results: dict) -> list:
    """What is wrong with a document."""
    wrong = []
    for number, command in enumerate(commands):
        if number not in results:
            why = "did not end, because the document took too long or its machine failed"
            wrong.append(f"{command.where}: {command.text}\n    {why}")
            break
        status, output = results[number]
        if status not in command.codes:
            shown = "\n".join("    | " + line for line in output.splitlines()[-15:])
            wrong.append(f"{command.where}: {command.text}\n    ended with {status}\n{shown}")
            continue
        printed = {shape_of(line) for line in output.splitlines()}
        for line in command.output:
            # What a document leaves out, and what only its own example can print.
            if "…" in line or not line.strip() or SCENES.get(document, Scene()).may_differ(line):
                continue
            if shape_of(line) not in printed:
                shown = "\n".join("    | " + line for line in output.splitlines()[:30])
                wrong.append(f"{command.where}: {command.text}\n    does not print '{line.strip()}'\n{shown}")
    return wrong


def try_document(document: str, commands: list, environment: dict) -> list:
    """Runs a document, and says how long that took; what is wrong with it."""
    start = time.monotonic()
    found = check(document, commands, run_document(document, commands, environment))
    verdict = ", FAILED" if found else ""
    print(f"{document}: {len(commands)} commands, {time.monotonic() - start:.1f} s{verdict}", flush=True)
    return found


def main():
    """Runs what is asked for, and ends with 1 if anything is wrong."""
    documents = sys.argv[1:] or list_documents()
    programs = Path(tempfile.mkdtemp(prefix="documents-programs-"))
    vellum = Path(os.environ["VELLUM"]).resolve()
    for name in ("vellum", "vellum-serve"):
        shutil.copy2(vellum.parent / name, programs / name)
    environment = os.environ | {"REPOSITORY": str(ROOT), "PROGRAMS": str(programs)}
    used = set()
    try:
        collected = {document: collect_commands(document, used) for document in documents}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            tried = {
                document: pool.submit(try_document, document, commands, environment)
                for document, commands in collected.items()
                if commands
            }
        wrong = [text for found in tried.values() for text in found.result()]
    finally:
        shutil.rmtree(programs)
    if not sys.argv[1:]:
        wrong += [f"scenes.py: {key[0]} has no '{key[1]}' any more" for key in NOT_RUN if key not in used]
    for text in wrong:
        print(f"\n{text}")
    count = sum(map(len, collected.values()))
    print(f"\n{count} commands run, {len(NOT_RUN)} entries are not; {len(wrong)} failures")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
