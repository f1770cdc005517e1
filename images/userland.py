"""The lowest layer of every image: what Debian's Python needs, and nothing else.

Packages are named one by one with the version that is known to work; a mirror that moved on gives
its current one, and the image's labels say what it was. Of each package only what a service can
use is kept: no shell, no package manager, no documentation but the copyright notes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from kybernate.errors import KybernateError

from . import debs
from .cache import cache_root, digest_of, made_once

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .cache import Progress

PACKAGES = debs.DebSet(
    "userland",
    "bookworm",
    (
        ("libc6", "2.36-9+deb12u14"),
        ("libexpat1", "2.5.0-1+deb12u2"),
        ("libffi8", "3.4.4-1"),
        ("libgcc-s1", "12.2.0-14+deb12u1"),
        ("libpython3.11-minimal", "3.11.2-6+deb12u8"),
        ("libpython3.11-stdlib", "3.11.2-6+deb12u8"),
        ("libssl3", "3.0.20-1~deb12u2"),
        ("libstdc++6", "12.2.0-14+deb12u1"),
        ("libuuid1", "2.38.1-5+deb12u3"),
        ("python3.11-minimal", "3.11.2-6+deb12u8"),
        ("zlib1g", "1:1.2.13.dfsg-1"),
    ),
)

SQLITE = debs.DebSet("sqlite", "bookworm", (("libsqlite3-0", "3.40.1-2+deb12u2"),))
"""What only the registry needs: a layer of its own."""

CERTIFICATES = debs.DebSet("certificates", "bookworm", (("ca-certificates", "20230311+deb12u1"),))
"""What only those need that open object stores: a layer of its own."""

PYTHON = "usr/bin/python3.11"
STDLIB = "usr/lib/python3.11"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
COMPILE_LIMIT = 600.0
"""Seconds that compiling a folder of modules may take."""

_FORMAT = "2"
"""Part of the key; raise it when the recipe below changes."""

_SHARED_OBJECTS = (
    *("ld-linux-x86-64", "libc", "libcrypto", "libdl", "libexpat", "libffi", "libgcc_s", "libm"),
    *("libnss_dns", "libnss_files", "libpthread", "libresolv", "librt", "libssl", "libutil"),
    *("libuuid", "libz"),
)
"""By name up to `.so`; the others of these packages serve no program that is here."""

CXX = "libstdc++"
"""Only compiled wheels need it: a layer of its own, so that the smallest image is spared it."""

_LEFT_OUT = (
    *("curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sqlite3"),
    *("test", "tkinter", "turtledemo", "venv", "__pycache__", "sitecustomize.py"),
    *("EXTERNALLY-MANAGED", "LICENSE.txt", "turtle.py"),
)
"""Folders and modules of the standard library that no service imports."""

_WITHOUT_LIBRARY = (
    *("_bz2", "_crypt", "_curses", "_curses_panel", "_dbm", "_lzma", "_sqlite3", "nis"),
    *("readline", "ossaudiodev", "audioop", "_ctypes_test", "_testbuffer", "_testcapi"),
    *("_testclinic", "_testimportmultiple", "_testinternalcapi", "_testmultiphase"),
    *("_xxtestfuzz", "xxlimited", "xxlimited_35", "_codecs_cn", "_codecs_hk", "_codecs_iso2022"),
    *("_codecs_jp", "_codecs_kr", "_codecs_tw"),
)
"""Extension modules without their libraries, and those for tests or other scripts only."""


def build(progress: Progress) -> Path:
    """The folder of the layer's files, from the cache if it is there. Raises KybernateError."""
    unpacked = debs.unpack(PACKAGES, progress)
    key = digest_of(_FORMAT, unpacked.digest, repr((_SHARED_OBJECTS, _LEFT_OUT, _WITHOUT_LIBRARY)))
    target = cache_root() / "images" / f"userland-{key}"

    def fill(part: Path) -> None:
        progress("putting the images' userland together")
        _fill(unpacked.folder, part)
        compile_modules(part, part / STDLIB, keep_source=False)

    return made_once(target, fill)


def versions(progress: Progress) -> dict[str, str]:
    """The version of every Debian package in the layer."""
    manifest = debs.unpack(PACKAGES, progress).manifest
    return {name: manifest[name]["version"] for name in sorted(manifest)}


def build_cxx(progress: Progress) -> Path:
    """The folder of the C++ library's layer."""
    unpacked = debs.unpack(PACKAGES, progress)
    target = cache_root() / "images" / f"cxx-{digest_of(_FORMAT, unpacked.digest)}"

    def fill(part: Path) -> None:
        (part / LIBRARIES).mkdir(parents=True)
        for path in sorted((unpacked.folder / LIBRARIES).glob(f"{CXX}.so*")):
            shutil.copy2(path, part / LIBRARIES / path.name, follow_symlinks=False)

    return made_once(target, fill)


def build_sqlite(progress: Progress) -> Path:
    """The folder of the layer with Python's sqlite3 and the library that it needs."""
    base, unpacked, library = (
        build(progress),
        debs.unpack(PACKAGES, progress),
        debs.unpack(SQLITE, progress),
    )
    target = cache_root() / "images" / f"sqlite-{digest_of(base.name, library.digest)}"

    def fill(part: Path) -> None:
        (part / LIBRARIES).mkdir(parents=True)
        for path in sorted((library.folder / LIBRARIES).glob("libsqlite3.so*")):
            shutil.copy2(path, part / LIBRARIES / path.name, follow_symlinks=False)
        (part / STDLIB / "lib-dynload").mkdir(parents=True)
        for path in (unpacked.folder / STDLIB / "lib-dynload").glob("_sqlite3.cpython-*"):
            shutil.copy2(path, part / STDLIB / "lib-dynload" / path.name)
        shutil.copytree(unpacked.folder / STDLIB / "sqlite3", part / STDLIB / "sqlite3")
        place = f"/{STDLIB}/sqlite3"
        compile_modules(base, part / STDLIB / "sqlite3", keep_source=False, place=place)

    return made_once(target, fill)


def build_certificates(progress: Progress) -> Path:
    """The folder of the layer with the certificate authorities that Debian believes.

    obstore opens no object store without them, also none that is asked over plain HTTP.
    """
    unpacked = debs.unpack(CERTIFICATES, progress)
    target = cache_root() / "images" / f"certificates-{digest_of(_FORMAT, unpacked.digest)}"

    def fill(part: Path) -> None:
        found = sorted((unpacked.folder / "usr/share/ca-certificates").rglob("*.crt"))
        bundle = part / "etc/ssl/certs/ca-certificates.crt"
        bundle.parent.mkdir(parents=True)
        bundle.write_bytes(b"".join(path.read_bytes().strip() + b"\n" for path in found))

    return made_once(target, fill)


def compile_modules(userland: Path, folder: Path, *, keep_source: bool, place: str = "") -> None:
    """Compiles the modules below `folder` with the userland's own Python, without time stamps.

    Without `keep_source` the compiled module takes its source's place. `place` is where the folder
    will be in the image; by default where it is in the userland. Raises KybernateError.
    """
    place = place or f"/{folder.relative_to(userland)}"
    options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", place]
    # A module that isn't Python 3 (a template, an old test) stays as it is.
    run_python(
        userland, "-m", "compileall", *options, *([] if keep_source else ["-b"]), str(folder)
    )
    if not keep_source:
        for source in folder.rglob("*.py"):
            if source.with_suffix(".pyc").exists():
                source.unlink()


def run_python(userland: Path, *arguments: str, path: Sequence[Path] = ()) -> str:
    """Runs the userland's Python on this host. Raises KybernateError with what it said."""
    libraries = [str(userland / folder) for folder in ("lib/x86_64-linux-gnu", LIBRARIES)]
    argv = [str(userland / LOADER), "--library-path", ":".join(libraries), str(userland / PYTHON)]
    env = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONHOME": str(userland / "usr"),
        "PYTHONPATH": ":".join(map(str, path)),
        # The order of a set's members goes into a compiled module.
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
    }
    run = subprocess.run(
        [*argv, "-s", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=COMPILE_LIMIT,
        check=False,
    )
    if run.returncode:
        said = (run.stderr.strip() or run.stdout.strip()).splitlines()[-3:]
        raise KybernateError(f"Python of the images' userland failed: {' / '.join(said)}")
    return run.stdout


def _fill(source: Path, target: Path) -> None:
    for folder in ("dev", "etc", "proc", "sys", "run", "tmp", "root", "var/run", "var/lib"):
        (target / folder).mkdir(parents=True, exist_ok=True)
    (target / "tmp").chmod(0o1777)
    for folder in ("lib/x86_64-linux-gnu", LIBRARIES):
        _copy_libraries(source / folder, target / folder)
    (target / "lib64").mkdir()
    (target / "lib64" / "ld-linux-x86-64.so.2").symlink_to(f"/{LOADER}")
    _copy_python(source, target)
    for package, _ in PACKAGES.packages:
        note = source / "usr/share/doc" / package / "copyright"
        if note.is_file():
            copy = target / "usr/share/doc" / package / "copyright"
            copy.parent.mkdir(parents=True)
            shutil.copyfile(note, copy)
    (target / "etc/passwd").write_text(_USERS)
    (target / "etc/group").write_text(_GROUPS)
    (target / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


_USERS = "root:x:0:0:root:/root:/sbin/nologin\nkyb:x:65532:65532:kyb:/:/sbin/nologin\n"
_GROUPS = "root:x:0:\nkyb:x:65532:\n"


def _copy_libraries(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        name = path.name.partition(".so")[0]
        if name in _SHARED_OBJECTS and ".so" in path.name:
            shutil.copy2(path, target / path.name, follow_symlinks=False)


def _copy_python(source: Path, target: Path) -> None:
    (target / "usr/bin").mkdir(parents=True)
    shutil.copy2(source / PYTHON, target / PYTHON)
    (target / "usr/bin/python3").symlink_to("python3.11")

    def unwanted(_folder: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if name in _LEFT_OUT or name.partition(".cpython-")[0] in _WITHOUT_LIBRARY
        ]

    shutil.copytree(source / STDLIB, target / STDLIB, symlinks=True, ignore=unwanted)
