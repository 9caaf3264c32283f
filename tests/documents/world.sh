# What a document finds: a machine whose files are those of this one, changed for nobody else; names of other hosts, which all are this
# one; and servers that a scene starts. Read by bash in namespaces of its own, before the commands of a document.
#
# Invariant: nothing outside of the namespaces changes, and all processes end with them.

set -o pipefail
shopt -s expand_aliases

fail() {
    echo "$*" >&2
    exit 1
}

# A root whose changes are in memory. Directories that other filesystems are mounted on are those of this machine.
enter_machine() {
    mount -t tmpfs tmpfs "$SCRATCH" || fail "a filesystem in memory cannot be mounted: run as root"
    mkdir "$SCRATCH"/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" "$SCRATCH/root" || exit
    local seen
    mount -t tmpfs tmpfs "$SCRATCH/root/tmp"
    mount -t tmpfs tmpfs "$SCRATCH/root/run"
    mount -t proc proc "$SCRATCH/root/proc"
    for seen in /sys /dev "$REPOSITORY" "$TOOLS" "$PROGRAMS"; do
        mkdir -p "$SCRATCH/root$seen"
        mount --rbind "$seen" "$SCRATCH/root$seen" || exit
    done
    # Not only by chroot: what enters these namespaces has to find the same files.
    mkdir "$SCRATCH/root/before"
    cd "$SCRATCH/root" && pivot_root . before && cd / && umount -l /before && rmdir /before || exit
    exec /bin/bash "$1"
}

prepare_machine() {
    export HOME=/home/ann PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin NO_COLOR=1 PAGER=cat GIT_CONFIG_NOSYSTEM=1
    unset XDG_CONFIG_HOME XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_STATE_HOME VELLUM
    install "$PROGRAMS/vellum" "$PROGRAMS/vellum-serve" /usr/local/bin
    ln -sf /usr/local/bin/vellum /sbin/mount.vellum
    local dir
    for dir in /home/ann /mnt /srv /media /data /backup /vm; do
        mkdir -p "$dir"
        mount -t tmpfs tmpfs "$dir"
    done
    sed -i "s|^root:.*|root:x:0:0:root:/home/ann:/bin/bash|" /etc/passwd
    ip link set lo up
    for dir in 1 2 3; do ip address add "10.0.0.$dir/32" dev lo; done
    cat > /etc/hosts <<- HOSTS
	127.0.0.1 localhost $(hostname)
	10.0.0.1 nas nas.lan nas.example.org example.org seaweed.example.org s3.example.org cloud.example.org
	10.0.0.2 host h1 h2 h3
	HOSTS
    cd
}

# Runs a command that ends only when it is interrupted.
briefly() {
    local status
    timeout --signal=INT --kill-after=20 "${SECONDS_EACH:-3}" "$@"
    status=$?
    [ $status = 124 ] || [ $status = 130 ] || return $status
}

# Runs a command on a terminal of its own, on which nothing is typed.
on_terminal() {
    python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$@"
}

wait_for() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        "$@" > /dev/null 2>&1 && return
        sleep 0.1
    done
    fail "not within 30 s: $*"
}

is_open() {
    (: < "/dev/tcp/$1/$2")
}

# OpenSSH, for every host.
start_sshd() {
    mkdir -p /run/sshd ~/.ssh /etc/ssh
    [ -e ~/.ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
    cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
    chmod 700 ~/.ssh && chmod 600 ~/.ssh/authorized_keys && chmod 755 ~
    [ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
    id ann > /dev/null 2>&1 || echo 'ann:x:0:0:ann:/home/ann:/bin/bash' >> /etc/passwd
    local host
    for host in nas nas.lan nas.example.org host h1 h2 h3 localhost; do
        echo "$host $(cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub)"
    done > ~/.ssh/known_hosts
    /usr/sbin/sshd -f /dev/null -o HostKey=/etc/ssh/ssh_host_ed25519_key -o PermitRootLogin=yes -o UsePAM=no \
        -o 'Subsystem=sftp internal-sftp' -o StrictModes=no
    wait_for is_open nas 22
}

# A certificate authority of the local network, and a certificate of it for all names here.
make_certificate() {
    [ -e /srv/tls/server.crt ] && return
    mkdir -p /srv/tls
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj '/CN=Lan Authority' -addext basicConstraints=critical,CA:TRUE \
        -keyout /srv/tls/ca.key -out ~/lan-authority.pem 2> /dev/null
    openssl req -newkey rsa:2048 -nodes -subj /CN=nas.lan -keyout /srv/tls/server.key -out /srv/tls/server.csr 2> /dev/null
    openssl x509 -req -in /srv/tls/server.csr -CA ~/lan-authority.pem -CAkey /srv/tls/ca.key -days 2 -out /srv/tls/server.crt \
        -extfile <(echo 'subjectAltName=DNS:nas.lan,DNS:example.org,DNS:*.example.org') 2> /dev/null
    # Addresses without 'ca=' are checked against the system's authorities.
    mkdir -p /etc/ssl/certs
    cat ~/lan-authority.pem >> /etc/ssl/certs/ca-certificates.crt
}

# SeaweedFS: port 8333 speaks S3 over TLS, and 8334 without.
start_seaweed() {
    make_certificate
    mkdir -p /srv/weed ~/.config/vellum/credentials
    cat > /srv/weed/s3.json <<- CONFIG
	{"identities":[{"name":"ann","credentials":[{"accessKey":"ann","secretKey":"ann-secret"}],
	 "actions":["Admin","Read","Write","List","Tagging"]}]}
	CONFIG
    local name
    for name in home backup b2 NAME; do
        printf 'access-key-id = ann\nsecret-access-key = ann-secret\n' > ~/.config/vellum/credentials/$name
        chmod 600 ~/.config/vellum/credentials/$name
    done
    export AWS_ACCESS_KEY_ID=ann AWS_SECRET_ACCESS_KEY=ann-secret
    weed=$(find "$TOOLS/seaweedfs" -name weed -type f | head -n 1)
    [ -n "$weed" ] || fail "SeaweedFS is missing: run 'make tools'"
    "$weed" -logtostderr=true server -ip=127.0.0.1 -ip.bind=0.0.0.0 -dir=/srv/weed -filer -s3 -s3.config=/srv/weed/s3.json \
        -s3.port=8334 -s3.port.https=8333 -s3.cert.file=/srv/tls/server.crt -s3.key.file=/srv/tls/server.key -s3.port.iceberg=0 \
        -webdav -webdav.port=7333 -webdav.cert.file=/srv/tls/server.crt -webdav.key.file=/srv/tls/server.key \
        -s3.port.lance=0 -master.telemetry=false -volume.max=50 -master.volumeSizeLimitMB=128 > /srv/weed/log 2>&1 &
    wait_for is_open nas 8334
    wait_for create_buckets "$weed"
}

create_buckets() {
    local bucket
    for bucket in bucket photos my-bucket backup; do echo "s3.bucket.create -name $bucket"; done |
        "$1" shell -master=127.0.0.1:9333 -filer=127.0.0.1:8888 2>&1 | grep -q 'backup'
}

# What is below a directory, over TLS.
serve_https() {
    make_certificate
    python3 "$HERE/https_server.py" "$1" /srv/tls/server.crt /srv/tls/server.key > /srv/https.log 2>&1 &
    wait_for is_open nas 443
}

# A directory with something in it.
make_project() {
    mkdir -p "$1"/{src,docs/manual,data/training}
    seq 1000 > "$1/src/main.rs"
    seq 2000 > "$1/src/parser.rs"
    seq 3000 > "$1/docs/manual/intro.md"
    seq 4000 > "$1/data/training/part-1"
}

# The same as a volume with a few snapshots: make_volume DIRECTORY [OPTION OF init...].
make_volume() {
    make_project "$1"
    echo 'correct horse battery staple' > ~/secret
    vellum init --quiet "$1" "${@:2}" > /dev/null
    vellum -C "$1" snapshot -q --tag start -m "as I found it" > /dev/null
    seq 1001 > "$1/src/main.rs"
    vellum -C "$1" snapshot -q -m "a parser" > /dev/null
    seq 1002 > "$1/src/main.rs"
    vellum -C "$1" snapshot -q -m "a faster parser" > /dev/null
}
