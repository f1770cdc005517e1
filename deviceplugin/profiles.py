"""The profiles file, read again whenever it changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deviceplugin import metrics
from kybernate.errors import ConfigError
from kybernate.settings.plugin import DEFAULT_SEATS, parse_seats_config

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.settings.plugin import SeatsConfig

log = logging.getLogger(__name__)

DEFAULTS = ""
"""The text that stands for the defaults: of a plugin that was given no file."""


def parse(text: str) -> SeatsConfig:
    """The configuration in `text`. Raises ConfigError naming every wrong field."""
    return DEFAULT_SEATS if text == DEFAULTS else parse_seats_config(text)


class ProfilesFile:
    """The file that a person writes; a ConfigMap is swapped in as a whole. One thread uses it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._refused = ""
        self._refusal = ""

    def read(self) -> str:
        """Its text now. Raises ConfigError if it can't be read."""
        if self._path is None:
            return DEFAULTS
        try:
            return self._path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("profiles", f"{self._path} can't be read: {error}") from error

    def refuse(self, text: str, error: ConfigError) -> None:
        """Say why what the file says now isn't taken over: once, and in a metric."""
        metrics.PROFILES_REFUSED.set(1)
        if (text, str(error)) == (self._refused, self._refusal):
            return
        self._refused, self._refusal = text, str(error)
        for line in str(error).splitlines():
            log.error("%s is refused, the profiles from before stay: %s", self._path, line)

    def accept(self) -> None:
        """What the file says is in force."""
        if self._refusal:
            log.info("%s is in order again", self._path)
        self._refused = self._refusal = ""
        metrics.PROFILES_REFUSED.set(0)
