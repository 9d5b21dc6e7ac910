from fedelmy_proto.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MeasureBlock(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class MeasureReply(_message.Message):
    __slots__ = ("site", "version", "contracts", "clock", "received")
    SITE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACTS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    site: str
    version: str
    contracts: _containers.RepeatedScalarFieldContainer[str]
    clock: float
    received: int
    def __init__(self, site: _Optional[str] = ..., version: _Optional[str] = ..., contracts: _Optional[_Iterable[str]] = ..., clock: _Optional[float] = ..., received: _Optional[int] = ...) -> None: ...

class NeighbourWatch(_message.Message):
    __slots__ = ("run", "plan_id", "instance")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_id: str
    instance: str
    def __init__(self, run: _Optional[str] = ..., plan_id: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class NeighbourState(_message.Message):
    __slots__ = ("state", "received", "settled", "closed", "near", "message", "cancel", "left_out", "plan_id", "instance")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    state: str
    received: _containers.RepeatedScalarFieldContainer[str]
    settled: _containers.RepeatedScalarFieldContainer[str]
    closed: _containers.RepeatedScalarFieldContainer[str]
    near: _containers.RepeatedScalarFieldContainer[str]
    message: str
    cancel: _control_pb2.Signed
    left_out: _containers.RepeatedScalarFieldContainer[str]
    plan_id: str
    instance: str
    def __init__(self, state: _Optional[str] = ..., received: _Optional[_Iterable[str]] = ..., settled: _Optional[_Iterable[str]] = ..., closed: _Optional[_Iterable[str]] = ..., near: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ..., cancel: _Optional[_Union[_control_pb2.Signed, _Mapping]] = ..., left_out: _Optional[_Iterable[str]] = ..., plan_id: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...
