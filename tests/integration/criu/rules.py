"""Each rule that says no to a dump: what its sentence says, a program that it is right about, and
one close to that which it must not hit.

The scripts are those of Python, run in a container of their own. `look` is run after two cycles of
a program that is not refused, and must find it as it was.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Beside:
    """A program that no rule may hit. `flags`: what its container has, see `containers.Wish`."""

    script: str
    look: str
    flags: tuple[str, ...] = ()
    user: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """`said`: part of the sentence; `told`: the program that it is right about."""

    said: str
    told: str
    beside: tuple[Beside, ...]
    flags: tuple[str, ...] = ()
    user: str = ""


HELP = """
import ctypes, mmap, os, select, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def wait(condition):
    while not condition():
        time.sleep(0.01)
def uid_of(name):
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open(f"/proc/{one}/comm").read().strip() == name:
                return os.stat(f"/proc/{one}").st_uid
        except (FileNotFoundError, ProcessLookupError):
            pass
"""
"""What all scripts begin with."""

_SHARED = (
    "at = libc.shmget(0x77, 4096, 0o1600)\nassert at >= 0\n"
    "libc.shmat.restype = ctypes.c_void_p\nwhere = libc.shmat(at, None, 0)\n"
    "assert where not in (-1, None)\n"
)
_DIAG = (
    "one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\none.bind((0, 0))\n"
    "one.sendall(struct.pack('=IHHIIBxHiII', 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0))\n"
)
"""All links of the namespace are asked for (RTM_GETLINK)."""

RULES = {
    "descriptors that CRIU doesn't know": Rule(
        "userfaultfd",
        "fd = libc.syscall(323, 1)\nassert fd >= 0, ctypes.get_errno()\n",
        (
            Beside(
                "one = libc.eventfd(7, 0)\ntwo = libc.timerfd_create(1, 0)\n"
                "three = select.epoll()\nthree.register(one, select.EPOLLIN)\n"
                "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
                "four = libc.signalfd(-1, struct.pack('Q', 1 << 9), 0)\n"
                "five = os.pidfd_open(os.getpid())\nassert min(one, two, four, five) >= 0\n",
                "assert three.poll(0) == [(one, select.EPOLLIN)]\n"
                "assert struct.unpack('Q', os.read(one, 8)) == (7,)\n"
                "os.kill(os.getpid(), signal.SIGUSR1)\n"
                "assert struct.unpack_from('I', os.read(four, 128))[0] == signal.SIGUSR1\n"
                "signal.pidfd_send_signal(five, 0)\n",
            ),
        ),
    ),
    "io_uring, by a mapping alone": Rule(
        "uses io_uring",
        "buffer = ctypes.create_string_buffer(120)\nring = libc.syscall(425, 8, buffer)\n"
        "assert ring >= 0, ctypes.get_errno()\nlibc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,"
        " ctypes.c_long]\n"
        "at = libc.mmap(None, 4096, 3, 0x8001, ring, 0)\n"
        "assert at not in (None, 2**64 - 1), ctypes.get_errno()\nos.close(ring)\n",
        (
            Beside(
                "one = os.memfd_create('a')\nos.ftruncate(one, 4096)\nheld = mmap.mmap(one, 4096)\n"
                "held[:4] = b'left'\nos.close(one)\nzero = open('/dev/zero', 'r+b', 0)\n"
                "other = mmap.mmap(zero.fileno(), 4096)\nother[:4] = b'left'\n",
                "assert held[:4] == b'left' and other[:4] == b'left'\n",
            ),
        ),
    ),
    "secret memory": Rule(
        "uses secretmem",
        "fd = libc.syscall(447, 0)\nassert fd >= 0, ctypes.get_errno()\nos.ftruncate(fd, 4096)\n",
        (
            Beside(
                "one = open('/secretmem', 'w+b')\none.write(b'left')\none.flush()\n"
                "os.unlink('/secretmem')\n",
                "one.seek(0)\nassert one.read() == b'left'\n",
            ),
        ),
    ),
    "secret memory, by a mapping alone": Rule(
        "uses secretmem",
        "fd = libc.syscall(447, 0)\nassert fd >= 0, ctypes.get_errno()\nos.ftruncate(fd, 4096)\n"
        "held = mmap.mmap(fd, 4096)\nos.close(fd)\n",
        (
            Beside(
                "held = mmap.mmap(-1, 4096)\nheld[:4] = b'left'\n"
                "assert libc.mlockall(1) == 0, ctypes.get_errno()\n",
                "assert held[:4] == b'left'\n",
                flags=("--cap-add=CAP_IPC_LOCK",),
            ),
        ),
    ),
    "POSIX message queues": Rule(
        "message queue",
        "queue = libc.syscall(240, b'kyb', os.O_CREAT | os.O_RDWR, 0o600, None)\n"
        "assert queue >= 0, ctypes.get_errno()\n",
        (
            Beside(
                "from multiprocessing import shared_memory\n"
                "one = shared_memory.SharedMemory(create=True, size=4096)\none.buf[:4] = b'left'\n",
                "other = shared_memory.SharedMemory(one.name)\n"
                "assert bytes(other.buf[:4]) == b'left'\n",
            ),
        ),
    ),
    "raw sockets": Rule(
        "raw socket",
        "raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)\n",
        (
            Beside(
                "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\none.bind(('', 7000))\n"
                "two = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"
                "three = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)\n"
                "three.bind(('', 7001))\nfour = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n",
                "two.close()\none.sendto(b'left', ('127.0.0.1', 7000))\n"
                "assert one.recv(10) == b'left'\n"
                "three.sendto(b'left', ('127.0.0.1', 7001))\nassert three.recv(10) == b'left'\n"
                "assert four.getsockname()\n",
            ),
        ),
    ),
    "sockets of other families": Rule(
        "has a socket of family",
        "try:\n    odd = socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0)\n"
        "except OSError:\n    odd = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM, 0)\n",
        (
            Beside(
                "one = socket.create_server(('127.0.0.1', 7000))\n"
                "out = socket.create_connection(('127.0.0.1', 7000))\n"
                "into, _ = one.accept()\nout.sendall(b'left')\n",
                "assert into.recv(10) == b'left'\ninto.sendall(b'back')\n"
                "assert out.recv(10) == b'back'\n",
            ),
        ),
    ),
    "netlink that was not read": Rule(
        "has not read all that its netlink socket has received",
        _DIAG,
        (
            Beside(
                _DIAG + "one.recv(1 << 16)\none.recv(1 << 16)\n", "assert one.getsockname()[0]\n"
            ),
        ),
    ),
    "unix sockets that lead out": Rule(
        "outside its own tree",
        "link = socket.socket(socket.AF_UNIX)\nlink.connect('/app/foreign.sock')\n",
        (
            Beside(
                "one, other = socket.socketpair()\nother.sendall(b'left')\nother.close()\n",
                "assert one.recv(10) == b'left'\nassert one.recv(10) == b''\n",
            ),
            Beside(
                "s = socket.socket(socket.AF_UNIX)\ns.bind('/tmp/s')\ns.listen()\n"
                "one = socket.socket(socket.AF_UNIX)\none.connect('/tmp/s')\n",
                "other, _ = s.accept()\none.sendall(b'left')\nassert other.recv(10) == b'left'\n"
                "other.sendall(b'back')\nassert one.recv(10) == b'back'\n",
            ),
        ),
    ),
    "large deleted files": Rule(
        "deleted file",
        "file = open('/tmp/large', 'wb')\nfile.truncate(300 << 20)\nos.unlink('/tmp/large')\n",
        (
            Beside(
                "one = open('/tmp/one', 'w+b')\none.write(b'left')\none.flush()\n"
                "os.unlink('/tmp/one')\n",
                "one.seek(0)\nassert one.read() == b'left'\n",
            ),
        ),
    ),
    "deleted files that have another name": Rule(
        "another name",
        "file = open('/tmp/one', 'wb')\nos.link('/tmp/one', '/tmp/two')\nos.unlink('/tmp/one')\n",
        (
            Beside(
                "one = open('/tmp/one', 'w+b')\none.write(b'left')\none.flush()\n"
                "os.link('/tmp/one', '/tmp/two')\nos.unlink('/tmp/two')\n"
                "os.mkdir('/tmp/gone')\nos.chdir('/tmp/gone')\n",
                "one.seek(0)\nassert one.read() == b'left'\nassert os.getcwd() == '/tmp/gone'\n",
            ),
        ),
    ),
    "devices": Rule(
        "has the device /dev/fuse open",
        "one = open('/dev/fuse', 'r+b', 0)\n",
        (
            Beside(
                "held = [open(f'/dev/{name}', 'rb', 0) for name in ('null', 'zero', 'urandom')]\n"
                "ours, theirs = os.openpty()\nos.write(theirs, b'left')\n",
                "assert held[1].read(1) == b'\\0' and len(held[2].read(4)) == 4\n"
                "assert os.read(ours, 10) == b'left'\n",
            ),
        ),
        flags=("--device", "/dev/fuse"),
    ),
    "network devices": Rule(
        "has the device /dev/net/tun open",
        "one = os.open('/dev/net/tun', os.O_RDWR)\n",
        (
            Beside(
                "one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                "one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')\n"
                "one.bind(('', 7000))\n",
                "one.sendto(b'left', ('127.0.0.1', 7000))\nassert one.recv(10) == b'left'\n",
            ),
        ),
        flags=("--device", "/dev/net/tun", "--cap-add=CAP_NET_ADMIN"),
    ),
    "debuggers": Rule(
        "is traced by",
        "child = os.fork()\nif not child:\n    time.sleep(600)\n"
        "assert libc.ptrace(0x4206, child, None, None) == 0\n",
        (
            Beside(
                "child = os.fork()\nif not child:\n    time.sleep(600)\n"
                "assert libc.ptrace(16, child, None, None) == 0\nos.waitpid(child, 0x40000000)\n"
                "assert libc.ptrace(17, child, None, None) == 0\n",
                "os.kill(child, 9)\nassert os.waitpid(child, 0)[0] == child\n",
                flags=("--cap-add=CAP_SYS_PTRACE",),
            ),
        ),
        flags=("--cap-add=CAP_SYS_PTRACE",),
    ),
    "namespaces": Rule(
        "ipc namespace of its own",
        "assert libc.unshare(0x08000000) == 0\n",
        (
            Beside(
                "assert libc.unshare(0x00000200 | 0x00000400) == 0\nos.umask(0o027)\n",
                "assert os.umask(0) == 0o027\n",
                flags=("--cap-add=CAP_SYS_ADMIN",),
            ),
        ),
        flags=("--cap-add=CAP_SYS_ADMIN",),
    ),
    "namespaces of time": Rule(
        "time_for_children namespace of its own",
        "assert libc.unshare(0x00000080) == 0, ctypes.get_errno()\n",
        (
            Beside(
                "one = libc.timerfd_create(1, 0)\nbegan = time.monotonic()\n",
                "assert 0 < time.monotonic() - began < 600\n",
            ),
        ),
        flags=("--cap-add=CAP_SYS_ADMIN",),
    ),
    "namespaces of children to come": Rule(
        "gives its children a pid namespace of their own",
        "assert libc.unshare(0x20000000) == 0, ctypes.get_errno()\n",
        (
            Beside(
                "child = os.fork()\nif not child:\n    time.sleep(600)\nos.kill(child, 9)\n"
                "wait(lambda: open(f'/proc/{child}/stat').read().split()[2] == 'Z')\n",
                "assert os.waitpid(child, 0)[1] == 9\n",
            ),
        ),
        flags=("--cap-add=CAP_SYS_ADMIN",),
    ),
    "System V semaphores beside shared memory": Rule(
        "nobody can tell whose they are",
        _SHARED + "assert libc.semget(0, 1, 0o1600) >= 0\n",
        (
            Beside(
                _SHARED + "ctypes.memmove(where, b'left', 4)\nchild = os.fork()\n"
                "if not child:\n    time.sleep(600)\n",
                "assert ctypes.string_at(where, 4) == b'left'\n"
                "assert libc.shmget(0x77, 4096, 0) == at\nos.kill(child, 9)\n",
            ),
            Beside(
                "at = libc.semget(0x78, 1, 0o1600)\nassert at >= 0\n"
                "assert libc.semctl(at, 0, 16, 3) == 0\n",
                "assert libc.semctl(at, 0, 12) == 3\n",
            ),
        ),
    ),
    "watched folders that nobody finds": Rule(
        "watches 1 files or folders",
        "deep = '/tmp/' + '/'.join('123456789')\nos.makedirs(deep)\nat = libc.inotify_init1(0)\n"
        "assert libc.inotify_add_watch(at, deep.encode(), 0x100) >= 0\n",
        (
            Beside(
                "os.makedirs('/tmp/1/2/3')\nat = libc.inotify_init1(0)\n"
                "assert libc.inotify_add_watch(at, b'/tmp/1/2/3', 0x100) >= 0\n",
                "open('/tmp/1/2/3/new', 'w').close()\nassert b'new' in os.read(at, 4096)\n",
            ),
        ),
    ),
    "rights that the container doesn't have": Rule(
        "has come to more than its container began with",
        "subprocess.Popen(['/app/sleep', '600'])\nwait(lambda: uid_of('sleep') == 0)\n",
        (
            Beside(
                "child = os.fork()\nif not child:\n    os.setgid(65534)\n    os.setuid(65534)\n"
                "    time.sleep(600)\nwait(lambda: os.stat(f'/proc/{child}').st_uid == 65534)\n",
                "assert os.stat(f'/proc/{child}').st_uid == 65534\n",
            ),
            Beside(
                "subprocess.Popen(['/app/sleep', '600'])\nwait(lambda: uid_of('sleep') == 0)\n",
                "assert uid_of('sleep') == 0\n",
                flags=("--allow-new-privs",),
                user="65534:65534",
            ),
        ),
        flags=("--allow-new-privs", "--cap-drop=CAP_SETUID"),
        user="65534:65534",
    ),
}
"""The others need more than a script: see `test_refusals.py` and `test_dumpable.py`."""

LOST = {
    "a Landlock domain": Beside(
        "rules = libc.syscall(444, struct.pack('Q', 2), 8, 0)\n"
        "if rules < 0:\n    print('missing')\nelse:\n    libc.prctl(38, 1, 0, 0, 0)\n"
        "    assert libc.syscall(446, rules, 0) == 0\n    os.close(rules)\n    try:\n"
        "        open('/tmp/x', 'w')\n        raise AssertionError('it is not confined')\n"
        "    except PermissionError:\n        pass\n",
        "open('/tmp/x', 'w').close()\n",
    ),
    "keys in the session's keyring": Beside(
        "if libc.syscall(248, b'user', b'mine', b'left', 4, -3) < 0:\n    print('missing')\n",
        "assert libc.syscall(249, b'user', b'mine', None, 0) == -1\n",
    ),
    "a timer slack": Beside(
        "libc.prctl(29, 20000, 0, 0, 0)\nassert libc.prctl(30) == 20000\n",
        "assert libc.prctl(30) != 20000\n",
    ),
    "the time of its start": Beside(
        "def started():\n    return int(open('/proc/self/stat').read().split()[21])\n"
        "began = started()\n",
        "assert started() > began\n",
    ),
}
"""What a tree doesn't get back, though nothing told so before the dump: the kernel tells nobody of
the first two. A release that mends one takes it out of here and of docs/concepts/criu.md."""


def with_sleep(folder: Path) -> None:
    """What becomes /app has a program that makes whoever starts it root."""
    shutil.copy("/bin/sleep", folder)
    (folder / "sleep").chmod(0o4755)
