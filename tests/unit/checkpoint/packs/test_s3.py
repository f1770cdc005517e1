"""The same against a real S3 server, which also goes away."""

from __future__ import annotations

import pytest

from kybernate.adapters.objects.objects import open_objects
from kybernate.checkpoint.places import Place, open_place, read_manifest
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.errors import ConflictError, NotFoundError, RetryableError
from kybernate.lib.deadline import Deadline
from tests.kit.servers import s3
from tests.unit.checkpoint.kit import KEYS, attempt, contents, fetched, make_dump, pack_dump

pytestmark = pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-")


@pytest.fixture
def store(tmp_path, monkeypatch):
    with s3.server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_objects_behave_as_everywhere(store):
    objects = open_place(store.url).objects
    objects.put("packs/a/1", b"0123456789")
    assert bytes(objects.get("packs/a/1", 3, 4)) == b"3456"
    assert bytes(objects.get("packs/a/1")) == b"0123456789"
    assert [(info.key, info.size) for info in objects.scan("packs/")] == [("packs/a/1", 10)]
    with pytest.raises(ConflictError):
        objects.put("packs/a/1", b"x", create=True)
    with pytest.raises(NotFoundError):
        objects.head("packs/a/2")
    with pytest.raises(NotFoundError):
        objects.get("packs/a/2", 0, 5)
    objects.delete(["packs/a/1", "packs/a/2"])
    assert list(objects.scan("packs/")) == []


def test_a_state_goes_there_and_back(store, tmp_path):
    dump, where = make_dump(tmp_path / "dump", blocks=200), open_place(store.url)
    made = pack_dump(dump, where, 1)
    verify(where, made, KEYS, Deadline(60))
    assert fetched(where, made.id, tmp_path / "back") == contents(dump)
    assert pack_dump(dump, where, 2).stored == 0


def test_a_store_that_goes_away_is_told_and_leaves_no_artifact(store, tmp_path):
    store.process.kill()
    store.process.wait()
    dump = make_dump(tmp_path / "dump")
    where = Place("s3", open_objects(store.url, request_seconds=1.0))
    error = attempt(lambda: pack_dump(dump, where))
    assert isinstance(error, RetryableError)
    data = tmp_path / "s3" / "data"
    assert not list(data.rglob(layout.MANIFEST))


def test_under_wrong_credentials_states_are_locked_and_not_worthless(store, tmp_path, monkeypatch):
    dump = make_dump(tmp_path / "dump")
    made = pack_dump(dump, open_place(store.url))
    with monkeypatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        wrong = open_place(store.url)
        with pytest.raises(RetryableError, match="check its credentials"):
            read_manifest(wrong, made.id, KEYS)
        # A RefusedError would have had it packed anew over what is there, and given up below.
        with pytest.raises(RetryableError, match="check its credentials"):
            pack_dump(dump, wrong)
    assert fetched(open_place(store.url), made.id, tmp_path / "back") == contents(dump)
