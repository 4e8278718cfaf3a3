#!/usr/bin/env bash
# Builds the Java program and runs it. Arguments are key=value pairs (see README.md), for example
#   ./run.sh broker=127.0.0.1:8123 zk=127.0.0.1:2181 only=ab
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
build=${CONF_BUILD:-$PWD/target}
work=${CONF_WORK:-$build/work}
mkdir -p "$build" "$work"
# The stamp is written last, so that an interrupted download is done again.
if [ ! -f "$build/lib.stamp" ] || [ pom.xml -nt "$build/lib.stamp" ]; then
    mvn -q -B dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$build/lib"
    touch "$build/lib.stamp"
fi
mkdir -p "$build/classes"
javac -nowarn --release 17 -Xlint:none -cp "$build/lib/*" -d "$build/classes" src/main/java/conformance/*.java
cp src/main/resources/* "$build/classes/"
props=()
for arg in "$@"; do
    case $arg in
    *=*) props+=("-Dconf.$arg") ;;
    *) echo "run.sh: not key=value: $arg" >&2; exit 64 ;;
    esac
done
# A home of its own, since the client writes offsets and rejected messages there.
exec java "-Duser.home=$work" "-Dconf.work=$work" "-Dconf.log=$work/client.log" \
    "-Dmeta.recover.path=$work/recover" ${JAVA_EXTRA:-} "${props[@]}" \
    -cp "$build/classes:$build/lib/*" conformance.Main
