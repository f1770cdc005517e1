"""A machine with GPUs, containers and processes, in memory: fakes of the node agent's ports.

All ports look at one `Machine`, so that what one does the others see: a checkpoint gives device
memory back, a frozen process makes no progress, a killed one holds nothing. Time is the event
loop's (`clock.VirtualLoop`). Faults are set by name and happen once.
"""

from __future__ import annotations

from tests.kit.machine.cgroups import FakeFreezer, FakeProcs
from tests.kit.machine.doors import FakeDoors
from tests.kit.machine.driver import FakeGpus, FakeHelper, FakeHelpers
from tests.kit.machine.dumper import FakeDumper
from tests.kit.machine.elsewhere import Elsewhere
from tests.kit.machine.gatekeeper import FakeGatekeeper
from tests.kit.machine.journal import FakeJournal
from tests.kit.machine.node import FakeImages, FakePodResources, FakeSpecs, inline
from tests.kit.machine.processes import App, FakeProcess
from tests.kit.machine.registry import FakeRegistry
from tests.kit.machine.saved import CONTAINER, Keeping, Snapshot
from tests.kit.machine.vault import FakeVault
from tests.kit.machine.world import STEP, Crash, Machine

__all__ = [
    "CONTAINER",
    "STEP",
    "App",
    "Crash",
    "Elsewhere",
    "FakeDoors",
    "FakeDumper",
    "FakeFreezer",
    "FakeGatekeeper",
    "FakeGpus",
    "FakeHelper",
    "FakeHelpers",
    "FakeImages",
    "FakeJournal",
    "FakePodResources",
    "FakeProcess",
    "FakeProcs",
    "FakeRegistry",
    "FakeSpecs",
    "FakeVault",
    "Keeping",
    "Machine",
    "Snapshot",
    "inline",
]
