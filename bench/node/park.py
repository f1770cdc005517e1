"""A server in a pod parked to NVMe and woken, against bare CRIU in the same run.

The pod holds a seat on a real node: kubelet, containerd, and the agent as config/below-ram has it.
`dump` and `restore` are what the agent does in place of the commands, with its checks, gate and
journal; they leave out `seal` (sync and hash) and `read` (verify), which the commands don't do and
`park` and `wake` include. Redis goes into the object store, too, and in the end to another node,
against the bare commands and the bytes at the rate that the store, and one connection, carry in the
same run. A wake's first answer is that of a new connection, counted from the call for it.

With --plain there is neither cluster nor agent: containers of runc and the agent's adapter alone.
--lazy, too: memory comes after the first instruction; with --pod as the agent does it, without the
bare commands.
"""

from __future__ import annotations

import click

from bench.node import parkplain, parkpods
from bench.node.parkload import WORKLOADS
from bench.report import emit, median, say


@click.command()
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="nginx")
@click.option("--samples", default=0, help="Cycles of each way; 0: as many as it takes.")
@click.option("--mib", default=1024, show_default=True, help="What Redis holds.")
@click.option("--plain", is_flag=True, help="Containers without Kubernetes, and no agent.")
@click.option("--lazy", is_flag=True, help="Bring memory in after the first instruction.")
@click.option("--pod", is_flag=True, help="With --lazy: by the agent, in a pod.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(  # noqa: PLR0913
    workload: str, samples: int, mib: int, plain: bool, lazy: bool, pod: bool, *, as_json: bool
) -> None:
    """Measure parks to disk and wakes of a server."""
    if lazy and pod:
        measure_lazily(workload, samples, mib, as_json=as_json)
    elif plain or lazy:
        parkplain.measure(workload, samples, mib, lazy=lazy, as_json=as_json)
    else:
        measure(workload, samples, mib, as_json=as_json)


def measure(name: str, count: int, mib: int, *, as_json: bool) -> None:
    """Both ways in turn, and the figures."""
    workload, samples = WORKLOADS[name], parkpods.Samples()
    with parkpods.rig(workload, mib) as rig:
        before = workload.known(rig.served)
        for number in range((count or workload.samples) + 1):
            parkpods.cycle(rig, workload, samples)
            if number == 0:  # the first of each fills caches of the kernel's and ours
                samples = parkpods.Samples()
                continue
            say(
                f"{number}: agent {samples.dump[-1]:.3f} and {samples.restore[-1]:.3f} s, "
                f"bare {samples.bare_dump[-1]:.3f} and {samples.bare_restore[-1]:.3f} s"
            )
        for phase, seconds in samples.phases.items():
            say(f"  {phase:16} {1000 * median(seconds):8.1f} ms")
        metrics = parkpods.figures(samples)
        if workload.moves:
            metrics |= parkpods.by_object_store(rig, workload, samples)
            equal = workload.known(rig.served) == before
            metrics["keys_equal"] = (float(equal), "yes")
            metrics |= parkpods.by_move(rig, workload, samples)
    emit(f"park-{name}", metrics, parkpods.baseline(samples), as_json=as_json)
    if not all(metrics.get(name, (1.0, ""))[0] for name in ("keys_equal", "moved_keys_equal")):
        raise SystemExit(1)


def measure_lazily(name: str, count: int, mib: int, *, as_json: bool) -> None:
    """The first answer while memory is verified and comes in."""
    workload, samples = WORKLOADS[name], parkpods.Samples()
    with parkpods.rig(workload, mib, lazy=True) as rig:
        before = workload.known(rig.served)
        for number in range((count or workload.samples) + 1):
            parkpods.cycle_lazily(rig, workload, samples)
            equal = workload.known(rig.served) == before
            if number == 0:
                samples = parkpods.Samples()
                continue
            say(f"{number}: first answer {samples.first[-1]:.3f} s")
            if not equal:
                break
        for phase, seconds in samples.phases.items():
            say(f"  {phase:16} {1000 * median(seconds):8.1f} ms")
    metrics = {
        "first_answer_p50_s": (median(samples.first), "s"),
        "first_answer_max_s": (max(samples.first), "s"),
        "wake_p50_s": (median(samples.wake), "s"),
        "samples": (float(len(samples.first)), "cycles"),
        "keys_equal": (float(equal), "yes"),
    }
    emit(f"park-{name}-lazily", metrics, {}, as_json=as_json)
    if not equal:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
