"""Every bench in its smallest form, two at a time: it runs to its end, whatever its figures.

Without --cluster those that need no cluster of their own: below three minutes of CPU together. With
--slice as many more as take a minute or two: one that brings a cluster up, which changes with the
commit. A bench that can't measure here, and says so, counts as skipped. What lies in
`bench/placement/tiny` is invented, in the form of the published lists: figures of it mean nothing.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.report import emit, say, where
from tests.slices import Slice, head

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ALONE: Mapping[str, str] = {
    "saved.histories": "--histories 40",
    "saved.registry": "--artifacts 100 --calls 10 --kills 1",
    "node.sidecar": "--seconds 1",
    "node.park --workload redis --lazy": "--mib 16 --samples 1",
    "saved.lazily": "--mib 64 --samples 1",
    "node.gpu": "--bytes 16777216 --cycles 1 --starts 1 --toy",
    "local": "--mib 32 --swaps 2",
    "local.agreement": "--gpus 2 --models 3 --mib 32 --seconds 5 --work 0.5",
    "proxy.frames": "--seats 40 --seconds 1",
    "proxy": "--rounds 1 --seconds 0.2",
    "proxy --replicas 3": "--requests 200 --kills 1",
    "placement.colocate": "--models 4 --gpus 2 --trace bench/placement/tiny/conversations.csv",
    "placement.defrag": "--nodes 10",
    "placement.policy": "--seeds 1 --gpus 1 --most 0.125 --poisson",
    "placement.openb.table": "--seeds 42 --data bench/placement/tiny",
    "cluster.extender": "--nodes 20 --candidates 10 --pods 100 --samples 10 --binds 20",
    "cluster.ledger": "--nodes 20 --pods 100",
    "saved.incremental": "--mib 16 --rounds 1",
    "saved.tiers --plain": "--mib 16 --rounds 1",
    "saved.move": "--mib 32 --samples 1",
    "saved.move --workload redis": "--mib 16 --samples 1",
}
"""By bench, with what makes it another one: the options of its smallest form. Those that take
longest begin: what is left for the end is short."""

IN_CLUSTER: Mapping[str, str] = {
    "node.wake": "--samples 5",
    "node.wake --connect": "--samples 5",
    "node.wake --connect --tier nvme": "--samples 10",
    "node.recover": "--kills 1",
    "cluster.storm": "--pods 20",
    "cluster.agreement": "--models 4 --seconds 5 --work 0.5",
    "node.soak": "--cycles 50 --rest 1",
    "node.turns": "--seconds 10 --settle 1 --servers 1",
    "node.park --workload nginx": "--samples 1",
    "node.park --workload redis": "--mib 16 --samples 1",
    "node.park --workload llama": "--samples 1",
    "node.park --workload redis --lazy --pod": "--mib 16 --samples 1",
    "saved.saves": "--mib 16 --samples 1",
    "operator.template": "--workload python --samples 1",
    "operator": "--kill 2 --rounds 1",
    "operator.move": "--mib 32 --samples 1",
    "operator.reconcile": "--objects 40 --nodes 10 --rate 20 --seconds 3",
    "cluster.leaders": "--pods 32 --kills 1",
    "cluster.throughput": "--nodes 10 --pods 20 --rounds 1",
    "saved.tiers": "--mib 32 --rounds 1",
}

AT_ONCE = 2
"""So many run at a time: each waits for half of its time."""

LIMIT = 600.0
"""Seconds that one may take; it is killed then."""

SHOWN = 2000
"""So much is shown of what a bench said that did not come to its end."""


@dataclass(frozen=True)
class Outcome:
    """What became of one. `skipped` says why it measured nothing, `failed` how it ended."""

    seconds: float
    skipped: str = ""
    failed: str = ""

    def __str__(self) -> str:
        return self.failed or (f"skipped: {self.skipped}" if self.skipped else "ran to its end")


def run(command: Sequence[str], limit: float = LIMIT) -> Outcome:
    """Run a bench. It must end by itself within `limit` seconds, well, and with its JSON line."""
    began = time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, told = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # With all that it has started and did not end.
            os.killpg(process.pid, signal.SIGKILL)
            out, told = process.communicate()
            return Outcome(limit, failed=f"not over after {limit:g} s\n{told[-SHOWN:]}")
    seconds = time.monotonic() - began
    if process.returncode:
        return Outcome(seconds, failed=f"exit status {process.returncode}\n{told[-SHOWN:]}")
    line = _line(out)
    if line is None:
        return Outcome(seconds, failed=f"its last line is no JSON of a bench\n{out[-SHOWN:]}")
    return Outcome(seconds, skipped=str(line.get("skipped", "")))


def _line(out: str) -> dict[str, object] | None:
    try:
        found = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) and "bench" in found else None


def chosen(names: Sequence[str], *, cluster: bool, part: Slice | None = None) -> dict[str, str]:
    """The benches to run, with their options; of those that bring a cluster up the one of the
    slice, if there is one. Raises click.BadParameter for one unknown."""
    every = {**ALONE, **IN_CLUSTER}
    for name in names:
        if name not in every:
            raise click.BadParameter(f"there is no bench {name!r}; write one of {', '.join(every)}")
    if names or cluster:
        return {one: every[one] for one in names} or every
    return {**ALONE, **{one: every[one] for one in (part.one([*IN_CLUSTER]) if part else ())}}


def apart(names: Iterable[str]) -> list[list[str]]:
    """Those that may run beside each other are in different lists. Those of one module share names
    on this machine, and so may those that bring a cluster up, which come first."""
    modules = {one.partition(" ")[0] for one in IN_CLUSTER}
    found: dict[str, list[str]] = {"": []}
    for name in names:
        module = name.partition(" ")[0]
        found.setdefault("" if module in modules else module, []).append(name)
    return [one for one in found.values() if one]


def described(name: str, options: str, runs: Sequence[Outcome]) -> dict[str, object]:
    """What is kept of runs of a bench, one after the other: `docs/results/twice.jsonl` has a line
    of each."""
    return {
        **where(head()),
        "bench": name,
        "command": f"python -m bench.{name} {options} --json",
        "form": "smallest",
        "runs": [str(one) for one in runs],
        "seconds": [round(one.seconds, 1) for one in runs],
    }


@click.command()
@click.argument("names", nargs=-1)
@click.option("--cluster", is_flag=True, help="Those that bring up a cluster, too.")
@click.option("--slice", "part", metavar="N[@COMMIT]", help="One of those, by commit; 1: all.")
@click.option("--twice", type=Path, help="Run each twice, and add a line of it to this file.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(
    names: tuple[str, ...], *, cluster: bool, part: str | None, twice: Path | None, as_json: bool
) -> None:
    """Run every bench, or those named, in its smallest form."""
    wanted = chosen(names, cluster=cluster, part=Slice.parse(part) if part else None)
    found: dict[str, Outcome] = {}

    def one_by_one(together: Sequence[str]) -> None:
        for name in together:
            runs = [_told(name, wanted[name]) for _ in range(2 if twice else 1)]
            found[name] = next((one for one in runs if one.failed), runs[0])
            if twice:
                with twice.open("a") as file:
                    file.write(json.dumps(described(name, wanted[name], runs)) + "\n")

    # Seconds that are kept are those of a bench that has the machine for itself.
    with ThreadPoolExecutor(1 if twice else AT_ONCE) as pool:
        list(pool.map(one_by_one, apart(wanted)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    failed = [name for name, one in found.items() if one.failed]
    metrics = {
        "benches": (float(len(found)), "benches"),
        "skipped": (float(sum(bool(one.skipped) for one in found.values())), "benches"),
        "failed": (float(len(failed)), "benches"),
        "cpu_s": (used.ru_utime + used.ru_stime, "s"),
    }
    emit("smoke", metrics, {"name": "all run to their ends", "failed": 0}, as_json=as_json)
    if failed:
        raise SystemExit(f"did not come to their ends: {', '.join(failed)}")


def _told(name: str, options: str) -> Outcome:
    words = shlex.split(f"bench.{name} {options} --json")
    one = run([sys.executable, "-m", *words])
    say(f"{name}: {one} ({one.seconds:.1f} s)")
    return one


if __name__ == "__main__":
    main()
