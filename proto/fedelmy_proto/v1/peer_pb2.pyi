from fedelmy_proto.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AnnounceRequest(_message.Message):
    __slots__ = ("run", "edge", "eta_seconds")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    ETA_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run: str
    edge: str
    eta_seconds: float
    def __init__(self, run: _Optional[str] = ..., edge: _Optional[str] = ..., eta_seconds: _Optional[float] = ...) -> None: ...

class AnnounceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class StateReply(_message.Message):
    __slots__ = ("state", "received", "delivered")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    state: str
    received: _containers.RepeatedScalarFieldContainer[str]
    delivered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[str] = ..., received: _Optional[_Iterable[str]] = ..., delivered: _Optional[_Iterable[str]] = ...) -> None: ...

class NotifyRequest(_message.Message):
    __slots__ = ("cancel",)
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    cancel: _control_pb2.Signed
    def __init__(self, cancel: _Optional[_Union[_control_pb2.Signed, _Mapping]] = ...) -> None: ...

class NotifyReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
