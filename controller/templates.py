"""SnapshotTemplates: a pod of each is made, warmed up, kept as an artifact, and ended.

Agents start pods from the artifact that a template's status names, without this.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from controller.base.lasting import Objects, Statuses
from controller.checkpoints.agents import forget
from kybernate import keys
from kybernate.api import pods
from kybernate.api.templates.pod import image_of, pod_of, read_build_pod, snapshot_of, template_of
from kybernate.api.templates.reading import Recipe, read_template
from kybernate.api.templates.status import dump_template_status
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
from kybernate.lib.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

    from controller.base.cluster import Cluster
    from controller.base.known import Nodes, Requests
    from controller.base.lasting import Lasting
    from controller.base.queue import Key, Queue
    from controller.checkpoints.agents import Agents
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_AGAIN_S = 60.0
"""Seconds until what could not be done is tried again."""


class _Asker(NamedTuple):
    """A pod that asks for a template. `image` as it names it, `runs` what it runs."""

    template: str
    image: str
    runs: str
    created_at: float


class _Made(NamedTuple):
    """A pod that was made of a template, with the template's UID."""

    maker: str
    pod: BuildPod


class Templates(Objects[Recipe]):
    """SnapshotTemplates, their pods and those that ask for them."""

    def __init__(self, due: Callable[[Key, float], None]) -> None:
        super().__init__(keys.SNAPSHOT_TEMPLATES_PATH, read_template, due)
        self._pods: Keyed[_Made] = Keyed()
        self._askers: Keyed[_Asker] = Keyed()

    def on_pod(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of pods."""
        pod = pods.read_pod(item)
        uid, gone = str(pod.ref.uid), kind == "DELETED"
        owner = pod.owner or {}
        made = owner.get("kind") == keys.SNAPSHOT_TEMPLATE_KIND
        maker = str(owner.get("uid")) if made else ""
        asked = "" if maker else template_of(pod)
        if maker:
            # A pod of another namespace may name any owner.
            now = None if gone else _Made(maker, read_build_pod(pod))
            self._pods.put(pod.namespace, uid, now)
        elif asked:
            over = gone or pod.over or pod.leaving
            self._askers.put(pod.namespace, uid, None if over else _asker(pod, asked))
        else:
            return
        for key in self._known.keys(pod.namespace):
            one = self.get(key)
            if key[1] == asked or (one is not None and one.uid == maker):
                self._due(key, self.settle_s)

    def pods(self, namespace: str, uid: str) -> tuple[BuildPod, ...]:
        """Those that were made of the template with this UID."""
        return tuple(one.pod for one in self._pods.of(namespace) if one.maker == uid)

    def image(self, key: Key, image: str) -> str:
        """The digest that the newest pod runs which asks for the template with this `image`."""
        every = self._askers.of(key[0])
        mine = [one for one in every if (one.template, one.image) == (key[1], image) and one.runs]
        return max(mine, key=lambda one: (one.created_at, one.runs)).runs if mine else ""


_ALARMING: frozenset[StrEnum] = frozenset({*FAILED, TemplateReason.INVALID})
"""Reasons that people should see to."""


class TemplateWorker:
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
        self._queue = queue
        self._cluster = cluster
        self._fence = fence
        self._wall = wall
        told = keys.SNAPSHOT_TEMPLATE_KIND, _ALARMING
        self._statuses = Statuses(*told, templates, cluster, fence)
        self._templates = templates
        self._requests = requests
        self._nodes = nodes
        self._agents = agents
        self._sidecar = sidecar

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
        self._statuses.put(known, told, status.reason, status.message)


def _asker(pod: pods.Pod, template: str) -> _Asker:
    image = pod.ask.image if pod.ask else ""
    return _Asker(template, image, image_of(pod), pod.created_at())
