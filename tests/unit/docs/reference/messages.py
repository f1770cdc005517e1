"""docs/reference/node/messages.md: the agent's calls and messages, from the protos' comments."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tests.cluster.layout import REPOSITORY
from tests.pages import item

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Comments = dict[tuple[int, ...], str]

HEAD = """# Messages of the agent's APIs

Generated from `proto/kybernate/gen` by `make generated`: each call with its messages, each message
with its fields. How a client uses the calls is in [api.md](api.md).
"""
FILES = {"agent.proto": "The agent", "peers.proto": "Between agents"}
_FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGES, _SERVICES, _FIELDS, _METHODS = 4, 6, 2, 2
"""Numbers of a descriptor's own fields, of which the paths of comments consist."""


def page() -> str:
    """The page, whole."""
    files = {Path(one.name).name: one for one in _described()}
    return HEAD + "".join(
        part for name, title in FILES.items() for part in _file(files[name], title)
    )


def _described() -> Iterable[descriptor_pb2.FileDescriptorProto]:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "set"
        given = [str(REPOSITORY / "proto/kybernate/gen" / name) for name in FILES]
        words = ["protoc", f"-I{REPOSITORY / 'proto'}", "--include_source_info"]
        assert protoc.main([*words, f"--descriptor_set_out={made}", *given]) == 0
        return descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file


def _file(file: descriptor_pb2.FileDescriptorProto, title: str) -> Iterator[str]:
    said = {tuple(one.path): _comment(one) for one in file.source_code_info.location}
    for number, service in enumerate(file.service):
        yield f"\n## {title}: `{file.package}.{service.name}`\n\n"
        for n, method in enumerate(service.method):
            takes = _streamed(method.input_type, method.client_streaming)
            gives = _streamed(method.output_type, method.server_streaming)
            about = said.get((_SERVICES, number, _METHODS, n), "")
            yield item(f"`{method.name}`: {takes} → {gives}", about)
    for number, message in enumerate(file.message_type):
        yield f"\n### {message.name}\n\n"
        if about := said.get((_MESSAGES, number), ""):
            yield item(about)[2:].replace("\n  ", "\n") + "\n"
        maps = {one.name: one for one in message.nested_type if one.options.map_entry}
        for n, field in enumerate(message.field):
            about = said.get((_MESSAGES, number, _FIELDS, n), "")
            yield item(f"`{field.name}`, {_kind(field, maps)}" + (f": {about}" if about else ""))
        if not message.field:
            yield "No fields.\n"


def _comment(at: descriptor_pb2.SourceCodeInfo.Location) -> str:
    return re.sub(r"\s+", " ", at.leading_comments or at.trailing_comments).strip()


def _streamed(type_name: str, streamed: bool) -> str:
    name = type_name.rpartition(".")[2]
    return f"{'stream of ' if streamed else ''}[{name}](#{name.lower()})"


def _kind(
    field: descriptor_pb2.FieldDescriptorProto, maps: Mapping[str, descriptor_pb2.DescriptorProto]
) -> str:
    if entry := maps.get(field.type_name.rpartition(".")[2]):
        key, value = (_kind(one, {}) for one in entry.field)
        return f"map of {key} to {value}"
    name = _FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.type_name:
        named = field.type_name.rpartition(".")[2]
        name = f"[{named}](#{named.lower()})" if field.type == _FIELD.TYPE_MESSAGE else named
    return f"list of {name}" if field.label == _FIELD.LABEL_REPEATED else name
