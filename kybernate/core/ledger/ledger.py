"""Which pod holds a seat of which group, cluster-wide.

Claims come from two sides: pods that the API server shows as bound (truth, `upsert_claim`), and
reservations for bindings that are on their way (`reserve`, which end by themselves). Everything
but the reservations can be rebuilt from pods and GPUNodes, in whatever order they are seen.

Invariant: `reserve` accepts no claim that would give a group more claims than it has seats.
Truth is taken as it is, also where it breaks that: a pod that runs can't be denied.

Not thread-safe; one owner.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import field, fields, replace
from functools import cached_property
from itertools import count
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.core.ledger.parking import seat_cost
from kybernate.dataclass import dataclass
from kybernate.errors import ConflictError, NotFoundError
from kybernate.types import Gpu, GpuUuid, Group

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from kybernate.core.swap.forecast import Traffic
    from kybernate.core.tiers.tiers import Artifact, StoredArtifact
    from kybernate.types import GroupName, Link, NodeName, PodRef, PodUid


@dataclass(frozen=True, slots=True)
class NodeSeats:
    """What a node offers. Memory in bytes.

    `park_budget` is the host memory for parked seats (None: unlimited), `reserve` what no seat may
    use of a GPU. `not_ready` says in a sentence why the node takes no new seats now, if so.
    `by_device_id` says that containers get the GPUs of their device ID's group there: the node's
    runtime can't be told later. `traffic` is what the node's agent has seen of its seats' use,
    `rests` the states of those that are offloaded, `held` the bytes of GPU memory that they
    were seen to hold; `saved` are all states that it tells of.
    """

    name: NodeName
    gpus: tuple[Gpu, ...]
    links: Mapping[frozenset[GpuUuid], Link]
    groups: tuple[Group, ...]
    park_budget: int | None = None
    reserve: int = 0
    not_ready: str | None = None
    by_device_id: bool = False
    traffic: Mapping[PodUid, Traffic] = field(default_factory=dict)
    rests: Mapping[PodUid, Artifact] = field(default_factory=dict)
    held: Mapping[PodUid, int] = field(default_factory=dict)
    saved: tuple[StoredArtifact, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A pod's hold on one seat of a group.

    `group` is None for a pod that was bound past the extender: it holds a seat, but nobody wrote
    of which group. `vram` in bytes per GPU; None counts as the whole GPU. `party` says with whom it
    may share GPUs (`core.sharing`), `traffic` when it is used, if that is known, `rests` its state
    while that is offloaded. What is decided about a node may depend on everything here but `pod`
    (see `NodeView.shape`).
    """

    pod: PodRef
    node: NodeName
    group: GroupName | None
    resource: str
    vram: int | None = None
    party: str = ""
    traffic: Traffic | None = None
    rests: Artifact | None = None


@dataclass(frozen=True)
class NodeView:
    """A node and the claims on it at one moment, reservations included, ordered by pod UID.

    `under_way` are resource and group of pods that the kubelet may still be about to give an ID.
    `holds` are states on the node's own disks from which the pod in question could continue.
    """

    seats: NodeSeats
    claims: tuple[Claim, ...] = ()
    under_way: frozenset[tuple[str, GroupName]] = frozenset()
    holds: tuple[Artifact, ...] = ()
    layout: Hashable = field(default=None, repr=False, compare=False)
    """Equal for nodes that offer the same, but for names."""
    _of_offer: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    _once: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _taken: Mapping[GroupName | None, int] = field(init=False, repr=False, compare=False)
    _gpus: Mapping[GpuUuid, Gpu] = field(init=False, repr=False, compare=False)
    held: tuple[int, int] = field(init=False, repr=False, compare=False)
    """Bytes that all claims together may fill, and those of the largest one."""

    def __post_init__(self) -> None:
        taken: dict[GroupName | None, int] = defaultdict(int)
        for claim in self.claims:
            taken[claim.group] += 1
        object.__setattr__(self, "_taken", dict(taken))
        object.__setattr__(self, "_gpus", {gpu.uuid: gpu for gpu in self.seats.gpus})
        groups = {group.name: group for group in self.seats.groups}
        costs = [
            seat_cost(self.gpus(groups[claim.group]), claim.vram)
            for claim in self.claims
            if claim.group in groups
        ]
        object.__setattr__(self, "held", (sum(costs), max(costs, default=0)))

    @cached_property
    def shape(self) -> Hashable:
        """Equal for nodes that differ in names and UIDs only.

        Whatever is decided about a node holds for all nodes of its shape.
        """
        shape = self._shape(_CLAIM_SHAPE)
        return (shape, self.holds) if self.holds else shape

    @cached_property
    def still_shape(self) -> Hashable:
        """The same, whatever their traffic and tier: who doesn't mind them is alike on all."""
        return self._shape(_STILL_SHAPE)

    def _shape(self, of_claim: Callable[[Claim], Hashable]) -> Hashable:
        held = Counter(map(of_claim, self.claims))
        layout = _layout(self.seats) if self.layout is None else self.layout
        return layout, frozenset(held.items()), self.under_way

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """What was found under the key, which is looked for but once per view."""
        known: T | None = self._once.get(key)
        if known is None:
            known = self._once[key] = find()
        return known

    def once_per_offer(self, key: Hashable, find: Callable[[], T]) -> T:
        """The same for what follows from the node's GPUs, links and groups alone.

        It stays found while they stay, whatever is claimed.
        """
        known: T | None = self._of_offer.get(key)
        if known is None:
            known = self._of_offer[key] = find()
        return known

    def taken(self, group: GroupName | None) -> int:
        """How many seats of the group are claimed; None asks for claims of an unknown group."""
        return self._taken.get(group, 0)

    def state_size(self, claim: Claim) -> int:
        """About how many bytes move with the pod that holds the claim: of its artifact if it is
        offloaded, else those of GPU memory that it was seen to hold, else what it may fill."""
        if claim.rests is not None:
            return claim.rests.size
        group = next((one for one in self.seats.groups if one.name == claim.group), None)
        most = seat_cost(self.gpus(group), claim.vram) if group else 0
        return self.seats.held.get(claim.pod.uid) or most

    def gpus(self, group: Group) -> tuple[Gpu, ...]:
        """The group's GPUs that the node still has, in the group's order."""
        return tuple(self._gpus[uuid] for uuid in group.gpus if uuid in self._gpus)


def _offer(seats: NodeSeats) -> tuple[object, ...]:
    return seats.gpus, seats.links, seats.groups


_MOST_LAYOUTS = 20_000
"""Beyond that many, nodes that offer the same may count as different."""


def _layout(seats: NodeSeats) -> Hashable:
    """What a node offers, with its GPUs' places instead of their UUIDs, and without its name."""
    # A GPU that the node doesn't have keeps its UUID, which no place can be taken for.
    place = {gpu.uuid: (at, "") for at, gpu in enumerate(seats.gpus)}
    rest = (getattr(seats, name) for name in _PLAIN_FIELDS)
    return (
        tuple(map(_GPU_SHAPE, seats.gpus)),
        tuple(
            (*sorted([place.get(uuid, (-1, uuid)) for uuid in pair]), link)
            for pair, link in seats.links.items()
        ),
        tuple(
            (_GROUP_SHAPE(group), *(place.get(uuid, (-1, uuid)) for uuid in group.gpus))
            for group in seats.groups
        ),
        *(frozenset(one.items()) if isinstance(one, dict) else one for one in rest),
    )


_OF_CLAIMS = ("traffic", "rests")
"""What a node's agent tells of claims, by their pods."""

_PLAIN_FIELDS = tuple(
    one.name
    for one in fields(NodeSeats)
    if one.name not in {"name", "gpus", "links", "groups", "held", "saved", *_OF_CLAIMS}
)
_GPU_SHAPE = attrgetter(*(one.name for one in fields(Gpu) if one.name != "uuid"))
_GROUP_SHAPE = attrgetter(*(one.name for one in fields(Group) if one.name != "gpus"))
_CLAIM_FIELDS = tuple(one.name for one in fields(Claim) if one.name not in {"pod", "node"})
_CLAIM_SHAPE = attrgetter(*_CLAIM_FIELDS)
_STILL_SHAPE = attrgetter(*(name for name in _CLAIM_FIELDS if name not in _OF_CLAIMS))


def _informed(claim: Claim, seats: NodeSeats) -> Claim:
    """The claim with what its node's agent has seen of its use, and where it rests."""
    traffic, rests = seats.traffic.get(claim.pod.uid), seats.rests.get(claim.pod.uid)
    if traffic is None and rests is None:
        return claim
    return replace(claim, traffic=traffic, rests=rests)


@dataclass(frozen=True, slots=True)
class _Reservation:
    claim: Claim
    until: float
    offer: tuple[Hashable, int] | None = None
    """What an offer was chosen for, and how often its node had changed by then; None if firm."""


class Ledger:
    """The claims on all nodes. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._nodes: dict[NodeName, NodeSeats] = {}
        self._bound: dict[PodUid, Claim] = {}
        self._reserved: dict[PodUid, _Reservation] = {}
        self._on_node: dict[NodeName, set[PodUid]] = defaultdict(set)
        self._views: dict[NodeName, NodeView] = {}
        self._layouts: dict[Hashable, int] = {}
        self._layout_of: dict[NodeName, int] = {}
        self._found: dict[NodeName, dict[Hashable, Any]] = {}
        self._unplaced: set[PodUid] = set()
        self._soonest_end = inf
        self._followers: list[set[NodeName]] = []
        self._changes: Counter[NodeName] = Counter()
        self._numbers = count()

    def follow(self) -> set[NodeName]:
        """A set into which the name of every node that changes is put; its owner empties it.

        All nodes that are known already are in it.
        """
        changed = set(self._nodes)
        self._followers.append(changed)
        return changed

    def touch(self, name: NodeName) -> None:
        """What a view of the node shows has changed."""
        self._views.pop(name, None)
        self._changes[name] += 1
        for changed in self._followers:
            changed.add(name)

    def upsert_node(self, seats: NodeSeats) -> None:
        """Take in a node, new or changed. Claims on it stay, whatever it offers now."""
        known = self._nodes.get(seats.name)
        if known == seats:
            return
        if known is None or _offer(known) != _offer(seats):
            self._found[seats.name] = {}
        else:
            seats = replace(seats, gpus=known.gpus, links=known.links, groups=known.groups)
        self._nodes[seats.name] = seats
        self._layout_of[seats.name] = self._layout(seats)
        self.touch(seats.name)

    def remove_node(self, name: NodeName) -> None:
        """Forget what a node offers. Claims on it stay until their pods are gone."""
        self._nodes.pop(name, None)
        self._layout_of.pop(name, None)
        self._found.pop(name, None)
        self.touch(name)

    def upsert_claim(self, claim: Claim) -> None:
        """Take in a bound pod. It takes the place of the pod's reservation, if there is one."""
        if self._bound.get(claim.pod.uid) == claim:
            return
        held = self._reserved.get(claim.pod.uid)
        if held is not None and held.claim == claim:
            # The node looks as before.
            del self._reserved[claim.pod.uid]
            self._bound[claim.pod.uid] = claim
            return
        self._forget(claim.pod.uid)
        self._bound[claim.pod.uid] = claim
        if claim.group is None:
            self._unplaced.add(claim.pod.uid)
        self._place(claim)

    def remove_claim(self, uid: PodUid) -> None:
        """The pod is gone, or will never run again: free whatever it holds."""
        self._forget(uid)

    def reserve(self, claim: Claim, now: float, ttl: float, *, offer: Hashable = None) -> None:
        """Hold a seat for `ttl` seconds, until the pod is seen bound.

        Repeating it for the same pod, node and group renews it; for another node or group it moves
        it. An `offer` says for what the seat was chosen, which `accept` asks for; it leaves a
        reservation that isn't one as it was. Raises ConflictError if the group
        has no seat left or the pod is bound already, and NotFoundError if the node has no such
        group.
        """
        self.expire(now)
        if claim.pod.uid in self._bound:
            raise ConflictError(f"pod {claim.pod} is bound to {self._bound[claim.pod.uid].node}")
        held = self._reserved.get(claim.pod.uid)
        if held is not None and held.offer is None and offer is not None:
            return
        group = self._group(claim)
        others = [c for c in self.claims_of(claim.node, group.name) if c.pod.uid != claim.pod.uid]
        if len(others) >= group.seats:
            raise ConflictError(f"all {group.seats} seats of {group.name} are taken")
        if held is None or held.claim != claim:
            self._forget(claim.pod.uid)
            self._place(claim)
        chosen = None if offer is None else (offer, self._changes[claim.node])
        self._reserved[claim.pod.uid] = _Reservation(claim, now + ttl, chosen)
        self._soonest_end = min(self._soonest_end, now + ttl)

    def accept(self, uid: PodUid, node: NodeName, offer: Hashable, until: float) -> Claim | None:
        """Hold what the pod was offered on the node, as by `reserve`, until then.

        None if it was offered nothing there, or for something else, or if the node has changed
        since: then it must be looked at again.
        """
        held = self._reserved.get(uid)
        if held is None or held.claim.node != node or held.offer != (offer, self._changes[node]):
            return None
        self._reserved[uid] = _Reservation(held.claim, until)
        return held.claim

    def release(self, uid: PodUid) -> None:
        """Drop the pod's reservation. A bound pod's claim stays."""
        if uid in self._reserved:
            self._forget(uid)

    def expire(self, now: float) -> None:
        """Drop the reservations whose time is over."""
        if now < self._soonest_end:
            return
        for uid in [uid for uid, held in self._reserved.items() if held.until <= now]:
            self._forget(uid)
        self._soonest_end = min((held.until for held in self._reserved.values()), default=inf)

    def node(self, name: NodeName, without: PodUid | None = None) -> NodeView | None:
        """The node as of now, or None if no GPUNode of that name is known.

        `without` leaves out what that pod holds there: a retry must not stand in its own way.
        """
        seats = self._nodes.get(name)
        if seats is None:
            return None
        if name not in self._views:
            claims = (self._claim(uid) for uid in sorted(self._on_node.get(name, ())))
            known = tuple(_informed(claim, seats) for claim in claims)
            self._views[name] = self._view(seats, known)
        view = self._views[name]
        if without is None or without not in self._on_node.get(name, ()):
            return view
        others = tuple(c for c in view.claims if c.pod.uid != without)
        return self._view(seats, others)

    def nodes(self) -> Iterator[NodeName]:
        """The names of all known nodes, sorted."""
        return iter(sorted(self._nodes))

    def seats(self, name: NodeName) -> NodeSeats | None:
        """What the node offers, or None if no GPUNode of that name is known."""
        return self._nodes.get(name)

    def claims(self) -> Iterator[Claim]:
        """All claims, reservations included, ordered by pod UID."""
        return map(self._claim, sorted([*self._bound, *self._reserved]))

    def __len__(self) -> int:
        """How many nodes are known."""
        return len(self._nodes)

    def claims_of(self, node: NodeName, group: GroupName | None) -> tuple[Claim, ...]:
        """All claims on a group, reservations included, ordered by pod UID."""
        claims = (self._claim(uid) for uid in sorted(self._on_node.get(node, ())))
        return tuple(claim for claim in claims if claim.group == group)

    def claim(self, uid: PodUid) -> Claim | None:
        """What the pod holds, bound or reserved."""
        return self._claim(uid) if uid in self._bound or uid in self._reserved else None

    def bound(self, uid: PodUid) -> bool:
        """Whether the pod was seen bound: its claim is truth and not a reservation."""
        return uid in self._bound

    def unplaced(self) -> int:
        """How many bound pods hold a seat of which nobody wrote the group."""
        return len(self._unplaced)

    def _view(self, seats: NodeSeats, claims: tuple[Claim, ...]) -> NodeView:
        layout, found = self._layout_of[seats.name], self._found[seats.name]
        return NodeView(seats, claims, layout=layout, _of_offer=found)

    def _claim(self, uid: PodUid) -> Claim:
        return self._bound[uid] if uid in self._bound else self._reserved[uid].claim

    def _group(self, claim: Claim) -> Group:
        seats = self._nodes.get(claim.node)
        for group in seats.groups if seats else ():
            if group.name == claim.group and group.resource == claim.resource:
                return group
        raise NotFoundError(f"node {claim.node} has no group {claim.group} of {claim.resource}")

    def _layout(self, seats: NodeSeats) -> int:
        """A number that nodes share which offer the same."""
        if len(self._layouts) > _MOST_LAYOUTS:
            self._layouts.clear()
        return self._layouts.setdefault(_layout(seats), next(self._numbers))

    def _place(self, claim: Claim) -> None:
        self._on_node[claim.node].add(claim.pod.uid)
        self.touch(claim.node)

    def _forget(self, uid: PodUid) -> None:
        old = self.claim(uid)
        if old is None:
            return
        self._bound.pop(uid, None)
        self._reserved.pop(uid, None)
        self._unplaced.discard(uid)
        self.touch(old.node)
        self._on_node[old.node].discard(uid)
        if not self._on_node[old.node]:
            del self._on_node[old.node]
