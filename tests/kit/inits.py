"""kyb-inits for tests whose process 1 is another program, or no container's."""

from __future__ import annotations

import os
from pathlib import Path

from kybernate.errors import NotFoundError, RefusedError
from kybernate.ports import HeldInit


class EveryInit:
    """Implements `ports.Inits`: each process is one, or none, if `refused` says why."""

    def __init__(self) -> None:
        self.refused = ""

    def admit(self, pidfd: int) -> None:
        """Hold it. Raises RefusedError as told."""
        if self.refused:
            raise RefusedError(self.refused)

    def there(self, pid: int) -> bool:
        """None is kept from one call to the next."""
        return False

    def hold(self, pid: int) -> HeldInit:
        """This very process. Raises NotFoundError if it has ended."""
        try:
            return HeldInit(os.pidfd_open(pid), Path(f"/proc/{pid}/exe"))
        except ProcessLookupError as error:
            raise NotFoundError(f"There is no process {pid} any more.") from error
