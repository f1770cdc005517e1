"""This node's own key and certificate: made here, certified by the cluster's signer, renewed.

The key never leaves the node. Until there is a certificate of its own the agent shows the mounted
one, where there is one; else nobody believes it, which holds up proxies and moves, and no seat.

What reads certificates is slow to import, and waits for the background: the door is open before.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, RefusedError, RetryableError
from kybernate.lib.retry import Pauses, quietly, retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import Any

    from kybernate.adapters.pki import Pair
    from kybernate.ports import KubeApi

log = logging.getLogger(__name__)

_RENEW_AT = 2 / 3
"""Of a certificate's life."""
_LOOK_S = Pauses(0.2, 5.0, growth=1.5)
_PATIENCE_S = 3600.0
_AGAIN_S = Pauses(2.0, 60.0)
_ROUND_S = 1.0
"""At least, from one certificate to the next request."""
_ASK_S = 10.0
_AUTHORITY_S = 10.0
"""From one look for an authority of agents to the next, while there is none."""
_DAY = timedelta(days=1)
_AUTHORITY, _AGENTS = "ca.crt", "agents-ca.crt"
_HAS_ENDED = "it has ended"
_CERTIFICATE = b"-----BEGIN CERTIFICATE"


@dataclass(frozen=True, slots=True)
class Shown:
    """Key and certificate that the agent shows, as PEM."""

    key: bytes
    certificate: bytes


class Identity:
    """Whom the agent says it is. Files are read again as they change. Safe to use from several
    threads."""

    def __init__(
        self, node: str, tls_dir: Path, folder: Path | None = None, *, shared: bool = True
    ) -> None:
        """`tls_dir` has the authorities, and `agent-NODE`'s files if they are mounted. `folder` is
        for what the node makes itself; without it that isn't wanted. `shared`: other agents are
        believed by mounted certificates, too."""
        self._node = node
        self._tls = tls_dir
        self._folder = folder
        self._shared = shared
        self._nobody: Shown | None = None

    @property
    def node(self) -> str:
        """Whose agent this is."""
        return self._node

    @property
    def file(self) -> Path | None:
        """Where key and certificate of its own lie, one after the other; None if it has none."""
        return None if self._folder is None else self._folder / "agent.pem"

    def shown(self) -> Shown:
        """What it shows now. Raises ConfigError for files that can't be used."""
        return self._certified() or self._placeholder()

    def signing(self) -> Shown:
        """By what it signs states: what it shows, or else its own that has ended. Raises
        ConfigError; RetryableError while it has never had one."""
        if found := self._certified():
            return found
        # Whoever reads a signature asks whose key it is, and not until when its certificate counts
        # for connections: what was signed by one that ends later is read for years, too. So that a
        # registry which is away for long keeps nobody from leaving RAM.
        if self._ended is not None and self._ended.is_file():
            return _both(self._ended)
        raise RetryableError(
            "no certificate yet: the registry (its signer) has not signed this node's request"
        )

    def _certified(self) -> Shown | None:
        """None while it asks for one. Raises ConfigError if it doesn't, and has none."""
        if self.file is not None and self._has_own():
            return _both(self.file)
        name = f"agent-{self._node}"
        try:
            return Shown(*(_read(self._tls / f"{name}.{kind}") for kind in ("key", "crt")))
        except ConfigError as error:
            if not self._asks():
                raise ConfigError(
                    "tls_dir",
                    f"{error.problem}; make it with: kybernate pki init --dir {self._tls} "
                    f"--node {self._node}; or put agents-ca.crt there, and the agent asks for one",
                ) from error
        return None

    def authorities(self) -> bytes:
        """Who certifies other nodes' agents, and proxies: PEM. Raises ConfigError."""
        return _read(self._tls / _AUTHORITY) + self._agents_authority()

    def agents(self) -> bytes:
        """Who certifies other nodes' agents alone. Raises ConfigError."""
        own = self._agents_authority()
        return own + _read(self._tls / _AUTHORITY) if self._shared or not own else own

    def stamp(self) -> tuple[object, ...]:
        """Another one whenever one of the files is another."""
        names = (_AGENTS, _AUTHORITY, f"agent-{self._node}.crt")
        files = [*(self._tls / name for name in names), *([self.file] if self.file else ())]
        return tuple(_stamp(file) for file in files)

    def files(self) -> tuple[Path, Path, Path]:
        """The services' authority, and certificate and key that are shown to them. Raises
        RetryableError while there is nothing to show."""
        authority, name = self._tls / _AUTHORITY, f"agent-{self._node}"
        if self.file is not None and self._has_own():
            return authority, self.file, self.file
        if self._asks() and not (self._tls / f"{name}.crt").is_file():
            raise RetryableError("this node's certificate is asked for, and not there yet")
        return authority, self._tls / f"{name}.crt", self._tls / f"{name}.key"

    async def run(self, api: Callable[[], Awaitable[KubeApi]]) -> None:
        """Ask for a certificate, and again before it ends, for ever. `api` waits for the API
        server's client."""
        if not self._asks():
            log.warning(
                "this agent shows a certificate whose key other nodes may hold, too: %s",
                "own_key is off" if self._folder is None else f"{self._tls} has no {_AGENTS}",
            )
        if self._folder is None:
            return
        while not self._asks():  # noqa: ASYNC110 - a file that a person puts there
            await asyncio.sleep(_AUTHORITY_S)

        async def renewed() -> None:
            due = await asyncio.to_thread(self._due)
            await asyncio.sleep(max(0.0, due - time.time()))
            await self._renew(api)

        def say(error: Exception) -> None:
            log.warning("no certificate for this node's own key yet: %s", error)

        while True:
            await retry(renewed, say, pauses=_AGAIN_S)
            await asyncio.sleep(_ROUND_S)

    @property
    def _ended(self) -> Path | None:
        return None if self._folder is None else self._folder / "ended.pem"

    def _asks(self) -> bool:
        return self._folder is not None and (self._tls / _AGENTS).is_file()

    def _agents_authority(self) -> bytes:
        file = self._tls / _AGENTS
        return _read(file) if file.is_file() else b""

    def _has_own(self) -> bool:
        return self.file is not None and self.file.is_file()

    def _own(self) -> Pair | None:
        """Its own, if it is good; what isn't is taken away, so that it is shown no more. Raises
        ConfigError if the authorities can't be read."""
        from kybernate.adapters.pki import read_pair  # noqa: PLC0415 - slow, see above

        if self.file is None or not self.file.is_file():
            return None
        content, why = self.file.read_bytes(), None
        try:
            pair = read_pair(content, content, str(self.file))
        except ConfigError as error:
            why = str(error)
        else:
            why = self._why_not(pair)
            if why is None:
                return pair
        log.warning("this node's own certificate can't be used: %s", why)
        if why == _HAS_ENDED and self._ended is not None:
            self.file.replace(self._ended)
        self.file.unlink(missing_ok=True)
        return None

    def _why_not(self, pair: Pair) -> str | None:
        """Why it can't be this agent's, in a few words; None if it can. Raises ConfigError."""
        from cryptography import x509  # noqa: PLC0415 - slow, see above

        from kybernate.adapters.pki import Pair, agent_leaf, why_renew  # noqa: PLC0415

        now, leaf = datetime.now(UTC), agent_leaf(self._node)
        try:
            # While one authority follows another the file lists both, in any order.
            known = x509.load_pem_x509_certificates(self._agents_authority())
        except ValueError as error:
            raise ConfigError(str(self._tls / _AGENTS), f"can't be read: {error}") from error
        signers = [Pair(one, pair.key) for one in known]
        whys = [why_renew(pair, leaf, one, timedelta(0), now) for one in signers]
        # One that has ended under an authority that has, too, is none that why_renew names.
        has_ended = pair.certificate.not_valid_after_utc <= now
        if has_ended and any(why is None or why.startswith("ends on") for why in whys):
            return _HAS_ENDED
        return None if None in whys else "; ".join(sorted({str(why) for why in whys}))

    def _due(self) -> float:
        """When to ask for another, by the wall clock."""
        own = self._own()
        if own is None or self.file is None:
            return 0.0
        # By when it came: its beginning is dated back, for clocks that differ.
        came = self.file.stat().st_mtime
        return came + (own.certificate.not_valid_after_utc.timestamp() - came) * _RENEW_AT

    async def _renew(self, wait: Callable[[], Awaitable[KubeApi]]) -> None:
        api = await wait()
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        from kybernate.adapters.pki import read_pair  # noqa: PLC0415
        from kybernate.adapters.pki.requests import CSRS, make_request  # noqa: PLC0415

        key = ec.generate_private_key(ec.SECP256R1())
        wanted = make_request(self._node, key)
        await asyncio.to_thread(lambda: api.post(CSRS, wanted, timeout=_ASK_S))
        certificate = await self._answer(api, f"{CSRS}/{wanted['metadata']['name']}")
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pair = read_pair(certificate, pem, "the certificate that was issued")
        # Before it takes the place of one that is good.
        if why := await asyncio.to_thread(self._why_not, pair):
            raise RetryableError(
                f"the certificate that was issued can't be used ({why}); "
                f"{self._tls / _AGENTS} must list the authority that the registry signs by"
            )
        await asyncio.to_thread(self._keep, pem + certificate[certificate.index(_CERTIFICATE) :])
        log.info("this node's own certificate is in use")

    async def _answer(self, api: KubeApi, path: str) -> bytes:
        async def answered() -> bytes:
            found: Any = await asyncio.to_thread(lambda: api.get(path, timeout=_ASK_S))
            status = found.get("status") or {}
            for condition in status.get("conditions") or ():
                if condition.get("type") in ("Denied", "Failed"):
                    raise RefusedError(f"it was refused: {condition.get('message')}")
            if status.get("certificate"):
                return base64.b64decode(status["certificate"])
            raise RetryableError("nobody answered the request; is the registry's signer on?")

        until = asyncio.get_running_loop().time() + _PATIENCE_S
        return await retry(answered, quietly, on=RetryableError, pauses=_LOOK_S, until=until)

    def _keep(self, content: bytes) -> None:
        if self._folder is None or self.file is None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        from kybernate.adapters.pki import write_private  # noqa: PLC0415 - slow

        # One file, so that no crash leaves a key beside another one's certificate.
        write_private(self.file, content)
        if self._ended is not None:
            self._ended.unlink(missing_ok=True)

    def _placeholder(self) -> Shown:
        """Of an authority that nobody knows: the port is open, and nobody continues with it."""
        from kybernate.adapters.pki import agent_leaf, issue, make_authority  # noqa: PLC0415 - slow

        if self._nobody is None:
            now = datetime.now(UTC)
            pair = issue(make_authority("nobody", _DAY, now), agent_leaf(self._node), _DAY, now)
            self._nobody = Shown(pair.key_pem, pair.certificate_pem)
        return self._nobody


def _both(file: Path) -> Shown:
    content = _read(file)
    at = content.find(_CERTIFICATE)
    return Shown(content[:at], content[at:])


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError("tls_dir", f"can't read {file}: {error.strerror}") from error


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
