"""A real browser for tests of pages: Debian's headless Chromium, unpacked, driven by Playwright."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from images import debs
from images.cache import silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from images.cache import Progress

# Fonts by name: what it falls back to draws boxes.
PACKAGES = debs.DebSet(
    "chromium", "bookworm", (("chromium-headless-shell", ""), ("fonts-dejavu-core", "")), True
)
_PROGRAM = "usr/lib/chromium/chromium-headless-shell"
_LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/pulseaudio",
    "lib/x86_64-linux-gnu",
)
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{root}/var/cache/fontconfig</cachedir>
<alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


def ensure(progress: Progress = silent) -> debs.Unpacked:
    """The browser, unpacked. Raises KybernateError."""
    return debs.unpack(PACKAGES, progress)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """It runs, without a window. Raises KybernateError."""
    root = ensure().folder
    fonts = root / "fonts.conf"
    fonts.write_text(_FONTS.format(root=root))
    # The host's own libraries first: its C library fits its loader.
    folders = ["/lib/x86_64-linux-gnu", *(str(root / one) for one in _LIBRARIES)]
    environ = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": ":".join(folders),
        "FONTCONFIG_FILE": str(fonts),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=root / _PROGRAM, args=["--no-sandbox"], env=dict(environ)
        )
        try:
            yield browser
        finally:
            browser.close()
