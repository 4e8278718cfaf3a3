#!/usr/bin/env bash
# A first look that proves something. Starts a master and its slave, publishes a file line by line while a consumer reads
# along, kills the master in the middle, makes the slave the master, and goes on. Then it reads everything back and says
# what was lost, what came twice, and whether the slave's files are the master's.
#
#   scripts/quickstart.sh [FILE]      a text of 100 lines or more; default: the machine's package log, else Cargo.lock
#
# Environment: METAQ_BIN_DIR (do not build, take these binaries), METAQ_QUICKSTART_SECONDS (how long the publishing
# should take, 8), METAQ_KEEP=1 (leave the scratch directory). The exit code is the verdict: 0 when every promise was kept.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${METAQ_QUICKSTART_SECONDS:-8}
topic=lines

say() { printf '%s\n' "$*"; }
die() { echo "quickstart.sh: $*" >&2; exit 1; }
# enough FILE: so many lines that a kill comes in the middle of them
enough() { [ -r "$1" ] && [ "$(head -100 "$1" | wc -l)" -eq 100 ]; }

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0 ;;
esac

file=${1:-}
if [ -z "$file" ]; then
    for file in /var/log/dpkg.log "$root/Cargo.lock"; do
        ! enough "$file" || break
    done
fi
[ ! -d "$file" ] && [ -r "$file" ] || die "$file cannot be read: name a text file"
enough "$file" || die "$file has too few lines for a kill in the middle: name a text of 100 or more"

if [ -z "${METAQ_BIN_DIR:-}" ]; then
    command -v cargo >/dev/null || die "no cargo in PATH: install Rust (https://rustup.rs), or name binaries in METAQ_BIN_DIR"
    say "Building (cargo build --release); the first time takes some minutes ..."
    (cd "$root" && cargo build --release --locked --quiet --bin metaq-master --bin metaq-slave --bin metaq)
    METAQ_BIN_DIR=${CARGO_TARGET_DIR:-$root/target}/release
fi

dir=$(mktemp -d /tmp/metaq-quickstart.XXXXXX)
pids=()
finish() {
    local code=$? pid
    trap - EXIT
    for pid in "${pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    if [ $code -eq 0 ] && [ -z "${METAQ_KEEP:-}" ]; then rm -rf "$dir"; else say "Logs and data: $dir"; fi
    exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# answers PORT: whether a broker there answers
answers() {
    local line
    { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
    printf 'version 1\r\nquit\r\n' >&3
    IFS= read -r -t 2 line <&3 || line=
    exec 3>&-
    [[ $line == result\ 200\ * ]]
}

# wait_until SECONDS WHAT COMMAND...
wait_until() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt $deadline ] || die "waited in vain until $what"
        sleep 0.02
    done
}

# Below the range from which connections get their ports; taken ones are passed over.
next_port=$((20000 + RANDOM % 10000))
free_port() { # free_port VARIABLE
    while { exec 3<>"/dev/tcp/127.0.0.1/$next_port"; } 2>/dev/null; do
        exec 3>&-
        next_port=$((next_port + 1))
    done
    printf -v "$1" %s "$next_port"
    next_port=$((next_port + 1))
}

configure() { # configure NAME PORT CONSOLE_PORT
    mkdir -p "$dir/$1"
    cat >"$dir/$1/server.ini" <<INI
[system]
brokerId=0
hostName=127.0.0.1
serverPort=$2
dashboardHttpPort=$3
numPartitions=4
dataPath=$dir/$1/data
; every message is on disk before its put is answered
unflushThreshold=0
unflushInterval=10000
maxTransferSize=1048576
; small, so that the logs roll while you watch
maxSegmentSize=65536

[zookeeper]
zk.zkConnect=127.0.0.1:$zk_port

[topic=$topic]
INI
}

# start NAME COMMAND...: in the background; its pid is in $started
start() {
    local name=$1
    shift
    "$@" >>"$dir/$name.log" 2>&1 </dev/null &
    started=$!
    pids+=("$started")
}

# serves NAME PORT PID
serves() {
    answers "$2" || {
        kill -0 "$3" 2>/dev/null || { tail -5 "$dir/$1.log" >&2; die "the $1 ended; its last lines are above"; }
        return 1
    }
}

metaq() { "$METAQ_BIN_DIR/metaq" --zk "127.0.0.1:$zk_port" "$@"; }
acknowledged() { if [ -f "$dir/ledger" ]; then grep -c '"outcome":"stored"' "$dir/ledger" || true; else echo 0; fi; }
stored() { [ "$(acknowledged)" -ge "$1" ]; }
now_ms() { date +%s%3N; }

free_port master_port
free_port slave_port
free_port zk_port
free_port master_console
free_port slave_console
configure master "$master_port" "$master_console"
configure slave "$slave_port" "$slave_console"

# A number in front makes every line a message of its own, so that what comes twice can be told.
awk '{ print NR ": " $0 }' "$file" | head -20000 >"$dir/input"
lines=$(wc -l <"$dir/input")
rate=$((lines / seconds + 1))

say "Starting a master on port $master_port and its slave on port $slave_port, below $dir"
start master "$METAQ_BIN_DIR/metaq-master" --config "$dir/master/server.ini" --local
master=$started
wait_until 60 "the master serves" serves master "$master_port" "$master"
start slave "$METAQ_BIN_DIR/metaq-slave" --config "$dir/slave/server.ini" --slave-id 0
slave=$started
wait_until 60 "the slave serves" serves slave "$slave_port" "$slave"
announced() { metaq topic list 2>/dev/null | grep -q "$topic"; }
wait_until 30 "the topic is announced in the registry" announced
wait_until 30 "the slave follows the master" grep -q "following the master" "$dir/slave.log"

say "Publishing $lines lines of $file at $rate a second, while a consumer reads along"
start put "$METAQ_BIN_DIR/metaq" --zk "127.0.0.1:$zk_port" put "$dir/input" --topic $topic --rate $rate --ledger "$dir/ledger"
put=$started
start consumer "$METAQ_BIN_DIR/metaq" --zk "127.0.0.1:$zk_port" --format json consume --topic $topic --from start --follow
consumer=$started
wait_until $((seconds + 60)) "a third of the lines is published" stored $((lines / 3 + 1))

killed_ms=$(now_ms)
disown "$master" # or the shell would report the kill, too
kill -KILL "$master"
say "Killed the master (kill -9) after $(acknowledged) acknowledged lines"

kill -TERM "$slave"
code=0
wait "$slave" || code=$?
[ $code -eq 0 ] || die "the slave ended with exit code $code: $dir/slave.log"

# Where each log of the slave ends now is where the new reign begins.
for partition in "$dir"/slave/data/$topic-*; do
    [ -d "$partition" ] || continue
    last=$(find "$partition" -name '*.meta' -printf '%f %s\n' | sort | tail -1)
    [ -n "$last" ] || continue
    base=${last%%.meta*}
    echo "${partition##*-} $((10#$base + ${last##* }))"
done >"$dir/ends"
# The files as they are now, to be held against the master's.
cp -r "$dir/slave/data" "$dir/slave-at-promotion"

start promoted "$METAQ_BIN_DIR/metaq-slave" --config "$dir/slave/server.ini" --local
promoted=$started
wait_until 60 "the promoted slave serves" serves promoted "$slave_port" "$promoted"
say "Promoted the slave, by starting it without --slave-id. It said:"
sed -n 's/^.*promotion: /    /p' "$dir/promoted.log"

code=0
wait "$put" || code=$?
[ $code -eq 0 ] || { tail -3 "$dir/put.log" >&2; die "publishing failed with exit code $code"; }
metaq --format json consume --topic $topic --from start >"$dir/readback" 2>>"$dir/readback.log"
# A consumer may have read from the master what the slave did not have yet. Its place is then between two messages of the
# new master, and where it goes on from there is its own affair; else it has to have read along to the end.
read_along() {
    ! kill -0 "$consumer" 2>/dev/null ||
        [ "$(grep -c '"payload":' "$dir/consumer.log")" -ge "$(wc -l <"$dir/readback")" ] || [ $SECONDS -ge $patience ]
}
patience=$((SECONDS + 20))
wait_until 30 "the consumer has read along to the end" read_along

# first_difference: the first byte, up to the slave's end, at which a file of slave and master differ; else "none"
first_difference() {
    local number end found
    while read -r number end; do
        found=$(cmp <(cat "$dir/master/data/$topic-$number"/*.meta | head -c "$end") \
            <(cat "$dir/slave-at-promotion/$topic-$number"/*.meta | head -c "$end") 2>&1) ||
            { echo "$topic-$number: ${found##* differ: }"; return; }
        # The same files, too: each of the slave's is named like one of the master's.
        for found in "$dir/slave-at-promotion/$topic-$number"/*.meta; do
            [ -e "$dir/master/data/$topic-$number/${found##*/}" ] ||
                { echo "$topic-$number: the master has no ${found##*/}"; return; }
        done
    done <"$dir/ends"
    echo none
}

# What was promised (the ledger) against what is there (read back). Ids stay text: awk's numbers do not hold them.
count() {
    awk -v promoted="127.0.0.1:$slave_port" -v killed="$killed_ms" '
        function field(name,    at, rest) {
            at = index($0, "\"" name "\":")
            if (!at) return ""
            rest = substr($0, at + length(name) + 3)
            sub(/^"/, "", rest)
            match(rest, /^[^,}"]*/)
            return substr(rest, 1, RLENGTH)
        }
        FILENAME ~ /ends$/ { end[$1] = $2; next }
        FILENAME ~ /consumer.log$/ {
            if (!/"payload":/) next
            if ((field("partition") " " field("offset") " " field("id")) in there) along++
            else ahead++
            next
        }
        FILENAME ~ /readback$/ {
            there[field("partition") " " field("offset") " " field("id")] = field("checksum")
            line = field("payload"); sub(/:.*/, "", line)
            if (line in seen) twice++
            seen[line] = 1; read++
            next
        }
        field("outcome") == "unknown" { unknown++ }
        field("outcome") == "stored" {
            stored++
            by_new = (field("broker") == promoted)
            if (by_new) { after++; if (!first || field("unix_ms") + 0 < first) first = field("unix_ms") + 0 }
            else if (field("offset") + 0 < end[field("partition")] + 0) confirmed++
            else beyond++
            place = field("partition") " " field("offset") " " field("id")
            if (there[place] != field("checksum")) {
                lost++
                if (by_new || field("offset") + 0 < end[field("partition")] + 0) broken++
            }
        }
        END { print stored + 0, confirmed + 0, beyond + 0, after + 0, lost + 0, broken + 0, twice + 0, unknown + 0, read + 0,
            first - killed, along + 0, ahead + 0 }
    ' "$dir/ends" "$dir/readback" "$dir/consumer.log" "$dir/ledger"
}

read -r acknowledged confirmed announced after lost broken twice unknown read_back outage_ms along ahead < <(count)
difference=$(first_difference)
cat <<RESULT

acknowledged                                   $acknowledged of $lines lines, $after of them by the promoted slave
confirmed by the slave before the promotion    $confirmed
announced as lost: acknowledged, not confirmed $announced
lost                                           $lost
  of those confirmed or acknowledged later     $broken
read back                                      $read_back
read along by the waiting consumer             $along, and $ahead that the slave did not have
duplicated: answer lost, so published again    $twice (of $unknown unknown outcomes)
first difference of slave's and master's files $difference
time without service                           $outage_ms ms
RESULT

verdict=0
fault() { say "BROKEN: $*"; verdict=1; }
[ "$acknowledged" -eq "$lines" ] || fault "$((lines - acknowledged)) lines were not acknowledged in the end"
[ "$after" -gt 0 ] && [ "$confirmed" -gt 0 ] || fault "the master was not killed in the middle of the publishing"
[ "$broken" -eq 0 ] || fault "messages that were safe are gone"
[ "$lost" -eq "$announced" ] || fault "lost $lost, announced $announced"
[ "$twice" -le "$unknown" ] || fault "more duplicates than unknown outcomes"
[ "$along" -ge "$read_back" ] || [ "$ahead" -gt 0 ] || fault "the waiting consumer missed messages: $dir/consumer.log"
[ "$difference" = none ] || fault "the slave's files are not the master's"
[ $verdict -ne 0 ] || say "Every promise was kept. To do it yourself: 'By hand' in README.md; METAQ_KEEP=1 leaves logs and data."
say "$((1 - verdict)) passed, $verdict failed"
exit $verdict
