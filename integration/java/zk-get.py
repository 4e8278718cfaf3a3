#!/usr/bin/env python3
"""Reads one node from a ZooKeeper: zk-get.py HOST:PORT PATH [SECONDS]

Prints the node's data. With SECONDS it waits for that long until the node is there; exit code 1 when it is not.
Standard library only, so that the suite can tell that a broker is registered without starting a Java client.
"""
import socket
import struct
import sys
import time

OK, NO_NODE = 0, -101


def receive(sock):
    def exactly(count):
        data = b""
        while len(data) < count:
            some = sock.recv(count - len(data))
            if not some:
                raise ConnectionError("the registry closed the connection")
            data += some
        return data
    return exactly(struct.unpack(">i", exactly(4))[0])


def send(sock, packet):
    sock.sendall(struct.pack(">i", len(packet)) + packet)


def get(address, path):
    """The node's data, or None when there is no such node."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 3) as sock:
        sock.settimeout(3)
        # protocol version, last zxid, session timeout in ms, session id, password
        send(sock, struct.pack(">iqiqi", 0, 0, 6000, 0, 16) + bytes(16))
        receive(sock)
        name = path.encode()
        send(sock, struct.pack(">iii", 1, 4, len(name)) + name + b"\0")  # getData, no watch
        reply = receive(sock)
        code = struct.unpack(">i", reply[12:16])[0]
        send(sock, struct.pack(">ii", 2, -11))  # close the session
        receive(sock)
        if code == NO_NODE:
            return None
        if code != OK:
            raise ConnectionError("the registry answers %d" % code)
        length = struct.unpack(">i", reply[16:20])[0]
        return reply[20:20 + max(length, 0)]


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    deadline = time.monotonic() + (float(sys.argv[3]) if len(sys.argv) == 4 else 0)
    while True:
        try:
            data, why = get(sys.argv[1], sys.argv[2]), "no such node"
        except OSError as error:
            data, why = None, str(error)
        if data is not None:
            print(data.decode("utf-8", "replace"))
            return
        if time.monotonic() >= deadline:
            sys.exit("%s %s: %s" % (sys.argv[1], sys.argv[2], why))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
