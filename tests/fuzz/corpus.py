"""Inputs worth keeping: each once made something crash, hang or lie, or shows a limit. Replayed by
the unit tests.

Small ones are literals; `large` makes those that fill a whole message: to be refused quickly and in
little memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from fedelmy_node.rpc.channel_options import MESSAGE_BYTES
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, transfer_pb2
from tests.fuzz import papers, scene
from tests.fuzz.mutate import join_frames, split_frames

__all__ = ["small", "large"]

# An algorithm that nobody knows: cryptography raised UnsupportedAlgorithm, which is no ValueError.
_CERTIFICATE_OF_UNKNOWN_KEY = b"""-----BEGIN CERTIFICATE-----
MIIBozCCAUmgAwIBAgIULqSbyUu+6EUdldObk+6KISCYY38wCgYIKoZIzj0EAwIwLjEsMCoGA1UE
AwwjRmVkRUxNWSBDQSA1Njc0LUVERjgtQUZCMS1BQ0MwLTQwNEMwHhcNMjYxMTE2MDk1ODM4WhcN
MzYxMTE2MTAwMzM4WjAuMSwwKgYDVQQDDCNGZWRFTE1ZIENBIDU2NzQtRURGOC1BRkIxLUFDQzAt
NDA0QzBZMBMGB1F4kH49AgEGCCqGSM49AwEHA0IABGhfjaeg6WY1jrDqQTjo89nEhCQByXbAL2u1
m+KVfJ3R8KwnZclw79YvAc7+BcN+IWGoUYw6ZZq+oMTxcO+UCaWjRTBDMB0GA1UdDgQWBBRw/Q54
WS6Fjn3FDUnPqhBSSWgEpDASBgNVHRMBAf8ECDAGAQH/AgEAMA4GA1UdDwEB/wQEAwIBBjAKBggq
hkjOPQQDAgNIADBFAiEA/mdasP7VTl56A7D04bNeF1j1dppzOP1QRt6KoZ61jXQCIDnLL1WBPKza
lo+Ihvgg07GLTKq51+pL6jiyLKiyAhlX
-----END CERTIFICATE-----
"""
_REQUEST_OF_UNKNOWN_KEY = b"""-----BEGIN CERTIFICATE REQUEST-----
MIIBBzCBrwIBADAdMRswGQYDVQQDDBJub3J0aC5zaXRlLmZlZGVsbXkwWTATBgcqhgjOPQIBBggq
hkjOPQMBBwNCAAQHoS7oTZ3T3t7lboQSOI2SBANUjhX8K73IhzoKKT75kdenHxSWlUSCIDNgGDOz
G4Fl9OSO+tDzSoifGu6qk6LVoDAwLgYJKoZIhvcNAQkOMSEwHzAdBgNVHREEFjAUghJub3J0aC5z
aXRlLmZlZGVsbXkwCgYIKoZIzj0EAwIDRwAwRAIgNaEufE6iNmfjbO4UWFGEV2YrBnCWOuexu6BO
rX7BEowCIGsXfDULMLQMkWcOP4CwvQ50eThxNEFEm+Y4FvIFiDyR
-----END CERTIFICATE REQUEST-----
"""

_REQUEST_OF_ANOTHER_VERSION = b"""-----BEGIN CERTIFICATE REQUEST-----
MIIBBzCBrwIBAjAdMRswGQYDVQQDDBJub3J0aC5zaXRlLmZlZGVsbXkwWTATBgcqhkjOPQIBBggq
hkjOPQMBBwNCAATAqVk4YkFI2OzAIAT0/Njc8qVraO/rD6noijHiqfQ7jjgVCZfLd9c8tyvlmpOL
nraAm6s5NaLDy3ABvQ/PjYMwoDAwLgYJKoZIhvcNAQkOMSEwHzAdBgNVHREEFjAUghJub3J0aC5z
aXRlLmZlZGVsbXkwCgYIKoZIzj0EAwIDRwAwRAIgHWFHrgKWXVxDUfqI8qVP12r8sTmoEdG+V8kJ
7EzdXmwCIFK8iqiATcLN99xHvuMWjGs6laYYy7wb3OO5DD6IhODu
-----END CERTIFICATE REQUEST-----
"""  # InvalidVersion, which is no ValueError either


def _plan(**changes: Any) -> bytes:
    return json.dumps({**scene.encoded_plan(), **changes}).encode("utf-8", "surrogatepass")


def _recipe(part: str, **changes: Any) -> bytes:
    recipe = scene.encoded_plan()["recipe"]
    return _plan(recipe={**recipe, part: {**recipe[part], **changes}})


def _event(kind: str, step: str = "train.2@south", site: str = "south", **data: Any) -> bytes:
    text = json.dumps(data).encode("utf-8", "surrogatepass")
    event = control_pb2.Event(
        seq=1, time=1.8e9, run="run-1", site=site, step=step, kind=kind, data=text
    )
    return event.SerializeToString()


def _step(number: int, needs: tuple[str, ...] = (), kind: str = "train") -> dict[str, Any]:
    return {
        "id": f"{kind}.{number}@south",
        "kind": kind,
        "needs": list(needs),
        "site": "south",
        "visit": 1,
    }


_JSON = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"',
    b"{}{}",
    b"\xef\xbb\xbf{}",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":1e999}',
    b'{"a":-1e999}',
    b'{"a":1' + b"0" * 400 + b"}",
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":0.' + b"1" * 5000 + b"}",
    b'{"a":1,"a":2}',
    b'{"a":{"b":1,"b":2}}',
    b'{"a":"\\ud800"}',
    b'{"\\udfff":1}',
    b'{"a":"\\ud83d\\ude00"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\x00"}',
    '{"a":1}'.encode("utf-16"),
    '{"a":1}'.encode("utf-32"),
    b"[" * 100_000,
    b'{"a":' * 5000,
    b"[" * 33 + b"]" * 33,
    b"[" * 32 + b"]" * 32,
    b"[" * 900 + b"]" * 900,
)


def small() -> Iterator[tuple[str, bytes]]:
    """Target and input."""
    for data in _JSON:
        for target in ("json", "plan", "cancel", "problem", "bundle header"):
            yield target, data
        yield "answer PrepareReply", control_pb2.PrepareReply(report=data).SerializeToString()
        yield (
            "answer Event",
            control_pb2.Event(
                seq=1,
                time=1.0,
                run="run-1",
                site="south",
                step="train.2@south",
                kind="run",
                data=data,
            ).SerializeToString(),
        )
    yield "certificate", _CERTIFICATE_OF_UNKNOWN_KEY
    yield "certificate request", _REQUEST_OF_UNKNOWN_KEY
    yield "certificate request", _REQUEST_OF_ANOTHER_VERSION
    yield (
        "signature",
        join_frames([b"\x30\x06\x02\x01\x01\x02\x01\x01", _CERTIFICATE_OF_UNKNOWN_KEY]),
    )
    yield from (("plan", data) for data in _plans())
    yield from (("answer Event", data) for data in _events())
    yield from (("answer NeighbourState", data) for data in _words())
    yield from _lies()
    yield from _papers()
    yield from (("audit log", data) for data in _audit_logs())
    yield from (("details", data) for data in _details())


def _plans() -> Iterator[bytes]:
    yield _recipe("training", learning_rate=10**400)  # float() of it is an OverflowError
    yield _recipe("training", epochs=-(2**63))
    yield _recipe("strategy", settings={f"k{i}": 1 for i in range(101)})
    yield _recipe("strategy", settings={"k" * 5000: 1})
    yield _recipe("model", name="torchvision:" + "x" * 5000)
    yield _recipe("task", classes=["\x1b[2J", "\u202ea"])
    yield _plan(federation="\x1b]0;owned\x07")
    yield _plan(contract={"a": [1] * 1000})
    yield _plan(site="../../etc")
    yield _plan(run="../../../tmp/x")
    yield _plan(neighbours=[{"site": "north", "address": "not an address"}])
    yield _plan(neighbours=[{"site": "North!", "address": "127.0.0.1:1"}])
    yield _plan(steps=[_step(1, ("train.2@south",)), _step(2, ("train.1@south",))])  # a circle
    # A thousand steps in a row: following them by recursion ended the executor.
    row = [_step(0), *(_step(i, (f"train.{i - 1}@south",)) for i in range(1, 1000))]
    yield _plan(steps=row, edges_in=[], edges_out=[], shortcuts=[], neighbours=[])
    yield _plan(steps=[*row, _step(1000)], edges_in=[], edges_out=[], shortcuts=[], neighbours=[])


def _events() -> Iterator[bytes]:
    yield _event("run", state=["running"])  # not hashable
    yield _event("run", state="\x1b[31mrunning")
    yield _event("run", state="failed", code="E" * 5000, message="\r\nnorth        run done\x1b[2K")
    yield _event("step", state="running", step="paint.1@south")  # a kind that is newer
    yield _event("step", state="done", step="evaluate.2@south")  # no result
    yield _event("step", state="done", step="deliver.2@south")  # no digest
    yield _event(
        "step", state="done", step="evaluate.2@south", result={"correct": "5", "samples": None}
    )
    yield _event("step", state="done", step="evaluate.2@south", result={"accuracy": 1e308})
    yield _event("step", state="done", step="")
    yield _event("step", state="done", step="train.1@north")
    yield _event(
        "epoch", phase="member", member=1, members=2, epoch=1, epochs=2, loss=1e308, accuracy=None
    )
    yield _event(
        "epoch", phase="member", member=1.5, members=2, epoch=1, epochs=2, loss=1, accuracy=2
    )
    yield _event("epoch", phase="member")
    yield _event("sending", edge="x", peer="north", bytes=2**70, total=0)
    yield _event("sent", peer="north", bytes=5, seconds="fast", carries="train")
    yield _event(
        "around", steps=["train.1@north"], code="E" * 65, message="m" * 401
    )  # longer than a skip may be
    yield _event("around", steps="train.1@north", code="", message="")
    yield _event("around", steps=[1], code="", message="")
    yield _event(
        "unreachable", peer={"a": 1}, code="", message="", policy="skip", patience_seconds=1
    )
    yield _event("run", state="running", site="elsewhere")
    yield _event("run", state="running", site="\x1b[2J")


def _words() -> Iterator[bytes]:
    state = peer_pb2.NeighbourState
    yield state(
        state="aborted", message="\x1b[2J\n2027-01-01 INFO forged" + "x" * 5000
    ).SerializeToString()
    yield state(state="running", settled=["../../x"]).SerializeToString()
    yield state(state="running", closed=["train.1@north>train.2@south"] * 4001).SerializeToString()
    signed = control_pb2.Signed(payload=b"{}", signature=b"x" * 600)
    yield state(state="cancelled", cancel=signed).SerializeToString()
    yield state(
        state="cancelled", cancel=control_pb2.Signed(payload=b"9" * 5000)
    ).SerializeToString()


def _lies() -> Iterator[tuple[str, bytes]]:
    yield (
        "answer Receipt",
        transfer_pb2.Receipt(edge="x", sha256=b"1" * 5000, size=-1).SerializeToString(),
    )
    yield "answer StartReply", control_pb2.StartReply(state="\x1b[2Jdone").SerializeToString()
    yield (
        "answer DescribeReply",
        control_pb2.DescribeReply(site="a/b", clock=float("nan")).SerializeToString(),
    )
    yield (
        "answer ReportReply",
        control_pb2.ReportReply(
            run="run-1", site="south", state="done", bundle_bytes=-1
        ).SerializeToString(),
    )
    begin = transfer_pb2.BeginRequest(
        run="run-1", edge="train.1@north>train.2@south", size=-1, block_bytes=-1
    )
    yield "request Transfer/Begin", begin.SerializeToString()
    begin.manifest.add(name="x" * 70_000, dtype="F99", shape=[2**62] * 9)
    yield "request Transfer/Begin", begin.SerializeToString()
    yield (
        "request Control/Watch",
        control_pb2.WatchRequest(run="run-1", after=-(2**63)).SerializeToString(),
    )
    yield "request Control/Start", control_pb2.StartRequest(run="r" * 100_000).SerializeToString()
    for shape in ([2**32, 2**32], [2**62] * 8, [0, 2**62], [-1, 2]):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 24]}
        yield "bundle header", json.dumps({"t": entry}).encode()
    whole, *_ = scene.small_bundle()
    for length in (0, 1, 2**31, 2**63, 2**64 - 1):
        yield "bundle stream", length.to_bytes(8, "little") + whole[8:]


def _papers() -> Iterator[tuple[str, bytes]]:
    leaf, ca = papers.operator().certificate_pem, papers.operator().ca_pem
    yield "caller", join_frames([leaf + ca])  # two where one was expected
    yield "caller", join_frames([_CERTIFICATE_OF_UNKNOWN_KEY, leaf])
    yield "caller", b""
    yield "chain", join_frames([])
    foreign, middle = split_frames(papers.chain_seeds()[1])
    yield "chain", join_frames([foreign, *[middle] * 9])
    # A subject that is none: read only when somebody asked for it, and a ValueError then.
    yield "chain", join_frames([foreign.replace(b"\x55\x04\x03", b"\x55\x80\x03"), middle])
    yield "chain", join_frames([foreign.replace(b"\x0c\x05node1", b"\x01\x05node1"), middle])
    begin = b"-----BEGIN X509 CRL-----"
    for data in (
        begin,
        begin * 1000,
        begin + b"\n-----END X509 CRL-----\n",
        papers.certificate_seeds()[0],
    ):
        yield "revocation list", data
        yield "request Control/Revoke", control_pb2.RevokeRequest(list=data).SerializeToString()
    texts = [
        "CN",
        "=",
        "CN=",
        "CN=\\",
        "CN=#",
        "CN=#30",
        "C=Germany",
        "CN=a,",
        ",",
        "CN=a+",
        "1.2=a",
        "CN=\\zz",
    ]
    for text in (*texts, "CN=" + "a" * 5000):
        yield "identity rule", text.encode()
    yield (
        "answer ApproveReply",
        admin_pb2.ApproveReply(state="agreed").SerializeToString(),
    )  # newer, or a lie
    yield (
        "answer HealthReply",
        admin_pb2.HealthReply(site="a", certificate_expires=float("nan")).SerializeToString(),
    )


def _audit_logs() -> Iterator[bytes]:
    """Changed by somebody who can write the file: `verify` and `show` must still say so, and only
    that.
    """
    (whole,) = scene.audit_seeds()
    head, _, lines = whole.partition(b"\n")
    yield b"\n"
    yield head + b"\n"
    yield b"1" * 5000 + b" x\n" + lines
    yield b"-5 x\n" + lines
    yield head + b"\n" + b"[" * 100_000 + b"\n" + lines
    yield whole[:-1]  # torn where nothing is missing but the newline
    yield whole[:-30]
    yield whole + b"\n\n"
    facts = {"expected_seq": "\x1b"}
    entry = {
        "seq": 5,
        "time": "\x1b[2J",
        "act": "audit-gap",
        "who": "\u202e",
        "from": "\n",
        "facts": facts,
    }
    numbers = [{"seq": number} for number in (10**40, -1, 10**12, True)]
    for changes in ({}, *numbers, {"act": "\x07" * 99}, {"facts": []}):
        yield whole + json.dumps({**entry, **changes}).encode() + b"\n"
    yield (
        whole + b'{"seq":' + b"9" * 4300 + b',"act":"a"}\n'
    )  # one more is a number that Python does not print
    yield whole + b'{"seq":5,"act":"a","facts":{"x":NaN}}\n'
    yield whole + b'{"seq":5,"act":"\\ud800"}\n'


def _details() -> Iterator[bytes]:
    yield b"[" * 100_000 + b"\n" + scene.details_seeds()[0]  # RecursionError is no ValueError
    yield b'{"run":"run-1"}\n'
    yield b'{"run":"run-1","time":1e5,"message":["x"],"private":NaN}\n'
    yield b'{"run":"run-1","time":"t","message":"\\u001b[2J","traceback":"a\\u001b[2J\\nb"}\n'


def large() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """One message each, as long as gRPC takes them; made when they are needed."""
    room = MESSAGE_BYTES - 10_000
    edge = {
        "source": "train.1@north",
        "target": "train.2@south",
        "sender": "north",
        "receiver": "south",
        "carries": "train",
        "need": "train.1@north",
    }
    yield "plan", lambda: _plan(steps=[_step(i) for i in range(room // 90)])
    yield "plan", lambda: _plan(steps=[0] * (room // 3))
    yield "plan", lambda: _plan(steps=[[]] * (room // 4))
    yield "plan", lambda: _plan(edges_in=[edge] * (room // 170))
    yield "plan", lambda: _plan(edges_in=[{**edge, "skips": ["train.1@north"] * (room // 17)}])
    yield (
        "plan",
        lambda: _plan(neighbours=[{"site": f"s{i}", "address": "h:1"} for i in range(room // 50)]),
    )
    yield "plan", lambda: _plan(federation="x" * room)
    yield "plan", lambda: _plan(**{f"k{i}": 0 for i in range(room // 15)})
    yield "plan", lambda: _recipe("task", classes=[str(i) for i in range(room // 10)])
    yield "plan", lambda: b"[" * room
    yield "json", lambda: b'"' + b"\\" * (room - 1) + b'"'
    yield "json", lambda: b"[" + b"1e9," * (room // 4) + b"1]"
    yield "cancel", lambda: b'{"run":"run-1","reason":"' + b"x" * room + b'"}'
    entry = '"%d":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}'
    yield (
        "bundle header",
        lambda: b"{%s}" % ",".join(entry % (i, i, i + 1) for i in range(room // 130)).encode(),
    )
    yield "bundle stream", lambda: room.to_bytes(8, "little") + b'{"a":' + b" " * (room - 7) + b"1}"
    yield "request Transfer/Begin", lambda: b"\x3a\x00" * (room // 2)
    yield "answer NeighbourState", lambda: b"\x12\x00" * (room // 2)
    yield "answer ReportReply", lambda: b"\x32\x00" * (room // 2)
    yield "answer DescribeReply", lambda: b"\x5a\x00" * (room // 2)
    yield "names", lambda: b"a" * room
    yield "identity rule", lambda: b"CN=" + b"a" * room
    yield "identity rule", lambda: b"CN=a," * (room // 5)
    yield "identity rule", lambda: b"\\," * (room // 2)
    pad = (1 << 20) - 16
    yield "request Control/Revoke", lambda: b"\x0a\xf0\xff\x3f" + papers.list_seeds()[0].ljust(pad)
    yield "revocation list", lambda: papers.list_seeds()[0] * (room // 4 // 600)
    yield "revocation list", lambda: b"-----BEGIN X509 CRL-----" * (room // 24)
    yield (
        "caller",
        lambda: join_frames([papers.certificate_seeds()[0], papers.certificate_seeds()[1] * 500]),
    )
    yield "audit log", lambda: scene.audit_seeds()[0] + b"x" * room
    yield "audit log", lambda: scene.audit_seeds()[0] + b"{}\n" * (room // 300)
    yield "details", lambda: scene.details_seeds()[0] * (room // 500)
    yield "certificate", lambda: papers.certificate_seeds()[0] * (room // 1000)
