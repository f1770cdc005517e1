"""The file as the box reads it, at first and again."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from kybernate.cli import serve as cli
from kybernate.errors import ConfigError, RefusedError
from kybernate.local import serve as local
from kybernate.local.folders import Numbers
from kybernate.local.reading import Source, specs, unmet


@pytest.fixture
def source(tmp_path):
    def made(text: str) -> Source:
        path = tmp_path / "models.yaml"
        path.write_text(text)
        return Source(path, Numbers(tmp_path / "state" / "ports.json", "ports"))

    return made


def models(*names: str) -> str:
    rows = (f"  {name}: {{cmd: 'serve {name} --port ${{PORT}}'}}" for name in names)
    return "\n".join(["models:", *rows, ""])


def test_a_model_becomes_what_is_run(source):
    text = """
hooks: {on_startup: {preload: [a]}, on_idle: {wake: [b]}}
globalTTL: 60
models:
  a: {cmd: 'serve --port ${PORT}', env: [X=1], vram: 2GiB, gpus: [1], checkEndpoint: none}
  b: {cmd: 'serve --port ${PORT}', ttl: 0, pin: true, proxy: 'http://127.0.0.1:${PORT}/base'}
"""
    a, b = specs(source(text).load())
    assert a.argv == ("serve", "--port", "5800")
    assert (a.address, a.env, a.vram, a.gpus) == ("127.0.0.1:5800", (("X", "1"),), 2 << 30, (1,))
    assert (a.check, a.ttl, a.preload) == ("", 60.0, True)
    assert (b.check, b.ttl, b.preload, b.pin) == ("/base/health", 0.0, True, True)
    assert (a.weight, b.weight) == (None, 100.0)


def test_a_model_that_always_wants_its_gpus_starts_with_the_box(source):
    text = """
models:
  a: {cmd: 'serve --port ${PORT}', turn: always, weight: 7}
  b: {cmd: 'serve --port ${PORT}', turn: on-request, weight: 7}
"""
    a, b = specs(source(text).load())
    assert [(one.weight, one.preload) for one in (a, b)] == [(7.0, True), (None, False)]
    with pytest.raises(ConfigError, match=r"models\.a\.turn: .*always"):
        source(text.replace("always", "sometimes")).load()


def test_ports_stay_where_they_are_when_models_come_and_go(source):
    first = source(models("a", "b", "c"))
    before = {spec.name: spec.address for spec in specs(first.load())}
    first.keep()
    after = {spec.name: spec.address for spec in specs(source(models("b", "c", "aa")).load())}
    assert after["b"] == before["b"]
    assert after["c"] == before["c"]
    assert after["aa"] not in before.values()


def test_a_file_that_is_only_read_leaves_the_ports_of_a_box_that_runs(source):
    """Such a box is asked whose it is after that: a second `kybernate serve` is refused."""
    box = source(models("a", "b"))
    box.load()
    box.keep()
    before = box.ports.read()
    source(models("x")).load()
    assert box.ports.read() == before == {"a": 5800, "b": 5801}


SPOILT = [
    "ttl: 1" + "0" * 400,
    "ignorePaths: ['a{99999999999}']",
    "ignorePaths: ['" + "(" * 3000 + ")" * 3000 + "']",
    "startPort: !!int ''",
    "traces: !!bool maybe",
    "minLoaded: !!timestamp soon",
    'ttl: "\\ud83d"',
    "ttl: 12345678901234567890123",
]


@pytest.mark.parametrize("spoilt", SPOILT, ids=range(len(SPOILT)))
async def test_whatever_stands_in_a_file_the_next_one_counts(source, spoilt, caplog):
    one, seen = source(models("a")), []
    one.load()

    async def changed(file):
        seen.append(list(file.models))

    watching = asyncio.create_task(one.watch(changed))
    wrong = f"upstream: {{{spoilt}}}" if "ignorePaths" in spoilt else spoilt
    one.path.write_text(f"{wrong}\n{models('a')}")
    await asyncio.sleep(2.0)
    assert "stay as they are" in caplog.text
    one.path.write_text(models("a", "b"))
    await asyncio.sleep(2.0)
    assert not watching.done()
    watching.cancel()
    assert seen == [["a", "b"]]


@pytest.mark.parametrize("spoilt", ["", "[]", '{"format": 9}', '{"format": 1, "ports": [1]}', "{"])
def test_a_list_of_ports_that_cant_be_read_is_made_anew(source, spoilt):
    one = source(models("a"))
    one.ports.path.parent.mkdir()
    one.ports.path.write_text(spoilt)
    assert one.load().models["a"].port == 5800


@pytest.mark.parametrize(
    "program", ["docker", "/usr/bin/podman", "sudo docker", "env A=b nerdctl", 'sh -c "exec docker']
)
def test_a_container_is_left_out_with_what_to_do_instead(source, program, caplog):
    end = '"' * program.count('"')
    text = models("b") + f"  a: {{cmd: '{program} run -p ${{PORT}}:80 image{end}', aliases: [x]}}\n"
    one = source(text + "hooks: {on_startup: {preload: [a, b]}}\ngroups: {g: {members: [a, b]}}\n")
    file = one.load()
    assert (set(file.models), set(file.names)) == ({"b"}, {"b"})
    assert (file.hooks.on_startup.preload, file.groups["g"].members) == (("b",), ("b",))
    assert "models.a.cmd: " in caplog.text
    assert "write the server's own command" in caplog.text


async def test_a_wrong_file_leaves_the_last_one(source, caplog):
    one = source(models("a"))
    first = one.load()
    one.path.write_text("models: 7")
    told = []

    async def changed(file):
        told.append(file)

    await one.reload(changed)
    assert told == []
    assert one.file is first
    assert "stay as they are" in caplog.text


async def test_a_file_in_another_encoding_leaves_the_last_one(source, caplog):
    one = source(models("a"))
    one.load()
    one.path.write_bytes("# für uns\n".encode("latin-1"))
    await one.reload(None)
    assert "is not UTF-8, at byte 3" in caplog.text
    assert list(one.file.models) == ["a"]


@pytest.mark.parametrize("error", [OSError("no space"), RefusedError("not now")])
async def test_what_fails_with_one_file_is_told_and_the_next_one_counts(source, caplog, error):
    one, seen = source(models("a")), []

    async def changed(file):
        seen.append(list(file.models))
        if len(seen) == 1:
            raise error

    watching = asyncio.create_task(one.watch(changed))
    await asyncio.sleep(2.0)
    assert str(error) in caplog.text
    one.path.write_text(models("a", "b"))
    await asyncio.sleep(2.0)
    watching.cancel()
    assert seen == [["a"], ["a", "b"]]


async def test_a_file_is_taken_over_before_it_is_read_again(source):
    one, under_way = source(models("a")), []

    async def changed(file):
        under_way.append(file)
        assert len(under_way) == 1
        await asyncio.sleep(1.0)
        under_way.pop()

    await asyncio.gather(one.reload(changed), one.reload(changed))


@pytest.mark.parametrize(
    "cmd", ["serve --name docker", "python podman.py run", "serve docker image"]
)
def test_a_command_that_only_names_one_is_run(source, cmd):
    text = f"models: {{a: {{cmd: '{cmd} --port ${{PORT}}'}}}}"
    assert set(source(text).load().models) == {"a"}


def test_what_a_box_does_not_do_is_said_for_each_key(source):
    text = """
tiers: {nvme: /var/cache, criu: /var/nothing}
models:
  a: {cmd: 'serve --port ${PORT}', cmdStop: 'stop ${PID}', idle: {ram: 1h}}
groups: {g: {members: [a], swap: true, exclusive: true, persistent: true}}
"""
    said = [one.partition(": ")[0] for one in unmet(source(text).load())]
    group = ["groups.g.persistent", "groups.g.swap", "groups.g.exclusive"]
    tier = "tiers.nvme" if os.geteuid() else "tiers.criu"
    assert said == [tier, "models.a.cmdStop", *group]


def test_an_idle_limit_of_ram_without_a_folder_below_it_is_said(source):
    text = "models: {a: {cmd: 'serve --port ${PORT}', idle: {ram: 1h}}}"
    (said,) = unmet(source(text).load())
    assert said.startswith("models.a.idle.ram: parked models stay in RAM")


def test_a_group_whose_members_shall_be_active_together_needs_their_memory(source):
    text = """
models:
  a: {cmd: 'serve --port ${PORT}', vram: 2GiB}
  b: {cmd: 'serve --port ${PORT}'}
groups: {g: {members: [a, b], swap: false, exclusive: false}}
"""
    (said,) = unmet(source(text).load())
    assert said.startswith("groups.g.swap: without vram a model has its GPUs to itself")
    assert said.endswith("state it for b")
    assert not list(unmet(source(text.replace("PORT}'}", "PORT}', vram: 1GiB}")).load()))


def test_a_plain_file_asks_for_nothing_that_is_not_done(source):
    assert list(unmet(source(models("a", "b")).load())) == []


@pytest.mark.parametrize(("said", "counts"), [(None, "ERROR"), ("DEBUG", "DEBUG")])
def test_the_files_log_level_counts_unless_another_is_said(
    source, tmp_path, monkeypatch, said, counts
):
    async def nothing(*_args, **_more):
        pass

    monkeypatch.setattr(local, "serve", nothing)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one = source("logLevel: error\n" + models("a"))
    root = logging.getLogger()
    before, handlers = root.level, root.handlers[:]
    try:
        cli._run(one.path, None, keep=False, log_level=said)
        assert logging.getLevelName(root.level) == counts
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
