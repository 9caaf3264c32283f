# What a contributor runs. Everything works without a network once the tools and crates are there.
#
#   make install the program, its manual, completions and systemd units below PREFIX (/usr/local), for packages below DESTDIR
#   make static  a static binary for x86-64 (musl), and whether it works; needs musl-tools and rustup's target
#   make deb     a Debian package in DEB_DIR (target/deb) of the binary; 'make deb-test' tries it in a clean Debian, as root
#   make test    format, lints, licences, all tests: what CI runs
#   make web-test    the page of 'vellum web' in Chromium, and what axe-core has to say about it
#   make mcp-test    the tools of 'vellum mcp', driven by the official Python client
#   make documents-test   the commands in README.md and docs/, run as they are written, as root; DOCUMENTS="docs/web.md" some
#   make gateways-test  'vellum serve webdav', 's3' and 'nfs', used by curl, rclone, aws and libnfs
#   make python-test the package for Python: its tests, fsspec's own, pandas and pyarrow, and mypy
#   make wheel   the package for Python, in target/wheels
#   make posix   pjdfstest, fsx and a storm of renames on a mount, and on a client of a shared worktree, as root
#   make demo    the main job on a real tree of this machine, with times and sizes
#   make measure Vellum and its rivals in turns, and its structures by themselves, unattended (hours; see
#                docs/benchmarks.md). ONLY="sync micro" measures these alone; `make bench` is the same
#   make report  docs/benchmarks.md from what was recorded; 'make report-check' only sees whether it is
#   make history-record VERSION=x.y.z   keeps the headlines of bench/records for docs/benchmarks.md, when a version is released
#                ('unreleased' before that); 'make machine-record NAME=x RECORDS=dir' those of another machine
#   make bench-baseline NAME=x            the structures by themselves (ten minutes), kept as a baseline
#   make bench-compare BASE=x [HEAD=y]    the same of two commits in turns: OK or REGRESSION. With PACKAGE="vellum-map"
#                FILTER=map/get, either is of these alone
#   make regression   whether the absolute limits of bench/limits.json are kept, as root (25 GB of disk); ONLY="sync restore" those
#                with one of the words in their names, JSON=FILE keeps the figures
#   make counts  instructions of commands and of library operations under valgrind, beside those of bench/counts.json;
#                'make counts-record' makes them what is compared with
#   make profile-build   target/profiling/vellum, with symbols, for bench/profile.sh: where a command's time goes
#   make against  whether 'vellum bench' measures the filesystem and not itself
#   make fuzz    every decoder of foreign bytes, SECONDS each (20), or some TARGETS
#   make slow-tests   the slowest tests, with their times
#   make coverage     the lines that the tests execute, by crate; fails below 85 % (builds everything again)
#   make services     the tests of Azure and Google Cloud Storage, on emulators that it installs (npm, go)
#   make test-cluster  several machines (as network namespaces) with one worktree, while machines and networks fail;
#                CLUSTER_SECONDS (default 60) each history, and 200 servers are killed, as root
#   make soak    the random tests, much longer (SOAK_CASES, default 20000 cases each), and a mount that works for hours
#                without growing (SOAK_MINUTES, default 120), as root

CARGO      ?= cargo
PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
# mount(8) looks for mount.vellum in /sbin only.
SBINDIR    ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
MANDIR     ?= $(PREFIX)/share/man
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SOAK_CASES ?= 20000
SOAK_MINUTES ?= 120
CLUSTER_SECONDS ?= 60
BENCH_OUT  ?= target/bench
RECORDS    ?= bench/records
PAGE       ?= docs/benchmarks.md
BENCH_DIR  ?= .
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# What is installed: built by default, or a binary that is there.
BINARY     ?= $(TARGET_DIR)/release/vellum
# The second program, which 'vellum web' executes, is beside it.
SERVE      ?= $(dir $(BINARY))vellum-serve

STATIC     := x86_64-unknown-linux-musl
DEB_DIR    ?= $(TARGET_DIR)/deb

# Debian packages that tests use: ACLs and xattrs, filesystems to mount, FUSE's helper, faults to inject, wrong clocks,
# what is built and run in mounts, the rival whose rules and results are ours, a browser for pages, ssh to reach this
# host from itself, certificates for servers, the databases that hold shared logs, shells that complete, readers of manual
# pages and units, and networks.
PACKAGES := acl attr btrfs-progs chromium curl dosfstools e2fsprogs etcd-server exfat-fuse exfatprogs faketime fish fuse3 fusefat \
	golang-go iproute2 libnfs-utils man-db npm ntfs-3g openssh-client openssh-server openssl postgresql python3 rclone redis-server \
	rsync strace systemd xfsprogs zsh
# A program of each package, by which to see that it is there.
PROGRAMS := getfacl getfattr mkfs.btrfs chromium curl mkfs.vfat mkfs.ext4 etcd mount.exfat-fuse mkfs.exfat faketime fish fusermount3 fusefat \
	go ip nfs-ls man npm ntfs-3g ssh sshd openssl pg_ctlcluster python3 rclone redis-server rsync strace systemd-analyze mkfs.xfs zsh

.PHONY: profile-build history-record machine-record regression counts counts-build counts-record install release static deb deb-test test test-cluster tools services emulators fmt workflows clippy deny report report-check unit slow-tests coverage web-test mcp-test gateways-test documents-test python-test wheel posix fuzz-check fuzz demo bench measure against bench-build bench-baseline bench-compare soak clean

install: $(BINARY) $(SERVE)
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(SBINDIR) $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man8 \
		$(DESTDIR)$(UNITDIR) $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(BINARY) $(DESTDIR)$(BINDIR)/vellum
	install -m 755 $(SERVE) $(DESTDIR)$(BINDIR)/vellum-serve
	ln -sf $(BINDIR)/vellum $(DESTDIR)$(SBINDIR)/mount.vellum
	ln -sf mount.vellum $(DESTDIR)$(SBINDIR)/mount.fuse.vellum
	$(BINARY) manual $(DESTDIR)$(MANDIR)/man1
	mv $(DESTDIR)$(MANDIR)/man1/mount.vellum.8 $(DESTDIR)$(MANDIR)/man8/
	$(BINARY) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/vellum
	$(BINARY) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_vellum
	$(BINARY) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/vellum.fish
	for unit in packaging/systemd/*.in; do \
		sed 's|@BINDIR@|$(BINDIR)|g' $$unit > $(DESTDIR)$(UNITDIR)/$$(basename $$unit .in) || exit 1; \
	done

$(TARGET_DIR)/release/vellum $(TARGET_DIR)/release/vellum-serve: release

release:
	$(CARGO) build --release --locked -p vellum -p vellum-serve

# musl has its own C compiler and its own Rust library.
static:
	@command -v musl-gcc > /dev/null || { echo "make static needs musl-gcc: apt-get install musl-tools"; exit 2; }
	@rustup target list --installed | grep -qx $(STATIC) || { echo "make static needs the target: rustup target add $(STATIC)"; exit 2; }
	$(CARGO) build --profile dist --locked -p vellum -p vellum-serve --target $(STATIC)
	./packaging/static/smoke.sh $(TARGET_DIR)/$(STATIC)/dist/vellum

# Of the shipped binary, unless another one is given: make deb DEB_BINARY=target/x86_64-unknown-linux-musl/dist/vellum
DEB_BINARY ?= $(TARGET_DIR)/dist/vellum

$(TARGET_DIR)/dist/vellum: bench-build
	$(CARGO) build --profile dist --locked -p vellum-serve

deb: $(DEB_BINARY)
	./packaging/deb/build.sh $(DEB_BINARY) $(DEB_DIR)

deb-test: deb
	./packaging/deb/test.sh $(DEB_DIR)/vellum_*.deb $(DEB_DIR)/chroot

test: tools fmt workflows clippy deny report-check unit
	$(MAKE) -j2 -Otarget web-test mcp-test gateways-test documents-test python-test BUILT=1

tools:
	@TOOLS=$(abspath $(TARGET_DIR)/tools) ./.ci/tools $(PACKAGES) -- $(PROGRAMS)

fmt:
	$(CARGO) fmt --all --check

# What the forge runs: mistakes in it would show only there.
workflows: $(TARGET_DIR)/tools/actionlint
	$< .github/workflows/*.yml

$(TARGET_DIR)/tools/actionlint:
	GOBIN=$(abspath $(@D)) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

clippy:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# `advisories` is left out: its database is a git repository, and CI reaches the package registries only. Run
# `cargo deny check advisories` by hand, on a machine with the whole network, before each release.
deny:
	$(CARGO) deny --locked check bans licenses sources

unit:
	CARGO="$(CARGO)" ./.ci/unit

slow-tests:
	CARGO="$(CARGO)" ./.ci/slowest

coverage: tools
	CARGO="$(CARGO)" ./.ci/coverage

# What other filesystems are tested with, through the kernel. BUILT=1: the binary that `make unit` has built.
posix:
	$(if $(BUILT),,$(CARGO) build --locked -p vellum)
	VELLUM=$(abspath $(TARGET_DIR)/debug/vellum) TOOLS=$(abspath $(TARGET_DIR)/tools) ./tests/posix/run.sh

# The fuzz targets must not rot. Checking them costs seconds; linking and running them is `cargo fuzz`'s affair.
fuzz-check:
	@if [ -f fuzz/Cargo.toml ]; then $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir $(TARGET_DIR)/fuzz; fi

fuzz:
	./fuzz/all.sh $(or $(SECONDS),20) $(TARGETS)

demo:
	@echo "building vellum (some minutes the first time)"
	@$(CARGO) build --quiet --release --locked -p vellum
	@VELLUM="$${VELLUM:-$(TARGET_DIR)/release/vellum}" ./demo/demo.sh

bench-build:
	$(CARGO) build --profile dist --locked -p vellum

bench: measure

# ANYWAY=1 measures on a busy machine, too; SHORT=1 only sees that everything works, and needs another RECORDS.
measure: bench-build
	VELLUM=$(abspath $(TARGET_DIR)/dist/vellum) ./bench/run.py all --out $(RECORDS) $(if $(SHORT),--short) \
		$(if $(ANYWAY),--anyway) $(if $(ONLY),--only $(ONLY))

# The page of figures, from the records. CI sees to it that nobody wrote into it by hand.
report:
	./bench/report.py --records $(RECORDS) --page $(PAGE)

report-check:
	./bench/report.py --records $(RECORDS) --page $(PAGE) --check

history-record:
	@test -n "$(VERSION)" || { echo "make history-record VERSION=x.y.z: name the release"; exit 2; }
	./bench/history.py release "$(VERSION)"

machine-record: bench-build
	@test -n "$(NAME)" || { echo "make machine-record NAME=x RECORDS=dir: give the machine a name"; exit 2; }
	VELLUM=$(abspath $(TARGET_DIR)/dist/vellum) ./bench/history.py machine "$(NAME)" --records $(RECORDS)

# FILTER (of ids), PACKAGE (crates, with commas between them, of which alone the benches are built) and ROUNDS narrow both
# down.
NARROWLY = $(if $(FILTER),--filter "$(FILTER)") $(if $(PACKAGE),--package "$(PACKAGE)")

bench-baseline:
	@test -n "$(NAME)" || { echo "make bench-baseline NAME=x: give the baseline a name"; exit 2; }
	@mkdir -p $(BENCH_OUT)
	./bench/run.py micro --save "$(NAME)" --json $(BENCH_OUT)/micro-$(NAME).json $(NARROWLY)

bench-compare:
	@test -n "$(BASE)" || { echo "make bench-compare BASE=commit: name the commit to compare with"; exit 2; }
	./bench/commits.py "$(BASE)" "$(or $(HEAD),HEAD)" --rounds $(or $(ROUNDS),3) $(NARROWLY)

against: bench-build
	VELLUM=$(abspath $(TARGET_DIR)/dist/vellum) ./bench/against.py $(BENCH_DIR)

regression: bench-build
	@mkdir -p $(BENCH_OUT)
	VELLUM=$(abspath $(TARGET_DIR)/dist/vellum) ./bench/regression.py $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

counts-build: bench-build
	@command -v valgrind > /dev/null || { echo "make counts needs valgrind: apt-get install valgrind"; exit 2; }
	$(CARGO) build --profile dist --locked -p vellum-library --example counted_operations

profile-build:
	$(CARGO) build --profile profiling --locked -p vellum

COUNT = VELLUM=$(abspath $(TARGET_DIR)/dist/vellum) OPERATIONS=$(abspath $(TARGET_DIR)/dist/examples/counted_operations) \
	./bench/counts.py $(if $(ONLY),--only $(ONLY))

counts: counts-build
	$(COUNT)

counts-record: counts-build
	$(COUNT) --record

# The page in a browser. BUILT=1: the binaries that `make unit` has built.
web-test:
	$(if $(BUILT),,$(CARGO) build --locked -p vellum -p vellum-serve)
	VELLUM=$(abspath $(TARGET_DIR)/debug/vellum) TOOLS=$(abspath $(TARGET_DIR)/tools) ./tests/web/run.sh

# The tools for agents. BUILT=1: the binaries that `make unit` has built.
mcp-test:
	$(if $(BUILT),,$(CARGO) build --locked -p vellum -p vellum-serve)
	VELLUM=$(abspath $(TARGET_DIR)/debug/vellum) TOOLS=$(abspath $(TARGET_DIR)/tools) ./tests/mcp/run.sh

# Each document has a machine of its own, in namespaces.
documents-test:
	$(if $(BUILT),,$(CARGO) build --locked -p vellum -p vellum-serve)
	VELLUM=$(abspath $(TARGET_DIR)/debug/vellum) TOOLS=$(abspath $(TARGET_DIR)/tools) ./tests/documents/run.sh $(DOCUMENTS)

# Gateways and their clients. BUILT=1: the binaries that `make unit` has built.
gateways-test:
	$(if $(BUILT),,$(CARGO) build --locked -p vellum -p vellum-serve)
	VELLUM=$(abspath $(TARGET_DIR)/debug/vellum) TOOLS=$(abspath $(TARGET_DIR)/tools) ./tests/gateways/run.sh

# The package for Python, with the oldest and the newest version that it is for; VERSIONS="3.10 3.12" with others.
python-test:
	CARGO="$(CARGO)" BUILT=$(BUILT) CARGO_TARGET_DIR=$(abspath $(TARGET_DIR)) TOOLS=$(abspath $(TARGET_DIR)/tools) ./tests/python/run.sh

# A wheel of the package for Python, for all versions from 3.9 on. Built where the C library is as old as it may be.
wheel:
	python3 -m venv $(TARGET_DIR)/tools/maturin
	$(TARGET_DIR)/tools/maturin/bin/pip install --quiet -r tests/python/requirements-build.txt
	$(TARGET_DIR)/tools/maturin/bin/maturin build --locked --profile dist --manifest-path crates/vellum-python/Cargo.toml --out $(TARGET_DIR)/wheels

emulators: tools
	@TOOLS=$(abspath $(TARGET_DIR)/tools) ./.ci/services

services: emulators
	$(CARGO) test --locked -p vellum-store -p vellum --test it -- --ignored clouds::

test-cluster: tools
	CLUSTER_SECONDS=$(CLUSTER_SECONDS) $(CARGO) test --locked -p vellum --test cluster -- --include-ignored

soak: emulators test-cluster
	PROPTEST_CASES=$(SOAK_CASES) $(CARGO) test --release --workspace --locked -- --include-ignored
	$(CARGO) build --release --locked -p vellum
	VELLUM=$(abspath $(TARGET_DIR)/release/vellum) SOAK_MINUTES=$(SOAK_MINUTES) ./tests/soak/mount.sh

clean:
	$(CARGO) clean
