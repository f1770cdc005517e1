"""The file of one box, `models.yaml`: its keys, its macros, and what llama-swap's keys mean here.

`read` gives the file as it counts: macros filled in, ports given out, defaults applied. Keys that
llama-swap has mean what they mean there; of each that means nothing here, a warning says so. Pure:
the environment is given, and nothing is looked up on the machine.
"""

from __future__ import annotations

from kybernate.api.models.checks import without
from kybernate.api.models.file import ModelsFile, Tiers
from kybernate.api.models.model import Model
from kybernate.api.models.reading import Read, read

__all__ = ["Model", "ModelsFile", "Read", "Tiers", "read", "without"]
