from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class MapHead(_message.Message):
    __slots__ = ("pages_id",)
    PAGES_ID_FIELD_NUMBER: _ClassVar[int]
    pages_id: int
    def __init__(self, pages_id: _Optional[int] = ...) -> None: ...

class MapEntry(_message.Message):
    __slots__ = ("address", "pages_32", "in_parent", "flags", "pages")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PAGES_32_FIELD_NUMBER: _ClassVar[int]
    IN_PARENT_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    address: int
    pages_32: int
    in_parent: bool
    flags: int
    pages: int
    def __init__(self, address: _Optional[int] = ..., pages_32: _Optional[int] = ..., in_parent: _Optional[bool] = ..., flags: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...
