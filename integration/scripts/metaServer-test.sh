#!/usr/bin/env bash
# Tests of scripts/metaServer.sh with a broker that behaves as told. The last line is "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d /tmp/metaq-scripts.XXXXXX)
base=$work/base
passed=0 failed=0
unset BASE_DIR METAQ_STOP_SECONDS METAQ_LOG_BYTES_MAX METAQ_RELOAD_SECONDS
export METAQ_START_SECONDS=10 METAQ_BIN_DIR=$work/bin

finish() {
    local file
    for file in "$work"/base*/logs/.run.pid; do
        [ ! -f "$file" ] || kill -KILL "$(cat "$file")" 2>/dev/null
    done
    rm -rf "$work"
}
trap finish EXIT

mkdir -p "$base/scripts" "$base/conf" "$work/bin"
cp "$here/../../scripts/metaServer.sh" "$base/scripts/"
# The interpreter itself: a wrapper script around it would lose the name it is started under.
python=$(python3 -c "import sys; print(sys.executable)")
for name in metaq-master metaq-slave; do
    printf '#!/bin/bash\nexec -a "$0" "%s" "%s" "$@"\n' "$python" "$here/stand-in-broker.py" >"$work/bin/$name"
    chmod +x "$work/bin/$name"
done
read -r port console_port < <(python3 -c '
import socket
held = [socket.socket() for _ in range(2)]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))')
printf '[system]\r\n; serverPort=1\r\nserverPort=%s\r\ndashboardHttpPort=0\r\n[topic=x]\r\nserverPort=2\r\n' "$port" \
    >"$base/conf/server.ini"
printf 'slaveId = 3\r\n' >"$base/conf/async_slave.properties"

behave() { echo "${1:-}" >"$base/behave"; }
# run EXPECTED_CODE PATTERN ARGUMENT...: the script's exit code, and a pattern its output has to contain
run() {
    local expected=$1 pattern=$2 out code=0
    shift 2
    out=$("${script:-$base/scripts/metaServer.sh}" "$@" 2>&1 </dev/null) || code=$?
    if [[ $code =~ ^$expected$ ]] && grep -qE -- "$pattern" <<<"$out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL line ${BASH_LINENO[0]}: metaServer.sh $*: exit code $code, expected $expected with '$pattern' in:"
        sed 's/^/    /' <<<"$out"
    fi
}
# holds WHAT COMMAND...
holds() {
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $what"; fi
}
pid() { cat "$base/logs/.run.pid"; }

behave slow
run 3 'Broker is stopped' status
run 1 'not running' stop
run 0 'Broker is running. \(pid [0-9]+\)' start
run 0 "Broker is running.*master, port $port" status
holds 'a broker that is ready has nothing to add' bash -c "! '$base/scripts/metaServer.sh' status | grep -i ready"
run 1 'Broker is running' start
run 0 '^item topics' stats -item topics
run 0 '^item topics' stats topics
run 64 "unknown argument '-itme'" stats -itme topics
run 64 "one item at a time, and not 'offsets'" stats topics offsets
run 0 'Broker is stopped' stop
holds 'the pid file is gone after stop' test ! -e "$base/logs/.run.pid"
run 69 'no broker answers' stats

behave 'exit 70'
run 70 'cannot go on' start
run 3 'Broker is stopped' status

# It serves reads before it knows that the place in ZooKeeper is its own: one that finds it taken has not started.
behave place-taken
run 1 'this data was replaced' start
run 3 'Broker is stopped' status
# Without ZooKeeper it runs on, and start says what it waits for.
behave no-zookeeper
METAQ_REGISTER_SECONDS=1 run 0 'cannot find it.*no zookeeper answers' start
# What is waited for is said by the console, or without one by the log.
run 0 '^Not ready: puts are refused until ZooKeeper confirms it: no zookeeper answers' status
run 0 stopped stop
behave not-ready
sed -i "s/^dashboardHttpPort.*/dashboardHttpPort=$console_port/" "$base/conf/server.ini"
METAQ_REGISTER_SECONDS=1 run 0 'cannot find it' start
run 0 '^Not ready: waits for "zk\\1"$' status
run 0 '^Not ready: too few slaves$' status
echo 'WARN no metrics: cannot listen, trying on' >>"$base/logs/metaServer.log"
run 0 '^Not ready: puts are refused until ZooKeeper' status
echo 'INFO serving metrics over HTTP' >>"$base/logs/metaServer.log"
run 0 '^Not ready: too few slaves$' status
holds 'a note is no reason' bash -c "! '$base/scripts/metaServer.sh' status | grep 'a note'"
run 0 stopped stop
sed -i 's/^dashboardHttpPort.*/dashboardHttpPort=0/' "$base/conf/server.ini"
printf '[zookeeper]\r\nzk.zkEnable=false\r\n' >>"$base/conf/server.ini"
METAQ_REGISTER_SECONDS=100 run 0 '^Broker is running' start
run 0 stopped stop
sed -i '/zookeeper/d; /zkEnable/d' "$base/conf/server.ini"
behave

# A pid that belongs to another process by now is no broker, and is not stopped.
sleep 100 &
sleeper=$!
mkdir -p "$base/logs"
echo $sleeper >"$base/logs/.run.pid"
run 3 'Broker is stopped' status
run 1 'not running' stop
holds 'the other process lives' kill -0 $sleeper
kill $sleeper

# Another broker's process is not ours either, though it has the same name.
mkdir -p "$work/base2/conf"
sed 's/^serverPort.*/serverPort=1/' "$base/conf/server.ini" >"$work/base2/conf/server.ini"
run 0 running start
mkdir -p "$work/base2/logs"
cp "$base/logs/.run.pid" "$work/base2/logs/"
BASE_DIR=$work/base2 run 3 'Broker is stopped' status
rm "$work/base2/logs/.run.pid"
sed -i "s/^serverPort.*/serverPort=$port/" "$work/base2/conf/server.ini"
BASE_DIR=$work/base2 run 1 "port $port is already served by process $(pid)" start
run 0 stopped stop

# Roles
run 0 '--slave-id 3' start slave
run 0 'running.*slave' status
run 64 'unknown type' restart salve
run 1 "unknown command 'strat'" strat
run 64 'acceptPublish=false' close-partitions -topic x
run 64 'runbooks/README.md' delete-partitions
run 0 'running.*slave' status
run 0 'metaq-slave.*--slave-id 3' restart slave
run 0 'running' restart
run 0 'running.*master' status
holds 'restart without the word passes no slave id' bash -c "! grep arguments '$base/logs/metaServer.log' | tail -1 | grep -q slave-id"
run 0 '--local' restart local
mkdir -p "$base/data/.metaq"
sed -i 's/^serverPort.*/&\ndataPath=data/' "$base/conf/server.ini"
touch "$base/data/.metaq/replica.json"
METAQ_SLAVE_ID=5 run 0 'metaq-slave --config' restart
run 0 'running.*master' status
rm "$base/data/.metaq/replica.json"
run 0 'metaq-master --config' restart
run 0 stopped stop
run 0 'starting it' restart
run 0 stopped stop
run 0 'metaq-master --config .* --ack-quorum 2' start samsa
METAQ_ACK_QUORUM=3 run 0 '--ack-quorum 3' restart samsa
run 0 'metaq-slave.*--slave-id 3' restart gregor
run 0 'running.*slave' status
run 0 stopped stop
mv "$base/conf/async_slave.properties" "$work/"
run 0 'metaq-slave.*--slave-id 0' start gregor
run 0 stopped stop
mv "$work/async_slave.properties" "$base/conf/"
run 64 'unknown type' start nothing
run 64 'not available yet' open-partitions -topic x
run 1 usage
run 1 usage nonsense
run 0 usage help
sed -i 's/3/three/' "$base/conf/async_slave.properties"
run 78 "slaveId is 'three'" start slave

# Stopping takes its time; only -f kills.
behave ignore-term
run 0 running start
METAQ_STOP_SECONDS=1 run 1 'has not ended after 1 s' stop
run 0 running status
METAQ_STOP_SECONDS=1 run 0 'Killing.*' stop -f
run 3 stopped status

# Reload
behave
run 3 stopped reload
run 0 running start
run 0 'reload done' reload
cp "$base/conf/server.ini" "$work/good.ini"
echo 'mistake=1' >>"$base/conf/server.ini"
run 78 "server.ini:9: unknown key" reload
cp "$work/good.ini" "$base/conf/server.ini"
run 0 running status
run 0 stopped stop
behave refuse-reload
run 0 running start
run 1 'reload refused' reload
run 0 stopped stop
# Certificates that cannot serve are a refusal, too, though the file is as it was.
behave refuse-certificates
run 0 running start
run 1 'stay as they were' reload
run 0 stopped stop

# A configuration with a mistake: the broker's own exit code
behave
echo 'mistake=1' >>"$base/conf/server.ini"
run 78 "server.ini:9: unknown key" start
cp "$work/good.ini" "$base/conf/server.ini"

# Without one: what to do, and nothing of the tools that look for it
mv "$base/conf/server.ini" "$work/"
for words in start 'restart slave' stats reload; do
    read -ra verbs <<<"$words"
    run '(3|78)' '^metaServer.sh: (no .*/conf/server.ini: copy the sample|Broker is stopped)' "${verbs[@]}"
    holds "no configuration: $words says it in one line" \
        bash -c "[ \"\$('$base/scripts/metaServer.sh' $words 2>&1 | wc -l)\" = 1 ]"
done
mv "$work/server.ini" "$base/conf/"

# Log files
METAQ_LOG_BYTES_MAX=10 run 0 running start
run 0 stopped stop
holds 'the log was moved aside' test -s "$base/logs/metaServer.log.1"

# Found through a symbolic link
ln -s "$base/scripts/metaServer.sh" "$work/meta"
script=$work/meta run 0 running start
script=$work/meta run 0 stopped stop

# Nothing of the caller's stays open: start returns although its output is a pipe.
holds 'start in a pipe returns' timeout 20 bash -c "'$base/scripts/metaServer.sh' start | cat"
run 0 stopped stop

echo "$passed passed, $failed failed"
[ $failed = 0 ]
