"""Loops of an operation's own: whatever interrupts them, they end with the same bytes."""

import json
import signal

import pytest
import torch

from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import StrategySpec, Training
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.job import Input
from fedelmy_node.training.loading import load
from fedelmy_node.training.loops import LoopOrder, captured, restore
from fedelmy_node.training.step import run
from tests.support import methods
from tests.support.small_recipes import job, recipe
from tests.unit.node.training.test_trainer import PATIENCE, Daemon, begin

TRAINER = """
import sys
from fedelmy_node.training import strategies, trainer
from tests.support import methods

methods.PAUSE_SECONDS = 0.05
strategies.INSTALLED._built_in = methods.registry()
sys.exit(trainer.main())
"""


class CrashError(Exception):
    """Nothing of the trainer's."""


def wanted(kind, directory, **more):
    training = Training(epochs=1, batch_size=64, threads=1)
    made = recipe(training=training)
    made = type(made)(
        seed=made.seed,
        task=made.task,
        model=made.model,
        training=training,
        strategy=StrategySpec(name="loops"),
    )
    return job(kind, made, output=directory / "bundle", **more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The digests of a train step and of a merge of its output."""
    with pytest.MonkeyPatch.context() as patch:
        methods.install(patch)
        first = tmp_path_factory.mktemp("train")
        sha256 = run(load(wanted("train", first)), (), lambda *_: None).sha256
        given = (Input(first / "bundle", sha256),)
        second = tmp_path_factory.mktemp("merge")
        return given, sha256, run(load(wanted("merge", second)), given, lambda *_: None).sha256


def interrupted(kind, tmp_path, inputs, every):
    """Crash after so many reports, until the step gets to its end; return digest and reports."""
    told, left = [], every

    def emit(kind, data):
        nonlocal left
        told.append((kind, dict(data)))
        left -= 1
        if left <= 0:
            raise CrashError

    loaded = load(wanted(kind, tmp_path, checkpoints=tmp_path / "checkpoints"))
    for _ in range(200):
        try:
            return run(loaded, inputs, emit).sha256, told
        except CrashError:
            left = every
    pytest.fail("there is no progress")


@pytest.mark.parametrize("every", [7, 10, 23])
def test_a_step_of_loops_and_fits_resumes_with_the_same_bytes(
    undisturbed, tmp_path, monkeypatch, every
):
    methods.install(monkeypatch)
    sha256, told = interrupted("train", tmp_path, (), every)
    assert sha256 == undisturbed[1]
    assert EventKind.WARNING not in [kind for kind, _ in told]
    shares = [data["share"] for kind, data in told if kind == EventKind.PROGRESS]
    assert max(shares) == 1.0 and min(shares) > 0


def test_a_step_without_data_resumes_too(undisturbed, tmp_path, monkeypatch):
    methods.install(monkeypatch)
    given, _, sha256 = undisturbed
    assert interrupted("merge", tmp_path, given, 5)[0] == sha256


def test_a_damaged_file_of_a_loop_is_told_and_costs_that_loop(undisturbed, tmp_path, monkeypatch):
    methods.install(monkeypatch)
    given, _, sha256 = undisturbed
    made = wanted("merge", tmp_path, checkpoints=tmp_path / "checkpoints")

    def crash(kind, data):
        if data["share"] > 0.5:
            raise CrashError

    with pytest.raises(CrashError):
        run(load(made), given, crash)
    files = list((tmp_path / "checkpoints").glob("loop-*"))
    assert 0 < len(files) <= 2, "of the last two checkpoints"
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    told = []
    assert run(load(made), given, lambda kind, data: told.append((kind, data))).sha256 == sha256
    assert "'polishing' cannot be resumed" in told[0][1]["message"]


def test_a_killed_trainer_resumes_in_its_loops(undisturbed, tmp_path):
    """SIGKILL in one loop, SIGTERM in another, around fits; then to the end."""
    made = wanted("train", tmp_path, checkpoints=tmp_path / "checkpoints")
    with Daemon(["-c", TRAINER]) as killed:
        begin(killed, made)
        while killed.receive().get("data", {}).get("share", 0) < 0.5:
            pass
        killed.child.kill()
        assert killed.child.wait(PATIENCE) == -signal.SIGKILL
    with Daemon(["-c", TRAINER]) as stopped:
        begin(stopped, made)
        resumed = stopped.receive()
        assert resumed["event"] == "progress"
        assert resumed["data"]["phase"] == "polishing" and resumed["data"]["share"] > 0.3
        while stopped.receive().get("data", {}).get("phase") != "rounding":
            pass
        stopped.child.send_signal(signal.SIGTERM)
        assert stopped.child.wait(PATIENCE) == 143
    with Daemon(["-c", TRAINER]) as last:
        begin(last, made)
        messages = [json.loads(line) for line in last.events]
        assert last.child.wait(PATIENCE) == 0
    told = [message["data"] for message in messages if message.get("event") == "progress"]
    assert told[0]["phase"] == "rounding" and 0.3 < told[0]["share"] < 1
    assert "warning" not in [message.get("event") for message in messages]
    assert file_sha256(tmp_path / "bundle") == undisturbed[1]


def test_a_state_is_copied_and_comes_back_in_place():
    noise = torch.Generator().manual_seed(3)
    view = torch.zeros(3, requires_grad=True)
    state = {"noise": noise, "view": view, "count": 7, "sum": 0.1}
    saved = captured(state)
    drawn = torch.rand(2, generator=noise)
    with torch.no_grad():
        view += 1
    state |= {"count": 8, "sum": 9.0}
    restore(state, saved)
    assert state["view"] is view and view.tolist() == [0, 0, 0]
    assert (state["count"], state["sum"]) == (7, 0.1)
    assert torch.rand(2, generator=noise).equal(drawn)


@pytest.mark.parametrize("name", ["", "Distilling", "two words", "x" * 40])
def test_a_loop_needs_a_name_that_a_site_can_be_shown(name):
    with pytest.raises(ValueError, match="is not a valid loop name"):
        LoopOrder(name=name, count=1)
