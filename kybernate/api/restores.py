"""What a pod says of the artifact that it wants to continue from. Pure.

Nothing of it becomes a path or a command: a name is taken apart by `artifacts.layout`, a pod's UID
is compared with what signed manifests say.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.lenient import mapping, text
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.restores import OF_POD, OF_TEMPLATE, RestoreAs, RestoreWish
from kybernate.errors import ConfigError, RefusedError
from kybernate.types import ArtifactId, PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping

_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,127}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_START, _FAIL = "start", "fail"
ELSE = (_START, _FAIL)
"""What becomes of a pod whose artifact can't be had."""
_YES, _NO = "true", "false"
DETAILS = (keys.RESTORE_AS, keys.RESTORE_ELSE, keys.CLONE_STOPPED)
"""Annotations that say more of it."""


def ready_artifact(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """Namespace, name and artifact of a SnapshotTemplate; the last is empty until it has one."""
    meta = mapping(item.get("metadata"))
    artifact = text(mapping(mapping(item.get("status")).get("artifact")).get("name"))
    return text(meta.get("namespace")), text(meta.get("name")), artifact


def read_wish(notes: Mapping[str, str]) -> RestoreWish | None:
    """What a pod's annotations ask for, if they do. Raises ConfigError, naming the annotation."""
    source = notes.get(keys.RESTORE_FROM)
    if source is None:
        for name in DETAILS:
            if name in notes:
                raise ConfigError(name, f"says nothing without {keys.RESTORE_FROM}; set both")
        return None
    wish = read_source(source)
    kinds = [one.value for one in RestoreAs]
    if wish.template:
        # The pod that it was made of has ended, and each copy is like the others.
        kinds = [RestoreAs.TEMPLATE.value, RestoreAs.CLONE.value]
    kind = RestoreAs(_choice(notes, keys.RESTORE_AS, kinds))
    stopped = _choice(notes, keys.CLONE_STOPPED, [_NO, _YES]) == _YES
    if stopped and kind is not RestoreAs.CLONE:
        raise ConfigError(keys.CLONE_STOPPED, f"needs {keys.RESTORE_AS}: {RestoreAs.CLONE}")
    waits = _choice(notes, keys.RESTORE_ELSE, [*ELSE]) == _FAIL or kind is RestoreAs.CLONE
    return replace(wish, kind=kind, waits=waits, stopped=stopped)


def read_source(source: str) -> RestoreWish:
    """What the annotation's text alone asks for. Raises ConfigError."""
    if source.startswith(OF_TEMPLATE):
        name = source.removeprefix(OF_TEMPLATE)
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                keys.RESTORE_FROM,
                f"{source[:200]!r} names no SnapshotTemplate; write template/<its name>",
            )
        return RestoreWish(template=name)
    if source.startswith(OF_POD):
        uid = source.removeprefix(OF_POD)
        if _UID.fullmatch(uid) is None:
            raise ConfigError(
                keys.RESTORE_FROM, f"{source[:200]!r} names no pod; write pod/<its UID>"
            )
        return RestoreWish(uid=PodUid(uid))
    try:
        layout.parse_id(source)
    except RefusedError as error:
        raise ConfigError(
            keys.RESTORE_FROM, f"{error}; or write pod/<UID> for a pod's newest state"
        ) from error
    return RestoreWish(ArtifactId(source))


def _choice(notes: Mapping[str, str], name: str, choices: list[str]) -> str:
    """The first is what counts without the annotation."""
    given = notes.get(name, choices[0])
    if given not in choices:
        raise ConfigError(name, f"is {given[:100]!r}; write {' or '.join(choices)}")
    return given
