"""A box's front on its port: from the file to requests that are answered."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from kybernate.errors import RefusedError
from kybernate.local.front.access import check_listen
from kybernate.local.front.app import Front
from kybernate.local.front.scene import scene
from kybernate.settings.common import host_port
from kybernate.settings.proxy import ProxySettings
from proxy.actions import Limits
from proxy.admission import Admission
from proxy.desk import Desk
from proxy.metrics import Metrics
from proxy.page.board import Board
from proxy.relay.pools import Pools
from proxy.relay.visits import Visits, traces

if TYPE_CHECKING:
    from kybernate.api.models import ModelsFile
    from kybernate.local.box import Box

log = logging.getLogger(__name__)

_OURS = frozenset({"x-api-key", "authorization"})
_BESIDE_A_START = 60.0
"""Seconds that a request may wait beside its model's own start: others leave first."""


class Serving:
    """Answers requests for a box's models. Make it on the running event loop."""

    def __init__(self, box: Box, file: ModelsFile) -> None:
        """Raises ConfigError if other machines could ask without a key, or if traces are wanted
        and their library isn't there."""
        check_listen(file)
        settings = settings_of(file)
        self._traces = traces(wanted=file.traces)
        self.port = 0
        """Where it listens, once started."""
        self._listen = file.listen
        self._host_port = host_port(settings.listen)
        self._pools = Pools(settings)
        admission = Admission(
            Limits(
                wait=settings.wait_limit_s,
                waiting=settings.max_waiting_per_model,
                bodies=settings.max_held_bytes,
                client_bodies=settings.client_bytes,
                name_memory=0.0,
            )
        )
        board, metrics = Board(admission, lambda: scene(box)), Metrics(admission)
        desk = Desk(admission, self._pools, board)
        self._desk, self._shutdown_limit = desk, settings.shutdown_limit_s
        visits = Visits(desk, self._pools, metrics, settings, _OURS, self._traces)
        self._front = Front(box, board, visits, metrics, file)
        box.join(desk)
        self._runner = web.AppRunner(
            self._front.application(),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=settings.idle_client_s,
            shutdown_timeout=settings.shutdown_limit_s,
        )

    async def start(self) -> None:
        """Listen. Raises RefusedError if it can't there: mostly, as the port is taken."""
        await self._runner.setup()
        host, port = self._host_port
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise RefusedError(_unheard(self._listen, error)) from error
        self.port = self._runner.addresses[0][1]
        log.info("listening on http://%s:%d", host, self.port)

    async def stop(self) -> None:
        """Accept nothing new, let requests finish, close the connections to models."""
        self._desk.end_within(self._shutdown_limit)
        await self._runner.cleanup()
        await self._pools.close()
        await asyncio.to_thread(self._traces.close)

    def take(self, file: ModelsFile) -> None:
        """This file counts from now on. Raises ConfigError if it can't, as others could ask
        without a key; then the last one counts."""
        check_listen(file.model_copy(update={"listen": self._listen}))
        if file.listen != self._listen:
            log.warning("listen: %s counts after a restart", file.listen)
        self._desk.admission.wait_at_most(settings_of(file).wait_limit_s)
        self._front.take(file)


def _unheard(listen: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"listen: another program has {listen}; end it, or write another listen"
    return f"listen: {listen} can't be had ({error.strerror or error}); write another listen"


def settings_of(file: ModelsFile) -> ProxySettings:
    """The proxy's settings, as far as they mean anything on a box."""
    starts = [model.health_check_timeout or 0.0 for model in file.models.values()]
    return ProxySettings.model_validate(
        {
            "listen": file.listen,
            "wait_limit_s": max([file.health_check_timeout, *starts]) + _BESIDE_A_START,
            # A speech of an hour is larger than any text.
            "max_body_bytes": 128 * 2**20,
            "max_held_bytes": 512 * 2**20,
            "max_held_bytes_per_client": 256 * 2**20,
            "shutdown_limit_s": 5.0,
        }
    )
