"""A workload with sockets of all kinds, run as a process. Says its ports, then serves.

Arguments: path of its Unix socket; `chatter` for talk within the tree, more than anybody's
freeze can be between; `dual` to listen for IPv4 and IPv6 with one socket; `timeout` to close
connections that were idle for IDLE seconds, before anything is read, as some event loops do.
"""

from __future__ import annotations

import json
import os
import select
import socket
import socketserver
import sys
import threading
import time

IDLE = 0.5
EVERY = 0.002
"""Seconds between two heartbeats."""


class Line(socketserver.StreamRequestHandler):
    """Answers each line with itself; `held PATH` once the file is gone that it makes there; `push`
    with two lines."""

    def handle(self):
        for line in self.rfile:
            words = line.split()
            if words[:1] == [b"held"]:
                open(words[1], "w").close()
                while os.path.exists(words[1]):
                    time.sleep(EVERY)
            try:
                self.wfile.write(line * 2 if words[:1] == [b"push"] else line)
            except OSError:
                return


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        data, back = self.request
        back.sendto(data, self.client_address)


class Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


class Dual(Tcp):
    address_family = socket.AF_INET6


class Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class Impatient:
    """A server with one thread, whose timers come first."""

    def __init__(self, address):
        self.listener = socket.create_server(address)
        self.server_address = self.listener.getsockname()
        self.used = {}

    def serve_forever(self):
        while True:
            ready, _, _ = select.select([self.listener, *self.used], [], [], 0.05)
            for one, when in list(self.used.items()):
                if time.monotonic() - when > IDLE:
                    del self.used[one]
                    one.close()
            for one in ready:
                self.turn(one)

    def turn(self, one):
        if one is self.listener:
            accepted, _ = one.accept()
            self.used[accepted] = time.monotonic()
        elif one in self.used:
            try:
                data = one.recv(100)
            except OSError:
                data = b""
            self.used[one] = time.monotonic()
            if data:
                one.sendall(data)
            else:
                del self.used[one]
                one.close()


def beat(one, other):
    """Talk both ways without end; each side leaves something unread for most of the time."""

    def say():
        while True:
            one.send(b"beat")
            time.sleep(EVERY)

    def hear():
        while True:
            time.sleep(EVERY)
            other.recv(4)

    for task in (say, hear):
        threading.Thread(target=task, daemon=True).start()


def chatter():
    beat(*socket.socketpair())
    beat(*socket.socketpair(type=socket.SOCK_DGRAM))
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    beat(client, listener.accept()[0])
    hears = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hears.bind(("127.0.0.1", 0))
    says = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    says.connect(hears.getsockname())
    beat(says, hears)
    threading.Thread(target=connect_to_itself, args=(listener,), daemon=True).start()


def connect_to_itself(listener):
    """Connections of the tree to itself that mostly wait to be accepted."""
    while True:
        with socket.create_connection(listener.getsockname()):
            time.sleep(0.02)
            listener.accept()[0].close()


def main():
    if "timeout" in sys.argv:
        tcp = Impatient(("127.0.0.1", 0))
    else:
        tcp = Dual(("::", 0), Line) if "dual" in sys.argv else Tcp(("127.0.0.1", 0), Line)
    udp = socketserver.UDPServer(("127.0.0.1", 0), Echo)
    unix = Unix(sys.argv[1], Line)
    for server in (tcp, udp, unix):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    if "chatter" in sys.argv and os.fork() == 0:
        chatter()
        time.sleep(600)
    print(json.dumps({"tcp": tcp.server_address[1], "udp": udp.server_address[1]}), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
