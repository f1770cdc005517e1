"""The Containerfile of each image, for those who have a daemon: the same recipe inside a build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .cache import REPOSITORY
from .recipes import RECIPES

if TYPE_CHECKING:
    from pathlib import Path

    from .recipes import Recipe

FOLDER = REPOSITORY / "images" / "containerfiles"


def path_of(name: str) -> Path:
    """Where the image's Containerfile lies."""
    return FOLDER / f"{name}.Containerfile"


def text(recipe: Recipe) -> str:
    """What it says. `python -m images containerfiles` writes it."""
    tools = "python3 python3-venv ca-certificates" + (
        " make gcc libc6-dev patch xz-utils" * recipe.tools
    )
    who = f"# As root: {recipe.why_root}\n" if recipe.why_root else ""
    env = "\n".join(f"ENV {one}" for one in recipe.env)
    return f"""\
# kybernate/{recipe.name}: {recipe.title}. Made by `python -m images containerfiles`; build it with
#   podman build -f images/containerfiles/{recipe.name}.Containerfile .
# `make images` builds the same files without a daemon.
FROM debian:bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends {tools}
WORKDIR /src
COPY . .
RUN python3 -m venv /venv && /venv/bin/pip install --require-hashes -r requirements.lock
RUN /venv/bin/python -m images rootfs {recipe.name} /rootfs

FROM scratch
COPY --from=build /rootfs /
{env}
{who}USER {recipe.user}
ENTRYPOINT {json.dumps(list(recipe.entrypoint))}
"""


def write_all() -> None:
    """Writes every Containerfile."""
    FOLDER.mkdir(exist_ok=True)
    for recipe in RECIPES.values():
        path_of(recipe.name).write_text(text(recipe))
