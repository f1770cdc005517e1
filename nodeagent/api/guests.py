"""Which certificates of other nodes' agents count at this node's door, and whom it still calls."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    import grpc

    from kybernate.runtime.revocations import Revocations

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is read of a caller's. `nodes`: whose agents it names. `own`: by the authority that
    certifies agents alone. `made_ms`, `ends_ms`: milliseconds since 1970."""

    nodes: tuple[str, ...]
    own: bool
    made_ms: int
    ends_ms: int


class Guests:
    """Who is let in. `shared`: also by certificates whose keys other nodes may hold, those of
    `kybernate pki`. `revocations` is None where nobody can be revoked. `wall`: a clock, in seconds
    since 1970."""

    def __init__(
        self, revocations: Revocations | None, wall: Callable[[], float], *, shared: bool = True
    ) -> None:
        self._revocations = revocations
        self._wall = wall
        self._shared = shared
        self.left: list[Callable[[Iterable[str]], None]] = []
        """Told, on the loop, of nodes that are revoked."""

    def check(self, found: Certificate | None) -> str:
        """Why a caller's certificate doesn't count now, in a sentence; empty if it does. Raises
        RetryableError while nobody knows who is revoked."""
        if found is None:
            return ""
        if found.own and not found.nodes:
            return f"certificates of {keys.CN_AGENTS} are for agents alone"
        if not found.nodes:
            return ""
        if not found.own and not self._shared:
            return "its key may be in other hands: an agent needs one that its node made"
        # A connection may outlive what it was made with.
        if found.ends_ms <= self._wall() * 1000:
            return "its certificate has ended"
        return next((why for one in found.nodes if (why := self._why(one, found.made_ms))), "")

    def revoked(self, node: str) -> str:
        """Why this node isn't called; empty if it is. Raises RetryableError."""
        # By its name alone: what it will show isn't known before.
        return self._why(node, 1 << 62)

    def _why(self, node: str, made_ms: int) -> str:
        if self._revocations is None:
            return ""
        if not self._revocations.synced:
            raise RetryableError("which nodes are revoked isn't known yet")
        return self._revocations.why_not(node, made_ms)


def certificate_of(context: Context) -> Certificate | None:
    """What the caller showed when the connection was made; None on one without TLS."""
    texts = context.auth_context().get("x509_pem_cert") or ()
    return _read(bytes(texts[0])) if texts else None


@functools.lru_cache(maxsize=1024)
def _read(pem: bytes) -> Certificate:
    from cryptography import x509  # noqa: PLC0415 - slow, and only agents with moves need it
    from cryptography.x509.oid import NameOID  # noqa: PLC0415 - as above

    found = x509.load_pem_x509_certificate(pem)
    issuers = [str(one.value) for one in found.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = names.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        dns = []
    common = [str(one.value) for one in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    nodes = {node for name in (*dns, *common) if (node := keys.agent_node(name))}
    begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
    return Certificate(
        nodes=tuple(sorted(nodes)),
        own=issuers == [keys.CN_AGENTS],
        made_ms=int(begins.timestamp() * 1000),
        ends_ms=int(ends.timestamp() * 1000),
    )
