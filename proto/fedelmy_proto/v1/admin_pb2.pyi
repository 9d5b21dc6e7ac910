from fedelmy_proto.v1 import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("serving", "site", "address", "process", "active", "queue", "problems", "warnings", "certificate_expires", "services", "free_bytes", "total_bytes", "version", "metrics", "advertise")
    SERVING_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    serving: bool
    site: str
    address: str
    process: int
    active: str
    queue: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    certificate_expires: float
    services: _containers.RepeatedCompositeFieldContainer[ServiceHealth]
    free_bytes: int
    total_bytes: int
    version: str
    metrics: str
    advertise: str
    def __init__(self, serving: _Optional[bool] = ..., site: _Optional[str] = ..., address: _Optional[str] = ..., process: _Optional[int] = ..., active: _Optional[str] = ..., queue: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., certificate_expires: _Optional[float] = ..., services: _Optional[_Iterable[_Union[ServiceHealth, _Mapping]]] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., version: _Optional[str] = ..., metrics: _Optional[str] = ..., advertise: _Optional[str] = ...) -> None: ...

class ServiceHealth(_message.Message):
    __slots__ = ("name", "serving", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    serving: bool
    reason: str
    def __init__(self, name: _Optional[str] = ..., serving: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class AcceptRequest(_message.Message):
    __slots__ = ("slice",)
    SLICE_FIELD_NUMBER: _ClassVar[int]
    slice: _control_pb2.Signed
    def __init__(self, slice: _Optional[_Union[_control_pb2.Signed, _Mapping]] = ...) -> None: ...

class AcceptReply(_message.Message):
    __slots__ = ("run", "state")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    run: str
    state: str
    def __init__(self, run: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class RunsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunsReply(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_control_pb2.RunSummary]
    def __init__(self, runs: _Optional[_Iterable[_Union[_control_pb2.RunSummary, _Mapping]]] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ModelReply(_message.Message):
    __slots__ = ("run", "path", "sha256", "size", "recipe", "data", "indices", "unreadable", "site", "weights")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    path: str
    sha256: str
    size: int
    recipe: bytes
    data: str
    indices: str
    unreadable: str
    site: str
    weights: str
    def __init__(self, run: _Optional[str] = ..., path: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., recipe: _Optional[bytes] = ..., data: _Optional[str] = ..., indices: _Optional[str] = ..., unreadable: _Optional[str] = ..., site: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class ApproveRequest(_message.Message):
    __slots__ = ("run", "plan_sha256")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_SHA256_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_sha256: str
    def __init__(self, run: _Optional[str] = ..., plan_sha256: _Optional[str] = ...) -> None: ...

class ApproveReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class RefuseRequest(_message.Message):
    __slots__ = ("run", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RefuseReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class PruneRequest(_message.Message):
    __slots__ = ("runs", "older_seconds", "dry_run")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    OLDER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedScalarFieldContainer[str]
    older_seconds: float
    dry_run: bool
    def __init__(self, runs: _Optional[_Iterable[str]] = ..., older_seconds: _Optional[float] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PruneReply(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[PrunedRun]
    def __init__(self, runs: _Optional[_Iterable[_Union[PrunedRun, _Mapping]]] = ...) -> None: ...

class PrunedRun(_message.Message):
    __slots__ = ("run", "state", "size")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    run: str
    state: str
    size: int
    def __init__(self, run: _Optional[str] = ..., state: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
