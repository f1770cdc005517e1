"""How artifacts are shown to people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from kybernate.cli.output import age, human, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from kybernate.adapters.registry.keywire import Keys
    from kybernate.checkpoint.catalogue import Found
    from kybernate.checkpoint.gc import Swept
    from kybernate.core.artifacts.manifest import Manifest


def listing(found: Sequence[Found], uids: Mapping[str, str], now: datetime) -> Table:
    """One line for each artifact. `uids`: of namespaces, by the ID of the key that opens it."""
    table = plain_table(
        "ARTIFACT", "AGE", "SIZE", "STORED", "FORM", "GPUS", "NAMESPACE UID", "PROBLEM"
    )
    for each in found:
        manifest = each.manifest
        if manifest is None:
            table.add_row(Text(each.id), *6 * [""], Text(each.problem, "red"))
            continue
        facts = manifest.facts
        gpus = f"{facts.gpu_count} x {facts.gpu_product}" if facts.gpu_count else "-"
        size, stored = human(manifest.total), human(manifest.stored)
        row = (age(manifest.created, now), size, stored, manifest.form)
        of = Text(uids.get(manifest.key.by) or facts.namespace_uid or "-")
        table.add_row(Text(each.id), *row, Text(gpus), of, "")
    return table


def details(manifest: Manifest) -> Iterator[Table]:
    """What a manifest says: facts, then files."""
    table = plain_table("FACT", "VALUE")
    for name in ("id", "created", "form", "origin"):
        table.add_row(name, Text(str(getattr(manifest, name)) or "-"))
    facts = manifest.facts
    for name in facts.__dataclass_fields__:
        if name != "privileges":
            table.add_row(name.replace("_", " "), Text(str(getattr(facts, name)) or "-"))
    yield table
    rights = plain_table("PRIVILEGE", "OF ANY OF ITS PROCESSES")
    for name in facts.privileges.__dataclass_fields__:
        rights.add_row(name.replace("_", " "), Text(_right(getattr(facts.privileges, name))))
    yield rights
    files = plain_table("FILE", "SIZE")
    for file in manifest.files:
        files.add_row(Text(file.name), human(file.size))
    files.add_row("all", human(manifest.total))
    yield files


def keys(found: Keys, now: datetime) -> Table:
    """A namespace's keys, and what becomes of them."""
    table = plain_table("KEY", "NAMESPACE UID", "DESTROYED", "WHY")
    for each in found.keys:
        ms = each.shredded_ms or each.shred_ms
        at = datetime.fromtimestamp(ms / 1000, UTC)
        when = f"{'was' if each.shredded_ms or at < now else 'on'} {at:%Y-%m-%d %H:%M} UTC"
        present = " (present)" if each.uid and each.uid == found.uid else ""
        table.add_row(each.id, Text(each.uid + present), when if ms else "no", Text(each.why))
    return table


def sweep(swept: Swept) -> Table:
    """What a sweep does, one line for each namespace."""
    table = plain_table("NAMESPACE", "NEEDED", "CONDEMNED NOW", "DELETED NOW", "DELETED LATER")
    for namespace, plan in swept.plans.items():
        deleted = f"{len(plan.delete)} packs, {human(plan.free)}"
        later = human(plan.waiting)
        row = (human(plan.named), f"{len(plan.condemn)} packs", deleted, later)
        table.add_row(Text(namespace), *row)
    for namespace, reason in swept.held.items():
        table.add_row(Text(namespace), Text(f"left alone: {reason}", "red"), "", "", "")
    for path in swept.leftovers:
        table.add_row(Text(str(path)), "", "", "left by a crash", "")
    return table


def _right(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(getattr(each, "path", each)) for each in value) or "-"
    return str(value)
