#!/usr/bin/env bash
# Runs the Java client's checks, or the golden checks, against our own master and slave, which it starts and stops.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
    cat <<USAGE
usage: suite.sh [--local | --golden] [--only LIST] [--skip LIST] [--dir DIR] [--keep]
  (no flag)     with a real ZooKeeper
  --local       with the master's embedded registry
  --golden      no Java: the recorded wire and data directories (../golden)
  --only LIST   groups or checks, as in "abj" or "a3,f1"; --skip LIST likewise
  --dir DIR     where logs and data go (default: a new directory below /tmp, deleted when nothing failed)
  --keep        leave the directory
environment: METAQ_BIN_DIR (default target/release)
The last line is "N passed, N failed, N skipped"; the exit code is 0 when nothing failed.
USAGE
    exit "$1"
}

mode=zookeeper only= skip= dir= keep=
while [ $# -gt 0 ]; do
    case $1 in
    --local | --golden) mode=${1#--}; shift ;;
    --only) only=${2:?}; shift 2 ;;
    --skip) skip=${2:?}; shift 2 ;;
    --dir) dir=${2:?}; keep=1; shift 2 ;;
    --keep) keep=1; shift ;;
    -h | --help) usage 0 ;;
    *) echo "suite.sh: unknown argument $1" >&2; usage 64 >&2 ;;
    esac
done

export METAQ_BIN_DIR=${METAQ_BIN_DIR:-$root/target/release}
for binary in metaq-master metaq-slave; do
    [ -x "$METAQ_BIN_DIR/$binary" ] ||
        { echo "suite.sh: no $METAQ_BIN_DIR/$binary: run cargo build --release, or set METAQ_BIN_DIR" >&2; exit 69; }
done
[ -n "$dir" ] || dir=$(mktemp -d "/tmp/metaq-java-$mode.XXXXXX")
mkdir -p "$dir"
nodes() { "$here/nodes.sh" "$dir" "$@"; }

finish() {
    local code=$?
    trap - EXIT INT TERM
    [ ! -f "$dir/nodes.env" ] || nodes stop || code=1
    if [ -n "$keep" ] || [ $code -ne 0 ]; then
        echo "suite.sh: logs and data are in $dir" >&2
    else
        rm -rf "$dir"
    fi
    exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Free ports, all different because all are held until the last one is known.
read -r PORT SLAVE_PORT ZK_PORT CONSOLE_PORT SLAVE_CONSOLE_PORT MARIADB_PORT < <(python3 -c '
import socket
held = [socket.socket() for _ in range(6)]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))')
export PORT SLAVE_PORT ZK_PORT CONSOLE_PORT SLAVE_CONSOLE_PORT MARIADB_PORT

java_checks() {
    local leave_out=
    local hooks=(restart="'$here/nodes.sh' '$dir' restart" crash="'$here/nodes.sh' '$dir' crash"
        slave="127.0.0.1:$SLAVE_PORT" master.start="'$here/nodes.sh' '$dir' start-master")
    if [ $mode = local ]; then
        # m2 opens a new session while the master is away; with --local the registry is away with it, so no client
        # could find the slave. That is what a real ZooKeeper is for; so is p1, whose clients have to find a new master.
        export LOCAL=1
        leave_out=m2
        nodes init
    else
        nodes init start-zk
        hooks+=(master.stop="'$here/nodes.sh' '$dir' stop-master" quorum="'$here/nodes.sh' '$dir' quorum"
            promote="'$here/nodes.sh' '$dir' promote")
    fi
    # A partition whose oldest segments are gone, for k9.
    mkdir -p "$dir/master/data"
    cp -r "$root/integration/golden/data-clean/data/golden-trim-0" "$dir/master/data/"
    nodes start-master start-slave start-mariadb
    CONF_WORK=$dir/java "$here/run.sh" "broker=127.0.0.1:$PORT" "zk=127.0.0.1:$ZK_PORT" root=/meta strict=true topic.trimmed=golden-trim \
        "xa.url=jdbc:mariadb://127.0.0.1:$MARIADB_PORT/metaq?user=root" "only=$only" "skip=$leave_out${skip:+${leave_out:+,}$skip}" "${hooks[@]}" || { nodes stop; return 1; }
    nodes stop
}

# golden_checks NAME: one recorded data directory, read, continued by puts, and read again after a restart.
golden_checks() {
    local name=$1 golden=$root/integration/golden manifest
    manifest=$golden/manifest-$name.json
    rm -rf "$dir/master"
    nodes init
    cp -r "$golden/data-$name/data" "$golden/data-$name/log" "$dir/master/"
    nodes start-master
    check data "$manifest"
    [ "$name" != clean ] || check wire "$golden/wire.jsonl"
    check puts "$manifest"
    nodes restart
    check puts "$manifest"
    nodes stop
}

passed=0 failed=0 skipped=0
check() { # check WHAT FILE
    local line
    echo "-- $1 $(basename "$2")"
    python3 -B "$root/integration/golden/tool/check.py" "$1" "127.0.0.1:$PORT" "$2" \
        >"$dir/check.out" || true
    cat "$dir/check.out"
    line=$(tail -1 "$dir/check.out")
    [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]] || line="0 passed, 1 failed, 0 skipped"
    [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
}

if [ $mode = golden ]; then
    export LOCAL=1 SEGMENT_BYTES=8192
    golden_checks clean
    golden_checks crash
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
else
    java_checks
fi
