from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("site", "version", "contracts", "torch", "platform", "device", "data", "peers", "free_bytes", "clock", "runs", "certificate_expires", "advertise", "names_plans", "warnings")
    SITE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACTS_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    NAMES_PLANS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    site: str
    version: str
    contracts: _containers.RepeatedScalarFieldContainer[str]
    torch: str
    platform: str
    device: str
    data: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    free_bytes: int
    clock: float
    runs: _containers.RepeatedCompositeFieldContainer[RunSummary]
    certificate_expires: float
    advertise: str
    names_plans: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, site: _Optional[str] = ..., version: _Optional[str] = ..., contracts: _Optional[_Iterable[str]] = ..., torch: _Optional[str] = ..., platform: _Optional[str] = ..., device: _Optional[str] = ..., data: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ..., free_bytes: _Optional[int] = ..., clock: _Optional[float] = ..., runs: _Optional[_Iterable[_Union[RunSummary, _Mapping]]] = ..., certificate_expires: _Optional[float] = ..., advertise: _Optional[str] = ..., names_plans: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class RunSummary(_message.Message):
    __slots__ = ("run", "state", "federation", "changed_at")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    run: str
    state: str
    federation: str
    changed_at: float
    def __init__(self, run: _Optional[str] = ..., state: _Optional[str] = ..., federation: _Optional[str] = ..., changed_at: _Optional[float] = ...) -> None: ...

class Signed(_message.Message):
    __slots__ = ("payload", "signature", "certificate")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    signature: bytes
    certificate: bytes
    def __init__(self, payload: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("slice", "check_only", "examine")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    CHECK_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXAMINE_FIELD_NUMBER: _ClassVar[int]
    slice: Signed
    check_only: bool
    examine: bool
    def __init__(self, slice: _Optional[_Union[Signed, _Mapping]] = ..., check_only: _Optional[bool] = ..., examine: _Optional[bool] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("report", "state", "findings")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    report: bytes
    state: str
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, report: _Optional[bytes] = ..., state: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("subject", "check", "verdict", "message", "code", "fix", "facts")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    subject: str
    check: str
    verdict: str
    message: str
    code: str
    fix: str
    facts: bytes
    def __init__(self, subject: _Optional[str] = ..., check: _Optional[str] = ..., verdict: _Optional[str] = ..., message: _Optional[str] = ..., code: _Optional[str] = ..., fix: _Optional[str] = ..., facts: _Optional[bytes] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("run", "after")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    run: str
    after: int
    def __init__(self, run: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("seq", "time", "run", "site", "step", "kind", "data")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    seq: int
    time: float
    run: str
    site: str
    step: str
    kind: str
    data: bytes
    def __init__(self, seq: _Optional[int] = ..., time: _Optional[float] = ..., run: _Optional[str] = ..., site: _Optional[str] = ..., step: _Optional[str] = ..., kind: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("cancel",)
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    cancel: Signed
    def __init__(self, cancel: _Optional[_Union[Signed, _Mapping]] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("run", "site", "state", "code", "message", "steps", "edges", "last_event", "parameters", "bundle_bytes", "federation", "neighbours", "absent", "origin", "operator", "plan_sha256", "asked", "plan_id", "recipe", "prepared", "version", "clock", "expires_at", "operations")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    PLAN_SHA256_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    run: str
    site: str
    state: str
    code: str
    message: str
    steps: _containers.RepeatedCompositeFieldContainer[StepReport]
    edges: _containers.RepeatedCompositeFieldContainer[EdgeReport]
    last_event: int
    parameters: int
    bundle_bytes: int
    federation: str
    neighbours: _containers.RepeatedCompositeFieldContainer[Neighbour]
    absent: _containers.RepeatedCompositeFieldContainer[Absent]
    origin: Origin
    operator: str
    plan_sha256: str
    asked: _containers.RepeatedScalarFieldContainer[str]
    plan_id: str
    recipe: bytes
    prepared: bytes
    version: str
    clock: float
    expires_at: float
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, run: _Optional[str] = ..., site: _Optional[str] = ..., state: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[StepReport, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[EdgeReport, _Mapping]]] = ..., last_event: _Optional[int] = ..., parameters: _Optional[int] = ..., bundle_bytes: _Optional[int] = ..., federation: _Optional[str] = ..., neighbours: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., absent: _Optional[_Iterable[_Union[Absent, _Mapping]]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., operator: _Optional[str] = ..., plan_sha256: _Optional[str] = ..., asked: _Optional[_Iterable[str]] = ..., plan_id: _Optional[str] = ..., recipe: _Optional[bytes] = ..., prepared: _Optional[bytes] = ..., version: _Optional[str] = ..., clock: _Optional[float] = ..., expires_at: _Optional[float] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("name", "reads_data", "trains", "gathers", "has_output", "passes_on", "leaves", "keeps_state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READS_DATA_FIELD_NUMBER: _ClassVar[int]
    TRAINS_FIELD_NUMBER: _ClassVar[int]
    GATHERS_FIELD_NUMBER: _ClassVar[int]
    HAS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PASSES_ON_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    KEEPS_STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reads_data: bool
    trains: bool
    gathers: bool
    has_output: bool
    passes_on: bool
    leaves: str
    keeps_state: bool
    def __init__(self, name: _Optional[str] = ..., reads_data: _Optional[bool] = ..., trains: _Optional[bool] = ..., gathers: _Optional[bool] = ..., has_output: _Optional[bool] = ..., passes_on: _Optional[bool] = ..., leaves: _Optional[str] = ..., keeps_state: _Optional[bool] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("site", "address")
    SITE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    site: str
    address: str
    def __init__(self, site: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Absent(_message.Message):
    __slots__ = ("site", "seconds", "on_unreachable", "patience_seconds", "code", "message")
    SITE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ON_UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    site: str
    seconds: float
    on_unreachable: str
    patience_seconds: float
    code: str
    message: str
    def __init__(self, site: _Optional[str] = ..., seconds: _Optional[float] = ..., on_unreachable: _Optional[str] = ..., patience_seconds: _Optional[float] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("contributors", "skipped")
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    contributors: _containers.RepeatedScalarFieldContainer[str]
    skipped: _containers.RepeatedCompositeFieldContainer[Skip]
    def __init__(self, contributors: _Optional[_Iterable[str]] = ..., skipped: _Optional[_Iterable[_Union[Skip, _Mapping]]] = ...) -> None: ...

class Skip(_message.Message):
    __slots__ = ("step", "by", "code", "message")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    step: str
    by: str
    code: str
    message: str
    def __init__(self, step: _Optional[str] = ..., by: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("step", "kind", "state", "sha256", "size", "result", "started_at", "ended_at", "needs")
    STEP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    step: str
    kind: str
    state: str
    sha256: str
    size: int
    result: bytes
    started_at: float
    ended_at: float
    needs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., result: _Optional[bytes] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., needs: _Optional[_Iterable[str]] = ...) -> None: ...

class EdgeReport(_message.Message):
    __slots__ = ("edge", "sender", "receiver", "carries", "state", "size", "sha256")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    CARRIES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    edge: str
    sender: str
    receiver: str
    carries: str
    state: str
    size: int
    sha256: str
    def __init__(self, edge: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., carries: _Optional[str] = ..., state: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("list",)
    LIST_FIELD_NUMBER: _ClassVar[int]
    list: bytes
    def __init__(self, list: _Optional[bytes] = ...) -> None: ...

class RevokeReply(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...
