"""The decoders that face the network: the kept inputs, a short run of `make fuzz`, and that none
was forgotten.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.domain.errors import FedelmyError, RunError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.rpc import convert
from fedelmy_node.rpc.channel_options import MESSAGE_BYTES
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, relay_pb2, transfer_pb2
from tests.fuzz import corpus
from tests.fuzz.mutate import mutate
from tests.fuzz.scene import event_data, plan
from tests.fuzz.targets import ANSWERS, REQUESTS, run, targets

FILES = (admin_pb2, control_pb2, peer_pb2, relay_pb2, transfer_pb2)
pytestmark = pytest.mark.filterwarnings(
    "ignore:Attribute's length must be", "ignore:Parsed a serial number"
)
INPUTS = 60
"""Of each target; `make fuzz` tries thousands."""
REFUSED_SECONDS = 10.0
"""Of CPU time: what takes less than one is not slow, whatever the machine."""


@pytest.fixture(autouse=True)
def _log_again() -> Iterator[None]:
    """The targets turn the log off."""
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", targets())
def test_valid_inputs_are_taken_and_others_are_refused(name: str) -> None:
    target = targets()[name]
    assert run(target, target.seeds()[0]) in ("accepted", "E-TRANSFER-SEQUENCE")
    for number in range(INPUTS):
        chance = random.Random(f"{name} {number}")
        run(target, mutate(chance.choice(target.seeds()), chance, target.form))


@pytest.mark.parametrize("name", targets())
def test_what_once_went_wrong_goes_well(name: str) -> None:
    for where, data in corpus.small():
        if where == name:
            run(targets()[name], data)


def test_the_largest_messages_are_refused_quickly() -> None:
    """One of each target; `make fuzz` has the others."""
    slow = {}
    for name, make in dict(corpus.large()).items():
        data = make()
        assert len(data) <= MESSAGE_BYTES
        begun = time.process_time()  # not the clock: others use this machine, too
        outcome = run(targets()[name], data)
        if time.process_time() - begun > REFUSED_SECONDS:
            slow[name, outcome] = time.process_time() - begun
    assert slow == {}


def test_a_plan_of_too_many_steps_is_refused_before_they_are_looked_at() -> None:
    make = next(make for name, make in corpus.large() if name == "plan")
    begun = time.process_time()
    with pytest.raises(RunError, match=r"E-RUN-PLAN.*steps has .* the limit is 1000"):
        read_slice(make())
    assert time.process_time() - begun < REFUSED_SECONDS


def test_the_corpus_names_targets() -> None:
    assert {name for name, _ in (*corpus.small(), *corpus.large())} <= set(targets())


def test_every_call_of_the_contract_has_a_target() -> None:
    """A new call must get one: its request and its answer are input from another machine."""
    calls = {
        f"/{service.full_name}/{method.name}": (
            method.input_type.full_name,
            method.output_type.full_name,
        )
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert {name: kind.DESCRIPTOR.full_name for name, kind in REQUESTS.items()} == {
        n: c[0] for n, c in calls.items()
    }
    assert {name: kind.DESCRIPTOR.full_name for name, kind in ANSWERS.items()} == {
        n: c[1] for n, c in calls.items()
    }
    assert {f"request {name.removeprefix('/fedelmy.v1.')}" for name in REQUESTS} <= set(targets())
    assert {f"answer {kind.DESCRIPTOR.name}" for kind in ANSWERS.values()} <= set(targets())


def test_every_message_of_the_contract_is_inside_a_target() -> None:
    known = {kind.DESCRIPTOR for kind in (*REQUESTS.values(), *ANSWERS.values())}
    waiting = list(known)
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner not in known:
                known.add(inner)
                waiting.append(inner)
    every = {
        message for file in FILES for message in file.DESCRIPTOR.message_types_by_name.values()
    }
    assert {message.full_name for message in every - known} == set()


def test_events_of_every_kind_are_folded() -> None:
    assert set(event_data()) == set(EventKind)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(EventKind), st.data())
def test_no_event_of_a_malicious_site_troubles_launcher_or_terminal(
    kind: EventKind, data: st.DataObject
) -> None:
    """Any JSON in place of what the kind says: taken as the fold can take it, or refused as the
    site's fault.
    """
    told = dict(event_data()[kind])
    for key in data.draw(st.lists(st.sampled_from([*told, "state", "more"]), max_size=3)):
        told[key] = data.draw(JSON)
    event = control_pb2.Event(
        seq=1,
        time=1.8e9,
        run="run-1",
        site="south",
        step="train.2@south",
        kind=kind,
        data=json.dumps(told).encode(),
    )
    run(targets()["answer Event"], event.SerializeToString())


def test_an_event_of_a_step_that_is_newer_than_this_software_is_only_counted() -> None:
    progress = RunProgress(plan())
    message = control_pb2.Event(
        seq=1,
        time=1.8e9,
        run="run-1",
        site="south",
        step="paint.1@south",
        kind="step",
        data=b'{"state":"done"}',
    )
    event = convert.event_from_pb(message)
    assert event is not None
    progress.add(event)
    assert progress.sites[event.site].seconds == 0


def test_what_is_shown_of_a_peer_is_printable() -> None:
    report = control_pb2.ReportReply(
        run="run-1", site="south", state="failed", message="\x1b[2Ja\nb\u202ec"
    )
    assert convert.report_from_pb(report).message == " [2Ja b c"
    with pytest.raises(FedelmyError, match="E-PEER-CONTRACT") as caught:
        convert.state_from_pb("\x1b[2Jdone")
    assert caught.value.message.isprintable()
