"""A dataclass of ours beside the standard library's: all that can be seen is the same."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import pickle
from dataclasses import asdict, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

Make = Any
SORTS = (
    {"frozen": True, "slots": True},
    {"slots": True},
    {"frozen": True},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "order": True},
)


def _class(make: Make, **options: bool) -> Any:
    @make(**options)
    class Seat:
        """A seat."""

        name: str
        size: int = 1
        tags: list[str] = field(default_factory=list)
        hidden: int = field(default=0, repr=False, compare=False)
        twice: int = field(init=False)
        made: dict[str, int] = field(default_factory=dict, init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.size)

    return Seat


def _both(**options: bool) -> tuple[Any, Any]:
    return _class(dataclasses.dataclass, **options), _class(dataclass, **options)


def _says(act: Callable[[], Any]) -> Any:
    """What comes of it, or the error's kind, and its words where they name no function."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - any kind is compared
        return type(error)


def _alike(one: object, other: object) -> bool:
    """Both are there at the same time: of one that is gone the next may have the address."""
    return hash(one) == hash(other)


ACTS: dict[str, Callable[[Any], Any]] = {
    "a default": lambda kind: repr(kind("a")),
    "by place": lambda kind: repr(kind("a", 2, ["x"], 3)),
    "by name": lambda kind: repr(kind(name="a", tags=["x"], hidden=3)),
    "a member that has no part in init": lambda kind: kind("a", 3).twice,
    "a list of its own": lambda kind: kind("a").tags is kind("a").tags,
    "without what it needs": lambda kind: kind(),
    "too much": lambda kind: kind("a", 1, [], 0, 5),
    "an unknown name": lambda kind: kind("a", other=1),
    "a part of init that is none": lambda kind: kind("a", twice=1),
    "equal": lambda kind: kind("a") == kind("a"),
    "equal but for what isn't compared": lambda kind: kind("a", hidden=1) == kind("a"),
    "unequal": lambda kind: kind("a") == kind("b"),
    "another kind": lambda kind: kind("a") == ("a", 1, [], 2),
    "less": lambda kind: kind("a") < kind("b"),
    "not less": lambda kind: kind("a", 2) <= kind("a", 1),
    "hashed": lambda kind: isinstance(hash(kind("a", tags=())), int),
    "hashed with a list inside": lambda kind: isinstance(hash(kind("a")), int),
    "hashed alike": lambda kind: _alike(kind("a", tags=()), kind("a", 1, (), 5)),
    "set": lambda kind: setattr(kind("a"), "name", "b"),
    "deleted": lambda kind: delattr(kind("a"), "name"),
    "replaced": lambda kind: repr(replace(kind("a"), size=4)),
    "as a dict": lambda kind: asdict(kind("a", 2)),
    "copied": lambda kind: repr(copy.copy(kind("a", 2))),
    "deeply": lambda kind: repr(copy.deepcopy(kind("a", 2, ["x"]))),
    "its fields": lambda kind: [(one.name, one.init, one.compare) for one in fields(kind)],
    "its pattern": lambda kind: kind.__match_args__,
    "its slots": lambda kind: getattr(kind, "__slots__", None),
    "what it is": lambda kind: (kind.__name__, kind.__doc__, is_dataclass(kind)),
}


@pytest.mark.parametrize("options", SORTS, ids="-".join)
@pytest.mark.parametrize("act", ACTS)
def test_it_is_as_the_standard_librarys(act: str, options: dict[str, bool]) -> None:
    theirs, ours = _both(**options)
    assert _says(lambda: ACTS[act](ours)) == _says(lambda: ACTS[act](theirs))


@pytest.mark.parametrize("name", ["size", "other"])
def test_one_that_is_frozen_says_which_field(name: str) -> None:
    _, ours = _both(frozen=True, slots=True)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(ours("a"), name, 2)


@dataclass(frozen=True, slots=True)
class Base:
    """Has a field."""

    name: str


@dataclass(frozen=True, slots=True)
class Derived(Base):
    """Has another."""

    size: int = 2


@dataclass(frozen=True, slots=True)
class Own:  # noqa: PLW1641 - the hash is the decorator's
    """Writes some by itself."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __repr__(self) -> str:
        return "own"


@dataclass(slots=True)
class Ring:
    """Can have itself inside."""

    of: list[Ring] = field(default_factory=list)


def test_a_derived_class_has_the_fields_of_both() -> None:
    Base("first")  # whose init is written by now, and not the derived one's
    assert repr(Derived("a")) == "Derived(name='a', size=2)"
    assert Derived("a") == Derived("a", 2)
    assert Derived("a") != Base("a")


def test_what_a_class_writes_by_itself_stays() -> None:
    assert Own("a") == Own("b")
    assert repr(Own("a")) == "own"
    assert hash(Own("a")) == hash(Own("a"))


def test_it_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Derived("a", 3))) == Derived("a", 3)  # noqa: S301


def test_one_inside_itself_is_printed() -> None:
    ring = Ring()
    ring.of.append(ring)
    assert repr(ring) == "Ring(of=[...])"


def test_nothing_is_compiled_before_the_first_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    execute = builtins.exec

    def counted(source: Any, *args: Any) -> None:
        written.append(source)
        execute(source, *args)

    monkeypatch.setattr(builtins, "exec", counted)
    kind = _class(dataclass, frozen=True, slots=True)
    assert written == []
    kind("a")
    kind("b")
    assert len(written) == 1
