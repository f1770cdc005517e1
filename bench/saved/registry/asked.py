"""How long lists and look-ups take over mutual TLS, and the bare SQL query beside them."""

from __future__ import annotations

import http.client
import re
import ssl
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson
from sqlalchemy import text

from bench.saved.registry.manifests import STORE, make, node_of, pod_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.database import Database
    from tests.kit.servers.registryserver import Server

PAGE = 100
_LIST = """
SELECT a.*, c.* FROM (SELECT id, created_ms FROM artifacts WHERE namespace = :namespace
ORDER BY created_ms DESC, id DESC LIMIT 101) k JOIN artifacts a ON a.id = k.id
JOIN copies c ON c.artifact = k.id ORDER BY k.created_ms DESC, k.id DESC
"""
_LOOKUP = "SELECT a.*, c.* FROM artifacts a JOIN copies c ON c.artifact = a.id WHERE a.id = :id"


@dataclass
class Times:
    """Milliseconds of each call."""

    lists: list[float] = field(default_factory=list)
    lookups: list[float] = field(default_factory=list)
    bare_lists: list[float] = field(default_factory=list)
    bare_lookups: list[float] = field(default_factory=list)
    list_cpu: float = 0.0
    """The server's own, for each; other work on the machine doesn't count."""

    lookup_cpu: float = 0.0
    wrong: int = 0


class Asker:
    """One reader on one connection."""

    def __init__(self, server: Server, count: int) -> None:
        context = ssl.create_default_context(cafile=server.tls / "ca.crt")
        context.load_cert_chain(server.tls / "controller.crt", server.tls / "controller.key")
        self._server = server
        self._line = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=30, context=context
        )
        self._count = count
        self._random = Random(1)

    def ask(self, database: Database, lists: int, lookups: int) -> Times:
        """Calls in turn with bare queries of the same, after some that don't count."""
        times = Times()
        for warm in (True, False):
            found = Times() if warm else times
            began = self._cpu_ms()
            for _ in range(lists // 10 if warm else lists):
                found.lists.append(_timed(lambda: self._list(times)))
                found.bare_lists.append(_timed(lambda: self._bare_list(database)))
            found.list_cpu = (self._cpu_ms() - began) / lists
            began = self._cpu_ms()
            for _ in range(lookups // 10 if warm else lookups):
                found.lookups.append(_timed(lambda: self._lookup(times)))
                found.bare_lookups.append(_timed(lambda: self._bare_lookup(database)))
            found.lookup_cpu = (self._cpu_ms() - began) / lookups
        self._line.close()
        return times

    def _cpu_ms(self) -> float:
        page = self._server.get("/metrics")
        (line,) = re.findall(r"^process_cpu_seconds_total (\S+)$", page, re.MULTILINE)
        return float(line) * 1000

    def _list(self, times: Times) -> None:
        number = self._random.randrange(self._count)
        namespace, pod, model = pod_of(number)
        wanted: dict[str, str] = self._random.choice(
            [
                {},
                {"namespace": namespace},
                {"namespace": namespace, "pod": pod},
                {"namespace": namespace, "model": model},
                {"node": node_of(number)},
                {"place": "object"},
                {"state": "missing"},
                {"node": node_of(number), "state": "verified", "namespace": namespace},
                {"after": f"{int(time.time() * 1000)}:{make(number).id}"},
            ]
        )
        found = self._get(f"/v1/artifacts?{urlencode({'limit': PAGE, **wanted})}")
        shown = {name: wanted[name] for name in ("namespace", "model", "pod") if name in wanted}
        for item in found["items"]:
            times.wrong += any(item[name] != value for name, value in shown.items())
        times.wrong += not found["items"] and "pod" in wanted

    def _lookup(self, times: Times) -> None:
        number = self._random.randrange(self._count)
        manifest = make(number)
        found = self._get(f"/v1/artifacts/{quote(manifest.id, safe='/@')}")
        places = {(copy["node"], copy["store"]) for copy in found["copies"]}
        wanted = {(node_of(number), ""), *([("", STORE)] if number % 5 == 0 else [])}
        times.wrong += (found["size"], places) != (manifest.total, wanted)

    def _bare_list(self, database: Database) -> None:
        namespace, _, _ = pod_of(self._random.randrange(self._count))
        with database.read() as connection:
            connection.execute(text(_LIST), {"namespace": namespace}).all()

    def _bare_lookup(self, database: Database) -> None:
        id_ = make(self._random.randrange(self._count)).id
        with database.read() as connection:
            connection.execute(text(_LOOKUP), {"id": id_}).all()

    def _get(self, path: str) -> dict[str, Any]:
        self._line.request("GET", path)
        answer = self._line.getresponse()
        found: dict[str, Any] = orjson.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"GET {path}: {answer.status} {found}")
        return found


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
