"""How fast a model goes into each tier and back, against what the machine does at best in the run.

The toy model, with 1 GiB on its simulated GPU, in a pod with a seat on a real node: kubelet,
containerd, the agent as config/below-ram has it. There: from the call for a park until its state is
in the tier, and safe. Back: from the call for a wake until it runs, with all of its memory on the
GPU. After each wake it answers, and must be what it was.

- ram: against a plain copy from tmpfs to tmpfs, there and back.
- nvme: against a plain file on the same disk written and synced, and read with a cold cache.
- object: against the same bytes put to and got from the same S3 server. The client signs the bytes,
  as S3 clients do; those of packs it doesn't (`object_ratio_unsigned` is against such a put).

Each is done in turn with its limit, `--rounds` times; figures are of the medians. With --plain
there is no model: bytes through the vault alone, which tells what the format costs.
"""

from __future__ import annotations

from pathlib import Path

import click

from bench.report import skip
from bench.saved import tierplain, tierpods
from tests.kit.servers import s3


@click.command()
@click.option("--mib", default=1024, show_default=True, help="Size of the state.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--plain", is_flag=True, help="The vault alone: no pod, no agent, no CRIU.")
@click.option(
    "--disk",
    default="/var/tmp",
    show_default=True,
    type=click.Path(path_type=Path),
    help="With --plain: where NVMe is.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(mib: int, rounds: int, plain: bool, disk: Path, *, as_json: bool) -> None:
    """Measure the tiers."""
    if plain:
        tierplain.measure(mib, rounds, disk, as_json=as_json)
    elif why := s3.why_not():
        skip("tiers", why)
    else:
        tierpods.measure(mib, rounds, as_json=as_json)


if __name__ == "__main__":
    main()
