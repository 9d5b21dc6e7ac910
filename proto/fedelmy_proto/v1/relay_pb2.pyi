from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AwaitRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ring(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Carried(_message.Message):
    __slots__ = ("ring", "site", "data")
    RING_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ring: str
    site: str
    data: bytes
    def __init__(self, ring: _Optional[str] = ..., site: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
