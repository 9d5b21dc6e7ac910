"""The daemon's side of a trainer: a stop leaves a checkpoint, a kill leaves the device."""

import os
import threading
import time
from dataclasses import replace

from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.device import trainer_process
from fedelmy_node.device.trainer_process import Progress, Trainer
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.job import DataSpec
from tests.support.small_recipes import job, recipe

PATIENCE = 120
DEAF = """
import signal, time
def load(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (path / "loads").touch()
    time.sleep(3600)
"""


def start(directory):
    """A trainer of a job without end, after its first epoch."""
    training = Training(epochs=100_000, batch_size=64, threads=1)
    endless = job(
        "train",
        recipe(training=training),
        output=directory / "out",
        checkpoints=directory / "checkpoints",
    )
    told, trains = [], threading.Event()

    def tell(message):
        told.append(message)
        if isinstance(message, Progress) and message.kind is EventKind.EPOCH:
            trains.set()

    trainer = Trainer(endless, directory, tell)
    trainer.start()
    trainer.go(())
    return trainer, told, trains


def test_a_stop_leaves_a_checkpoint_and_a_kill_takes_no_time(tmp_path):
    stopped, killed = start(tmp_path / "stopped"), start(tmp_path / "killed")
    for _, _, trains in (stopped, killed):
        assert trains.wait(PATIENCE)
    began = time.monotonic()
    killed[0].kill()
    killed[0].join(PATIENCE)
    assert time.monotonic() - began < trainer_process._GRACE_SECONDS
    stopped[0].stop()
    stopped[0].stop()
    stopped[0].join(PATIENCE)
    assert list((tmp_path / "stopped" / "checkpoints").glob("*.json"))
    for _, told, _ in (stopped, killed):
        assert all(isinstance(message, Progress) for message in told), (
            "an end that was wanted is no news"
        )


def test_a_trainer_that_only_loads_is_not_waited_for(tmp_path, monkeypatch):
    """It is asked for nothing: it may not even hear a signal while a library loads."""
    (tmp_path / "deaf_ward.py").write_text(DEAF)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setattr(trainer_process, "_GRACE_SECONDS", 3600.0)
    data = DataSpec(source=f"deaf_ward:load:{tmp_path}")
    loading = replace(
        job("train", recipe(), output=tmp_path / "out", checkpoints=tmp_path / "checkpoints"),
        data=data,
    )
    trainer = Trainer(loading, tmp_path / "step", lambda message: None)
    trainer.start()
    trainer.go(())
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "loads").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    trainer.stop()
    trainer.join(PATIENCE)
    assert not trainer._thread.is_alive()


def test_what_comes_before_the_process_ends_it(tmp_path):
    trainer, told, _ = start(tmp_path / "killed")
    trainer.kill()
    trainer.join(PATIENCE)
    assert told == []


def test_checkpoints_are_forgotten_and_nothing_else(tmp_path):
    layout, run, step = Layout(tmp_path), RunId("run-1"), StepId("train.1@north")
    workspace = Workspace(load_site_config(Given(state=tmp_path, data="digits")), layout)
    directory = layout.step(run, step)
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "checkpoints" / "000001.json").write_bytes(b"{}")
    (directory / "trainer.log").write_bytes(b"")
    for _ in range(2):
        workspace.forget_checkpoints(run, step)
        assert [path.name for path in directory.iterdir()] == ["trainer.log"]
