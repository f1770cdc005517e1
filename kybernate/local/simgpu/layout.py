"""Binary layout of a node folder, shared with `native/simgpu/layout.h`.

The two are kept in step by a unit test, which compares these sizes and offsets with what the C
compiler says (`simgpu layout`).
"""

from __future__ import annotations

import struct

MAGIC = 0x3155504D4953
"""`SIMPU1` read as a little-endian number: first field of every file."""

VERSION = 2
MAX_GPUS = 16
SLOTS = 128
"""How many processes can hold a context on one GPU at the same time."""

PAGE = 4096

NODE_FILE = "node"
STATE_FILE = "state"
LOCKS_FILE = "locks"
CALLS_FILE = "calls"
FAULTS_FILE = "faults"
LOG_FILE = "log"

FLAG_ZERO_COST = 1
FLAG_RESTORE_OOM_RETRY = 2
FLAG_OPEN = 4

NODE_HEAD = struct.Struct("<QIIIIIIQ32s")
"""magic, version, gpus, scale, flags, cuda_version, major, granule, driver_version."""

GPU = struct.Struct("<QQ48s16s96s24siIII")
"""memory, file_bytes, uuid, uuid_bytes, product, bus_id, numa, minor, bus, pad."""

LINK_ROW = MAX_GPUS
NODE_SIZE = NODE_HEAD.size + MAX_GPUS * GPU.size + 2 * MAX_GPUS * LINK_ROW

SLOT = struct.Struct("<IiQQ40s")
"""used, pid, pidns, bytes, pod."""

STATE_HEAD = struct.Struct("<Q")
STATE_SIZE = STATE_HEAD.size + MAX_GPUS * SLOTS * SLOT.size

MAX_FAULTS = 32
XID_RING = 64

FAULT = struct.Struct("<IIii40s")
"""kind, call, remaining, code, pod. A kind of 0 is an empty entry; remaining < 0 never ends."""

XID = struct.Struct("<IIII")
"""gpu, number, type, pad."""

LOST_OFFSET = 8
FOREIGN_OFFSET = LOST_OFFSET + 4 * MAX_GPUS
XID_SEQ_OFFSET = FOREIGN_OFFSET + 8 * MAX_GPUS
XID_OFFSET = XID_SEQ_OFFSET + 8
FAULT_OFFSET = XID_OFFSET + XID_RING * XID.size
ERROR_OFFSET = FAULT_OFFSET + MAX_FAULTS * FAULT.size
HANG_OFFSET = ERROR_OFFSET + 4 * MAX_GPUS
RECOVERY_OFFSET = HANG_OFFSET + 4 * MAX_GPUS
REMAP_FAILED_OFFSET = RECOVERY_OFFSET + 4 * MAX_GPUS
MIG_OFFSET = REMAP_FAILED_OFFSET + 4 * MAX_GPUS
MPS_OFFSET = MIG_OFFSET + 4 * MAX_GPUS
UNLOADED_OFFSET = MPS_OFFSET + 4 * MAX_GPUS
LOADS_OFFSET = UNLOADED_OFFSET + 4
FAULTS_SIZE = LOADS_OFFSET + 4


def memory_file(index: int) -> str:
    """Name of the file that holds the device memory of GPU `index`."""
    return f"memory-{index}"
