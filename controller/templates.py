"""SnapshotTemplates: a pod of each is made, warmed up, kept as an artifact, and ended.

Agents start pods from the artifact that a template's status names, without this.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from controller.base.known import key_of
from controller.base.lasting import read_lasting, write_lasting
from controller.base.worker import Shift
from controller.checkpoints.agents import forget
from kybernate import keys
from kybernate.api import pods
from kybernate.api.templates.pod import image_of, pod_of, read_build_pod, snapshot_of, template_of
from kybernate.api.templates.reading import Recipe, read_template
from kybernate.api.templates.status import dump_template_status, reason_of
from kybernate.core.requests.template import (
    FAILED,
    BuildPod,
    SeenTemplate,
    TemplatePlan,
    TemplateReason,
    TemplateStatus,
    decide,
    left_s,
)
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.base.known import Nodes, Requests
    from controller.base.lasting import Lasting
    from controller.base.queue import Key, Queue
    from controller.checkpoints.agents import Agents
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

K = TypeVar("K")

log = logging.getLogger(__name__)

_SETTLE_S = 0.1
"""Seconds in which changes of a namespace's pods are taken together."""
_AGAIN_S = 60.0
"""Seconds until what could not be done is tried again."""


class _Asker(NamedTuple):
    """A pod that asks for a template. `image` as it names it, `runs` what it runs."""

    template: str
    image: str
    runs: str
    created_at: float


class Templates:
    """SnapshotTemplates, their pods and those that ask for them. Fed by the watches' threads and by
    what is written; any thread may ask. `due` is told of templates of which something may have
    changed, and in how many seconds to look."""

    def __init__(self, due: Callable[[Key, float], None]) -> None:
        self._due = due
        self._lock = threading.Lock()
        self._known: dict[Key, Lasting[Recipe]] = {}
        self._pods: dict[tuple[str, str], dict[str, BuildPod]] = {}
        self._askers: dict[str, dict[str, _Asker]] = {}

    def on_template(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of templates."""
        key = key_of(item)
        with self._lock:
            self._known.pop(key, None)
            if kind != "DELETED" and "deletionTimestamp" not in item["metadata"]:
                self._known[key] = read_lasting(keys.SNAPSHOT_TEMPLATES_PATH, item, read_template)
        self._due(key, 0.0)

    def wrote(self, item: Json) -> None:
        """What a write of ours was answered with."""
        key, found = key_of(item), read_lasting(keys.SNAPSHOT_TEMPLATES_PATH, item, read_template)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.uid == found.uid:
                self._known[key] = found

    def on_pod(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of pods."""
        pod = pods.read_pod(item)
        uid, gone = str(pod.ref.uid), kind == "DELETED"
        owner = pod.owner or {}
        made = owner.get("kind") == keys.SNAPSHOT_TEMPLATE_KIND
        # A pod of another namespace may name any owner.
        maker = (pod.namespace, str(owner.get("uid"))) if made else None
        asked = "" if maker else template_of(pod)
        if maker is None and not asked:
            return
        with self._lock:
            if maker is not None:
                _keep(self._pods, maker, uid, None if gone else read_build_pod(pod))
            else:
                over = gone or pod.over or pod.leaving
                _keep(self._askers, pod.namespace, uid, None if over else _asker(pod, asked))
            names = [
                key
                for key, one in self._known.items()
                if (key[1] == asked and key[0] == pod.namespace) or (key[0], one.uid) == maker
            ]
        for key in names:
            self._due(key, _SETTLE_S)

    def number(self, reason: TemplateReason) -> int:
        """How many have this reason."""
        with self._lock:
            return sum(reason_of(one.status) is reason for one in self._known.values())

    def touch(self, namespace: str = "") -> None:
        """Have all templates of a namespace looked at, without one all of the cluster."""
        with self._lock:
            names = [key for key in self._known if namespace in {"", key[0]}]
        for key in names:
            self._due(key, _SETTLE_S)

    def get(self, key: Key) -> Lasting[Recipe] | None:
        """The template as it was last seen; None if it is gone."""
        return self._known.get(key)

    def pods(self, namespace: str, uid: str) -> tuple[BuildPod, ...]:
        """Those that were made of the template with this UID."""
        with self._lock:
            return tuple(self._pods.get((namespace, uid), {}).values())

    def image(self, key: Key, image: str) -> str:
        """The digest that the newest pod runs which asks for the template with this `image`."""
        with self._lock:
            every = tuple(self._askers.get(key[0], {}).values())
        mine = [one for one in every if (one.template, one.image) == (key[1], image) and one.runs]
        return max(mine, key=lambda one: (one.created_at, one.runs)).runs if mine else ""


class TemplateWorker(Shift):
    """Has artifacts of templates made and replaced. `sidecar`: the image that warms pods up; `wall`
    gives seconds since 1970."""

    kind = "template"

    def __init__(  # noqa: PLR0913, PLR0917 - each of them is another part
        self,
        queue: Queue,
        templates: Templates,
        requests: Requests[Request],
        nodes: Nodes,
        cluster: Cluster,
        agents: Agents,
        fence: Fence,
        sidecar: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(queue, fence)
        self._templates = templates
        self._requests = requests
        self._nodes = nodes
        self._cluster = cluster
        self._agents = agents
        self._sidecar = sidecar
        self._wall = wall

    def look(self, key: Key) -> None:
        """Do what the template of this name needs now. Raises KybernateError."""
        known = self._templates.get(key)
        if known is None:
            return
        if known.says is None:
            self._write(known, TemplateStatus(TemplateReason.INVALID, known.wrong))
            return
        recipe = known.says
        seen = SeenTemplate(
            recipe.template,
            self._templates.pods(key[0], recipe.template.uid),
            [one for one in self._requests.of(key[0]) if one.policy == recipe.template.uid],
            self._nodes.gpus(),
            self._templates.image(key, recipe.template.image),
        )
        plan = self._created(recipe, seen)
        for pod in plan.ended:
            self._fence.check()
            self._cluster.end_pod(key[0], pod.name, pod.uid)
        again = plan.again
        for one in (*plan.dropped, *plan.removed):
            self._fence.check()
            why = f"SnapshotTemplate {key[0]}/{key[1]} has another one"
            if one in plan.dropped and forget(self._agents, one, why):
                again = min(again, _AGAIN_S)
                continue
            self._cluster.remove(one)
        if again < math.inf:
            self._queue.add(key, again)
        self._write(known, plan.status)

    def _created(self, recipe: Recipe, seen: SeenTemplate) -> TemplatePlan:
        """What is decided once what was to be created is, or was refused."""
        template, now = recipe.template, self._wall()
        plan, build = decide(seen, now), recipe.template.status.build
        if plan.pod and build is not None:
            self._fence.check()
            try:
                body = pod_of(recipe, build.number, self._sidecar)
                path = f"/api/v1/namespaces/{template.namespace}/pods"
                if not self._cluster.create(path, body):
                    self._check_own(recipe, str(body["metadata"]["name"]))
            except RefusedError as error:
                return decide(replace(seen, refused=str(error)), now)
        if plan.request and build is not None:
            self._fence.check()
            pod = next(one for one in seen.pods if one.name == plan.request)
            body = snapshot_of(template, build.number, left_s(pod, template, now))
            path = f"/apis/{keys.API_VERSION}/namespaces/{template.namespace}/checkpointrequests"
            try:
                self._cluster.create(path, body)
            except RefusedError as error:
                # Such as by a quota; the build ends at its deadline.
                why = f"CheckpointRequest {plan.request} can't be made: {error}"
                return replace(plan, status=replace(plan.status, message=why))
        return plan

    def _check_own(self, recipe: Recipe, name: str) -> None:
        """Raises RefusedError if the pod of this name is none of the template's."""
        template = recipe.template
        found = self._cluster.whole_pod(template.namespace, name)
        owner = pods.read_pod(found).owner or {} if found is not None else None
        if owner is not None and owner.get("uid") != template.uid:
            raise RefusedError(
                f"there is a pod {name}, which isn't this template's; the next build has another "
                "name"
            )

    def _write(self, known: Lasting[Recipe], status: TemplateStatus) -> None:
        template = known.says.template if known.says else None
        told = dump_template_status(status, template, known.status, known.generation, self._wall())
        found = write_lasting(self._cluster, known, told, self._fence)
        if found is None:
            return
        self._templates.wrote(found)
        if status.reason is not reason_of(known.status):
            namespace, name = key_of(found)
            log.info("template %s/%s: %s: %s", namespace, name, status.reason, status.message)
            about = {
                "apiVersion": keys.API_VERSION,
                "kind": keys.SNAPSHOT_TEMPLATE_KIND,
                "namespace": namespace,
                "name": name,
                "uid": known.uid,
            }
            bad = status.reason in {*FAILED, TemplateReason.INVALID}
            self._cluster.say(about, str(status.reason), status.message, warning=bad)


def _keep(those: dict[K, dict[str, Any]], key: K, uid: str, found: object) -> None:
    those.setdefault(key, {}).pop(uid, None)
    if found is not None:
        those[key][uid] = found
    elif not those[key]:
        del those[key]


def _asker(pod: pods.Pod, template: str) -> _Asker:
    image = pod.ask.image if pod.ask else ""
    return _Asker(template, image, image_of(pod), pod.created_at())
