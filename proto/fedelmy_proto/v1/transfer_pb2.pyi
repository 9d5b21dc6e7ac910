from fedelmy_proto.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginRequest(_message.Message):
    __slots__ = ("run", "edge", "size", "sha256", "block_bytes", "wire_dtype", "manifest", "origin", "plan_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    run: str
    edge: str
    size: int
    sha256: bytes
    block_bytes: int
    wire_dtype: str
    manifest: _containers.RepeatedCompositeFieldContainer[Tensor]
    origin: _control_pb2.Origin
    plan_id: str
    def __init__(self, run: _Optional[str] = ..., edge: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., wire_dtype: _Optional[str] = ..., manifest: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., origin: _Optional[_Union[_control_pb2.Origin, _Mapping]] = ..., plan_id: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class BeginReply(_message.Message):
    __slots__ = ("resume_from", "receipt")
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    resume_from: int
    receipt: Receipt
    def __init__(self, resume_from: _Optional[int] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("header", "block")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    header: SendHeader
    block: Block
    def __init__(self, header: _Optional[_Union[SendHeader, _Mapping]] = ..., block: _Optional[_Union[Block, _Mapping]] = ...) -> None: ...

class SendHeader(_message.Message):
    __slots__ = ("run", "edge", "sha256", "first_block")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    run: str
    edge: str
    sha256: bytes
    first_block: int
    def __init__(self, run: _Optional[str] = ..., edge: _Optional[str] = ..., sha256: _Optional[bytes] = ..., first_block: _Optional[int] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("index", "data", "running_sha256")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SHA256_FIELD_NUMBER: _ClassVar[int]
    index: int
    data: bytes
    running_sha256: bytes
    def __init__(self, index: _Optional[int] = ..., data: _Optional[bytes] = ..., running_sha256: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("edge", "sha256", "size")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    edge: str
    sha256: bytes
    size: int
    def __init__(self, edge: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...
