"""Waking by a map of GPUs: to the same ones, to one that isn't here, to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gpu.driver import ByBindings, RefusedByDriverError
from tests.gpu.held import Held, held
from tests.gpu.machine import used_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.here import Answer, Here

_BYTES = 32 << 20
_UNKNOWN = "GPU-00000000-0000-4000-8000-000000000001"


def answers(here: Here) -> Iterator[Answer]:
    """The process sees all GPUs, and uses the first."""
    bare = ByBindings()
    with held(",".join(here.uuids), "hold", f"--bytes={_BYTES}") as one:
        expected = one.answer()
        yield ("remap.unknown_refused", *_unknown(bare, one, here))
        found, said = _woken(bare, one, [(uuid, uuid) for uuid in here.uuids])
        equal = one.answer() == expected
        yield "remap.identity", found, said
        if len(here.uuids) == 1:
            yield "remap.to_another", None, "there is one GPU"
        else:
            yield ("remap.to_another", *_to_another(bare, one, here))
            equal = equal and one.answer() == expected
        yield "remap.answers_equal", equal, f"{_BYTES >> 20} MiB"


def _unknown(bare: ByBindings, one: Held, here: Here) -> tuple[bool, str]:
    found, said = _woken(bare, one, [(uuid, _UNKNOWN) for uuid in here.uuids], code=1)
    return not found, said


def _to_another(bare: ByBindings, one: Held, here: Here) -> tuple[bool, str]:
    """Each GPU to the next one."""
    target = here.uuids[1]
    before = used_bytes(target)
    turned = list(zip(here.uuids, (*here.uuids[1:], here.uuids[0]), strict=True))
    found, said = _woken(bare, one, turned)
    came = used_bytes(target) - before
    return found and came >= _BYTES, f"{said}; {came >> 20} MiB came to the second GPU"


def _woken(
    bare: ByBindings, one: Held, pairs: list[tuple[str, str]], code: int | None = None
) -> tuple[bool, str]:
    """Whether it wakes by this map; it runs again in any case. Another refusal than `code` is
    raised."""
    bare.park(one.pid)
    try:
        bare.restore(one.pid, pairs)
    except RefusedByDriverError as error:
        bare.restore(one.pid)
        bare.unlock(one.pid)
        if code is not None and error.code != code:
            return True, f"refused by another error: {error}"
        return False, str(error)
    bare.unlock(one.pid)
    return True, f"a map of {len(pairs)} GPUs was taken"
