"""What each document finds when its commands are run, and what cannot be run.

A scene is only what the document takes for granted: the volume that its reader has, the servers that its addresses name.
"""

from dataclasses import dataclass, field


@dataclass
class Scene:
    """The machine of a document."""

    # What is there before the first command.
    setup: str = ""
    # What happens before a command that begins so: on another machine, or by itself.
    before: dict = field(default_factory=dict)
    # Words of commands, and what they are here.
    replaced: dict = field(default_factory=dict)
    # Exit codes of commands that begin so, where they are others than 0.
    codes: dict = field(default_factory=dict)
    # Beginnings of printed lines that only the document's own example has.
    example_lines: tuple = ()

    def may_differ(self, line: str) -> bool:
        """Whether a line need not be printed here."""
        return bool(self.example_lines) and line.strip().startswith(self.example_lines)


# Commands that go on until they are interrupted.
BRIEFLY = (
    "vellum web",
    "vellum mount --foreground",
    "VELLUM_LOG=debug vellum mount --foreground",
    "vellum serve nfs",
    "vellum serve webdav",
    "vellum sync --watch",
    "vellum stats",
    "vellum profile",
    "cat /tmp/m/.vellum/accesslog",
)

# Exit codes that say something of what was found.
CODES = {
    "vellum doctor": {0, 1},
    "vellum conformance": {0, 1},
    "vellum diff": {0, 1},
    "vellum status": {0, 1},
    "vellum restore start --dry-run": {1},
}

# The service behind addresses that name none: here, all are one.
SEAWEED = "endpoint=https://nas.lan:8333&style=path"
AMAZON = {"?region=eu-central-1": f"?region=eu-central-1&{SEAWEED}"}

BUILDS = "builds or measures the program itself, for minutes or hours"
OTHER_FILE = "lines of a file, which are no commands"

# Smaller than their defaults: what is shown is how they are called.
SMALL_BENCH = {
    "vellum bench --threads 4 ": "vellum bench --threads 4 --big-file-size 4M --small-file-count 10 ",
    "vellum bench /mnt/work": "vellum bench --big-file-size 4M --small-file-count 10 /mnt/work",
    "vellum bench -p 2 --runs 5 ": "vellum bench -p 2 --runs 2 --big-file-size 4M --small-file-count 10 ",
}

# Blocks, or single commands, that begin so.
NOT_RUN = {
    ("README.md", "cargo install"): BUILDS,
    ("README.md", "make demo"): BUILDS,
    ("CONTRIBUTING.md", "cargo test"): BUILDS,
    ("CONTRIBUTING.md", "VELLUM_FAULT="): BUILDS,
    ("ARCHITECTURE.md", "8                   vellum"): "a picture",
    ("ARCHITECTURE.md", "LiveFilesystem: snapshots"): "a picture",
    ("docs/benchmarks.md", "make measure   "): BUILDS,
    ("docs/benchmarks.md", "make measure RECORDS"): BUILDS,
    ("docs/evaluating.md", "fio "): "recipes for another program, with 40 GiB of files",
    ("docs/json.md", "Name      {"): "shapes of JSON",
    ("docs/json.md", "{ version, error"): "shapes of JSON",
    ("docs/json.md", "{ version, progress"): "shapes of JSON",
    ("docs/gateways.md", "aws s3 sync"): "the aws command is no part of this machine; the tests of the gateway have one, and run this",
    ("docs/log-engines.md", "appendonly yes"): OTHER_FILE,
    ("docs/log-engines.md", "CREATE ROLE"): "statements of SQL, with a password to be chosen",
    ("docs/log-engines.md", "etcd --auto"): "options that a server of the reader's is started with",
    ("docs/measuring.md", "1700000000.250000"): "a line of a log",
    ("docs/measuring.md", "…"): "stands for what is changed in between",
    ("docs/repair.md", "src: 312 of"): "a line of a report",
    (
        "docs/stores.md",
        "vellum init ~/photos --store 's3://photos/2026?endpoint=https://s3.example.org&single-writer'",
    ): "for a service that ignores conditions, which SeaweedFS does not; a server of the testkit is one in tests of their own",
    ("docs/sync.md", "vellum sync SRC..."): "how the command is called",
    ("docs/system.md", "make install"): BUILDS,
    ("docs/system.md", "make deb"): BUILDS,
    ("docs/system.md", "/srv/data  /mnt/data"): OTHER_FILE,
    ("docs/system.md", "source <(vellum completion zsh)"): "for another shell",
    ("docs/system.md", "vellum completion fish"): "for another shell",
    ("docs/system.md", "systemctl enable"): "needs systemd as the first process; the units are checked by tests of their own",
}

SCENES = {
    "README.md": Scene(
        setup="start_sshd",
        # The first screen is a session of its own.
        before={"mkdir -p ~/project/src": "rm -rf ~/experiment"},
    ),
    "CONTRIBUTING.md": Scene(setup="make_volume ~/project; cd ~/project; mkdir /tmp/m"),
    "docs/agents.md": Scene(setup="make_volume ~/project; cd ~/project"),
    "docs/conformance.md": Scene(
        setup="start_seaweed; mkdir /mnt/disk; make_volume ~/project; cd ~/project",
        replaced={"s3://bucket/folder": f"'s3://bucket/folder?{SEAWEED}'"},
    ),
    "docs/devices.md": Scene(
        setup="start_sshd; make_volume ~/here --name desk --store sftp://nas/srv/photos; cd ~/here",
        before={
            "vellum clone sftp": "sed -n 's/^Code: *//p' /tmp/output-0 > /tmp/code; cd ~",
            "vellum device revoke": "cd ~/here",
        },
        # The code is typed on a terminal.
        replaced={"vellum clone sftp://nas/srv/photos": "vellum clone sftp://nas/srv/photos --passphrase-file /tmp/code"},
        example_lines=("Passphrase, recovery code", "recovery code ", "device desk"),
    ),
    "docs/doctor.md": Scene(
        setup="make_volume ~/project; mkdir ~/mnt; cd ~/project; vellum mount -q . ~/mnt; "
        "kill -KILL $(grep -o '\"pid\": *[0-9]*' ~/mnt/.vellum/mount.json | grep -o '[0-9]*$')",
        example_lines=("warning: sessions/", "--repair removes the session", "0 problems", "'vellum doctor --repair' repairs"),
    ),
    "docs/evaluating.md": Scene(
        setup="start_seaweed; make_volume ~/project; mkdir /mnt/work /mnt/scratch /mnt/efs; vellum mount -q ~/project /mnt/work",
        replaced=SMALL_BENCH
        | {"s3://bucket/trial": f"'s3://bucket/trial?{SEAWEED}'", "--sizes 1G --counts 1000": "--sizes 1M --counts 10"},
        codes={"vellum bench compare": {0, 1}},
    ),
    "docs/gateways.md": Scene(
        setup="make_volume ~/project; cd ~/project; mkdir album; seq 9 > album/one.jpg; seq 99 > notes.txt; "
        "vellum snapshot -q --tag v1.0",
        # Gateways with a password of ours, for the clients. The second one has a port of its own.
        before={
            "rclone copy :webdav": "VELLUM_SERVE_CREDENTIALS='vellum correct-horse-battery' vellum serve webdav main "
            "--listen 127.0.0.1:41873 & wait_for is_open 127.0.0.1 41873",
            # rclone does not start where another client's certificates are named.
            'rclone copy ":s3': "unset AWS_CA_BUNDLE; VELLUM_SERVE_CREDENTIALS='vellum correct-horse-battery' vellum serve s3 main "
            "--listen 127.0.0.1:41874 & wait_for is_open 127.0.0.1 41874",
            "nfs-ls": "vellum serve nfs main --listen 127.0.0.1:41875 & wait_for is_open 127.0.0.1 41875",
        },
        replaced={
            "PASSWORD": "correct-horse-battery",
            "curl -u vellum ": "curl -u vellum:correct-horse-battery ",
            "http://127.0.0.1:41873':main": "http://127.0.0.1:41874':main",
            "nfsport=41873&mountport=41873": "nfsport=41875&mountport=41875",
        },
    ),
    "docs/measuring.md": Scene(
        setup="start_sshd; make_volume ~/project; mkdir /mnt/work /mnt/x /srv/work; vellum mount -q ~/project /mnt/work; "
        "mount --bind /mnt/work /srv/work; for host in h1 h2; do ip netns add $host; done; "
        "sleep 1000 & one=$!; sleep 1000 & two=$!",
        replaced=SMALL_BENCH | {"--host 4711 --host 4712": "--host $one --host $two"},
        codes={"vellum bench compare": {0, 1}},
    ),
    "docs/merge.md": Scene(
        setup="echo 'correct horse' > ~/secret",
        codes={"vellum merge draft": {0, 1}, "vellum conflicts": {1}},
    ),
    "docs/operations.md": Scene(
        setup="make_volume ~/project; vellum -C ~/project fork side --to ~/side > /dev/null; cd ~/side; "
        "for name in a b c; do vellum tag add $name > /dev/null; done; cd ~/project; "
        "for n in 1 2 3 4 5 6 7 8 9; do vellum tag add t$n > /dev/null; done",
    ),
    "docs/partial-checkouts.md": Scene(
        setup="make_volume ~/project --store ~/disk/project --passphrase-file <(echo secret); echo secret > ~/secret",
        replaced={"vellum clone ~/disk/project ~/small": "vellum clone --passphrase-file ~/secret ~/disk/project ~/small"},
    ),
    "docs/remotes.md": Scene(
        setup="start_seaweed; make_volume ~/project --passphrase-file <(echo secret); echo secret > ~/secret; cd ~/project",
        before={
            "vellum pull": "vellum clone -q \"$address\" ~/desk --name main --credentials home --passphrase-file ~/secret; "
            "seq 7 > ~/desk/new; vellum -C ~/desk snapshot -q; vellum -C ~/desk push -q; cd ~/project",
        },
        # The passphrase is typed on a terminal.
        replaced=AMAZON | {"--passphrase   ": "--passphrase-file ~/secret   "},
    ),
    "docs/repair.md": Scene(
        setup="make_volume ~/project; cd ~/project; vellum remote add origin ~/disk/project > /dev/null 2>&1; vellum push -q; "
        "for pack in $(find .vellum/store/packs -type f); do chmod u+w $pack; "
        "dd if=/dev/zero of=$pack bs=1 seek=60 count=20 conv=notrunc status=none; done",
        example_lines=("Mended", "All is intact"),
    ),
    "docs/restore-plans.md": Scene(setup="make_volume ~/project; cd ~/project; vellum tag add v1 HEAD~1 > /dev/null"),
    "docs/retention.md": Scene(
        setup="make_volume ~/project; cd ~/project; for n in 5 6 7 8; do seq $n > f; vellum snapshot -q -m \"step $n\"; done; "
        "for name in delivered better lean; do echo $name > src/name; vellum snapshot -q --tag $name; done",
        before={"vellum forget 4395317b": "mkdir -p /mnt/old; vellum mount -q --snapshot HEAD~6 . /mnt/old"},
        replaced={"vellum forget c4924316": "vellum forget HEAD~4", "vellum forget 4395317b": "vellum forget HEAD~6"},
        codes={"vellum forget c4924316": {2}, "vellum forget 4395317b": {2}},
        example_lines=("keep ", "forget ", "Pinned ", "snapshot c4924316", "error: snapshot", "delivered ", "better ", "lean ",
                       "together ", "Needed"),
    ),
    "docs/settings.md": Scene(setup="make_volume ~/project; cd ~/project"),
    "docs/shared-worktrees.md": Scene(
        setup="mkdir /mnt/work /mnt/other /mnt/third /mnt/data ~/other ~/third ~/work; "
        "make_volume ~/project --store /srv/store --passphrase-file <(echo secret); echo secret > ~/secret; "
        "for machine in other third; do vellum init -q --name $machine --store /srv/store --passphrase-file ~/secret ~/$machine; done; "
        "cd ~/project; vellum mount -q . /mnt/data; vellum umount -q /mnt/data",
        # Other machines have directories, and mountpoints, of their own.
        before={
            "vellum mount --shared work /mnt/work --server": "cd ~/other",
            "vellum mount --shared work /mnt/work --listen 10.0.0.1:7788 --meta": "cd ~/project; vellum umount -q /mnt/other; "
            "vellum umount -q /mnt/work; vellum worktree remove --delete -q work",
            "vellum mount --shared work /mnt/work   ": "cd ~/other",
            "vellum mount --shared work /mnt/work --listen 10.0.0.2": "cd ~/third",
            "vellum mount ~/project ~/work --meta": "cd ~/project; for mount in third other work; do vellum umount -q /mnt/$mount; done; "
            "vellum worktree remove --delete -q work",
            "vellum mount ~/project ~/work --worktree": "vellum umount -q ~/work",
        },
        replaced={
            "/mnt/work --server": "/mnt/other --server",
            "vellum mount --shared work /mnt/work   ": "vellum mount --shared work /mnt/other   ",
            "/mnt/work --listen 10.0.0.2": "/mnt/third --listen 10.0.0.2",
            "vellum init ~/project --meta": "vellum init ~/new --meta",
        },
        example_lines=("Mounted the worktree work on /mnt/work",),
    ),
    "docs/snapshots.md": Scene(
        # PostgreSQL's program, as far as the document uses it.
        setup="make_volume ~/project; cd ~/project; printf '#!/bin/sh\\necho a dump of $1\\n' > /usr/local/bin/pg_dump; "
        "chmod +x /usr/local/bin/pg_dump; mkdir -p /srv/data; seq 9 > /srv/data/f",
    ),
    "docs/stores.md": Scene(
        setup="start_sshd; start_seaweed; mkdir -p /srv/www; serve_https /srv/www; echo secret > ~/secret; "
        "make_volume ~/source --store /srv/www/photos --passphrase-file ~/secret; vellum -C ~/source publish > /dev/null; "
        "printf 'user = ann\\npassword = secret\\n' > ~/.config/vellum/credentials/cloud; "
        "chmod 600 ~/.config/vellum/credentials/cloud",
        # Each example begins anew.
        before={
            "vellum init ~/photos": "rm -rf ~/photos",
            "vellum clone": "cd; rm -rf ~/photos ~/photos.vellum; mkdir -p ~/photos",
            "vellum remote add nas": "cd ~/photos",
            "vellum publish": "cd ~/source",
            "vellum remote add web": "vellum init -q ~/third --name third --store /srv/www/photos --passphrase-file ~/secret; cd ~/third",
        },
        # All services are one here, on its own ports, where each example has its own folder; passphrases are typed.
        replaced=AMAZON
        | {
            "s3://photos/2026?endpoint=https://nas.lan": "s3://photos/2027?endpoint=https://nas.lan",
            "webdavs://cloud.example.org/": "webdavs://cloud.example.org:7333/",
            "vellum clone ": "vellum clone --passphrase-file ~/secret ",
        },
    ),
    "docs/sync.md": Scene(
        setup="start_seaweed; make_volume ~/project; cd ~/project; mkdir -p A B photos notes; seq 5 > photos/one; mkdir -p /mnt/stick/notes /mnt/backup /srv/www; "
        "vellum tag add yesterday > /dev/null",
        replaced=AMAZON | {"'s3://bucket/prefix'": f"'s3://bucket/prefix?{SEAWEED}'"},
    ),
    "docs/system.md": Scene(
        setup="make_volume /srv/data --passphrase-file <(echo secret); mkdir -p /mnt/data /media/stick; make_project ~/project",
    ),
    "docs/troubleshooting.md": Scene(
        setup="make_volume ~/project; cd ~/project; mkdir /mnt/work; vellum mount -q . /mnt/work; make_project src; mkdir dst; "
        "seq 3 > lost-thesis.txt; vellum snapshot -q; seq 4 > other; vellum snapshot -q",
        codes={"VELLUM_LOG=debug vellum status": {0, 1}},
    ),
    "docs/try.md": Scene(),
    "docs/tuning.md": Scene(
        setup="start_seaweed; start_sshd; mkdir /mnt/work; seq 99 > /vm/disk.img; "
        f"make_volume ~/project --store 's3://bucket/project?{SEAWEED}' --credentials home; cd ~/project; "
        f"vellum remote add backup 's3://backup/project?{SEAWEED}' --credentials backup > /dev/null 2>&1; "
        "vellum config set --volume retention.keep-daily 7 > /dev/null; vellum mount -q ~/project /mnt/work",
        before={"vellum mount": "vellum umount -q /mnt/work"},
        # It wants a terminal, on which it is interrupted.
        replaced=SMALL_BENCH
        | {
            "vellum stats /mnt/work --tui": "on_terminal "
            "timeout --foreground --signal=INT --kill-after=20 3 vellum stats /mnt/work --tui",
            "s3://bucket/trial": f"'s3://bucket/trial?{SEAWEED}'",
        },
        codes={"vellum stats /mnt/work --tui": {0, 124, 130}},
    ),
    "docs/web.md": Scene(setup="make_volume ~/project; cd ~/project"),
}
