"""A replica whose watch is late destroys no keys of a namespace that is there, and keeps none of
one that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from registry.cluster import Kubernetes
from registry.keys.shredding import GONE
from tests.unit.k8s.script import until
from tests.unit.registry.keys.test_namespacekeys import FIRST, SECOND, Cluster, ask
from tests.unit.registry.replica import Replica, url_of
from tests.unit.registry.test_cluster import Served

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.registry.replica import Clock


def space(uid: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": "ns", "uid": uid, "resourceVersion": version}}


class Late(Served):
    """An API server that has made `ns` again, of which its watch of namespaces has not told yet."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces = type(self.namespaces)()
        self.namespaces.listing(space(FIRST, "5"))
        self.namespaces.feed()
        self.listing()
        self.feed()

    def get(self, path: str, params: Any = None, *, timeout: float = 1.0) -> Any:
        if path == "/api/v1/namespaces/ns":
            return space(SECOND, "99")
        return super().get(path, params or {}, timeout=timeout)


@pytest.mark.parametrize("known", [False, True], ids=["only-made", "seen-gone"])
def test_a_replica_that_hears_late_destroys_no_key_of_what_is_there(
    tmp_path: Path, clock: Clock, known: bool
) -> None:
    now = Cluster()
    prompt = Replica(url_of(tmp_path), clock, namespaces=now)
    assert prompt.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    prompt.shredder.look()
    prompt.keys.newest("ns")
    # Deleted and made again. One replica hears of it, and gives the new one's key to a node.
    now.uids["ns"] = SECOND
    prompt.token("n1", "u1")
    given = ask(prompt, "n1").body
    assert given["uid"] == SECOND
    if known:
        prompt.shredder.look()
    # The other one's connection is interrupted: it answers from what it knew, however long ago.
    served = Late()
    cluster = Kubernetes(served)  # type: ignore[arg-type]
    cluster.start()
    until(cluster._watches[0].synced.is_set)
    late = Replica(url_of(tmp_path), clock, namespaces=cluster)
    try:
        late.shredder.look()
        found = prompt.controller("GET", "/v1/namespaces/ns/keys").body["keys"]
        due = {key["uid"]: key["why"] for key in found if key["shred_ms"]}
        assert due == {FIRST: GONE}
    finally:
        served.feed()
        served.namespaces.feed()
        cluster.stop()
        late.close()
        prompt.close()
