"""The registry as a process: what runs beside its calls."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kybernate.checkpoint.places import open_place
from kybernate.core.artifacts.grants import no_grants
from kybernate.errors import ConfigError, RetryableError
from kybernate.lib.retry import Clock, retry_blocking
from kybernate.runtime.artifacts import Placements, SnapshotTemplates
from kybernate.runtime.grants import ArtifactGrants
from kybernate.runtime.http import Listening, Server
from kybernate.runtime.revocations import Revocations
from kybernate.runtime.serve import ProbeServer
from kybernate.runtime.tls import MutualTls
from kybernate.settings.common import host_port
from registry import metrics
from registry.artifacts import Artifacts
from registry.database import open_database
from registry.http.app import create_app
from registry.http.callers import Admission, Standing, nowhere
from registry.http.routes import routes
from registry.keys.kms import open_kms
from registry.keys.namespacekeys import NamespaceKeys
from registry.keys.routes import key_routes
from registry.keys.shredding import Shredder
from registry.pods import Pods
from registry.store.named import read_named
from registry.store.routes import store_routes
from registry.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask

    from kybernate.settings.registry import RegistrySettings
    from registry.database import Database
    from registry.keys.signer import Signer
    from registry.store.named import Named

log = logging.getLogger(__name__)

_SHUTDOWN_S = 5
_LOOK_S = 30.0
"""Seconds between two looks at which namespaces are gone."""


class Cluster:
    """What the registry knows and does in Kubernetes."""

    def __init__(self, settings: RegistrySettings) -> None:
        """Raises ConfigError if credentials or the signer's authority can't be read."""
        from kybernate.adapters.k8s import Api  # noqa: PLC0415 - slow, and not always wanted
        from registry.cluster import Kubernetes  # noqa: PLC0415 - as above
        from registry.keys.signer import Signer  # noqa: PLC0415 - as above

        self._api = Api(settings.kubeconfig, "kyb-registry")
        self.facts = Kubernetes(self._api)
        self.revocations = Revocations()
        self.grants, self.placements = ArtifactGrants(), Placements()
        self.templates = SnapshotTemplates()
        self._signer: Signer | None = None
        folder = settings.signer_dir
        if folder is not None:
            self._signer = Signer(self._api, folder, settings.agent_certificate_s, self.revocations)

    def start(self) -> None:
        """Begin to watch, and to sign."""
        self.facts.start()
        self.revocations.start(self._api)
        self.grants.start(self._api)
        self.templates.start(self._api)
        self.placements.start(self._api)
        if self._signer is not None:
            self._signer.start()

    def believed(self, node: str, told_ms: int) -> bool:
        """Whether what this node's agent told then counts: it is not revoked, nor was it since."""
        return not self.revocations.why_not(node, told_ms)

    def gone(self, namespace: str, uid: str) -> bool:
        """Whether there is no such pod any more. Raises RetryableError."""
        found = self.facts.pod(uid) or self.facts.find(namespace, uid)
        return found is None or found.gone

    def named(self, node: str, namespace: str) -> Named:
        """What the namespace's pods on the node name to continue from."""
        return read_named(self.facts, self.templates.artifact, node, namespace)

    def stop(self) -> None:
        """End, within seconds."""
        if self._signer is not None:
            self._signer.stop()
        self.revocations.stop()
        self.grants.stop()
        self.templates.stop()
        self.placements.stop()
        self.facts.stop()


def open_cluster(settings: RegistrySettings) -> Cluster | None:
    """None where none is wanted. Raises ConfigError."""
    if settings.cluster == "none":
        if settings.signer_dir is not None:
            raise ConfigError("signer_dir", "needs cluster=kubernetes, where agents ask")
        return None
    return Cluster(settings)


def open_store(
    settings: RegistrySettings,
    database: Database,
    keys: NamespaceKeys,
    cluster: Cluster | None = None,
) -> Store | None:
    """The object store; None where none is given. Raises ConfigError."""
    if not settings.object_store:
        return None
    url, seconds, check = settings.object_store, settings.object_leave_s, keys.check_data_key
    at_once = max(1, settings.threads // 2)
    if cluster is None:
        return Store(url, database, seconds, check_data_key=check, at_once=at_once)
    return Store(
        url,
        database,
        seconds,
        gone=cluster.gone,
        grants=cluster.grants.all,
        named=cluster.named,
        check_data_key=check,
        placed=cluster.placements.wants,
        at_once=at_once,
    )


class Service:
    """What runs in the worker: the database, made ready in the background, the probes, and who
    looks after namespaces that are gone."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._database = open_database(settings)
        self._cluster = open_cluster(settings)
        self._granted = no_grants if self._cluster is None else self._cluster.grants.all
        self._facts = None if self._cluster is None else self._cluster.facts
        self._keys = NamespaceKeys(self._database, open_kms(settings), self._facts, self._gone)
        self._store = open_store(settings, self._database, self._keys, self._cluster)
        self._stopping = threading.Event()
        self._problem: str | None = "the database is not ready yet"
        self._probes = ProbeServer(*host_port(settings.probe_listen), self.not_ready)
        places = (open_place(settings.object_store),) if settings.object_store else ()
        grace_s = settings.shred_after_s
        self._shredder = Shredder(self._database, self._facts, places, grace_s)
        self._preparing = threading.Thread(target=self._prepare, name="prepare", daemon=True)

    def start(self) -> None:
        """Start the probes, and get the database ready as soon as it answers."""
        self._probes.start()
        self._preparing.start()
        if self._cluster is not None:
            self._cluster.start()

    def stop(self) -> None:
        """Stop everything, within seconds."""
        self._stopping.set()
        self._probes.stop()
        self._preparing.join(_SHUTDOWN_S)
        if self._cluster is not None:
            self._cluster.stop()
        self._database.close()

    def app(self) -> Flask:
        """The application over this database."""
        cluster = self._cluster
        told = () if cluster is None else (cluster.believed,)
        artifacts = Artifacts(self._database, *told)
        metrics.COPIES.set_function(artifacts.counts)
        pods = Pods(self._database, self._settings.max_lease_s)
        revocations = None if self._cluster is None else self._cluster.revocations
        admission = Admission(revocations, shared=self._settings.shared_agent_keys)
        placed = nowhere if cluster is None else cluster.placements.wants
        standing = Standing(pods, artifacts, self._facts, placed)
        calls = (
            *routes(artifacts, pods, standing),
            *store_routes(self._store),
            *key_routes(self._keys, self._shredder, self._granted),
        )
        return create_app(calls, self._settings.max_body_bytes, admission=admission)

    def _gone(self, uid: str) -> bool:
        found = self._facts.pod(uid) if self._facts is not None else None
        return found is not None and found.gone

    def not_ready(self) -> str | None:
        """Why calls can't be answered now, in a sentence."""
        return self._problem or self._database.why_not()

    def _prepare(self) -> None:
        def say(error: Exception) -> None:
            self._problem = str(error)

        try:
            ready, clock = self._database.prepare, Clock(sleep=self._stopping.wait)
            steps = retry_blocking(ready, say, on=RetryableError, clock=clock)
        except RetryableError:
            return  # stopped meanwhile
        except ConfigError as error:
            say(error)
            log.error("%s", error)
            return
        log.info("the database is ready (%d steps of migration)", steps)
        self._problem = None
        self._shredder.run(self._stopping, _LOOK_S)


def make_server(settings: RegistrySettings) -> Server:
    """Raises ConfigError for certificates, a database or keys that can't be right."""
    tls = MutualTls(settings.tls_dir, "registry", more=["agents-ca.crt"])
    tls.check()
    database = open_database(settings)
    open_store(settings, database, NamespaceKeys(database, open_kms(settings)))
    database.close()
    if open_cluster(settings) is None:
        log.warning(
            "cluster is none: every agent is believed whichever pod it speaks for; set it to "
            "kubernetes unless there is none"
        )
    if settings.shared_agent_keys:
        log.warning(
            "shared_agent_keys is on: agents are believed by certificates whose keys other "
            "nodes may hold; turn it off once every node has its own"
        )
    listening = Listening(
        "kyb-registry",
        settings.listen,
        settings.threads,
        request_s=settings.request_s,
        stop_s=_SHUTDOWN_S,
        log_level=settings.log_level,
    )
    return Server(listening, tls, _serving(settings))


@contextmanager
def _serving(settings: RegistrySettings) -> Iterator[Flask]:
    service = Service(settings)
    service.start()
    try:
        yield service.app()
    finally:
        service.stop()
