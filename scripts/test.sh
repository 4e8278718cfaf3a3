#!/usr/bin/env bash
# Runs every test on a machine with Debian 12 and Rust. What else the steps need is installed, when it is missing.
#   scripts/test.sh [STEP...]      in the order given; default: all
# Steps:
#   build       the release binaries that the steps from scripts on use: name it first after a change
#   rust        unit and integration tests     sim         10000 seeds of the simulation
#   scripts     metaServer.sh                  quickstart  scripts/quickstart.sh
#   golden      what the Java broker recorded  java        the Java client   java-local  the same without ZooKeeper
# The last line is "N passed, N failed"; the exit code is 0 when nothing failed. Output of each step: target/test-logs.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
logs=${CARGO_TARGET_DIR:-$root/target}/test-logs
mkdir -p "$logs"
export METAQ_BIN_DIR=${CARGO_TARGET_DIR:-$root/target}/release

say() { echo "== $*"; }

steps=(build rust sim scripts quickstart golden java java-local)
case ${1:-} in
-h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0 ;;
esac
for name in "$@"; do
    [[ " ${steps[*]} " == *" $name "* ]] || {
        echo "test.sh: unknown step $name; steps are: ${steps[*]}" >&2
        exit 64
    }
done
# Who interrupts a step wants no other.
trap 'exit 130' INT
trap 'exit 143' TERM

# need PACKAGE COMMAND_OR_FILE: remembers the package when what we use of it is not there
missing=()
need() {
    case $2 in
    /*) [ -e "$2" ] || missing+=("$1") ;;
    *) command -v "$2" >/dev/null || missing+=("$1") ;;
    esac
}

# needs STEP: what one step uses
needs() {
    case $1 in
    build | sim) needs_linker ;;
    rust)
        needs_linker
        needs_java
        # Fault rounds: network namespaces, cuts, slow disks.
        need iproute2 /usr/sbin/ip
        need nftables /usr/sbin/nft
        need strace strace ;;
    scripts | golden) need python3 python3 ;;
    java | java-local)
        need python3 python3
        needs_java
        # The programs without the service, which would be started as soon as it is installed.
        need mariadb-server-core /usr/sbin/mariadbd
        need mariadb-client-core /usr/bin/my_print_defaults ;;
    esac
}

# What rustc links with, and the headers for the C code of crates: gcc only recommends them.
needs_linker() {
    need gcc cc
    need libc6-dev /usr/include/stdlib.h
}

# The Java client, and a real ZooKeeper.
needs_java() {
    need openjdk-17-jdk-headless javac
    need maven mvn
    need libzookeeper-java /usr/share/java/zookeeper.jar
    need libslf4j-java /usr/share/java/slf4j-nop.jar
}

install_missing() {
    local name
    for name in "$@"; do
        needs "$name"
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        as_root=(sudo -n)
        sudo -n true 2>/dev/null || {
            echo "test.sh: missing packages: ${missing[*]}; run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
            exit 69
        }
    fi
    say "installing ${missing[*]}"
    "${as_root[@]}" apt-get -q update &&
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -q install -y --no-install-recommends "${missing[@]}" ||
        { echo "test.sh: apt-get could not install ${missing[*]}" >&2; exit 69; }
}

passed=0 failed=0 built=0 table=()

# step NAME COMMAND...: runs it, and adds what it counted: cargo's "N passed; N failed", or a last line "N passed, N failed"
step() {
    local name=$1 begin=$SECONDS code p f
    shift
    say "$name: $*"
    "$@" 2>&1 | tee "$logs/$name.log"
    code=${PIPESTATUS[0]}
    if [ "$name" = rust ]; then
        # A test program that was killed has no result line.
        read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } /\(signal: / { f++ } END { print p + 0, f + 0 }' \
            "$logs/$name.log")
    else
        read -r p f < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed.*/\1 \2/p' "$logs/$name.log" | tail -1)
    fi
    p=${p:-0} f=${f:-0}
    # A step that failed without counting a failure is one, as is a run that tested nothing.
    [ "$code" -eq 0 ] || [ "$f" -gt 0 ] || f=1
    [ "$name" = build ] || [ $((p + f)) -gt 0 ] || f=1
    passed=$((passed + p)) failed=$((failed + f))
    [ "$name" != build ] || built=$code
    table+=("$(printf '%-12s %5d passed %5d failed %6d s' "$name" "$p" "$f" $((SECONDS - begin)))")
}

run() {
    case $1 in
    build) step build cargo build --release --locked --workspace --bins ;;
    rust) step rust cargo test --workspace --locked --no-fail-fast ;;
    sim) step sim cargo run --release --locked -p metaq-sim -- --seeds 10000 ;;
    scripts) step scripts integration/scripts/metaServer-test.sh ;;
    quickstart) step quickstart scripts/quickstart.sh ;;
    golden) step golden integration/java/suite.sh --golden ;;
    java) step java integration/java/suite.sh ;;
    java-local) step java-local integration/java/suite.sh --local ;;
    esac
}

[ $# -gt 0 ] || set -- "${steps[@]}"
install_missing "$@"
for name in "$@"; do
    run "$name"
    # Binaries of an earlier build would prove nothing.
    [ "$built" -eq 0 ] || break
done
printf '\n'
printf '%s\n' "${table[@]}"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
