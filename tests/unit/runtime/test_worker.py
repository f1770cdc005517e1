"""What `kybernate.runtime.worker` takes of gunicorn that gunicorn promises to nobody."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from pathlib import Path

import gunicorn
import pytest
from gunicorn import sock
from gunicorn.http import get_parser
from gunicorn.workers import gthread

from kybernate.runtime import worker

RECORD = "docs/design/0121-one-https-server-for-three-services.md"
TAKEN = {
    "accept": (gthread.ThreadWorker.accept, "19c1d90d02a6"),
    "enqueue_req": (gthread.ThreadWorker.enqueue_req, "adda79419dc4"),
    "handle": (gthread.ThreadWorker.handle, "6cf0f74d2798"),
    "finish_request": (gthread.ThreadWorker.finish_request, "e86479d90ffc"),
    "murder_pending": (gthread.ThreadWorker.murder_pending, "ecf9123853a4"),
    "murder_keepalived": (gthread.ThreadWorker.murder_keepalived, "fe5206f23e20"),
    "run": (gthread.ThreadWorker.run, "66b97268df6f"),
    "TConn": (gthread.TConn, "32d83fcb2ed4"),
    "get_parser": (get_parser, "e647f375c61a"),
    "ssl_wrap_socket": (sock.ssl_wrap_socket, "964ef0f4da43"),
}
"""Each part, and what its code was when the worker was last read against it."""


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_not_public_is_as_it_was(name: str) -> None:
    part, known = TAKEN[name]
    found = _code(part)
    assert found == known, (
        f"gunicorn {gunicorn.__version__} has another {name} ({found}): read kybernate/runtime/"
        f"worker.py against it ({RECORD} says what for), have test_http.py pass, and note it here"
    )


def test_the_record_names_all_that_is_taken() -> None:
    text = (Path(__file__).parents[3] / RECORD).read_text()
    source = Path(worker.__file__).read_text()
    imported = re.findall(r"^from gunicorn\S* import (\w+)$", source, re.MULTILINE)
    over = {name for name in vars(worker.Worker) if hasattr(gthread.ThreadWorker, name)}
    own = {name for name in over if not name.startswith("__")}
    for name in ({*imported} - {"gthread", "ParseException"}) | own:
        assert f"`{name}`" in text, f"{RECORD} does not say what {name} is taken for"


def _code(part: object) -> str:
    """Of what runs alone: without comments, words and layout."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(part)))  # type: ignore[arg-type]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12]
