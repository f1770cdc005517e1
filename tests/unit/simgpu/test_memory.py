"""Devices and memory: who sees which GPU, and that no byte is held twice."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import GIB, MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Worker

REAL = 1024
"""A byte of real memory in paper bytes, as the nodes here are scaled."""


def uuids(worker: Worker) -> list[str]:
    return [
        worker.ask("cuDeviceGetUuid", ordinal) for ordinal in range(worker.ask("cuDeviceGetCount"))
    ]


def expected(node: Node, *gpus: int) -> list[str]:
    return [node.spec.gpus[gpu].uuid[4:].replace("-", "") for gpu in gpus]


def test_all_gpus_of_the_node(node: Node) -> None:
    worker = node.worker(None)
    assert uuids(worker) == expected(node, 0, 1, 2, 3)
    assert worker.ask("cuDeviceGetName", 64, 0) == "NVIDIA H100 80GB HBM3"
    assert worker.ask("cuDeviceTotalMem", 0) == 16 * GIB
    assert worker.ask("cuDriverGetVersion") == 13000


def test_only_what_was_given(node: Node) -> None:
    assert uuids(node.worker(None, gpus=[1, 3])) == expected(node, 1, 3)


def test_nothing_given(node: Node) -> None:
    assert node.bare(gpus=[]).refused("cuInit", 0) == "CUDA_ERROR_NO_DEVICE"


def test_the_environment_gives_nothing(node: Node) -> None:
    """Neither a UUID of another GPU nor files under its name make it usable."""
    other = node.spec.gpus[0].uuid
    worker = node.bare(gpus=[1], CUDA_VISIBLE_DEVICES=other)
    assert worker.refused("cuInit", 0) == "CUDA_ERROR_NO_DEVICE"
    fake = node.root / "fake"
    fake.mkdir()
    (fake / "nvidia0").write_bytes(b"")
    # Like a node without a driver, a socket answers open() with ENXIO.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(fake / "nvidia1"))
        worker = node.bare(SIMGPU_DEV=f"{fake}/nvidia")
        assert worker.refused("cuInit", 0) == "CUDA_ERROR_NO_DEVICE"


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("1,0", [3, 1]), ("0", [1]), ("1,7,0", [3]), ("0,0", [1]), ("GPU-", None), ("", None)],
)
def test_visible_devices_choose_among_the_given(
    node: Node, visible: str, gpus: list[int] | None
) -> None:
    worker = node.bare(gpus=[1, 3], CUDA_VISIBLE_DEVICES=visible)
    if gpus is None:
        assert worker.refused("cuInit", 0) == "CUDA_ERROR_NO_DEVICE"
        return
    worker.ask("cuInit", 0)
    assert uuids(worker) == expected(node, *gpus)


def test_visible_devices_by_uuid(node: Node) -> None:
    whole, short = node.spec.gpus[3].uuid, node.spec.gpus[1].uuid[:12]
    worker = node.bare(CUDA_VISIBLE_DEVICES=f"{whole},{short}")
    worker.ask("cuInit", 0)
    assert uuids(worker) == expected(node, 3, 1)


def test_nothing_works_before_init_or_without_a_context(node: Node) -> None:
    worker = node.bare()
    assert worker.refused("cuDeviceGetCount") == "CUDA_ERROR_NOT_INITIALIZED"
    worker.ask("cuInit", 0)
    assert worker.refused("cuMemAlloc", 1) == "CUDA_ERROR_INVALID_CONTEXT"


def test_memory_is_one_budget_for_all_processes(node: Node) -> None:
    first, second = node.worker(), node.worker()
    first.alloc(10 * GIB)
    assert second.refused("cuMemAlloc", 7 * GIB) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert second.ask("cuMemGetInfo") == [6 * GIB, 16 * GIB]
    second.alloc(6 * GIB)
    assert first.refused("cuMemAlloc", 1) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert first.refused("cuMemAlloc", 1 << 62) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert node.worker(1).alloc(16 * GIB)


def test_freed_memory_is_there_again(node: Node) -> None:
    worker = node.worker()
    address = worker.alloc(16 * GIB)
    worker.ask("cuMemFree", address)
    assert worker.refused("cuMemFree", address) == "CUDA_ERROR_INVALID_VALUE"
    assert worker.alloc(16 * GIB)


def test_a_dead_process_gives_its_memory_back(node: Node) -> None:
    worker, other = node.worker(), node.worker()
    worker.alloc(16 * GIB)
    worker.kill()
    assert other.ask("cuMemGetInfo") == [16 * GIB, 16 * GIB]
    address = other.alloc(16 * GIB)
    assert other.ask("write", address, 16 * MIB, 1)
    assert [record.event for record in node.log()].count("reclaim") == 1


def test_an_orderly_exit_is_logged_at_once(node: Node) -> None:
    worker = node.worker()
    worker.alloc(GIB)
    assert worker.end() == 0
    assert [(record.event, record.why) for record in node.log()[-2:]] == [
        ("release", "exit"),
        ("close", "exit"),
    ]


def test_copies_keep_their_bytes(node: Node) -> None:
    worker = node.worker()
    first, second = worker.alloc(4 * GIB), worker.alloc(4 * GIB)
    written = worker.ask("write", first, 4 * MIB, 7)
    worker.ask("cuMemcpyDtoD", second, first, 4 * MIB)
    worker.ask("cuMemcpy", second + 1, first + 1, 100)
    assert worker.ask("checksum", second, 4 * MIB) == written


def test_the_first_bytes_are_real_and_the_others_are_refused(node: Node) -> None:
    worker = node.worker()
    address = worker.alloc(5 * REAL + 1)
    assert worker.ask("write", address, 6, 1)
    for verb in ("write", "checksum"):
        arguments = (address, 7, 1)[: 3 if verb == "write" else 2]
        assert worker.refused(verb, *arguments) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert worker.refused("checksum", address + 6, 1) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert worker.refused("checksum", address + 5 * REAL + 1, 1) == "CUDA_ERROR_INVALID_VALUE"
    other = worker.alloc(5 * REAL)
    assert worker.refused("cuMemcpyDtoD", other, address, 6) == "CUDA_ERROR_ILLEGAL_ADDRESS"


def test_memset_of_the_whole_allocation_or_of_real_bytes(node: Node) -> None:
    worker = node.worker()
    address = worker.alloc(GIB)
    worker.ask("cuMemsetD8", address, 7, GIB)
    worker.ask("cuMemsetD32", address + 4, 0x01020304, 2)
    worker.ask("cuMemsetD16", address, 0xABCD, 1)
    assert worker.ask("checksum", address + 12, 100) == worker.ask("checksum", address + 200, 100)
    refused = worker.refused("cuMemsetD8", address, 0, GIB - 1)
    assert refused == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert worker.refused("cuMemsetD32", address + 2, 0, 1) == "CUDA_ERROR_INVALID_VALUE"


def test_many_small_allocations_fill_the_gpu(node: Node) -> None:
    """Rounding of real bytes must not use up the GPU before its paper bytes are gone."""
    worker = node.worker()
    addresses = [worker.alloc(32 * MIB - 1) for _ in range(512)]
    for address in addresses[::2]:
        worker.ask("cuMemFree", address)
    scattered = worker.alloc(8 * GIB)
    written = worker.ask("write", scattered, 8 * MIB, 3)
    assert worker.ask("write", addresses[1], 1000, 4)
    assert worker.ask("checksum", scattered, 8 * MIB) == written


def test_unscaled(make_node: Callable[..., Node]) -> None:
    gpu: dict[str, Any] = {"product": "small", "memory": "64MiB"}
    node = make_node(scale=1, gpus=[gpu], links=[])
    worker = node.worker()
    address = worker.alloc(64 * MIB)
    written = worker.ask("write", address, 64 * MIB, 1)
    assert worker.ask("checksum", address, 64 * MIB) == written
    assert worker.refused("cuMemAlloc", 1) == "CUDA_ERROR_OUT_OF_MEMORY"


def test_a_destroyed_context_frees_its_memory(node: Node) -> None:
    worker = node.worker(None)
    context = worker.ask("cuCtxCreate", None, 0, 0)
    worker.alloc(GIB)
    worker.ask("cuCtxDestroy", context)
    assert worker.refused("cuMemGetInfo") == "CUDA_ERROR_INVALID_CONTEXT"
    assert [record.event for record in node.log()] == ["open", "acquire", "release", "close"]


def test_a_forked_child_has_no_cuda(node: Node) -> None:
    worker = node.worker()
    worker.alloc(GIB)
    assert worker.ask("forked_child") == "CUDA_ERROR_NOT_INITIALIZED"
    assert worker.ask("cuMemGetInfo") == [15 * GIB, 16 * GIB]


def test_a_lost_gpu_fails_until_it_is_back(node: Node) -> None:
    worker = node.worker()
    address = worker.alloc(GIB)
    node.faults.lose_gpu(0)
    assert worker.refused("cuMemGetInfo") == "CUDA_ERROR_UNKNOWN"
    node.faults.lose_gpu(0, lost=False)
    assert worker.ask("write", address, 10, 1)


def test_foreign_memory_is_missing(node: Node) -> None:
    worker = node.worker()
    node.faults.foreign_memory(0, 10 * GIB)
    assert worker.ask("cuMemGetInfo") == [6 * GIB, 16 * GIB]
    assert worker.refused("cuMemAlloc", 7 * GIB) == "CUDA_ERROR_OUT_OF_MEMORY"
    node.faults.foreign_memory(0, 0)
    assert worker.alloc(7 * GIB)


def test_no_driver_on_the_node(node: Node) -> None:
    worker = node.bare(SIMGPU_DIR=str(node.root / "nowhere"))
    assert worker.refused("cuInit", 0) == "CUDA_ERROR_NO_DEVICE"
    assert worker.refused("nvml", "nvmlInit") == "NVMLError_DriverNotLoaded"
