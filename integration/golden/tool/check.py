#!/usr/bin/env python3
"""Compares a broker with the golden data. Python 3, standard library only.

  check.py data  HOST:PORT ../manifest-clean.json   the broker started on a copy of data-clean
  check.py wire  HOST:PORT ../wire.jsonl            likewise, and nothing has been written to it since
  check.py puts  HOST:PORT ../manifest-clean.json   puts continue every partition of the manifest; it writes, so run it last

Options:
  --without-transactions   leave out what needs transactions: their cases of wire, the prepared branches of data
  --original               the broker is the original: "decided" answers are not asked for

The last line is 'N passed, N failed, N skipped'; the exit code is 0 when nothing failed. Where the original has a habit
of its own ("quirk" in the file), either the file says what is right instead ("decided") and that is what must come, or a
different answer is told and counts as skipped.
"""
import argparse
import hashlib
import json
import re
import socket
import struct
import sys

SILENCE_SECONDS = 0.7

passed = failed = skipped = 0


def report(ok, what, detail="", quirk=False):
    global passed, failed, skipped
    if ok:
        passed += 1
    elif quirk:
        skipped += 1
        print("differs from a quirk of the original:", what, detail)
    else:
        failed += 1
        print("FAIL", what, detail)


def skip(what, why):
    global skipped
    skipped += 1
    print("skipped:", what, "--", why)


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class Connection:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 5)
        self.file = self.socket.makefile("rb")

    def ask(self, line, body=b""):
        self.socket.sendall(line.encode() + b"\r\n" + body)
        head = self.file.readline().split()
        value = head[0] == b"value"
        body = self.file.read(int(head[1] if value else head[2]))
        return (200 if value else int(head[1])), value, body


def messages(data, base):
    """The whole messages in a 'value' that begins at an offset."""
    at = 0
    while at + 20 <= len(data):
        length, checksum, id_, flag = struct.unpack(">iiqi", data[at:at + 20])
        if at + 20 + length > len(data):
            break
        body = data[at + 20:at + 20 + length]
        attribute, payload = None, body
        if flag & 1:
            n = struct.unpack(">i", body[:4])[0]
            attribute, payload = body[4:4 + n].decode(), body[4 + n:]
        yield at + 20 + length, {
            "offset": base + at, "length": length, "checksum": checksum, "id": str(id_), "flag": flag,
            "attribute": attribute, "payload_length": len(payload),
            "payload_sha256": hashlib.sha256(payload).hexdigest()}
        at += 20 + length


def check_data(address, path, options):
    manifest = load(path)
    c = Connection(address)
    for p in manifest["partitions"]:
        name = "%s-%d" % (p["topic"], p["partition"])
        where = "%s check %d" % (p["topic"], p["partition"])
        code, _, body = c.ask("get %s %d 1024 1" % (where, 2 ** 63 - 1))
        if not p["exists"]:
            report(code in (301, 404), name, "answers %d" % code)
            continue
        report(code == 301 and int(body) == p["max"], name + " end", "%d %r, expected %d" % (code, body, p["max"]))
        code, _, body = c.ask("get %s -1 1024 1" % where)
        report(code == 301 and int(body) == p["min"], name + " lowest", "%d %r, expected %d" % (code, body, p["min"]))
        got, at = [], p["min"]
        while at < p["max"]:
            code, value, body = c.ask("get %s %d 1048576 1" % (where, at))
            used = 0
            for used, m in messages(body, at) if value else ():
                got.append(m)
            if not used:
                report(False, name, "no message at %d: %d %r" % (at, code, body[:80]))
                break
            at += used
        for want, have in zip(p["messages"], got):
            report(want == have, "%s at %d" % (name, want["offset"]), "expected %r, got %r" % (want, have))
        report(len(got) == len(p["messages"]), name + " count", "%d, expected %d" % (len(got), len(p["messages"])))
    if options.without_transactions:
        skip("prepared branches", "transactions are left out")
        return
    _, _, body = c.ask("transaction null check RECOVER 1")
    keys = sorted(k for k in body.decode().split("\r\n") if k)
    report(keys == sorted(manifest["prepared"]), "prepared branches", repr(keys))


def check_puts(address, path, options):
    """A put to each partition of the manifest lands at its present end, and is read back whole from there."""
    c = Connection(address)
    newest = max((int(m["id"]) for p in load(path)["partitions"] for m in p["messages"]), default=0)
    for p in load(path)["partitions"]:
        name = "%s-%d" % (p["topic"], p["partition"])
        where = "%s check %d" % (p["topic"], p["partition"])
        code, _, end = c.ask("get %s %d 1024 1" % (where, 2 ** 63 - 1))
        if not p["exists"] or code != 301:
            report(not p["exists"], name, "its end is answered %d %r" % (code, end))
            continue
        body = b"continues %s at %s" % (name.encode(), end)
        code, _, answer = c.ask("put %s %d %d 0 -1 1" % (p["topic"], p["partition"], len(body)), body)
        if code != 200:
            report(False, name + " put", "answers %d %r" % (code, answer))
            continue
        id_, partition, offset = (int(word) for word in answer.split())
        report((partition, offset) == (p["partition"], int(end)), name + " put continues at the end", repr(answer))
        report(options.original or id_ > max(newest, 0), name + " put has a newer id", "%d after %d" % (id_, newest))
        newest = id_
        code, value, data = c.ask("get %s %d 1048576 1" % (where, offset))
        have = next(messages(data, offset), (0, None))[1] if value else None
        payload = hashlib.sha256(body).hexdigest()
        report(have is not None and have["payload_sha256"] == payload and have["id"] == str(id_),
               name + " put is read back", "%d %r" % (code, have))


def comparable(data):
    """Puts the same in place of what may differ: ids inside values, the broker's address and what hangs on its length."""
    if data.startswith(b"value "):
        head, _, body = data.partition(b"\r\n")
        out, at = b"", 0
        while at + 20 <= len(body):
            length = struct.unpack(">i", body[at:at + 4])[0]
            if length < 0 or length > 100000:
                break
            out += body[at:at + 8] + b"#" * 8 + body[at + 16:at + 20 + length]
            at += 20 + length
        return head + b"\r\n" + out + body[at:at + 8]
    address = re.search(rb"meta://[^']*", data)
    if address:
        data = data.replace(address.group(0), b"ADDRESS")
        data = re.sub(rb"^(result \d+ )\d+ ", rb"\1LENGTH ", data)
    return data


def replies(data):
    """Splits bytes into answers, whose order may differ."""
    out = []
    while data:
        head, _, rest = data.partition(b"\r\n")
        parts = head.split(b" ")
        try:
            n = int(parts[1] if parts[0] == b"value" else parts[2])
        except (IndexError, ValueError):
            return out + [data]
        out.append(head + b"\r\n" + rest[:n])
        data = rest[n:]
    return out


def exchange(sock, request, expect_close):
    """Sends, and reads until the other side closes or is silent."""
    data, closed = b"", False
    sock.settimeout(3 if expect_close else SILENCE_SECONDS)
    try:
        sock.sendall(request)
        while True:
            some = sock.recv(65536)
            if not some:
                closed = True
                break
            data += some
            if not expect_close:
                sock.settimeout(0.15)
    except socket.timeout:
        pass
    except OSError:
        closed = True
    return data, closed


def matches(pattern, got):
    return re.fullmatch(pattern, got.decode("utf-8", "replace")) is not None


def same_answer(case, want, got):
    if "pattern" in case:
        return matches(case["pattern"], got)
    if want.startswith(b"value ") and "inside a message" in case["case"]:
        return got.split(b"\r\n")[0] == want.split(b"\r\n")[0]
    return sorted(map(comparable, replies(got))) == sorted(map(comparable, replies(want)))


def check_case(case, sock, decided):
    """Sends one request and reports on the answer; tells whether the broker closed the connection."""
    want, want_closed = bytes.fromhex(case["response_hex"]), case["closed_by_broker"]
    expect_close = decided["closed"] if decided else want_closed
    got, closed = exchange(sock, bytes.fromhex(case["request_hex"]), expect_close)
    if decided:
        report(matches(decided["pattern"], got) and closed == decided["closed"], case["case"],
               "\n  decided  %r closed=%s\n  got      %r closed=%s" % (decided["pattern"], expect_close, got[:300], closed))
    else:
        report(same_answer(case, want, got) and closed == want_closed, case["case"],
               "\n  expected %r closed=%s\n  got      %r closed=%s" % (want[:300], want_closed, got[:300], closed),
               case.get("quirk", False))
    return closed


def check_wire(address, path, options):
    host, port = address.rsplit(":", 1)
    number, sock = None, None
    with open(path, encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    for case in cases:
        if case.get("transaction") and options.without_transactions:
            skip(case["case"], "transactions are left out")
            continue
        # A connection that ended early is opened again, so that one wrong answer is one failure.
        if case["connection"] != number or sock is None:
            if sock:
                sock.close()
            number, sock = case["connection"], socket.create_connection((host, int(port)), 5)
        decided = None if options.original else case.get("decided")
        if check_case(case, sock, decided):
            sock.close()
            sock = None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["data", "wire", "puts"])
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("file")
    parser.add_argument("--without-transactions", action="store_true")
    parser.add_argument("--original", action="store_true")
    options = parser.parse_args()
    check = {"data": check_data, "wire": check_wire, "puts": check_puts}[options.what]
    check(options.address, options.file, options)
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
