"""`kybernate/api` alone knows the JSON of an object's status; others get what it makes of it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
FOLDERS = (
    *("kybernate", "extender", "webhook", "deviceplugin", "nodeagent", "proxy", "registry"),
    *("sidecar", "controller"),
)
NOT_OURS = {
    "kybernate/cli/bundle/commands.py": "a SelfSubjectAccessReview's answer",
    "kybernate/cli/bundle/pieces.py": "pods and CRDs, told as they are but for what is secret",
    "kybernate/cli/cluster/examine.py": "Deployments and Nodes, which only this command reads",
    "kybernate/cli/doctor.py": "the Node, for its kubelet's version",
    "kybernate/runtime/identity.py": "a CertificateSigningRequest, which it has made",
    "registry/keys/signer.py": "CertificateSigningRequests, which it signs",
}
"""Where the status of an object is read that is none of kyb.ai's, and why there."""
WHOLE = {
    "controller/base/known.py": "a request's, for `api` to write the next one by",
    "controller/base/lasting.py": "a lasting object's, for `api` to write the next one by",
    "controller/restoring/artifacts.py": "what `api` has made, to be sent",
}
"""Where it is taken whole, once, and never looked into."""


def readers(tree: ast.AST) -> Iterator[int]:
    """The lines in which `status` is read of an object, or something of what is called so."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=ast.Constant("status"), ctx=ast.Load()):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant("status"), *_]):
                yield node.lineno
            case ast.Subscript(value=ast.Attribute(attr="status"), ctx=ast.Load()):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="get", value=ast.Attribute(attr="status"))):
                yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "mapping(mapping(node.get('status')).get('agent')).get('address')",
        "item['status']['seats']",
        "pod.status.get('phase')",
        "found.get('status', {}).get('agent')",
    ],
)
def test_a_reader_is_seen(source: str) -> None:
    assert list(readers(ast.parse(source)))


def test_a_status_that_is_written_is_no_reader() -> None:
    assert not list(readers(ast.parse("item['status'] = {'status': one.status}")))


def test_nobody_else_reads_a_status() -> None:
    found: Counter[str] = Counter()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("kybernate/api/", "kybernate/gen/")):
            found.update(name for _ in readers(ast.parse(path.read_text())))
    assert found.keys() == NOT_OURS.keys() | WHOLE.keys()
    assert {name: found[name] for name in WHOLE} == dict.fromkeys(WHOLE, 1)
