"""What the GPU day asks, part by part: the names of the answers, and what Kybernate assumes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """One answer's name and meaning. `expected`: what Kybernate assumes of a yes-or-no question,
    None where it assumes nothing. `must`: another answer than that fails the day."""

    name: str
    asks: str
    unit: str = "yes/no"
    expected: bool | None = None
    must: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What is asked together, by one process. `share`: seconds of a whole day; `least`: with fewer
    it isn't begun."""

    name: str
    about: str
    share: float
    least: float
    questions: tuple[Question, ...]


def _text(name: str, asks: str) -> Question:
    return Question(name, asks, "text")


def _rate(name: str, asks: str) -> Question:
    return Question(name, asks, "GB/s")


def _seconds(name: str, asks: str) -> Question:
    return Question(name, asks, "s")


def _yes(name: str, asks: str) -> Question:
    return Question(name, asks, expected=True)


def _must(name: str, asks: str) -> Question:
    return Question(name, asks, expected=True, must=True)


MACHINE = Part(
    "machine", "what is here", 10, 2,
    (
        _text("machine.product", "the GPU's product name"),
        Question("machine.gpus", "GPUs that NVML shows", "GPUs"),
        Question("machine.gpu_gib", "memory of the first GPU", "GiB"),
        _text("machine.driver", "the driver's version"),
        _text("machine.kernel", "the kernel's release"),
        Question("machine.ram_gib", "memory that the host could give now", "GiB"),
        _text("machine.torch", "PyTorch's version"),
        _text("machine.thp", "transparent huge pages: enabled, defrag"),
        _text("machine.capabilities", "the capabilities in effect, as the kernel's bit mask"),
        _yes("machine.driver_parks", "the driver is 570 or newer, so that it can park"),
        Question("machine.driver_remaps", "the driver is 580 or newer, so that it maps GPUs"),
        Question("machine.custom_storage", "the driver copies into a caller's memory (CUDA 13.4)"),
        _yes("machine.mig_off", "MIG is off"),
        Question("machine.persistence", "persistence mode is on"),
        Question("machine.gvisor", "processes run under gVisor"),
        Question("machine.root", "this runs as root"),
        _yes("machine.ptrace", "Yama lets a user's processes be parked (ptrace_scope 0 or 1)"),
    ),
)  # fmt: skip
CALLS = Part(
    "calls", "how the driver's checkpoint calls answer", 30, 8,
    (
        _yes("calls.states", "a park and a wake pass RUNNING, LOCKED, CHECKPOINTED, LOCKED"),
        _yes("calls.order", "a checkpoint of a process that isn't locked is refused by 401"),
        _yes("calls.without_cuda", "a process without CUDA is answered 1, 3 or 201"),
        Question("calls.of_thread", "a thread's number is taken for its process's"),
        _seconds("calls.init_s", "cuInit in a new process"),
        _seconds("calls.helper_s", "a seat's helper from fork to an initialised driver"),
        _yes("calls.same_user", "a user without rights parks a process of their own"),
    ),
)  # fmt: skip
BUS = Part(
    "bus", "PCIe, and pinned memory", 20, 4,
    (
        _rate("bus.to_gpu_gb_s", "copies from pinned host memory to the GPU"),
        _rate("bus.from_gpu_gb_s", "copies from the GPU to pinned host memory"),
        _rate("bus.pageable_to_gpu_gb_s", "copies from pageable memory to the GPU"),
        _rate("bus.pageable_from_gpu_gb_s", "copies from the GPU to pageable memory"),
        _rate("bus.pin_gb_s", "pinning new memory (cuMemHostAlloc)"),
        _rate("bus.pin_small_gb_s", "pinning an arena of small pages (cuMemHostRegister)"),
        _rate("bus.pin_huge_gb_s", "pinning an arena of huge pages (cuMemHostRegister)"),
    ),
)  # fmt: skip
PARK = Part(
    "park", "parking in RAM", 75, 12,
    (
        Question("park.bytes", "GPU memory that a park gave back", "bytes"),
        Question("park.cycles", "parks and wakes by each way", "cycles"),
        _must("park.answers_equal", "the model's answer after each wake is the one before"),
        _rate("park.park_gb_s", "a park by the product's adapter, lock included"),
        _rate("park.wake_gb_s", "a wake by the product's adapter, unlock included"),
        _rate("park.bare_park_gb_s", "the same by the bare driver calls, in turns"),
        _rate("park.bare_wake_gb_s", "the same by the bare driver calls, in turns"),
        Question("park.ratio_bare", "a cycle of the bare calls ÷ one of the adapter", "ratio"),
        Question("park.ratio_bus", "park.wake_gb_s ÷ bus.to_gpu_gb_s", "ratio"),
        Question("park.residual_mib", "GPU memory in use for one parked process", "MiB"),
        Question("park.listed", "NVML lists the parked process", expected=False),
        Question("park.host_ratio", "host memory that came to the process ÷ park.bytes", "ratio"),
        Question("park.added_share", "memory that came by address ÷ park.bytes", "ratio"),
        Question("park.added_spans", "ranges of addresses that came", "ranges"),
        Question("park.added_below", "share of its other memory at higher addresses", "ratio"),
        _yes("park.added_found", "at least 95 % of the bytes lie in memory that came"),
        _yes("park.added_gone", "a wake gives the memory back that came"),
        Question("park.huge_share", "share of that memory in huge pages", "ratio"),
        _rate("park.small_pages_park_gb_s", "a park where the process has no huge pages"),
        _rate("park.small_pages_wake_gb_s", "a wake where the process has no huge pages"),
        _rate("park.pieces_park_gb_s", "a park of allocations of 2 MiB"),
        _rate("park.pieces_wake_gb_s", "a wake of allocations of 2 MiB"),
        _rate("park.pinned_park_gb_s", "a park where the process has a pinned arena of its own"),
        _rate("park.pinned_wake_gb_s", "a wake where the process has a pinned arena of its own"),
        _must("park.variants_equal", "these three answer as before, too"),
    ),
)  # fmt: skip
LOCAL = Part(
    "local", "`kybernate serve` with three models on one GPU", 215, 15,
    (
        _text("local.engine", "what the models are"),
        Question("local.model_bytes", "GPU memory of each model", "bytes"),
        Question("local.swaps", "swaps in the time", "swaps"),
        _must("local.answers_equal", "each model's answers are all the same, and none failed"),
        _seconds("local.first_s", "the longest first answer of a model, its start included"),
        _seconds("local.swap_p50_s", "an answer that takes a swap"),
        _seconds("local.swap_p99_s", "an answer that takes a swap"),
        _seconds("local.active_p50_s", "an answer of the model that is active"),
        _rate("local.swap_gb_s", "bytes parked and woken ÷ local.swap_p50_s"),
        Question("local.residual_mib", "GPU memory in use for each parked model", "MiB"),
        _yes("local.nothing_left", "its end gives all GPU memory back"),
    ),
)  # fmt: skip
SECOND = Part(
    "second", "a second process on the GPU while the first is parked", 25, 8,
    (
        _must("second.beside", "it gets the memory that was parked, and both answer as before"),
        _yes("second.wake_refused", "a wake without room is refused as out of memory"),
        _text("second.state_after", "the driver's state of the process after that"),
        Question("second.recovers", "with room again the process wakes", expected=False),
    ),
)  # fmt: skip
REMAP = Part(
    "remap", "waking on other GPUs", 20, 6,
    (
        _yes("remap.identity", "a map of each GPU to itself is taken"),
        _yes("remap.unknown_refused", "a map that names a GPU which isn't here is refused by 1"),
        _yes("remap.to_another", "with several GPUs a process wakes on another one"),
        _must("remap.answers_equal", "what woke by a map answers as before"),
    ),
)  # fmt: skip
_PARKS = "a process parks, and answers as before:"
KINDS = Part(
    "kinds", "what processes use, and whether they park", 70, 10,
    (
        _yes("kinds.cublas", f"{_PARKS} cuBLAS"),
        _yes("kinds.cudnn", f"{_PARKS} cuDNN"),
        _yes("kinds.nccl", f"{_PARKS} NCCL with one rank"),
        _yes("kinds.graphs", f"{_PARKS} CUDA graphs"),
        _yes("kinds.pool", f"{_PARKS} the driver's memory pool (cuMemAllocAsync)"),
        _yes("kinds.vmm", f"{_PARKS} mapped memory (cuMemCreate, as expandable segments)"),
        _yes("kinds.pinned", f"{_PARKS} pinned host memory"),
        Question("kinds.ipc", f"{_PARKS} memory exported by cuIpcGetMemHandle", expected=False),
        Question("kinds.managed", f"{_PARKS} managed memory", expected=False),
        _yes("kinds.tree", f"{_PARKS} parent and child with a context each"),
        _yes("kinds.unharmed", "what doesn't park runs on and answers as before"),
    ),
)  # fmt: skip
DISK = Part(
    "disk", "CRIU: a parked process on the disk, and back", 75, 20,
    (
        Question("disk.bytes", "one image", "bytes"),
        _must("disk.answers_equal", "restored and started from its image it answers as before"),
        _must("disk.second_meanwhile", "another process uses the GPU while it is on the disk"),
        _seconds("disk.dump_s", "CRIU's dump"),
        _seconds("disk.sync_s", "until the image is on the disk"),
        _seconds("disk.restore_s", "CRIU's restore, the image not in the page cache"),
        _rate("disk.dump_gb_s", "dump and sync"),
        _rate("disk.restore_gb_s", "restore"),
        _seconds("disk.cold_start_s", "a start from nothing to the first answer"),
        _seconds("disk.template_start_s", "a start from the image to the first answer"),
        Question("disk.template_ratio_cold", "template start ÷ cold start", "ratio"),
    ),
)  # fmt: skip
PARTS = (MACHINE, CALLS, BUS, PARK, LOCAL, SECOND, REMAP, KINDS, DISK)
"""In the order in which they are asked: the later ones are lost first if time is short."""
