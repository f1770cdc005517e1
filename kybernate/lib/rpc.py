"""gRPC services by their descriptors: what generated stubs do, for every service alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor, MethodDescriptor


class Stub:
    """A caller for each method of a service, by the method's name."""

    def __init__(
        self, channel: grpc.Channel | grpc.aio.Channel, file: FileDescriptor, service: str
    ) -> None:
        self._channel, self._service = channel, file.services_by_name[service]

    def __getattr__(self, name: str) -> Any:
        """The caller, which stays. Raises AttributeError if the service has no such method."""
        method = self._service.methods_by_name.get(name)
        if method is None:
            raise AttributeError(f"{self._service.full_name} has no method {name}")
        asks, answers = _classes(method)
        caller = getattr(self._channel, _ways(method))(
            f"/{self._service.full_name}/{name}",
            request_serializer=asks.SerializeToString,
            response_deserializer=answers.FromString,
        )
        setattr(self, name, caller)
        return caller


def serve(
    server: grpc.Server | grpc.aio.Server, file: FileDescriptor, service: str, by: object
) -> None:
    """Have the server answer the service's methods by those of `by` of the same names; a method
    that `by` doesn't have is unimplemented."""
    described = file.services_by_name[service]
    there = [method for method in described.methods if hasattr(by, method.name)]
    handlers = {method.name: _handler(method, getattr(by, method.name)) for method in there}
    known = grpc.method_handlers_generic_handler(described.full_name, handlers)
    server.add_generic_rpc_handlers((known,))


def _handler(method: MethodDescriptor, answer: Any) -> grpc.RpcMethodHandler:
    asks, answers = _classes(method)
    handler: grpc.RpcMethodHandler = getattr(grpc, f"{_ways(method)}_rpc_method_handler")(
        answer,
        request_deserializer=asks.FromString,
        response_serializer=answers.SerializeToString,
    )
    return handler


def _ways(method: MethodDescriptor) -> str:
    """Whether what is asked and what is answered are streams, as gRPC names that."""
    ways = (method.client_streaming, method.server_streaming)
    return "_".join("stream" if one else "unary" for one in ways)


def _classes(method: MethodDescriptor) -> tuple[Any, Any]:
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)
