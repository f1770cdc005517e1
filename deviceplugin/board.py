"""The latest inventory, handed between the plugin's threads."""

from __future__ import annotations

import threading

from deviceplugin.inventory import Inventory


class Board:
    """Holds one inventory. Any thread may read it or wait for a newer one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._inventory = Inventory()
        self.sure = False
        """Whether the driver has confirmed it: before, it is what an earlier plugin remembered."""

    def publish(self, inventory: Inventory) -> bool:
        """Make `inventory` the latest; False if it says nothing new."""
        with self._changed:
            if inventory == self._inventory and self._version:
                return False
            self._inventory = inventory
            self._version += 1
            self._changed.notify_all()
            return True

    def current(self) -> tuple[int, Inventory]:
        """The latest inventory and its version; version 0 is before the first discovery."""
        with self._changed:
            return self._version, self._inventory

    def newer(self, version: int, timeout: float) -> tuple[int, Inventory]:
        """The latest, as soon as it is newer than `version`; after `timeout` seconds as it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, timeout)
            return self._version, self._inventory
