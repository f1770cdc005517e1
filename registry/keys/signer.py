"""The signer of agents' certificates: it looks at each request, says no in a sentence, or signs.

It holds the key of an authority whose certificates make agents and nothing else.
"""

from __future__ import annotations

import base64
import copy
import logging
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.adapters.pki import AGENTS, Folder
from kybernate.adapters.pki.requests import CSRS, read_request, sign
from kybernate.errors import ConflictError, KybernateError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from kybernate.adapters.pki.requests import Request
    from kybernate.runtime.revocations import Revocations

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_ASK_S = 5.0
_AGAIN_S = 5.0
_ROUND_S = 0.2
_MOST = 3
"""Open requests of one node that are answered in a round. Its agent waits for the newest alone."""
_APPROVED, _DENIED, _FAILED = "Approved", "Denied", "Failed"


class Signer:
    """Watches requests and answers them, each replica for itself: what another did is a conflict,
    and left. `folder` holds agents-ca.crt and agents-ca.key."""

    def __init__(self, api: Api, folder: Path, lasts_s: float, revocations: Revocations) -> None:
        """Raises ConfigError if the folder's authority can't be read. One that isn't there may come
        yet, as a Secret does; requests wait for it."""
        self._api = api
        self._folder = folder
        self._lasts = timedelta(seconds=lasts_s)
        self._revocations = revocations
        if self._can_sign():
            Folder(folder).authority(AGENTS)
        else:
            log.warning("no agent is certified until %s holds %s.crt", folder, AGENTS)
        self._open: dict[str, Json] = {}
        self._lock = threading.Lock()
        self._come = threading.Event()
        self._stopping = threading.Event()
        params = {"fieldSelector": f"spec.signerName={keys.AGENT_SIGNER}"}
        self._watch = Watcher(api, CSRS, params, self._event, "requests of agents")
        self._thread = threading.Thread(target=self._run, name="signer", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """End, within seconds."""
        self._stopping.set()
        self._come.set()
        self._watch.stop()
        self._thread.join(_ASK_S)

    def answer(self, item: Json, now: datetime) -> None:
        """Deny the request, or approve and sign it. Raises KybernateError if that can't be done
        now."""
        item = copy.deepcopy(item)
        try:
            wanted = read_request(item)
            certificate = self._signed(wanted, now)
        except RefusedError as error:
            log.warning("request %s is denied: %s", item["metadata"]["name"], error)
            self._decide(item, _DENIED, "Refused", str(error))
            return
        if not _has(item, _APPROVED):
            item = self._decide(item, _APPROVED, "NodeVerified", f"made on node {wanted.node}")
        item["status"]["certificate"] = base64.b64encode(certificate).decode()
        self._api.put(f"{CSRS}/{item['metadata']['name']}/status", item, timeout=_ASK_S)
        log.info("certified the agent of node %s", wanted.node)

    def _signed(self, wanted: Request, now: datetime) -> bytes:
        access = self._revocations.of(wanted.node)
        if access is not None and access.revoked:
            raise RefusedError(self._revocations.why_not(wanted.node, 0))
        # Not backdated to when those of before the node was let in again were made.
        since = datetime.fromtimestamp((access.at_ms + 999) // 1000 if access else 0, UTC)
        # Read for each, so that a renewed authority counts without a restart.
        authority = Folder(self._folder).authority(AGENTS)
        return sign(authority, wanted, self._lasts, now, since)

    def _can_sign(self) -> bool:
        return (self._folder / f"{AGENTS}.crt").is_file()

    def _decide(self, item: Json, kind: str, reason: str, message: str) -> Json:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        item.setdefault("status", {}).setdefault("conditions", []).append(condition)
        return self._api.put(f"{CSRS}/{item['metadata']['name']}/approval", item, timeout=_ASK_S)

    def _event(self, kind: str, item: Json) -> None:
        name = item["metadata"]["name"]
        done = (item.get("status") or {}).get("certificate") or _has(item, _DENIED, _FAILED)
        with self._lock:
            if kind == "DELETED" or done:
                self._open.pop(name, None)
            else:
                self._open[name] = item
                self._come.set()

    def _run(self) -> None:
        while not self._stopping.wait(_ROUND_S):
            self._come.wait(_AGAIN_S)
            self._come.clear()
            # Without the list nobody knows whom to refuse.
            if self._stopping.is_set() or not self._revocations.synced or not self._can_sign():
                continue
            with self._lock:
                waiting = list(self._open.items())
            newest, more = _by_turns(waiting)
            for name, item in newest:
                self._try(name, item, self._answer_now)
            for name, item in more:
                self._try(name, item, self._deny)

    def _answer_now(self, item: Json) -> None:
        self.answer(item, datetime.now(UTC))

    def _deny(self, item: Json) -> None:
        message = f"its node had more than {_MOST} requests open; the newest ones were answered"
        self._decide(copy.deepcopy(item), _DENIED, "TooMany", message)

    def _try(self, name: str, item: Json, act: Callable[[Json], None]) -> None:
        try:
            act(item)
        except (ConflictError, NotFoundError):
            log.debug("request %s was answered, or taken away, meanwhile", name)
        except KybernateError as error:
            log.warning("request %s can't be answered now: %s", name, error)
            return
        except Exception:
            log.exception("request %s", name)
        with self._lock:
            if self._open.get(name) is item:
                del self._open[name]


def _by_turns(waiting: list[tuple[str, Json]]) -> tuple[list[tuple[str, Json]], ...]:
    """The newest few requests of each node, and all others. The node is the one that the API server
    wrote into it."""
    newest: list[tuple[str, Json]] = []
    more: list[tuple[str, Json]] = []
    count: Counter[str] = Counter()
    for name, item in sorted(waiting, key=_made, reverse=True):
        spec = item.get("spec") or {}
        node = f"{spec.get('username')} {(spec.get('extra') or {}).get(keys.NODE_OF_TOKEN)}"
        count[node] += 1
        # Half answered by a replica that ended: to be denied it is too late.
        few = count[node] <= _MOST or _has(item, _APPROVED)
        (newest if few else more).append((name, item))
    return newest, more


def _made(one: tuple[str, Json]) -> tuple[str, str]:
    name, item = one
    return item["metadata"].get("creationTimestamp") or "", name


def _has(item: Json, *kinds: str) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one.get("type") in kinds for one in conditions)
