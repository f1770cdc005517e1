"""`kybernate policy`: which CheckpointPolicy governs which pods, and which go before it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api.pods import read_pod
from kybernate.api.policies import read_policies
from kybernate.cli.cluster.link import link_to
from kybernate.cli.cluster.lists import list_options, tell
from kybernate.cli.completing import pod_names
from kybernate.cli.output import Listing, Row
from kybernate.core.policy.effective import governing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.api.pods import Pod
    from kybernate.core.policy.effective import Policy

    Json = dict[str, Any]

COLUMNS = ("NAMESPACE", "POLICY", "PRECEDENCE", "SELECTS", "GOVERNS", "SCHEDULES")
WIDE = (*COLUMNS, "SAYS", "PODS")


@click.command("policy")
@click.argument("pod", required=False, shell_complete=pod_names)
@list_options
def policy(pod: str | None, *, output: str, watch: bool, **options: Any) -> None:
    """List the CheckpointPolicies of a namespace in the order in which they count, with the pods
    that each selects and governs; with POD those that select it.

    One policy governs a pod: of those that select it the one of the highest precedence, of several
    such the first by name. What counts for a pod then: kubectl kyb explain pod POD.

    \b
    kubectl kyb policy -n shop
    kubectl kyb policy llama -n shop
    """
    link = link_to(options)
    if pod and link.namespace is None:
        raise click.UsageError("name POD or --all-namespaces")
    name = pod and pod.removeprefix("pod/")
    if name:
        link.api.get(f"/api/v1/namespaces/{link.namespace}/pods/{name}")
    sources = [link.all_of(keys.CHECKPOINT_POLICIES_PATH), link.pods()]
    tell(link, sources, lambda found: policies_of(found[0], found[1], name), output, watch=watch)


def policies_of(policies: Iterable[Json], items: Iterable[Json], name: str | None) -> Listing:
    """Policies in their order, by namespace, with what they select of these pods that ask for
    seats: of all, or of the one of that name. Pure."""
    pods = [one for one in map(read_pod, items) if one.ask and not one.over]
    if name:
        pods = [one for one in pods if one.ref.name == name]
    rows = tuple(_rows(policies, pods, only=name is not None))
    empty = f"No CheckpointPolicy selects pod {name}." if name else "There is no CheckpointPolicy."
    return Listing(WIDE, len(COLUMNS), rows, empty)


def _rows(policies: Iterable[Json], pods: list[Pod], *, only: bool) -> Iterator[Row]:
    of: dict[str, list[Json]] = {}
    for item in policies:
        of.setdefault(str(item["metadata"]["namespace"]), []).append(item)
    for namespace, items in sorted(of.items()):
        ordered = read_policies(items)
        here = [one for one in pods if one.namespace == namespace]
        govern = Counter(
            first.name for one in here if (first := governing(ordered, one.labels)) is not None
        )
        for one in ordered:
            selected = [pod.ref.name for pod in here if one.selects(pod.labels)]
            if selected or not only:
                yield _row(one, selected, govern[one.name])


def _row(policy: Policy, selected: list[str], governs: int) -> Row:
    says = {name.rpartition("/")[2]: text for name, text in sorted(policy.words.items())}
    document = {
        "namespace": policy.namespace,
        "policy": policy.name,
        "precedence": policy.precedence,
        "selects": selected,
        "governs": governs,
        "schedules": len(policy.schedule),
        "says": says,
    }
    cells = (
        *(policy.namespace, policy.name, str(policy.precedence)),
        *(str(len(selected)), str(governs), str(len(policy.schedule))),
        "; ".join(f"{name}: {text}" for name, text in says.items()) or "-",
        ",".join(selected) or "-",
    )
    return Row(f"checkpointpolicy.{keys.GROUP}/{policy.name}", document, cells)
