"""One replica of the registry without a socket, and what tests send it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kybernate import keys
from kybernate.adapters.keys.artifactkeys import WrapKeys
from registry.artifacts import Artifacts
from registry.database import Database
from registry.http.app import create_app
from registry.http.callers import Standing, nowhere
from registry.http.routes import routes
from registry.keys.namespacekeys import NamespaceKeys
from registry.keys.routes import key_routes
from registry.keys.shredding import Shredder
from registry.pods import Pods

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.grants import Grant
    from registry.cluster import Cluster
    from registry.keys.namespacekeys import Identities

    Json = dict[str, Any]

MAX_BODY = 64 * 1024
BEGINNING = 1_900_000_000_000
STORE = "s3://states/kyb"


class Clock:
    """Milliseconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = BEGINNING

    def __call__(self) -> int:
        return self.now


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: Json

    @property
    def error(self) -> str:
        return str(self.body["error"])


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/registry.db"


def agent_certificate(node: str) -> Json:
    name = keys.agent_server_name(node)
    return {"subject": ((("commonName", name),),), "subjectAltName": (("DNS", name),)}


def named_certificate(name: str) -> Json:
    return {"subject": ((("commonName", name),),)}


class Replica:
    """Calls by role; every answer is JSON."""

    def __init__(
        self,
        url: str,
        clock: Callable[[], int] | None = None,
        cluster: Cluster | None = None,
        *,
        namespaces: Identities | None = None,
        places: Sequence[Place] = (),
        placed: Callable[[str, str], bool] = nowhere,
    ) -> None:
        self.database = Database(url, threads=4, clock=clock)
        self.database.prepare()
        self.artifacts = Artifacts(self.database)
        self.pods = Pods(self.database, 600.0)
        standing = Standing(self.pods, self.artifacts, cluster, placed)
        self.kms = WrapKeys((bytes(range(32)),))
        self.keys = NamespaceKeys(self.database, self.kms, namespaces)
        self.shredder = Shredder(self.database, namespaces, places, 3600.0)
        calls = key_routes(self.keys, self.shredder, lambda: self.grants)
        self.grants: tuple[Grant, ...] = ()
        self.routes = (*routes(self.artifacts, self.pods, standing), *calls)
        self._certificate: Mapping[str, Any] = {}
        self.app = create_app(self.routes, MAX_BODY, lambda _environ: self._certificate)
        self._client = self.app.test_client()

    def close(self) -> None:
        self.database.close()

    def call(
        self, certificate: Mapping[str, Any], method: str, path: str, body: object = None
    ) -> Answer:
        self._certificate = certificate
        data = None if body is None else json.dumps(body)
        got = self._client.open(path, method=method, data=data, content_type="application/json")
        assert got.content_type == "application/json"
        found = Answer(got.status_code, got.get_json())
        assert (found.status >= 400) == ("error" in found.body), found
        return found

    def agent(self, node: str, method: str, path: str, body: object = None) -> Answer:
        return self.call(agent_certificate(node), method, path, body)

    def controller(self, method: str, path: str, body: object = None) -> Answer:
        return self.call(named_certificate(keys.CN_CONTROLLER), method, path, body)

    def proxy(self, path: str) -> Answer:
        return self.call(named_certificate(keys.CN_PROXY), "GET", path)

    # What an agent does, in its words.

    def lease(self, node: str, uid: str, seconds: float = 30, *, runs: bool = True) -> Answer:
        wish = {"seconds": seconds, "runs": runs}
        return self.agent(node, "POST", f"{pod(uid)}/lease", wish)

    def token(self, node: str, uid: str, *, runs: bool = True) -> int:
        found = self.lease(node, uid, runs=runs)
        assert found.status == 200, found
        return int(found.body["token"])

    def record(self, node: str, name: str, token: int, /, **changes: Any) -> Answer:
        return self.agent(node, "PUT", artifact(name), recording(node, token, **changes))

    def report(self, node: str, name: str, state: str, /, **changes: Any) -> Answer:
        held = {"place": "nvme", "node": node, "state": state, "size": 10, **changes}
        digest = held.pop("digest", DIGEST)
        body = {"digest": digest, "held": held}
        return self.agent(node, "PUT", f"{artifact(name)}/copies", body)

    def drop(self, node: str, name: str, /, **query: str) -> Answer:
        asked = {"place": "nvme", "node": node, **query}
        asked = {key: value for key, value in asked.items() if value}
        return self.agent(node, "DELETE", f"{artifact(name)}/copies?{urlencode(asked)}")

    def stop(self, node: str, uid: str) -> Answer:
        return self.agent(node, "POST", f"{pod(uid)}/stop", {"proof": "agent", "why": "ended"})

    def claim(self, node: str, uid: str, name: str, successor: str, /, **more: Any) -> Answer:
        body = {"artifact": f"ns/{name}", "successor": successor, "node": node, **more}
        return self.agent(node, "POST", f"{pod(uid)}/claim", body)

    def release(self, node: str, uid: str, successor: str) -> Answer:
        return self.agent(node, "DELETE", f"{pod(uid)}/claim?successor={successor}")


DIGEST = "ab" * 32


def name_of(number: int, pod: str = "model") -> str:
    return f"{pod}@20261121T000000Z-{number:08x}"


def artifact(name: str, namespace: str = "ns") -> str:
    return f"/v1/artifacts/{namespace}/{name}"


def pod(uid: str, namespace: str = "ns") -> str:
    return f"/v1/pods/{namespace}/{uid}"


def recording(node: str, token: int, /, **changes: Any) -> Json:
    """A body of recordArtifact; `changes` are of the artifact, `held` of its copy."""
    held = {"place": "nvme", "node": node, "state": "verified", "size": 10}
    held |= changes.pop("held", {})
    said = {
        "digest": DIGEST,
        "pod": "model-0",
        "pod_uid": "u1",
        "container": "main",
        "model": "llama",
        "size": 1000,
        "created_ms": BEGINNING,
        "facts": {"driver": "580.1", "gpu_count": 1},
        **changes,
    }
    return {"artifact": said, "held": held, "token": token}
