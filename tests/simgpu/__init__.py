"""The simulated GPU driver, as tests and the one-machine cluster use it.

    build(out_dir) -> lib_dir                 compile the libraries (only if sources changed)
    load(path, name="n1") -> NodeSpec         read and check a YAML description
    install(spec, root, lib_dir)              make the folder that a node binds at /run/simgpu
    make_device_nodes(spec, dev_dir)          make /dev/nvidiaN, nvidiactl, nvidia-uvm
    write_vendor_cdi(spec, cdi_dir)           write nvidia.yaml as the vendor's tool would
    Faults(root)                              inject faults
    read_log(root), violations(records)       who held how many bytes of which GPU when

`root` is the folder itself, wherever the caller sees it. Processes on the node find the
libraries through LD_LIBRARY_PATH=/run/simgpu/lib, containers through the CDI mounts.
"""

from __future__ import annotations

from kybernate.local.simgpu.folder import install
from kybernate.local.simgpu.spec import GpuSpec, NodeSpec, load, parse
from tests.simgpu.build import build
from tests.simgpu.cdi import make_device_nodes, write_vendor_cdi
from tests.simgpu.faults import Call, Fault, Faults
from tests.simgpu.log import Event, Record, Violation, holdings, read_log, violations

__all__ = [
    "Call",
    "Event",
    "Fault",
    "Faults",
    "GpuSpec",
    "NodeSpec",
    "Record",
    "Violation",
    "build",
    "holdings",
    "install",
    "load",
    "make_device_nodes",
    "parse",
    "read_log",
    "violations",
    "write_vendor_cdi",
]
