"""Every answer to the kubelet, as a function of the inventory. Pure.

An ID is a token: which group's GPUs a container gets is settled later, by the pod's annotation. So
what counts is how many IDs are listed as healthy, and that IDs in use stay listed. Free IDs beyond
what the node could park are withdrawn, those of GPUs that are ill are listed as unhealthy.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from deviceplugin.inventory import NODES
from kybernate import keys
from kybernate.core.ledger.parking import bears, seat_cost
from kybernate.core.ledger.topology import seat_ids
from kybernate.gen import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deviceplugin.inventory import Held, Inventory
    from kybernate.types import Group, GroupName

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def offer(inventory: Inventory, resource: str, on_the_way: Iterable[str] = ()) -> dict[str, str]:
    """The health of each ID to list, by ID.

    `on_the_way` are IDs that the kubelet has given to a container that the agent doesn't know yet.
    """
    groups = [group for group in inventory.groups if group.resource == resource]
    in_use = _in_use(inventory, resource, groups, on_the_way)
    free = [seat for group in groups for seat in seat_ids(group) if seat not in in_use]
    left = _left(groups, Counter(in_use.values()))
    well = [group for group in left if inventory.healthy(group)]
    ill = [group for group in left if not inventory.healthy(group)]
    listed = {seat: _health(inventory, group) for seat, group in in_use.items()}
    for states, owners in ((HEALTHY, _parkable(inventory, well)), (UNHEALTHY, ill)):
        for group in owners:
            if free:
                listed[_take(free, group.name)] = states
    return dict(sorted(listed.items(), key=lambda item: _natural(item[0])))


def device_list(
    inventory: Inventory, resource: str, on_the_way: Iterable[str] = ()
) -> pb.ListAndWatchResponse:
    """What ListAndWatch streams. No NUMA topology: the kubelet would put it before the groups."""
    listed = offer(inventory, resource, on_the_way)
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=seat, health=health) for seat, health in listed.items()]
    )


def withheld(inventory: Inventory, resource: str) -> int:
    """How many seats aren't listed because the host's memory couldn't hold them."""
    seats = sum(group.seats for group in inventory.groups if group.resource == resource)
    return max(0, seats - len(offer(inventory, resource)))


def why_none(inventory: Inventory, resource: str) -> str:
    """Why no seat of the resource can be used, as a sentence; empty if one may be. The kubelet says
    so itself once it has read the list, but it may admit a pod before."""
    groups = [group for group in inventory.groups if group.resource == resource]
    if not groups or any(map(inventory.healthy, groups)):
        return ""
    lost = ", ".join(str(gpu.index) for gpu in inventory.gpus if not gpu.healthy)
    return f"no {resource} is healthy: GPU {lost} of this node is lost or ill"


def allocate(
    request: pb.AllocateRequest, inventory: Inventory, run_dir: str = keys.SEAT_SOCKET_DIR
) -> pb.AllocateResponse:
    """The answer to Allocate, which the kubelet replays for ever.

    With CDI one device per ID and nothing else. Without, the device nodes of the ID's own group,
    and mounts that lead through `run_dir` on the node to what the agent puts there later.
    """
    answer = _device_nodes if inventory.strategy == NODES else _cdi_devices
    return pb.AllocateResponse(
        container_responses=[
            answer(inventory, container.devices_ids, run_dir)
            for container in request.container_requests
        ]
    )


def still_awaited(awaited: Sequence[str], on_the_way: Iterable[str]) -> tuple[str, ...]:
    """`awaited` less one entry for each ID that is allocated but whose container isn't made yet.

    The agent learns which pod holds an ID only in PreStartContainer; until then it still awaits
    the group, and the next pod would be steered into the same one.
    """
    left = list(awaited)
    for seat in on_the_way:
        group = group_of(seat)
        if group in left:
            left.remove(group)
    return tuple(left)


def prefer(
    available: Sequence[str], must_include: Sequence[str], size: int, awaited: Sequence[str]
) -> tuple[str, ...]:
    """The `size` IDs to take out of `available`.

    First `must_include`, then a free ID for each awaited group (the oldest first), then the IDs
    of groups that nobody awaits, in natural order. Fewer than `size` if there are no more.
    """
    chosen = list(dict.fromkeys(must_include))
    free = sorted(set(available) - set(chosen), key=_natural)
    for group in awaited:
        match = next((seat for seat in free if group_of(seat) == group), None)
        if match is not None and len(chosen) < size:
            chosen.append(match)
            free.remove(match)
    free.sort(key=lambda seat: group_of(seat) in awaited)
    return tuple(chosen + free[: max(0, size - len(chosen))])


def group_of(seat: str) -> str:
    """The group in whose name an ID was made."""
    return seat.rpartition("-seat-")[0]


def _in_use(
    inventory: Inventory, resource: str, groups: Sequence[Group], on_the_way: Iterable[str]
) -> dict[str, str]:
    """IDs of this resource that containers have, and the group that each stands for."""
    names = {group.name for group in groups}
    held = inventory.holdings.seats if inventory.holdings else ()
    found = {seat.device_id: str(seat.group) for seat in held if seat.group in names}
    for seat in on_the_way:
        if group_of(seat) in names:
            found.setdefault(seat, group_of(seat))
    return found


def _health(inventory: Inventory, name: str) -> str:
    group = inventory.group(name)
    return UNHEALTHY if group is not None and not inventory.healthy(group) else HEALTHY


def _left(groups: Sequence[Group], taken: Mapping[str, int]) -> list[Group]:
    """A group for each seat that is free; a first one of each group comes before a second one."""
    left = [
        (taken.get(group.name, 0) + number, place, group)
        for place, group in enumerate(groups)
        for number in range(group.seats - taken.get(group.name, 0))
    ]
    return [group for _, _, group in sorted(left, key=lambda one: one[:2])]


def _take(free: list[str], group: str) -> str:
    """An ID that is free, best one of the group's own name."""
    seat = next((seat for seat in free if group_of(seat) == group), free[0])
    free.remove(seat)
    return seat


def _parkable(inventory: Inventory, left: Sequence[Group]) -> Iterator[Group]:
    """Those of the free seats that the node can bear, however much of their GPUs they will use."""
    holdings = inventory.holdings
    if holdings is None:
        yield from left
        return
    on_gpus = sum(gpu.memory for gpu in inventory.gpus if gpu.healthy)
    costs = [_cost(inventory, seat.group, seat) for seat in holdings.seats]
    total, largest = sum(costs), max(costs, default=0)
    awaited = Counter(holdings.awaited)
    for group in left:
        cost = _cost(inventory, group.name)
        if awaited[group.name]:
            # The extender knows how little it may need; without an ID the kubelet would fail it.
            awaited[group.name] -= 1
            yield group
            continue
        if bears(on_gpus, holdings.park_budget, total + cost, max(largest, cost)):
            total, largest = total + cost, max(largest, cost)
            yield group


def _cost(inventory: Inventory, name: GroupName, seat: Held | None = None) -> int:
    """Bytes that a seat of a group may fill."""
    group = inventory.group(name)
    members = set(group.gpus) if group else set()
    gpus = [gpu for gpu in inventory.gpus if gpu.uuid in members]
    return seat_cost(gpus, seat.vram if seat else None)


def _cdi_devices(
    _inventory: Inventory, seats: Sequence[str], _run_dir: str
) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        cdi_devices=[pb.CDIDevice(name=f"{keys.CDI_KIND}={seat}") for seat in seats]
    )


def _device_nodes(
    inventory: Inventory, seats: Sequence[str], run_dir: str
) -> pb.ContainerAllocateResponse:
    groups = [group for seat in seats if (group := inventory.group(group_of(seat))) is not None]
    members = {uuid for group in groups for uuid in group.gpus}
    gpus = [gpu for gpu in inventory.gpus if gpu.uuid in members]
    numbers = [gpu.minor if gpu.minor >= 0 else gpu.index for gpu in gpus]
    nodes = [f"/dev/nvidia{number}" for number in numbers]
    nodes += [f"/dev/{name}" for name in _CONTROL_NODES]
    uuids = ",".join(gpu.uuid for gpu in gpus)
    seat = ",".join(seats)
    return pb.ContainerAllocateResponse(
        envs={
            keys.ENV_GROUP: ",".join(group.name for group in groups),
            keys.ENV_SEAT: seat,
            keys.ENV_INDICES: ",".join(str(gpu.index) for gpu in gpus),
            keys.ENV_CUDA_VISIBLE: uuids,
            keys.ENV_NVIDIA_VISIBLE: uuids,
        },
        mounts=[
            pb.Mount(
                container_path=inside, host_path=f"{run_dir}/ids/{seat}/{name}", read_only=True
            )
            for inside, name in (
                (keys.SEAT_SOCKET_DIR, keys.ID_SOCKETS),
                (keys.KYB_INIT_PATH, keys.ID_KYB_INIT),
            )
        ],
        devices=[
            pb.DeviceSpec(host_path=node, container_path=node, permissions="rw") for node in nodes
        ],
    )


def _natural(seat: str) -> tuple[str, int, str]:
    group, _, number = seat.rpartition("-seat-")
    return group, int(number) if number.isdecimal() else 0, seat
