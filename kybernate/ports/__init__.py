"""What the node agent asks of the world outside, shaped by the agent that calls it.

Adapters implement these, `tests/kit` fakes them. Times are seconds, sizes are bytes,
process IDs are those of the agent's own PID namespace. "Deadline" is always a duration from the
call on; when it passes, `DeadlineError` is raised. Methods marked *quick* may be called on the
event loop: they do no more than a few small reads or writes of /proc, /sys or a local file.
Methods that are neither quick nor `async` block and are called from a worker thread.
"""

from kybernate.ports.elsewhere import Handover, Line, Peers, Registry
from kybernate.ports.gpus import DriverHelper, DriverHelpers, Gpus, Phases, ProcessState
from kybernate.ports.keys import Kms, Wraps
from kybernate.ports.records import Journal, KubeApi
from kybernate.ports.saved import (
    Dumper,
    DumpState,
    Gatekeeper,
    Objects,
    Sealed,
    Signatures,
    Vault,
)
from kybernate.ports.seats import (
    CooperationPhase,
    GateHello,
    GatePhase,
    Holder,
    ImageCommand,
    Images,
    PodResources,
    SeatDoors,
    SeatListener,
    SeatSpec,
    Specs,
)
from kybernate.ports.trees import (
    Arrivals,
    Culprits,
    Deaths,
    Freezer,
    HeldInit,
    Inits,
    Memory,
    Procs,
    WatchReport,
    WatchTerms,
)

__all__ = [
    "Arrivals",
    "CooperationPhase",
    "Culprits",
    "Deaths",
    "DriverHelper",
    "DriverHelpers",
    "DumpState",
    "Dumper",
    "Freezer",
    "GateHello",
    "GatePhase",
    "Gatekeeper",
    "Gpus",
    "Handover",
    "HeldInit",
    "Holder",
    "ImageCommand",
    "Images",
    "Inits",
    "Journal",
    "Kms",
    "KubeApi",
    "Line",
    "Memory",
    "Objects",
    "Peers",
    "Phases",
    "PodResources",
    "ProcessState",
    "Procs",
    "Registry",
    "Sealed",
    "SeatDoors",
    "SeatListener",
    "SeatSpec",
    "Signatures",
    "Specs",
    "Vault",
    "WatchReport",
    "WatchTerms",
    "Wraps",
]
