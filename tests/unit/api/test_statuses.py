"""What a controller writes into a status it reads again whole, each field of it: it goes on from
there after a restart."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from kybernate.api.rebalances.reading import dump_rebalance, read_rebalance
from kybernate.api.requests import dump_status, read_request
from kybernate.api.restoring.requests import dump_restore, read_restore
from kybernate.api.templates.status import dump_template_status, read_status
from kybernate.core.requests import asked, checkpoint, rebalance, restore, template
from kybernate.core.requests.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

META = {
    "namespace": "shop",
    "name": "once",
    "uid": "r1",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
HERE, THERE = checkpoint.Target("n1", "G0"), checkpoint.Target("n2", "G1")
ON, FOR = template.Basis("s", "i", "p", "d"), template.Basis("s2", "i2", "p2", "d2")
CHECKPOINT = checkpoint.Status(
    pod_uid="u1",
    node="n1",
    operation="ckpt-r1",
    began_at=1.0,
    ended_at=2.0,
    reason=Reason.RUNNING,
    message="m",
    outcome=checkpoint.Outcome("shop/a@1", "nvme", 5),
    copied=asked.Copied(1, 4, 9.0, 8.0, 2),
    owner="o",
    limit=6,
    scaled_up_at=3.0,
)
RESTORE = restore.RestoreStatus(
    artifact="shop/a@1",
    source_uid="u1",
    pod="copy",
    pod_uid="u2",
    node="n1",
    began_at=1.0,
    ended_at=2.0,
    reason=restore.RestoreReason.RESTORING,
    message="m",
    copied=asked.Copied(1, 4, 9.0, 8.0, 2),
)
MOVE = rebalance.Step(
    kind=rebalance.Kind.MOVE,
    namespace="shop",
    pod="a",
    uid="u1",
    source=HERE,
    target=THERE,
    seconds=1.5,
    size=7,
    stage=rebalance.Stage.DONE,
    successor="u2",
)
REBALANCE = rebalance.Status(
    plan=rebalance.Plan(hash="h", steps=(MOVE,), moves=1, seconds=1.5, told="t"),
    planned_at=4.0,
    began_at=1.0,
    ended_at=2.0,
    ready_at=3.0,
    reason=rebalance.RebalanceReason.PLANNING,
    message="m",
)
TEMPLATE = template.TemplateStatus(
    reason=template.TemplateReason.STARTING,
    message="m",
    artifact=template.Artifact("shop/a@1", "r", "n1", 5, 1.0, ON, FOR),
    build=template.Build(3, FOR, 2, 4.0, "u1", "n1", ON),
    builds=3,
)


def _checkpoint() -> object:
    told = dump_status(CHECKPOINT, None, 1, 0.0)
    return read_request(_item(told, pod="a", mode="Park")).status


def _restore() -> object:
    told = dump_restore(RESTORE, None, 1, 0.0)
    spec: dict[str, Any] = {"source": {"pod": "a"}, "as": "clone"}
    return read_restore(_item(told, **spec)).status


def _rebalance() -> object:
    told = dump_rebalance(REBALANCE, None, 1, 0.0)
    return read_rebalance(_item(told, defragment={})).status


def _template() -> object:
    made = template.Template("t1", "shop", "t", "s", "i", ("p",), 1.0, TEMPLATE)
    return read_status(orjson.loads(orjson.dumps(dump_template_status(TEMPLATE, made, None, 1, 0))))


def _item(status: object, **spec: object) -> dict[str, Any]:
    return orjson.loads(orjson.dumps({"metadata": META, "spec": spec, "status": status}))


@pytest.mark.parametrize(
    ("status", "read"),
    [
        (CHECKPOINT, _checkpoint),
        (RESTORE, _restore),
        (REBALANCE, _rebalance),
        (TEMPLATE, _template),
    ],
)
def test_each_field_is_read_as_it_was_written(status: Any, read: Any) -> None:
    assert list(_unset(status)) == [], "give the example above a value of its own"
    assert read() == status


def _unset(value: object) -> Iterator[str]:
    """Fields of the example, at any depth, that have the value which they have by themselves."""
    for field in fields(value):  # type: ignore[arg-type]
        found = getattr(value, field.name)
        if found == _default(field):
            yield f"{type(value).__name__}.{field.name}"
        for part in found if isinstance(found, tuple) else (found,):
            if hasattr(part, "__dataclass_fields__"):
                yield from _unset(part)


def _default(field: Field[Any]) -> object:
    return None if field.default is MISSING else field.default
