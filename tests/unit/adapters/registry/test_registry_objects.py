"""Objects by way of a registry that signs, against a real S3 server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kybernate.adapters.objects.objects import open_objects
from kybernate.adapters.registry import storewire
from kybernate.adapters.registry.objects import RegistryObjects
from kybernate.errors import DeadlineError, LeaveError, NotFoundError, RefusedError, RetryableError
from tests.kit.servers import s3

pytestmark = pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-")


class Signer:
    """A registry that signs whatever it is asked for, and counts how often it was asked."""

    def __init__(self, owner):
        self.owner, self.calls, self.lasts, self.seconds = owner, [], 600, 600.0
        self.error = None

    def read_objects(self, wanted, deadline_s=0.0):
        if self.error:
            raise self.error
        self.calls.append(len(wanted.keys))
        urls = self.owner.signed("GET", wanted.keys, timedelta(seconds=self.lasts))
        return storewire.Readable(urls=urls, seconds=self.seconds)

    def new_packs(self, wanted, deadline_s=0.0):
        self.calls.append(wanted.packs)
        names = [f"{len(self.calls):016x}{number:016x}" for number in range(wanted.packs)]
        keys = [
            f"{kind}/{wanted.namespace}/{name}" for name in names for kind in ("packs", "index")
        ]
        urls = self.owner.signed("PUT", keys, timedelta(seconds=self.lasts))
        packs = [
            storewire.NewPack(id=name, pack=urls[2 * at], index=urls[2 * at + 1])
            for at, name in enumerate(names)
        ]
        return storewire.Packable(packs=packs, headers={}, seconds=self.seconds)


@pytest.fixture
def store(tmp_path, monkeypatch):
    with s3.server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def signer(store):
    return Signer(open_objects(store.url))


@pytest.fixture
def objects(signer):
    return RegistryObjects(lambda: signer, request_s=1.0)


def test_packs_go_there_and_back(signer, objects):
    name = objects.new_pack("ns")
    data = bytearray(b"0123456789")
    objects.put(f"packs/ns/{name}", memoryview(data))
    objects.put(f"index/ns/{name}", b"index")
    assert bytes(objects.get(f"packs/ns/{name}")) == bytes(data)
    assert bytes(objects.get(f"packs/ns/{name}", 3, 4)) == b"3456"
    assert bytes(objects.get(f"packs/ns/{name}", 8)) == b"89"
    assert bytes(objects.get(f"packs/ns/{name}", 8, 40)) == b"89"
    assert bytes(objects.get(f"packs/ns/{name}", 20, 4)) == b""
    with pytest.raises(NotFoundError):
        objects.get("packs/ns/none")
    with pytest.raises(RetryableError, match="no leave to put it any more"):
        objects.put(f"packs/ns/{name}", b"again")


def test_many_packs_cost_few_calls(signer, objects):
    names = [objects.new_pack("ns") for _ in range(2 * storewire.MOST_PACKS)]
    assert len(set(names)) == len(names)
    assert signer.calls == [storewire.MOST_PACKS] * 2
    signer.calls.clear()
    keys = [f"packs/ns/{number}" for number in range(storewire.MOST_KEYS + 10)]
    for key in keys:
        signer.owner.put(key, key.encode())
    objects.expect(keys, "")
    assert [bytes(objects.get(key)).decode() for key in keys] == keys
    assert signer.calls == [storewire.MOST_KEYS, 10]


def test_what_ended_is_asked_for_anew(signer, objects):
    signer.owner.put("packs/ns/1", b"one")
    signer.lasts = 0
    with pytest.raises(RetryableError, match="the store refuses what the registry signed"):
        objects.get("packs/ns/1")
    asked = len(signer.calls)
    assert asked == 2, "once more, and no longer"
    signer.lasts = 600
    assert bytes(objects.get("packs/ns/1")) == b"one"


def test_names_that_are_about_to_end_are_not_given(signer, objects):
    signer.seconds = 30.0
    objects.new_pack("ns")
    objects.new_pack("ns")
    assert signer.calls == [storewire.MOST_PACKS] * 2


def test_what_is_refused_is_locked_and_not_worthless(signer, objects):
    signer.error = RefusedError("node n1 has no lease")
    with pytest.raises(LeaveError, match="no lease"):
        objects.get("packs/ns/1")
    signer.error = DeadlineError("no answer")
    with pytest.raises(RetryableError, match="the registry doesn't answer"):
        objects.get("packs/ns/1")


def test_a_store_that_is_away_is_told_without_the_leave(store, signer, objects):
    signer.owner.put("packs/ns/1", b"one")
    store.process.kill()
    store.process.wait()
    with pytest.raises(RetryableError, match="the store doesn't answer") as caught:
        objects.get("packs/ns/1")
    assert "X-Amz" not in str(caught.value)
    assert "X-Amz" not in str(caught.value.__cause__)
