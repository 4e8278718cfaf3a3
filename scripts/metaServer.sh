#!/usr/bin/env bash
# Controls one broker on this machine, with the verbs people know. `metaServer.sh help` lists them.
set -uo pipefail

self=$(readlink -f "${BASH_SOURCE[0]}")
BASE=${BASE_DIR:-$(cd "$(dirname "$self")/.." && pwd)}
config=$BASE/conf/server.ini
slave_config=$BASE/conf/async_slave.properties
logs=$BASE/logs
log=$logs/metaServer.log
pid_file=$logs/.run.pid

start_seconds=${METAQ_START_SECONDS:-120}
register_seconds=${METAQ_REGISTER_SECONDS:-5}
stop_seconds=${METAQ_STOP_SECONDS:-60}
reload_seconds=${METAQ_RELOAD_SECONDS:-30}
log_bytes_max=${METAQ_LOG_BYTES_MAX:-104857600}
log_files_kept=5

# Who is a slave is said by the verb alone.
unset METAQ_SLAVE_ID

# Exit codes, beside the broker's own (start) and the usual 0 and 1.
EX_STOPPED=3 EX_USAGE=64 EX_UNAVAILABLE=69 EX_CONFIG=78

usage() {
    cat <<USAGE
usage: metaServer.sh COMMAND
  start               start the broker as master; returns when it serves
  start slave         as the asynchronous slave of conf/async_slave.properties
  start samsa         as the master of a synchronous pair: puts are answered when its slave holds them (ackQuorum=2)
  start gregor        as the slave of a synchronous pair; needs a samsa to be of use
  start local         as master with a registry of its own: no ZooKeeper, for a first look
  stop [-f]           stop it in order, at most $stop_seconds s; with -f it is killed after that
  restart [slave|local|samsa|gregor]
                      stop, then start. Without 'slave' or 'gregor' a slave comes back as master: that is the promotion
  reload              check conf/server.ini and take over its topics
  status              whether it runs and answers (exit code 0; what it is not ready for is said), runs without
                      answering (1) or is stopped ($EX_STOPPED)
  slave-status        how far the slaves are behind
  stats [[-item] X]   the broker's statistics; X: topics, offsets, realtime, config, transactions, durability, quorum,
                      transport, replicas (on a master), replication (on a slave), help, reset or a topic
  help                this text
files: $config, $log, $pid_file
environment: BASE_DIR (the directory with conf/ and logs/), METAQ_BIN_DIR (where the binaries are),
  METAQ_ACK_QUORUM (2: the members of start samsa), METAQ_LOG_BYTES_MAX (104857600: start moves a larger log aside,
  $log_files_kept are kept); how long to wait, in seconds, until the broker serves: METAQ_START_SECONDS (120), is in ZooKeeper:
  METAQ_REGISTER_SECONDS (5), has ended: METAQ_STOP_SECONDS (60), has reloaded: METAQ_RELOAD_SECONDS (30)
USAGE
}

die() { # die EXIT_CODE TEXT
    echo "metaServer.sh: $2" >&2
    exit "$1"
}

# binary NAME: where an installation, then a build tree, then the path has it
binary() {
    local place
    for place in "${METAQ_BIN_DIR:-}" "$BASE/bin" "$BASE/target/release"; do
        if [ -n "$place" ] && [ -x "$place/$1" ]; then
            echo "$place/$1"
            return
        fi
    done
    command -v "$1" || die $EX_UNAVAILABLE "no $1 in $BASE/bin, $BASE/target/release or PATH: build it with 'cargo build --release', or set METAQ_BIN_DIR"
}

# ini KEY DEFAULT: a key of the [system] section
ini() {
    awk -v key="$1" -v value="$2" '
        { sub(/\r$/, "") }
        /^[ \t]*\[/ { inside = ($0 ~ /^[ \t]*\[system\]/); next }
        inside && /^[ \t]*[^;#]/ {
            at = index($0, "="); name = substr($0, 1, at - 1); gsub(/[ \t]/, "", name)
            if (at && name == key) { value = substr($0, at + 1); gsub(/^[ \t]+|[ \t]+$/, "", value) }
        }
        END { print value }' "$config"
}

# The pid of this installation's broker, if it runs. The command line must be that of a broker with our configuration:
# a pid that another process has taken over since does not count.
running_pid() {
    local pid words
    [ -f "$pid_file" ] && read -r pid <"$pid_file" && [[ $pid =~ ^[0-9]+$ ]] || return 1
    mapfile -d '' -t words 2>/dev/null <"/proc/$pid/cmdline" || return 1
    case "$(basename -- "${words[0]:-ended}")" in metaq-master | metaq-slave) ;; *) return 1 ;; esac
    printf '%s\n' "${words[@]}" | grep -qxF -- "$config" || return 1
    ! grep -q '^State:[[:space:]]*[ZX]' "/proc/$pid/status" 2>/dev/null || return 1
    echo "$pid"
}

# Where the broker listens, the likeliest first: the one address it is bound to, or every one.
addresses() {
    local bound
    bound=$(ini bindHost 0.0.0.0)
    case $bound in 0.0.0.0 | ::) echo 127.0.0.1 ;; *) echo "$bound" ;; esac
    ini hostName localhost | tr -d '[]'
}

# ask REQUEST: the text of the broker's answer to one request line. Fails when nothing answers within 3 s.
ask() {
    local port host head
    port=$(ini serverPort 8123)
    for host in $(addresses); do
        if { exec 4<>"/dev/tcp/$host/$port"; } 2>/dev/null; then
            printf '%s\r\nquit\r\n' "$1" >&4
            if IFS= read -r -t 3 head <&4 && [[ $head == result\ 200\ * ]]; then
                timeout 10 cat <&4
                exec 4>&-
                return 0
            fi
            exec 4>&-
        fi
    done
    return 1
}

# The broker that serves our port says which process it is; nothing else may be taken for ours.
serving_pid() { ask stats 2>/dev/null | tr -d '\r' | sed -n 's/^pid //p'; }

rotate_log() {
    local n
    [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -gt "$log_bytes_max" ] || return 0
    for ((n = log_files_kept - 1; n >= 1; n--)); do
        [ ! -f "$log.$n" ] || mv "$log.$n" "$log.$((n + 1))"
    done
    mv "$log" "$log.1"
}

# Two people, or a person and a timer, must not start and stop at once.
lock() {
    mkdir -p "$logs" || die 1 "cannot create $logs"
    { exec 9>"$logs/.lock"; } 2>/dev/null || die 1 "cannot write to $logs"
    flock -n 9 || die 1 "another start, stop or restart is at work (it holds $logs/.lock)"
}

slave_id() {
    local id
    [ -f "$slave_config" ] || die $EX_CONFIG "no $slave_config: 'start slave' takes slaveId from it"
    id=$(tr -d '\r' <"$slave_config" | sed -n 's/^[[:space:]]*slaveId[[:space:]]*[=:][[:space:]]*\([^[:space:]]*\).*/\1/p' | tail -1)
    [[ $id =~ ^[0-9]+$ ]] || die $EX_CONFIG "$slave_config: slaveId is '$id', and should be a number from 0 up"
    echo "$id"
}

has_config() { [ -f "$config" ] || die $EX_CONFIG "no $config: copy the sample and edit it"; }

# Whether the data was last used by a slave: then a start as master is a promotion.
was_slave() {
    local data
    data=$(ini dataPath "$HOME/meta")
    (cd "$BASE" && [ -e "$data/.metaq/replica.json" ])
}

# command_of TYPE: fills the array `launch`
command_of() {
    local program id
    has_config
    case $1 in
    "" | master | local)
        # Without a slave id the slave's binary says what may be missing, and is the master then.
        if was_slave; then
            program=$(binary metaq-slave) || exit $?
        else
            program=$(binary metaq-master) || exit $?
        fi
        launch=("$program" --config "$config")
        [ "$1" != local ] || launch+=(--local) ;;
    slave)
        id=$(slave_id) || exit $?
        program=$(binary metaq-slave) || exit $?
        launch=("$program" --config "$config" --slave-config "$slave_config" --slave-id "$id") ;;
    samsa)
        # The master of a synchronous pair: nothing is acknowledged that its slave does not hold.
        command_of master
        launch+=(--ack-quorum "${METAQ_ACK_QUORUM:-2}") ;;
    gregor)
        # Its slave: with the file's slaveId where there is one, for the original's gregor had none.
        id=0
        [ ! -f "$slave_config" ] || id=$(slave_id) || exit $?
        program=$(binary metaq-slave) || exit $?
        launch=("$program" --config "$config" --slave-config "$slave_config" --slave-id "$id") ;;
    *) die $EX_USAGE "unknown type '$1': start [slave|local|samsa|gregor]" ;;
    esac
}

# gone PID LOG_START: fails with the broker's exit code and what it said, if it has ended
gone() {
    local code
    ! kill -0 "$1" 2>/dev/null || return 0
    wait "$1"
    code=$?
    rm -f "$pid_file"
    tail -c +$(($2 + 1)) "$log" | tail -20 >&2
    # A broker that ends while it should start has failed, whatever it says.
    [ $code -ne 0 ] || code=1
    die $code "the broker ended with exit code $code; its last lines are above, all of them in $log"
}

# registers PID LOG_START: waits for its place in ZooKeeper, which another broker may have. It serves reads before.
registers() {
    local deadline=$((SECONDS + register_seconds))
    ! grep -qE '^[[:space:]]*zk\.zkEnable[[:space:]]*=[[:space:]]*false' "$config" || return 0
    until tail -c +$(($2 + 1)) "$log" | grep 'registered in zookeeper' >/dev/null; do
        gone "$1" "$2"
        if [ $SECONDS -ge $deadline ]; then
            echo "Clients cannot find it in ZooKeeper yet; it goes on trying. Its last line: $(tail -1 "$log")"
            return
        fi
        sleep 0.1
    done
}

start() {
    local type=${1:-} pid log_start deadline
    command_of "$type"
    if pid=$(running_pid); then
        die 1 "Broker is running. (pid $pid)"
    fi
    pid=$(serving_pid)
    [ -z "$pid" ] || die 1 "port $(ini serverPort 8123) is already served by process $pid: stop that, or change serverPort in $config"
    rotate_log
    log_start=$(stat -c %s "$log" 2>/dev/null || echo 0)
    echo "Starting: ${launch[*]}"
    cd "$BASE" || die 1 "cannot enter $BASE"
    setsid "${launch[@]}" >>"$log" 2>&1 </dev/null 9>&- &
    pid=$!
    echo "$pid" >"$pid_file"
    deadline=$((SECONDS + start_seconds))
    until [ "$(serving_pid)" = "$pid" ]; do
        gone "$pid" "$log_start"
        [ $SECONDS -lt $deadline ] ||
            die 1 "the broker (pid $pid) does not answer after $start_seconds s; it goes on starting, see $log"
        sleep 0.1
    done
    registers "$pid" "$log_start"
    echo "Broker is running. (pid $pid)"
}

# A process that is not our child has no exit code for us: what can be told is whether it is gone.
stop() {
    local force=${1:-} pid began said=0
    pid=$(running_pid) || { rm -f "$pid_file"; return $EX_STOPPED; }
    kill -TERM "$pid" 2>/dev/null || die 1 "not allowed to stop process $pid: be its owner or root"
    began=$SECONDS
    while running_pid >/dev/null; do
        if [ $((SECONDS - began)) -ge "$stop_seconds" ]; then
            [ "$force" = -f ] || die 1 "the broker (pid $pid) has not ended after $stop_seconds s; its last line: $(tail -1 "$log"). Wait on, or kill it with 'stop -f'"
            echo "Killing the broker (pid $pid) after $stop_seconds s."
            kill -KILL "$pid" 2>/dev/null
            force=-f began=$SECONDS
        elif [ $((SECONDS - began)) -ge $((said + 5)) ]; then
            said=$((SECONDS - began))
            echo "Waiting for the broker (pid $pid) to unregister, to finish its requests and to sync its files: ${said} of ${stop_seconds} s"
        fi
        sleep 0.1
    done
    rm -f "$pid_file"
    echo "Broker is stopped."
}

reload() {
    local pid size said program deadline
    pid=$(running_pid) || die $EX_STOPPED "Broker is stopped."
    program=$(binary metaq-master) || exit $?
    # What is wrong with the file is told here, where a person reads it; the broker checks it again.
    "$program" --config "$config" --check-config || exit $?
    size=$(stat -c %s "$log" 2>/dev/null || echo 0)
    kill -HUP "$pid" || die 1 "not allowed to signal process $pid: be its owner or root"
    deadline=$((SECONDS + reload_seconds))
    until tail -c +$((size + 1)) "$log" | grep -E 'reload (done|refused)|reload: the file has not changed' >/dev/null; do
        running_pid >/dev/null || die 1 "the broker ended while reloading: see $log"
        [ $SECONDS -lt $deadline ] || die 1 "the broker has not told the outcome after $reload_seconds s: see $log"
        sleep 0.1
    done
    # The lines before the verdict say what changed, or what is wrong.
    said=$(tail -c +$((size + 1)) "$log" | sed '/reload \(done\|refused\)\|reload: the file has not changed/q')
    printf '%s\n' "$said"
    [[ $said != *'reload refused'* && $said != *'the certificates stay as they were'* ]]
}

status() {
    local pid
    if ! pid=$(running_pid); then
        echo "Broker is stopped."
        return $EX_STOPPED
    fi
    if [ "$(serving_pid)" = "$pid" ]; then
        echo "Broker is running. (pid $pid, $(role), port $(ini serverPort 8123))"
        not_ready | sed 's/^/Not ready: /' || true
    else
        echo "Broker is running, but does not answer on port $(ini serverPort 8123). (pid $pid; see $log)"
        return 1
    fi
}

# What keeps the broker from its work, one reason a line: those of /readyz, or without a console what the log says.
not_ready() {
    local port host answer body
    port=$(ini dashboardHttpPort 8120)
    host=$(ini dashboardHttpHost 127.0.0.1 | tr -d '[]')
    case $host in '' | 0.0.0.0 | ::) host=127.0.0.1 ;; esac
    # A port that is another broker's keeps ours from having a console, and says nothing of it.
    if ! grep -E 'serving metrics over HTTP|no metrics: cannot listen' "$log" 2>/dev/null | tail -1 | grep -q 'no metrics' &&
        [ "$port" != 0 ] && { exec 5<>"/dev/tcp/$host/$port"; } 2>/dev/null; then
        printf 'GET /readyz HTTP/1.0\r\nHost: %s\r\n\r\n' "$host" >&5
        answer=$(timeout 3 cat <&5)
        exec 5>&-
        if [[ $answer == HTTP/1.?\ [25]* ]]; then
            body=${answer#*$'\r\n\r\n'}
            grep -oE '"detail":"([^"\\]|\\.)*"' <<<"${body%%'],"notes":'*}" |
                sed 's/^"detail":"//; s/"$//; s/\\\(["\\]\)/\1/g'
            return
        fi
    fi
    grep -E 'puts are refused until|accepting messages' "$log" 2>/dev/null | tail -1 |
        sed -n 's/.*\(puts are refused until.*\)/\1/p'
}

role() { ask stats | tr -d '\r' | grep -qx 'slave true' && echo slave || echo master; }

slave_status() {
    local program
    running_pid >/dev/null || die $EX_STOPPED "Broker is stopped."
    program=$(binary metaq) || exit $?
    exec "$program" --config "$config" replica status
}

stats() {
    local item=
    has_config
    [ "${1:-}" != -item ] || shift
    case ${1:-} in
    -*) die $EX_USAGE "unknown argument '$1': stats [[-item] X]" ;;
    *) item=${1:-} ;;
    esac
    [ $# -le 1 ] || die $EX_USAGE "one item at a time, and not '$2' as well: stats [[-item] X]"
    ask "stats $item" || die $EX_UNAVAILABLE "no broker answers on port $(ini serverPort 8123)"
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
start) lock; start "${1:-}" ;;
stop)
    lock
    stop "${1:-}" || { echo "Broker is not running." >&2; exit 1; } ;;
restart)
    command_of "${1:-}" # a wrong type must not stop what runs
    lock
    stop || echo "Broker is not running; starting it."
    start "${1:-}" ;;
reload) reload ;;
status) status ;;
slave-status) slave_status ;;
stats) stats "$@" ;;
open-partitions | close-partitions)
    die $EX_USAGE "'$command' is not available yet: set acceptPublish=false or acceptSubscribe=false for the whole topic in $config, or take it out again, then 'reload'" ;;
move-partitions | delete-partitions)
    die $EX_USAGE "'$command' is not available: stop the broker and move or remove the directories below dataPath; docs/runbooks/README.md says in which order a topic goes" ;;
query) die $EX_USAGE "'query' is not available: 'metaq group list' and 'metaq group describe GROUP' show the stored offsets" ;;
help | -h | --help) usage ;;
"") usage >&2; exit 1 ;;
*)
    usage >&2
    die 1 "unknown command '$command': one of the above" ;;
esac
