"""`python -m tests.kit [--cluster] [--upstream] [--strangers all|slice]`: what tests need is there
before any of them run.

On a machine that has nothing yet this takes many minutes, more than a test may take. What can't be
had is told; the tests that need it are skipped then, or say why they fail.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import click

from images import criu, debs, wheel, zig
from kybernate.errors import KybernateError
from tests.cluster.fetched import binaries, images, prefix
from tests.integration.gateway import picker
from tests.kit import browser, podowners
from tests.kit.breaks import faketime, linearizable, lossyfs
from tests.kit.gobuild import HELM
from tests.kit.servers import imageregistry, postgresql, prometheus, s3, softhsm
from tests.strangers import commits, layers
from tests.strangers.programs import STRANGERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from images.cache import Progress

_STARTED = time.monotonic()
_KUBERNETES = (*binaries.CONTROL_PLANE, "kube-scheduler")

NEEDS: dict[str, Callable[[Progress], object]] = {
    "containerd": lambda say: debs.unpack(prefix.RUNTIME, say),
    "runc": lambda say: debs.unpack(prefix.RUNC, say),
    "PostgreSQL": lambda say: debs.unpack(postgresql.PACKAGES, say),
    "libfaketime": faketime.ensure,
    "FUSE": lambda say: debs.unpack(lossyfs.PACKAGES, say),
    "SoftHSM2": lambda say: debs.unpack(softhsm.PACKAGES, say),
    "CRIU": criu.ensure,
    "Chromium": browser.ensure,
    "the S3 server": s3.ensure,
    "the checker of histories": linearizable.ensure,
    "the compiler of the wheel": zig.ensure,
    "what the wheel brings along": wheel.house,
    "the registry of images": imageregistry.ensure,
    "Helm": HELM.ensure,
    "Prometheus": prometheus.ensure,
    "the control plane of Kubernetes": lambda say: binaries.ensure(_KUBERNETES, say),
}
OF_CLUSTERS: dict[str, Callable[[Progress], object]] = {
    "what a node needs": prefix.ensure,
    "the images": lambda say: images.build(tuple(images.BUILDERS), say),
    "the controller of JobSets": podowners.SOURCES["jobset"].program.ensure,
    "the controller of LeaderWorkerSets": podowners.SOURCES["lws"].program.ensure,
}
OF_UPSTREAM: dict[str, Callable[[Progress], object]] = {
    "Kueue": podowners.SOURCES["kueue"].program.ensure,
    "the endpoint picker": picker.PICKER.ensure,
}


def _say(line: str) -> None:
    click.echo(f"[{time.monotonic() - _STARTED:6.1f} s] {line}")


def _of_strangers(which: str) -> dict[str, Callable[[Progress], object]]:
    chosen = STRANGERS if which == "all" else commits.here()
    return {f"{one.name}, to be parked": functools.partial(layers.fetch, one) for one in chosen}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cluster", is_flag=True, help="What whole clusters need, too.")
@click.option(
    "--upstream",
    is_flag=True,
    help="Large programs of others, from source, without which one test each is skipped.",
)
@click.option(
    "--strangers",
    type=click.Choice(("all", "slice")),
    help="The programs that are parked, too: all, or those of this commit.",
)
def main(cluster: bool, upstream: bool, strangers: str | None) -> None:
    """Build and fetch what the tests need, one after the other; what is there stays."""
    more = (OF_CLUSTERS if cluster else {}) | (_of_strangers(strangers) if strangers else {})
    more |= OF_UPSTREAM if upstream else {}
    for name, ensure in (NEEDS | more).items():
        try:
            ensure(_say)
        except KybernateError as error:
            click.echo(f"{name} can't be had here: {error}", err=True)


if __name__ == "__main__":
    main()
