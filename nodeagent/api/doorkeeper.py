"""Who may call what, how often, and with what: the same checks before every call of a door.

A door is a server: the Unix socket (whoever may open it is root on the node), or the network
(whoever has a certificate is the name in it). A call that passes reaches its handler; errors of
ours that come out of it become gRPC statuses here, each with a sentence.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import FieldDescriptor

from kybernate import keys
from kybernate.core.rate import Bucket
from kybernate.dataclass import dataclass
from kybernate.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from nodeagent import metrics
from nodeagent.api.guests import certificate_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import TypeAlias

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from nodeagent.api.guests import Guests

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

NODE = "node"
"""The role of whoever calls by the Unix socket."""
_PLUGIN = frozenset({NODE})
_READERS = frozenset({NODE, keys.CN_PROXY, keys.CN_CONTROLLER})
_OPERATORS = frozenset({NODE, keys.CN_CONTROLLER})

CALLERS: Mapping[str, frozenset[str]] = {
    "ReportInventory": _PLUGIN,
    "Attend": _PLUGIN,
    "AwaitedGroups": _PLUGIN,
    "PrepareSeat": _PLUGIN,
    "WatchHoldings": _PLUGIN,
    "GetStatus": _READERS,
    "WatchStatus": _READERS,
    "Serve": frozenset({keys.CN_PROXY}),
    "Park": _OPERATORS,
    "Wake": _OPERATORS,
    "Evict": _OPERATORS,
    "Save": _OPERATORS,
    "Move": _OPERATORS,
    "Place": _OPERATORS,
    "Evacuate": _OPERATORS,
    "DrainNode": _OPERATORS,
    "UndrainNode": _OPERATORS,
    "CancelOperation": _OPERATORS,
    "DropSnapshot": _OPERATORS,
    "GetOperation": _OPERATORS,
    "ListOperations": _OPERATORS,
    "WatchOperation": _OPERATORS,
}
"""Roles that may make each call. `docs/reference/node/api.md` says the same, and a test compares
them."""
AGENT = "agents of other nodes"
"""The role of other nodes' agents, each with a certificate of its own."""
PEER_CALLS = frozenset({"Expect", "Receive", "Deliver", "TakeOver", "CallOff"})
"""Calls of the service `Peers`, which agents alone may make."""

MESSAGE_LIMIT = 1 << 20
STATES_LIMIT = 4 << 20
"""Bytes of a message, either way; and at the door through which states come."""
TEXT_LIMIT = 253
WHY_LIMIT = 1024
STATE_LIMIT = 384
"""Characters of a text, of a `why`, and of the name of an artifact, which has a pod's in it."""
_LONGER = {"why": WHY_LIMIT, "artifact": STATE_LIMIT, "staged": STATE_LIMIT}
LIST_LIMIT = 4096
SECONDS_LIMIT = 86_400.0
_LIMITED = frozenset(
    {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_DOUBLE}
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_MOST_PEERS = 256

_CODES: tuple[tuple[type[KybernateError], grpc.StatusCode], ...] = (
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (ConflictError, grpc.StatusCode.ALREADY_EXISTS),
    (RefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    (RetryableError, grpc.StatusCode.UNAVAILABLE),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (CorruptError, grpc.StatusCode.DATA_LOSS),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """What one peer may do: calls a second, and at once; streams open at a time; messages a
    second on a stream (those beyond are read later, not refused). `limit_s` ends a call that is
    no stream."""

    calls: float = 50.0
    burst: float = 200.0
    streams: int = 32
    messages: float = 20_000.0
    limit_s: float = 30.0


def check_message(message: Message, at: str = "") -> None:
    """Raise ConfigError naming the first field whose value is out of its limits."""
    for field in _limited(message.DESCRIPTOR):
        name = f"{at}{field.name}"
        if field.is_repeated:
            _check_list(field, getattr(message, field.name), name)
        elif not field.has_presence or message.HasField(field.name):
            _check_value(field, getattr(message, field.name), name)


@functools.cache
def _limited(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """A message's fields that have limits. To look at one of bytes is to copy it."""
    return tuple(field for field in kind.fields if field.is_repeated or field.type in _LIMITED)


def _check_list(field: FieldDescriptor, values: Any, name: str) -> None:
    if len(values) > LIST_LIMIT:
        raise ConfigError(name, f"has {len(values)} entries, above {LIST_LIMIT}")
    for index, value in enumerate(values):
        _check_value(field, value, f"{name}[{index}]")


def _check_value(field: FieldDescriptor, value: Any, name: str) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        check_message(value, f"{name}.")
    elif field.type == FieldDescriptor.TYPE_STRING:
        limit = _LONGER.get(field.name, TEXT_LIMIT)
        if len(value) > limit:
            raise ConfigError(name, f"has {len(value)} characters, above {limit}")
        if not value.isprintable():
            raise ConfigError(name, "has characters that can't be printed")
    elif field.type == FieldDescriptor.TYPE_DOUBLE and not 0.0 <= value <= SECONDS_LIMIT:
        raise ConfigError(name, f"must be from 0 to {SECONDS_LIMIT:g} seconds, not {value:g}")


def check_name(name: str) -> None:
    """Raise ConfigError unless it may be the name of an operation; empty: the agent makes one."""
    if name and not _NAME.fullmatch(name):
        raise ConfigError(
            "name", f"{name!r} must be 1 to 63 of a-z, 0-9, '-' and '.', and not end in '-' or '.'"
        )


def callers_of(method: str) -> frozenset[str]:
    """Roles that may make a call."""
    return frozenset({AGENT}) if method in PEER_CALLS else CALLERS[method]


def role_of(context: Context) -> str:
    """The role of whoever calls with a certificate: its common name, but for agents'."""
    others = context.auth_context().get("x509_subject_alternative_name") or ()
    name = client_name(context)
    names = (name, *(other.decode(errors="replace") for other in others))
    return AGENT if any(keys.agent_node(one) for one in names) else name


def client_name(context: Context) -> str:
    """The common name of the caller's certificate; empty if it has none."""
    names = context.auth_context().get("x509_common_name") or ()
    return names[0].decode(errors="replace") if names else ""


@dataclass(slots=True)
class _Peer:
    calls: Bucket
    streams: int = 0


class Doorkeeper(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """The checks of one door; `unix` says whether it is the socket's. `now`: a steady clock.
    `guests` says whose certificates count; without it all that TLS lets in."""

    def __init__(
        self,
        rates: Rates,
        now: Callable[[], float],
        *,
        unix: bool,
        guests: Guests | None = None,
    ) -> None:
        self._guests = None if unix else guests
        self._rates = rates
        self._now = now
        self._unix = unix
        self._peers: dict[str, _Peer] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """gRPC's hook: the handler of a call, with our checks around it."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler  # gRPC answers UNIMPLEMENTED
        method = handler_call_details.method.rpartition("/")[2]
        ends = handler.request_deserializer, handler.response_serializer
        if handler.stream_stream:
            outer = self._streaming(method, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(outer, *ends)
        if handler.unary_stream:
            outer = self._streaming(method, handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(outer, *ends)
        if handler.stream_unary:
            outer = self._collecting(method, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(outer, *ends)
        outer = self._single(method, handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(outer, *ends)

    def _single(self, method: str, inner: Callable[..., Awaitable[Any]]) -> Any:
        async def call(request: Message, context: Context) -> Any:
            async with _Statuses(method, context):
                await self._admit(method, context)
                check_message(request)
                return await self._in_time(method, inner(request, context))

        return call

    def _collecting(self, method: str, inner: Callable[..., Awaitable[Any]]) -> Any:
        async def call(requests: AsyncIterator[Message], context: Context) -> Any:
            async with _Statuses(method, context):
                with await self._admit_stream(method, context):
                    return await inner(self._checked(requests, context), context)

        return call

    def _streaming(self, method: str, inner: Callable[..., Any]) -> Any:
        async def call(request: Any, context: Context) -> None:
            async with _Statuses(method, context):
                with await self._admit_stream(method, context):
                    if hasattr(request, "__aiter__"):
                        await inner(self._checked(request, context), context)
                        return
                    check_message(request)
                    async for answer in inner(request, context):
                        await context.write(answer)

        return call

    async def _checked(
        self, requests: AsyncIterator[Message], context: Context
    ) -> AsyncIterator[Message]:
        """A stream's messages, each within its limits, no faster than they may come."""
        bucket = Bucket(self._rates.messages, self._rates.messages)
        shown = None if self._guests is None else certificate_of(context)
        async for request in requests:
            # A stream that is open ends, too, once its caller is let in no more.
            if self._guests is not None and (why := self._guests.check(shown)):
                raise RefusedError(why)
            check_message(request)
            wait = bucket.take(self._now())
            if wait:
                await asyncio.sleep(wait)
            yield request

    async def _in_time(self, method: str, answer: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(answer, self._rates.limit_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"{method} took longer than {self._rates.limit_s:g} s; try again"
            ) from error

    # --- admission ----------------------------------------------------------------------------

    async def _admit_stream(self, method: str, context: Context) -> _Place:
        name, peer = await self._admit(method, context)
        if peer.streams >= self._rates.streams:
            await _exhausted(context, method, f"{name} has {peer.streams} streams open", 1.0)
        return _Place(peer)

    async def _admit(self, method: str, context: Context) -> tuple[str, _Peer]:
        caller = NODE if self._unix else client_name(context)
        role = NODE if self._unix else role_of(context)
        if role not in callers_of(method):
            await self._deny(method, caller, context)
        if self._guests is not None and (why := self._guests.check(certificate_of(context))):
            metrics.REFUSED_CALLS.labels(method, "certificate").inc()
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
        name = caller if self._unix else f"{caller} at {context.peer().rpartition(':')[0]}"
        peer = self._peer(name)
        wait = peer.calls.take(self._now())
        if wait:
            await _exhausted(context, method, f"{name} calls too often", wait)
        return name, peer

    def _peer(self, name: str) -> _Peer:
        peer = self._peers.get(name)
        if peer is None:
            if len(self._peers) >= _MOST_PEERS:
                # Those with nothing open begin again when they are back.
                self._peers = {key: one for key, one in self._peers.items() if one.streams}
            peer = self._peers[name] = _Peer(Bucket(self._rates.calls, self._rates.burst))
        return peer

    async def _deny(self, method: str, role: str, context: Context) -> None:
        others = sorted(callers_of(method) - {NODE})
        who = " and ".join(others) or "callers on the node's own socket"
        caller = "this is the node's socket" if self._unix else f"your certificate says {role!r}"
        metrics.REFUSED_CALLS.labels(method, "role").inc()
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"{method} is for {who} only; {caller}"
        )


class _Place:
    """A stream of a peer, counted while it is open."""

    def __init__(self, peer: _Peer) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        self._peer.streams += 1

    def __exit__(self, *_: object) -> None:
        self._peer.streams -= 1


class _Statuses:
    """Turns our errors into gRPC statuses."""

    def __init__(self, method: str, context: Context) -> None:
        self._method = method
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, KybernateError):
            return
        code = next((c for kind, c in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
        metrics.REFUSED_CALLS.labels(self._method, code.name.lower()).inc()
        trailing = _pushback(error.delay) if isinstance(error, RetryableError) else ()
        await self._context.abort(code, str(error), trailing)


async def _exhausted(context: Context, method: str, what: str, wait: float) -> None:
    metrics.REFUSED_CALLS.labels(method, "rate").inc()
    await context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}; retry in {wait:.3f} s", _pushback(wait)
    )


def _pushback(seconds: float) -> tuple[tuple[str, str], ...]:
    """What gRPC's own retries obey: when to come again."""
    return (("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),)
