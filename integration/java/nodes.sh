#!/usr/bin/env bash
# The nodes that the Java suite runs against: a ZooKeeper, a master and its slave, each a process of its own below one
# directory. Also the suite's hooks: the Java program calls it again to restart or kill the master.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat >&2 <<USAGE
usage: nodes.sh DIR COMMAND...
  init           write the configuration for the ports of the environment
  start-zk       a ZooKeeper of its own, from the jars of Debian's package
  start-master   the master; returns when it answers and is registered
  start-slave    its slave 0
  start-mariadb  a MariaDB of its own that takes part in XA transactions, with an empty database "metaq"
  stop-NAME      stop zk, master, slave or mariadb by TERM; fails when its exit code is not 0 (zk: any code)
  kill-NAME      end it by KILL
  restart, crash stop (or kill) the master and start it again on the same data
  quorum         the running master asks its slave before it answers (ackQuorum=2)
  promote        kill the master, and make a master, which asks nobody, of its slave
  stop           stop everything
environment of init: PORT SLAVE_PORT ZK_PORT CONSOLE_PORT SLAVE_CONSOLE_PORT MARIADB_PORT SEGMENT_BYTES
  LOCAL (1: no ZooKeeper, the master serves its registry itself) METAQ_BIN_DIR (where metaq-master and metaq-slave are)
USAGE
    exit 64
}

[ $# -ge 2 ] || usage
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift

fail() { echo "nodes.sh: $*" >&2; exit 1; }

# When a process began, in clock ticks since the machine did: with the pid it names one process for good.
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# alive NAME: a pid that another process has taken over in the meantime does not count, nor does a dead child.
alive() {
    local pid at
    [ -f "$dir/$1.pid" ] || return 1
    read -r pid at <"$dir/$1.pid"
    [ "$(started_at "$pid")" = "$at" ] && ! grep -q '^State:.*[ZX]' "/proc/$pid/status" 2>/dev/null
}

# spawn NAME COMMAND...: its exit code is left in NAME.code
spawn() {
    local name=$1
    shift
    rm -f "$dir/$name.code"
    (
        "$@" >>"$dir/$name.log" 2>&1 </dev/null &
        echo "$! $(started_at $!)" >"$dir/$name.pid.new"
        mv "$dir/$name.pid.new" "$dir/$name.pid"
        code=0
        wait $! || code=$?
        echo "$code" >"$dir/$name.code"
    ) >/dev/null 2>&1 </dev/null &
    until_true 50 test -f "$dir/$name.pid" || fail "$name did not start"
}

# until_true TENTHS COMMAND...
until_true() {
    local tenths=$1
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$tenths" -gt 0 ] || return 1
        tenths=$((tenths - 1))
        sleep 0.1
    done
}

# answers PORT REQUEST: whether something there answers the request at all
answers() {
    local line
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf '%b' "$2" >&3
    IFS= read -r -t 3 line <&3
    local got=$?
    exec 3>&-
    return $got
}

settled() { ! alive "$1" || answers "$2" "$3"; }

# come_up NAME PORT REQUEST: waits until it answers, or ends
come_up() {
    until_true 600 settled "$@" 2>/dev/null || true
    alive "$1" && answers "$2" "$3" 2>/dev/null && return
    tail -20 "$dir/$1.log" >&2
    fail "$1 did not come up; the log above is $dir/$1.log"
}

# end NAME SIGNAL
end() {
    local pid
    alive "$1" || { rm -f "$dir/$1.pid"; return 0; }
    read -r pid _ <"$dir/$1.pid"
    kill "-$2" "$pid"
    until_true 600 gone "$1" || fail "$1 (pid $pid) is still there 60 s after $2"
    rm -f "$dir/$1.pid"
    until_true 50 test -f "$dir/$1.code" || fail "the exit code of $1 is not known"
    local code
    code=$(cat "$dir/$1.code")
    [ "$2" = KILL ] || [ "$1" = zk ] || [ "$code" = 0 ] || fail "$1 exited with $code on $2"
}
gone() { ! alive "$1"; }

ini() { # ini NAME PORT CONSOLE_PORT
    mkdir -p "$dir/$1/conf"
    sed -e "s|@PORT@|$2|" -e "s|@CONSOLE_PORT@|$3|" -e "s|@DATA@|$dir/$1|" -e "s|@ZK_PORT@|$ZK_PORT|" \
        -e "s|@SEGMENT_BYTES@|${SEGMENT_BYTES:-1073741824}|" "$here/server.ini.in" >"$dir/$1/conf/server.ini"
}

init() {
    ini master "$PORT" "$CONSOLE_PORT"
    ini slave "$SLAVE_PORT" "$SLAVE_CONSOLE_PORT"
    printf 'slaveId=0\nslaveGroup=meta-slave-group\nslaveMaxDelayInMills=500\n' >"$dir/slave/conf/async_slave.properties"
    mkdir -p "$dir/zk"
    printf '%s\n' "dataDir=$dir/zk" "clientPort=$ZK_PORT" clientPortAddress=127.0.0.1 tickTime=1000 maxClientCnxns=0 \
        admin.enableServer=false minSessionTimeout=1000 >"$dir/zk/zoo.cfg"
    # A session timeout is rounded up to the tick; snapshots and syncs of a test's ZooKeeper need not survive a crash.
    printf '%s=%q\n' port "$PORT" slave_port "$SLAVE_PORT" zk_port "$ZK_PORT" \
        mariadb_port "${MARIADB_PORT:-}" local_registry "${LOCAL:-}" bin "$METAQ_BIN_DIR" >"$dir/nodes.env"
}

start_zk() {
    alive zk && return
    local jars=/usr/share/java
    [ -f $jars/zookeeper.jar ] || fail "no $jars/zookeeper.jar: install the packages libzookeeper-java and libslf4j-java"
    spawn zk java -Xmx128m -Dzookeeper.forceSync=no -cp "$jars/zookeeper.jar:$jars/slf4j-nop.jar" \
        org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zk/zoo.cfg"
    # "srvr" is the one four-letter word that ZooKeeper answers unless told otherwise.
    come_up zk "$zk_port" srvr
}

start_master() {
    alive master && return
    spawn master "$bin/metaq-master" --config "$dir/master/conf/server.ini" ${local_registry:+--local}
    come_up master "$port" 'version 1\r\nquit\r\n'
    registered /meta/brokers/ids/0/master "$port" master
}

start_slave() {
    alive slave && return
    spawn slave "$bin/metaq-slave" --config "$dir/slave/conf/server.ini" \
        --slave-config "$dir/slave/conf/async_slave.properties" --slave-id 0
    come_up slave "$slave_port" 'version 1\r\nquit\r\n'
    registered /meta/brokers/ids/0/slave0 "$slave_port" slave
}

start_mariadb() {
    alive mariadb && return
    local data=$dir/mariadb user
    user=$(id -un)
    for program in mariadbd mariadb-install-db my_print_defaults; do
        PATH=$PATH:/usr/sbin command -v $program >/dev/null ||
            fail "no $program: install the packages mariadb-server-core and mariadb-client-core"
    done
    [ -d "$data" ] || mariadb-install-db --no-defaults "--datadir=$data" "--user=$user" --skip-test-db \
        >"$dir/mariadb-install.log" 2>&1 || fail "no database could be made: $dir/mariadb-install.log"
    mkdir -p "$data/metaq"
    # Nothing of the machine's own MariaDB is read, written or listened on; only this machine is let in, as anybody.
    PATH=$PATH:/usr/sbin spawn mariadb mariadbd --no-defaults "--datadir=$data" "--user=$user" \
        "--socket=$data/socket" "--pid-file=$data/pid" --bind-address=127.0.0.1 "--port=$mariadb_port" \
        --skip-networking=0 --skip-grant-tables --skip-name-resolve
    # Its greeting begins with a length and the number 10, which is the end of a line.
    come_up mariadb "$mariadb_port" ''
}

is_registered() { (registered "$@"); }

# By a reload, which says so when it is done.
ask_quorum() {
    local pid
    sed -i 's|^\[system\]|&\nackQuorum=2|' "$dir/master/conf/server.ini"
    read -r pid _ <"$dir/master.pid"
    kill -HUP "$pid"
    until_true 100 grep -q 'ackQuorum 1 → 2' "$dir/master.log" || fail "the master does not ask for a quorum: $dir/master.log"
}

promote() {
    end master KILL
    end slave TERM
    spawn master "$bin/metaq-slave" --config "$dir/slave/conf/server.ini" ${local_registry:+--local}
    come_up master "$slave_port" 'version 1\r\nquit\r\n'
    until_true 300 is_registered /meta/brokers/ids/0/master "$slave_port" master || fail "the promoted slave did not register"
}

# registered PATH PORT NAME. A master that was killed leaves its node behind until its session ends, so the topics,
# which come after it, tell more; the last of them is the configuration's checksum.
registered() {
    local uri
    uri=$(python3 "$here/zk-get.py" "127.0.0.1:$zk_port" "$1" 30) || fail "$3 did not register: $dir/$3.log"
    case $uri in
    *":$2"*) ;;
    *) fail "$1 holds '$uri', which is not the $3 at port $2" ;;
    esac
}

for command in "$@"; do
    [ "$command" = init ] || . "$dir/nodes.env"
    case $command in
    init) init ;;
    start-zk) start_zk ;;
    start-master) start_master ;;
    start-slave) start_slave ;;
    start-mariadb) start_mariadb ;;
    stop-zk | stop-master | stop-slave | stop-mariadb) end "${command#stop-}" TERM ;;
    kill-zk | kill-master | kill-slave) end "${command#kill-}" KILL ;;
    restart) end master TERM; start_master ;;
    crash) end master KILL; start_master ;;
    quorum) ask_quorum ;;
    promote) promote ;;
    stop) end slave TERM; end master TERM; end mariadb TERM; end zk TERM ;;
    *) usage ;;
    esac
done
