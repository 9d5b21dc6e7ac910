"""A trainer of several processes: one result, one voice, and nobody left behind."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedelmy_node.config.decode import encode
from fedelmy_node.domain.federation import Training
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from tests.support.small_recipes import job, recipe
from tests.unit.node.training.test_trainer import PATIENCE, Daemon, begin, wait_for

SHORT = Training(epochs=2, batch_size=65, learning_rate=0.002, threads=1)
TRAININGS = {
    "plain": SHORT,
    "everything": replace(
        SHORT,
        optimizer="sgd",
        learning_rate=0.05,
        momentum=0.9,
        schedule="cosine",
        clip_norm=1.0,
        sam_rho=0.05,
        label_smoothing=0.1,
        class_weights="balanced",
        early_stopping=2,
    ),
}


def others(daemon):
    """The processes that the trainer has started."""
    children = Path(f"/proc/{daemon.child.pid}/task/{daemon.child.pid}/children")
    return [int(number) for number in children.read_text().split()]


def gone(process):
    """Ended; perhaps nobody has asked how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("settings", TRAININGS)
def test_two_processes_train_what_one_trains(tmp_path, settings):
    """A batch of 65 is shared as 33 and 32; without dropout and BatchNorm only rounding differs."""
    asked, path = recipe(training=TRAININGS[settings]), tmp_path / "alone"
    outcome = run(load(job("train", asked, output=path)), (), lambda *_: None)
    wanted = job(
        "train", asked, output=tmp_path / "bundle", checkpoints=tmp_path / "c", processes=2
    )
    with Daemon() as daemon:
        daemon.send({"job": encode(wanted)})
        ready = daemon.receive()["ready"]
        assert (ready["train"], ready["validation"], ready["test"]) == (1457, 161, 179), (
            "told once, and of all samples"
        )
        assert len(others(daemon)) == 1
        daemon.send({"go": {"inputs": []}})
        messages = [daemon.receive()]
        while "event" in messages[-1]:
            messages.append(daemon.receive())
        assert daemon.child.wait(PATIENCE) == 0
    told = [message["event"] for message in messages[:-1]]
    assert told == ["begun"] + ["epoch"] * 3 + ["member"] + ["epoch"] * 2 + ["member"]
    done = messages[-1]["done"]
    assert done["report"]["member_accuracies"] == pytest.approx(
        outcome.report["member_accuracies"], abs=0.02
    )
    together, single = load_file(tmp_path / "bundle"), load_file(path)
    assert together.keys() == single.keys()
    for name, tensor in single.items():
        torch.testing.assert_close(together[name], tensor, rtol=0, atol=2e-3)
    assert not (tmp_path / "processes").exists()


def test_who_dies_ends_all_and_the_step_goes_on_from_its_checkpoint(tmp_path):
    """First the second process is killed; then the step is stopped in good order; then it is
    completed.
    """
    training = replace(SHORT, epochs=6, batch_size=64)
    checkpoints = tmp_path / "checkpoints"
    wanted = job(
        "train",
        recipe(training=training, pool_size=1),
        output=tmp_path / "bundle",
        checkpoints=checkpoints,
        processes=2,
    )
    with Daemon() as daemon:
        begin(daemon, wanted)
        assert [daemon.receive()["event"] for _ in range(2)] == ["begun", "epoch"]
        wait_for(checkpoints, fits=1)
        os.kill(others(daemon)[0], signal.SIGKILL)
        assert daemon.child.wait(PATIENCE) == 4, "the daemon hears of a crash and tries again"
    with Daemon() as daemon:
        begin(daemon, wanted)
        resumed = daemon.receive()
        assert resumed["event"] == "resumed" and resumed["data"]["fits"] == 1
        assert daemon.receive()["event"] == "begun"
        (other,) = others(daemon)
        os.kill(other, signal.SIGTERM)  # systemd asks all processes of a unit
        daemon.child.send_signal(signal.SIGTERM)
        assert daemon.child.wait(PATIENCE) == 143
        wait_until(lambda: gone(other))
    assert not (tmp_path / "bundle").exists()
    with Daemon() as daemon:
        begin(daemon, wanted)
        messages = [daemon.receive()]
        while "event" in messages[-1]:
            messages.append(daemon.receive())
        assert daemon.child.wait(PATIENCE) == 0
    assert messages[0]["event"] == "resumed"
    assert "warning" not in [message.get("event") for message in messages]
    assert messages[-1]["done"]["report"]["validation_accuracy"] > 0.5
