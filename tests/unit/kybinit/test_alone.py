"""Process 1 without a connection to anybody, as an image of its container needs it."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from tests.unit.kybinit.conftest import LIMIT, Line
from tests.unit.kybinit.test_agent_side import UID, node, pod_cgroup  # noqa: F401 - fixtures
from tests.unit.sidecar.conftest import Told, until

UP = "print('up'); import time; time.sleep(60)"


def sockets(pid):
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:"):
                found.append(target)
    return found


def until_without_sockets(pid):
    """It may just be trying whether the agent is back."""
    end = time.monotonic() + LIMIT
    while found := sockets(pid):
        assert time.monotonic() < end, found
        time.sleep(0.005)


def until_closed(line):
    with suppress(EOFError):
        while line.receive():
            continue


def watcher(agent):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(agent.pod_path))
    line = Line(connection)
    line.send("watch", "1", "none")
    assert line.receive()[0] == "state"
    return line


def test_told_to_be_alone_it_has_no_socket_left_until_the_agent_is_back(running, agent):
    container, line = running(UP)
    sidecar = watcher(agent)
    agent.server.close()
    agent.path.unlink()
    line.send("alone")
    until_closed(line)
    until_closed(sidecar)
    assert not agent.pod_path.exists()
    until_without_sockets(container.init)
    agent.listen()
    hello = agent.accept().receive()
    assert hello[:3] == ["hello", "1", "running"]
    again = watcher(agent)
    for one in (sidecar, again):
        one.close()


def test_a_sidecar_does_not_take_it_for_dead(running, agent):
    container, line = running(UP)
    line.send("state", "parked", "parked in RAM")
    link = Told(str(agent.pod_path), "none", lambda *_: None)
    link.start()
    until(lambda: link.view().state == "parked", "the link does not connect")
    agent.server.close()
    agent.path.unlink()
    line.send("alone")
    until_without_sockets(container.init)
    until(lambda: not link.turn("yield"), "the link did not notice")
    agent.listen()
    again = agent.accept()
    again.send("state", "waking", "")
    until(lambda: link.view().state == "waking", "the link does not connect again")
    assert "lost" not in link.told


def test_a_door_that_is_shut_takes_process_1_back_when_it_opens(node):  # noqa: F811 - a fixture
    async def scene(listener, doors, process):
        _, hello = await listener.told.get()
        await doors.shut(UID)
        await doors.shut(UID)
        until_without_sockets(hello.peer_pid)
        assert listener.told.empty()
        await doors.open(UID)
        word, again = await listener.told.get()
        assert (word, again.peer_pid) == ("hello", hello.peer_pid)

    node(scene, "sh", "-c", "sleep 600")
