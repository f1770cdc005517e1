"""A machine with GPUs, containers and processes, in memory: fakes of the node agent's ports.

All ports look at one `Machine`, so that what one does the others see: a checkpoint gives device
memory back, a frozen process makes no progress, a killed one holds nothing. Time is the event
loop's (`clock.VirtualLoop`). Faults are set by name and happen once.
"""

from __future__ import annotations

from kybernate.testing.machine.cgroups import FakeFreezer, FakeProcs
from kybernate.testing.machine.doors import FakeDoors
from kybernate.testing.machine.driver import FakeGpus, FakeHelper, FakeHelpers
from kybernate.testing.machine.dumper import FakeDumper
from kybernate.testing.machine.elsewhere import Elsewhere
from kybernate.testing.machine.gatekeeper import FakeGatekeeper
from kybernate.testing.machine.journal import FakeJournal
from kybernate.testing.machine.node import FakeImages, FakePodResources, FakeSpecs, inline
from kybernate.testing.machine.processes import App, FakeProcess
from kybernate.testing.machine.registry import FakeRegistry
from kybernate.testing.machine.saved import CONTAINER, Keeping, Snapshot
from kybernate.testing.machine.vault import FakeVault
from kybernate.testing.machine.world import STEP, Crash, Machine

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
