from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Handover(_message.Message):
    __slots__ = ("namespace", "pod", "uid", "successor_uid", "bytes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_UID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pod: str
    uid: str
    successor_uid: str
    bytes: int
    def __init__(self, namespace: _Optional[str] = ..., pod: _Optional[str] = ..., uid: _Optional[str] = ..., successor_uid: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Expected(_message.Message):
    __slots__ = ("staged", "files")
    STAGED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    staged: str
    files: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, staged: _Optional[str] = ..., files: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("file", "size")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    file: str
    size: int
    def __init__(self, file: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Parts(_message.Message):
    __slots__ = ("opening", "parts")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    opening: Opening
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, opening: _Optional[_Union[Opening, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("handover", "staged")
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    handover: Handover
    staged: str
    def __init__(self, handover: _Optional[_Union[Handover, _Mapping]] = ..., staged: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("written", "same", "whole")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    written: Written
    same: Same
    whole: Whole
    def __init__(self, written: _Optional[_Union[Written, _Mapping]] = ..., same: _Optional[_Union[Same, _Mapping]] = ..., whole: _Optional[_Union[Whole, _Mapping]] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ("file", "offset", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    data: bytes
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Same(_message.Message):
    __slots__ = ("file", "offset", "source", "start", "size")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    source: str
    start: int
    size: int
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., source: _Optional[str] = ..., start: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Whole(_message.Message):
    __slots__ = ("file", "size")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    file: str
    size: int
    def __init__(self, file: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("handover", "artifact", "manifest")
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    handover: Handover
    artifact: str
    manifest: bytes
    def __init__(self, handover: _Optional[_Union[Handover, _Mapping]] = ..., artifact: _Optional[str] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("lacking",)
    LACKING_FIELD_NUMBER: _ClassVar[int]
    lacking: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lacking: _Optional[_Iterable[str]] = ...) -> None: ...

class Takeover(_message.Message):
    __slots__ = ("handover", "artifact")
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    handover: Handover
    artifact: str
    def __init__(self, handover: _Optional[_Union[Handover, _Mapping]] = ..., artifact: _Optional[str] = ...) -> None: ...

class TakenOver(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class CalledOff(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
