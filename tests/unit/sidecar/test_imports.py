from __future__ import annotations

import ast
import sys
from pathlib import Path

import sidecar


def test_the_sidecar_imports_nothing_but_the_standard_library():
    for path in Path(sidecar.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            tops = {name.split(".")[0] for name in names}
            assert tops <= sys.stdlib_module_names | {"sidecar"}, path
