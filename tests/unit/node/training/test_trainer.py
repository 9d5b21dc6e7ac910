"""The trainer as a process: its lines, its exit codes, and that it never outlives its daemon."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedelmy_node.config.decode import decode, encode
from fedelmy_node.domain.federation import Training
from fedelmy_node.training.job import Outcome
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from tests.support.small_recipes import job, recipe

PATIENCE = 60
MODULE = ["-m", "fedelmy_node.training.trainer"]


class Daemon:
    """Plays the daemon's part: two pipes and a child."""

    def __init__(self, program=MODULE):
        events, events_fd = os.pipe()
        self.child = subprocess.Popen(
            [sys.executable, *program, "--events-fd", str(events_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[events_fd],
        )
        os.close(events_fd)
        self.events = os.fdopen(events, encoding="utf-8")

    def send(self, message):
        text = message if isinstance(message, bytes) else json.dumps(message, default=str).encode()
        self.child.stdin.write(text + b"\n")
        self.child.stdin.flush()

    def receive(self):
        return json.loads(self.events.readline(), parse_constant=pytest.fail)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr, self.events):
            stream.close()


@pytest.fixture
def daemon():
    with Daemon() as daemon:
        yield daemon


def long_job(tmp_path):
    training = Training(epochs=100_000, batch_size=64, threads=1)
    return job("train", recipe(training=training), output=tmp_path / "bundle")


def test_a_train_job_gives_the_same_bytes_as_in_this_process(daemon, tmp_path):
    wanted = job("train", recipe(), output=tmp_path / "theirs")
    daemon.send({"job": encode(wanted)})
    ready = daemon.receive()["ready"]
    assert (ready["train"], ready["validation"], ready["test"]) == (1457, 161, 179)
    daemon.child.send_signal(signal.SIGINT)  # the terminal's Ctrl-C is for the daemon
    daemon.send({"go": {"inputs": []}})
    messages = [daemon.receive()]
    while "event" in messages[-1]:
        messages.append(daemon.receive())
    told = [message["event"] for message in messages[:-1]]
    assert told == ["begun"] + ["epoch"] * 3 + ["member"] + ["epoch"] * 2 + ["member"]
    assert messages[1]["data"]["phase"] == "warm-up"
    daemon.child.stdin.close()  # after the last line this is no reason to fail
    assert daemon.child.wait(PATIENCE) == 0
    assert daemon.child.stdout.read() == b""
    theirs = decode(Outcome, messages[-1]["done"])

    run(load(job("prepare", recipe())), (), lambda *_: None)
    ours = run(load(job("train", recipe(), output=tmp_path / "ours")), (), lambda *_: None)
    assert theirs == ours
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / "ours").read_bytes()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"job": {"kindd": "train"}}, "E-CONFIG-KEY"),
        ({"jab": {}}, "E-INTERNAL"),
        (b"not json", "E-INTERNAL"),
        (b"[]", "E-INTERNAL"),
    ],
)
def test_a_job_that_is_none_is_an_error_at_once(daemon, line, code):
    daemon.send(line)
    error = daemon.receive()["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]
    assert daemon.child.wait(PATIENCE) == 1
    assert b"torch" not in daemon.child.stderr.read()


def test_it_ends_with_its_daemon_while_it_waits_for_a_job(daemon):
    daemon.child.stdin.close()
    assert daemon.child.wait(PATIENCE) == 3


def test_it_ends_with_its_daemon_and_on_sigterm_while_it_trains(tmp_path):
    with (
        Daemon() as orphaned,
        Daemon() as stopped,
    ):  # both at once: starting them is what takes time
        for daemon in (orphaned, stopped):
            daemon.send({"job": encode(long_job(tmp_path))})
        for daemon in (orphaned, stopped):
            assert "ready" in daemon.receive()
            daemon.send({"go": {"inputs": []}})
        for daemon in (orphaned, stopped):
            assert daemon.receive()["event"] == "begun"
        orphaned.child.stdin.close()
        stopped.child.send_signal(signal.SIGTERM)
        assert orphaned.child.wait(PATIENCE) == 3
        assert stopped.child.wait(PATIENCE) == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_killed_trainer_is_gone_on_with_and_gives_the_same_bytes(tmp_path):
    """SIGKILL in the midst of an epoch, then SIGTERM in the midst of another one, then to the end."""
    training = Training(epochs=6, batch_size=8, learning_rate=0.002, threads=1)
    small = recipe(training=training, warmup_epochs=3)
    checkpoints = tmp_path / "checkpoints"
    wanted = job("train", small, output=tmp_path / "theirs", checkpoints=checkpoints)
    with Daemon() as killed:
        begin(killed, wanted)
        assert [killed.receive()["event"] for _ in range(4)] == ["begun"] + ["epoch"] * 3
        wait_for(checkpoints, fits=1)
        killed.child.kill()
        assert killed.child.wait(PATIENCE) == -signal.SIGKILL
    with Daemon() as stopped:
        begin(stopped, wanted)
        resumed = stopped.receive()
        assert resumed["event"] == "resumed"
        assert (resumed["data"]["member"], resumed["data"]["fits"]) == (1, 1)
        assert stopped.receive()["event"] == "begun"
        epoch = stopped.receive()["data"]["epoch"]
        stopped.child.send_signal(signal.SIGTERM)
        stopped.child.send_signal(signal.SIGTERM)  # systemd and the daemon may both do so
        assert stopped.child.wait(PATIENCE) == 143
        told = [json.loads(line) for line in stopped.events]
    newest = json.loads(max(checkpoints.glob("*.json")).read_bytes())["checkpoint"]
    with Daemon() as last:
        begin(last, wanted)
        messages = [last.receive()]
        while "event" in messages[-1]:
            messages.append(last.receive())
        assert last.child.wait(PATIENCE) == 0
    assert messages[0]["event"] == "resumed"
    place = messages[0]["data"]
    if "state" in newest:
        assert (place["epoch"], place["batch"]) == (
            newest["state"]["epoch"],
            newest["state"]["batch"],
        )
        epochs_done = [
            epoch,
            *(message["data"]["epoch"] for message in told if message["event"] == "epoch"),
        ]
        assert place["epoch"] == epochs_done[-1] + 1, "only the epoch under way is gone on with"
    assert "warning" not in [message.get("event") for message in [*told, *messages]]

    run(load(job("train", small, output=tmp_path / "ours")), (), lambda *_: None)
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / "ours").read_bytes()


def begin(daemon, wanted):
    daemon.send({"job": encode(wanted)})
    assert "ready" in daemon.receive()
    daemon.send({"go": {"inputs": []}})


def wait_for(checkpoints, *, fits):
    """Until a checkpoint with so many completed fits is on disk: a thread of the trainer writes it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for path in checkpoints.glob("0*.json"):
            with contextlib.suppress(FileNotFoundError):
                if len(json.loads(path.read_bytes())["checkpoint"]["fits"]) >= fits:
                    return
        time.sleep(0.01)
    pytest.fail("no checkpoint was written")


def test_sigterm_while_it_waits_for_its_inputs_ends_it_at_once(daemon, tmp_path):
    daemon.send(
        {
            "job": encode(
                job("train", recipe(), output=tmp_path / "b", checkpoints=tmp_path / "checkpoints")
            )
        }
    )
    assert "ready" in daemon.receive()
    daemon.child.send_signal(signal.SIGTERM)
    assert daemon.child.wait(PATIENCE) == 143
    assert list(tmp_path.iterdir()) == []


CRASH = """
import sys
from fedelmy_node.training import trainer

def boom(line, stopping, *_):
    print("a print of the user's code")
    line.send({"event": "epoch", "data": {"loss": float("nan"), "inner": [float("inf"), 1.5]}})
    sys.stdin.read()
    raise ZeroDivisionError("deep inside")

trainer._do = boom
sys.exit(trainer.main())
"""


def test_a_crash_is_reported_and_prints_stay_out_of_the_way():
    with Daemon(["-c", CRASH]) as daemon:
        assert daemon.receive()["data"] == {"loss": None, "inner": [None, 1.5]}
        error = daemon.receive()["error"]
        assert error["code"] == "E-TRAINING-CRASH"
        assert "ZeroDivisionError" in error["message"] and "deep inside" not in error["message"]
        assert "Traceback" in error["private"]
        assert error["private"].endswith("ZeroDivisionError: deep inside\n")
        assert daemon.child.wait(PATIENCE) == 1
        log = daemon.child.stderr.read().decode()
        assert "Traceback" in log
        assert "a print of the user's code" in log
        assert daemon.child.stdout.read() == b""
