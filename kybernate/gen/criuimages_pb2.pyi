from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

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

class Creds(_message.Message):
    __slots__ = ("uid", "gid", "euid", "egid", "suid", "sgid", "fsuid", "fsgid", "cap_inh", "cap_prm", "cap_eff", "cap_bnd", "groups", "lsm_profile", "lsm_sockcreate", "no_new_privs", "cap_amb")
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    EUID_FIELD_NUMBER: _ClassVar[int]
    EGID_FIELD_NUMBER: _ClassVar[int]
    SUID_FIELD_NUMBER: _ClassVar[int]
    SGID_FIELD_NUMBER: _ClassVar[int]
    FSUID_FIELD_NUMBER: _ClassVar[int]
    FSGID_FIELD_NUMBER: _ClassVar[int]
    CAP_INH_FIELD_NUMBER: _ClassVar[int]
    CAP_PRM_FIELD_NUMBER: _ClassVar[int]
    CAP_EFF_FIELD_NUMBER: _ClassVar[int]
    CAP_BND_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LSM_PROFILE_FIELD_NUMBER: _ClassVar[int]
    LSM_SOCKCREATE_FIELD_NUMBER: _ClassVar[int]
    NO_NEW_PRIVS_FIELD_NUMBER: _ClassVar[int]
    CAP_AMB_FIELD_NUMBER: _ClassVar[int]
    uid: int
    gid: int
    euid: int
    egid: int
    suid: int
    sgid: int
    fsuid: int
    fsgid: int
    cap_inh: _containers.RepeatedScalarFieldContainer[int]
    cap_prm: _containers.RepeatedScalarFieldContainer[int]
    cap_eff: _containers.RepeatedScalarFieldContainer[int]
    cap_bnd: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    lsm_profile: str
    lsm_sockcreate: str
    no_new_privs: int
    cap_amb: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, uid: _Optional[int] = ..., gid: _Optional[int] = ..., euid: _Optional[int] = ..., egid: _Optional[int] = ..., suid: _Optional[int] = ..., sgid: _Optional[int] = ..., fsuid: _Optional[int] = ..., fsgid: _Optional[int] = ..., cap_inh: _Optional[_Iterable[int]] = ..., cap_prm: _Optional[_Iterable[int]] = ..., cap_eff: _Optional[_Iterable[int]] = ..., cap_bnd: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[int]] = ..., lsm_profile: _Optional[str] = ..., lsm_sockcreate: _Optional[str] = ..., no_new_privs: _Optional[int] = ..., cap_amb: _Optional[_Iterable[int]] = ...) -> None: ...

class Namespaces(_message.Message):
    __slots__ = ("pid", "net", "ipc", "uts", "mnt", "user")
    PID_FIELD_NUMBER: _ClassVar[int]
    NET_FIELD_NUMBER: _ClassVar[int]
    IPC_FIELD_NUMBER: _ClassVar[int]
    UTS_FIELD_NUMBER: _ClassVar[int]
    MNT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    pid: int
    net: int
    ipc: int
    uts: int
    mnt: int
    user: int
    def __init__(self, pid: _Optional[int] = ..., net: _Optional[int] = ..., ipc: _Optional[int] = ..., uts: _Optional[int] = ..., mnt: _Optional[int] = ..., user: _Optional[int] = ...) -> None: ...

class ThreadCore(_message.Message):
    __slots__ = ("creds", "seccomp_mode", "seccomp_filter")
    CREDS_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_MODE_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_FILTER_FIELD_NUMBER: _ClassVar[int]
    creds: Creds
    seccomp_mode: int
    seccomp_filter: int
    def __init__(self, creds: _Optional[_Union[Creds, _Mapping]] = ..., seccomp_mode: _Optional[int] = ..., seccomp_filter: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("state", "old_seccomp_mode", "old_seccomp_filter")
    STATE_FIELD_NUMBER: _ClassVar[int]
    OLD_SECCOMP_MODE_FIELD_NUMBER: _ClassVar[int]
    OLD_SECCOMP_FILTER_FIELD_NUMBER: _ClassVar[int]
    state: int
    old_seccomp_mode: int
    old_seccomp_filter: int
    def __init__(self, state: _Optional[int] = ..., old_seccomp_mode: _Optional[int] = ..., old_seccomp_filter: _Optional[int] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("pid", "threads")
    PID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    threads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pid: _Optional[int] = ..., threads: _Optional[_Iterable[int]] = ...) -> None: ...

class SeccompFilter(_message.Message):
    __slots__ = ("filter", "prev", "flags")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PREV_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    filter: bytes
    prev: int
    flags: int
    def __init__(self, filter: _Optional[bytes] = ..., prev: _Optional[int] = ..., flags: _Optional[int] = ...) -> None: ...

class Seccomp(_message.Message):
    __slots__ = ("filters",)
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.RepeatedCompositeFieldContainer[SeccompFilter]
    def __init__(self, filters: _Optional[_Iterable[_Union[SeccompFilter, _Mapping]]] = ...) -> None: ...

class Core(_message.Message):
    __slots__ = ("task", "namespaces", "thread")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    task: Task
    namespaces: Namespaces
    thread: ThreadCore
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., namespaces: _Optional[_Union[Namespaces, _Mapping]] = ..., thread: _Optional[_Union[ThreadCore, _Mapping]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("own", "lsm")
    OWN_FIELD_NUMBER: _ClassVar[int]
    LSM_FIELD_NUMBER: _ClassVar[int]
    own: Namespaces
    lsm: int
    def __init__(self, own: _Optional[_Union[Namespaces, _Mapping]] = ..., lsm: _Optional[int] = ...) -> None: ...
