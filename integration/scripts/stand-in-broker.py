#!/usr/bin/env python3
"""Stands in for a broker in the tests of metaServer.sh: answers `stats`, and does what the file BASE/behave says.

behave: "exit N" (end at once with that code), "ignore-term", "slow" (answer only after a second), "refuse-reload",
"refuse-certificates", "no-zookeeper" (never register), "not-ready" (the same, with a console that says so), "place-taken"
(serve, and end when the place in ZooKeeper turns out to be another's).
It takes the arguments of metaq-master and metaq-slave and logs them.
"""
import json
import os
import re
import signal
import socket
import sys
import threading
import time


def main():
    print("arguments:", *sys.argv[1:], flush=True)
    config = sys.argv[sys.argv.index("--config") + 1]
    base = os.path.dirname(os.path.dirname(config))
    with open(config, encoding="utf-8") as file:
        text = file.read()
    port = int(re.search(r"^serverPort=(\d+)", text, re.MULTILINE).group(1))
    if "mistake" in text:
        print("%s:9: unknown key 'mistake'" % config, flush=True)
        sys.exit(78)
    if "--check-config" in sys.argv:
        return
    behave = open(os.path.join(base, "behave"), encoding="utf-8").read().split() or [""]
    if behave[0] == "exit":
        print("cannot go on", flush=True)
        sys.exit(int(behave[1]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behave[0] == "ignore-term" else lambda *_: os._exit(0))
    verdict = {
        "refuse-reload": "reload refused",
        "refuse-certificates": "reload: the certificates stay as they were: rubbish\nreload: the file has not changed",
    }.get(behave[0], "reload done differences=1")
    signal.signal(signal.SIGHUP, lambda *_: print(verdict, flush=True))
    if behave[0] == "slow":
        time.sleep(1)
    if behave[0] in ("no-zookeeper", "not-ready"):
        print("accepting messages\nputs are refused until ZooKeeper confirms it: no zookeeper answers", flush=True)
    if behave[0] == "not-ready":
        console = int(re.search(r"^dashboardHttpPort=(\d+)", text, re.MULTILINE).group(1))
        listener = socket.create_server(("127.0.0.1", console))
        threading.Thread(target=serve, args=(listener, tell_readiness), daemon=True).start()
    listener = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=serve, args=(listener, tell_stats), daemon=True).start()
    time.sleep(0.5)
    if behave[0] == "place-taken":
        print("this data was replaced", flush=True)
        sys.exit(1)
    if behave[0] not in ("no-zookeeper", "not-ready"):
        print("registered in zookeeper", flush=True)
    threading.Event().wait()


def serve(listener, tell):
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock, tell), daemon=True).start()


def answer(sock, tell):
    with sock:
        tell(sock, sock.makefile())


def tell_stats(sock, lines):
    words = lines.readline().split()
    if words[:1] == ["stats"]:
        slave = str("--slave-id" in sys.argv).lower()
        body = "STATS\r\npid %d\r\nslave %s\r\nitem %s\r\nEND\r\n" % (os.getpid(), slave, "".join(words[1:]))
        sock.sendall(b"result 200 %d 2147483647\r\n%s" % (len(body), body.encode()))


def tell_readiness(sock, lines):
    words = lines.readline().split()
    while lines.readline().strip():
        pass
    if words[1:2] == ["/readyz"]:
        gate = {"code": "gate_shut", "detail": 'waits for "zk\\1"'}
        quorum = {"code": "quorum", "detail": "too few slaves"}
        note = {"code": "passed_over", "detail": "a note"}
        body = json.dumps({"ready": False, "reasons": [gate, quorum], "notes": [note]}, separators=(",", ":"))
        sock.sendall(b"HTTP/1.0 503 Service Unavailable\r\n\r\n%s\n" % body.encode())


if __name__ == "__main__":
    main()
