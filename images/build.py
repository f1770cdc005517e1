"""From a recipe to an OCI archive."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError, KybernateError

from . import criu, oci, userland, wheels
from .cache import REPOSITORY, cache_root, digest_of, file_lock, made_once
from .recipes import CODE, CRIU, KYB_ENTER, KYB_INIT, KYB_RUNTIME, RECIPES, version

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .cache import Progress
    from .recipes import Recipe

OUT = REPOSITORY / "build" / "images"
REGISTRY = "localhost"
"""Part of the names that the archives carry; the runtimes take it for a registry of this host."""

MAKE_LIMIT = 300.0
"""Seconds that compiling kyb-init and kyb-enter may take."""

_FORMAT = "1"
_LABEL = "org.opencontainers.image"


@dataclass(frozen=True, slots=True)
class Built:
    """A finished image: its full name, its archive, and its size unpacked in bytes."""

    name: str
    archive: Path
    layers: tuple[oci.Blob, ...]

    @property
    def size(self) -> int:
        """Bytes of all layers."""
        return sum(layer.size for layer in self.layers)


def full_name(image: str) -> str:
    """Registry, name and tag of one of our images."""
    return f"{REGISTRY}/kybernate/{image}:{version()}"


def build(names: Sequence[str], progress: Progress, out: Path = OUT) -> list[Built]:
    """Builds images into `out`, from the cache as far as their inputs are the same.

    Raises ConfigError for an unknown name, KybernateError if something can't be fetched or built.
    """
    for name in names:
        if name not in RECIPES:
            raise ConfigError("images", f"{name} is unknown; there are {', '.join(RECIPES)}")
    return [_build(RECIPES[name], progress, out) for name in names]


def python_layers(progress: Progress, *, cxx: bool) -> list[oci.Blob]:
    """The lowest layers: Python, and with `cxx` what compiled wheels need."""
    folders = [userland.build(progress), *([userland.build_cxx(progress)] if cxx else [])]
    return [folder_layer(folder) for folder in folders]


def layers(recipe: Recipe, progress: Progress) -> list[oci.Blob]:
    """All layers of an image, the lowest first."""
    found = python_layers(progress, cxx=bool(recipe.layers))
    found += [folder_layer(wheels.build(name, progress)) for name in recipe.layers]
    if recipe.stores:
        found.append(folder_layer(userland.build_certificates(progress)))
    if recipe.sqlite:
        found.append(folder_layer(userland.build_sqlite(progress)))
    if recipe.tools:
        found.append(_tools_layer(progress))
    return [*found, _code_layer(recipe, progress)]


def folder_layer(folder: Path) -> oci.Blob:
    """A layer of everything in a folder of the cache, whose name changes with its content."""
    target = folder.with_name(f"{folder.name}.layer.tar")
    with file_lock(target.with_suffix(".lock")):
        if not target.exists():
            part = target.with_suffix(".part")
            with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
                oci.Layer(tar).tree(folder, bytecode=True)
            part.with_suffix(".sha256").write_text(oci.blob(part).digest)
            part.replace(target)
    return oci.Blob(target, target.with_suffix(".sha256").read_text(), target.stat().st_size)


def config(recipe: Recipe, progress: Progress) -> oci.ImageConfig:
    """How the image's containers start, and what is in it."""
    debian = ",".join(f"{name}={at}" for name, at in userland.versions(progress).items())
    labels = {
        f"{_LABEL}.title": f"kybernate/{recipe.name}",
        f"{_LABEL}.description": f"Kybernate: {recipe.title}.",
        f"{_LABEL}.licenses": "Apache-2.0",
        f"{_LABEL}.version": version(),
        "ai.kyb.debian": debian,
        "ai.kyb.lock": hashlib.sha256(wheels.LOCK.read_bytes()).hexdigest(),
    }
    return oci.ImageConfig(
        entrypoint=recipe.entrypoint,
        env=recipe.env,
        user=recipe.user,
        labels=tuple(sorted(labels.items())),
    )


def _build(recipe: Recipe, progress: Progress, out: Path) -> Built:
    if not recipe.sources():
        raise ConfigError("images", f"{recipe.name} has no code: {recipe.code} isn't here")
    found = layers(recipe, progress)
    out.mkdir(parents=True, exist_ok=True)
    target, name = out / f"{recipe.name}.oci.tar", full_name(recipe.name)
    key = digest_of(_FORMAT, name, repr(config(recipe, progress)), *(one.digest for one in found))
    made = out / f".{recipe.name}.key"
    with file_lock(out / f".{recipe.name}.lock"):
        if not (target.exists() and made.exists() and made.read_text() == key):
            made.unlink(missing_ok=True)
            oci.write_archive(target, name, found, config(recipe, progress))
            made.write_text(key)
    return Built(name, target, tuple(found))


def _code_layer(recipe: Recipe, progress: Progress) -> oci.Blob:
    base = userland.build(progress)
    sources = recipe.sources()
    key = digest_of(_FORMAT, recipe.name, base.name, files=sources)
    target = cache_root() / "images" / f"code-{recipe.name}-{key}"

    def fill(part: Path) -> None:
        for source in sources:
            copy = part / CODE / source.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        userland.compile_modules(base, part / CODE, keep_source=True, place=f"/{CODE}")

    return folder_layer(made_once(target, fill))


def _tools_layer(progress: Progress) -> oci.Blob:
    """kyb-init, kyb-enter, kyb-runtime and CRIU, compiled if their sources are newer."""
    argv = ["make", "-s", "-C", str(REPOSITORY / "native"), "kyb-init", "kyb-enter", "kyb-runtime"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=MAKE_LIMIT, check=False)
    if run.returncode:
        raise KybernateError(
            f"compiling kyb-init, kyb-enter and kyb-runtime failed: {run.stderr.strip()}"
        )
    programs = {
        KYB_INIT: REPOSITORY / "build" / "kyb-init",
        KYB_ENTER: REPOSITORY / "build" / "kyb-enter",
        KYB_RUNTIME: REPOSITORY / "build" / "kyb-runtime",
        CRIU: criu.ensure(progress).product,
    }
    key = digest_of(_FORMAT, *programs, files=list(programs.values()))
    target = cache_root() / "images" / f"tools-{key}"

    def fill(part: Path) -> None:
        for place, built in programs.items():
            copy = part / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built, copy)
            copy.chmod(0o755)

    return folder_layer(made_once(target, fill))
