"""What a pod says of the saved state that it wants to go on from. Pure.

Nothing of it becomes a path or a command: a name is taken apart by `artifacts.layout`, a pod's UID
is compared with what signed manifests say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.restores import OF_POD, RestoreAs, RestoreWish
from kybernate.errors import ConfigError, RefusedError
from kybernate.types import ArtifactId, PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_ARTIFACT, _NO_POD = ArtifactId(""), PodUid("")
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,127}")
_START, _FAIL = "start", "fail"
ELSE = (_START, _FAIL)
"""What becomes of a pod whose artifact can't be had."""
_YES, _NO = "true", "false"
_DETAILS = (keys.RESTORE_AS, keys.RESTORE_ELSE, keys.CLONE_STOPPED)


def read_wish(notes: Mapping[str, str]) -> RestoreWish | None:
    """What a pod's annotations ask for, if they do. Raises ConfigError, naming the annotation."""
    source = notes.get(keys.RESTORE_FROM)
    if source is None:
        for name in _DETAILS:
            if name in notes:
                raise ConfigError(name, f"says nothing without {keys.RESTORE_FROM}; set both")
        return None
    kind = RestoreAs(_choice(notes, keys.RESTORE_AS, [one.value for one in RestoreAs]))
    stopped = _choice(notes, keys.CLONE_STOPPED, [_NO, _YES]) == _YES
    if stopped and kind is not RestoreAs.CLONE:
        raise ConfigError(keys.CLONE_STOPPED, f"needs {keys.RESTORE_AS}: {RestoreAs.CLONE}")
    waits = _choice(notes, keys.RESTORE_ELSE, [*ELSE]) == _FAIL or kind is RestoreAs.CLONE
    artifact, uid = _source(source)
    return RestoreWish(artifact, uid, kind, waits, stopped)


def read_source(source: str) -> RestoreWish:
    """What the annotation's text alone asks for. Raises ConfigError."""
    return RestoreWish(*_source(source))


def _source(text: str) -> tuple[ArtifactId, PodUid]:
    if text.startswith(OF_POD):
        uid = text.removeprefix(OF_POD)
        if _UID.fullmatch(uid) is None:
            raise ConfigError(
                keys.RESTORE_FROM, f"{text[:200]!r} names no pod; write pod/<its UID>"
            )
        return _NO_ARTIFACT, PodUid(uid)
    try:
        layout.parse_id(text)
    except RefusedError as error:
        raise ConfigError(
            keys.RESTORE_FROM, f"{error}; or write pod/<UID> for a pod's newest state"
        ) from error
    return ArtifactId(text), _NO_POD


def _choice(notes: Mapping[str, str], name: str, choices: list[str]) -> str:
    """The first is what counts without the annotation."""
    given = notes.get(name, choices[0])
    if given not in choices:
        raise ConfigError(name, f"is {given[:100]!r}; write {' or '.join(choices)}")
    return given
