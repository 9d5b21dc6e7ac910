"""Checkpoints: an interrupted step ends with the bytes of an undisturbed one, wherever it was
interrupted.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedelmy_node.domain.errors import StoreError, TrainingError
from fedelmy_node.domain.event_text import narrate
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.federation import Training
from fedelmy_node.training import checkpoint_store as store_module
from fedelmy_node.training.bundle_file import read_bundle, write_bundle
from fedelmy_node.training.checkpoint import job_key
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.checkpointing import Checkpoints
from fedelmy_node.training.context import Context, Outputs
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from fedelmy_node.training.stop_signal import StopSignal, Terminated
from fedelmy_node.training.strategies.fedelmy import Settings, train
from tests.support.small_recipes import bundles, job, make_bench, net, recipe

NEVER = 1e9
KEY = "the key of this job"
BATCHES = 3
"""Per epoch: 40 samples in batches of 16."""
WARM_UP, EPOCHS, MEMBERS = 2, 3, 2
TOTAL = BATCHES * (WARM_UP + MEMBERS * EPOCHS)
PLAIN = {"learning_rate": 0.01}
SETTINGS = {
    "cosine": {"optimizer": "sgd", "momentum": 0.9, "schedule": "cosine", "learning_rate": 0.05},
    "nesterov": {
        "optimizer": "sgd",
        "momentum": 0.8,
        "nesterov": True,
        "schedule": "step",
        "schedule_period": 1,
        "schedule_warmup": 0.7,
        "clip_norm": 0.5,
        "decay": "weights",
    },
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1, "class_weights": {"1": 3.0}},
    "adamw": {
        "optimizer": "adamw",
        "decay": "weights",
        "sam_rho": 0.1,
        "label_smoothing": 0.1,
        "class_weights": "balanced",
    },
    "stopped": {"early_stopping": 1, "learning_rate": 0.1},
}


@pytest.fixture
def tmp_path(tmp_path):
    """In memory where that is possible: these tests sync hundreds of files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


class CrashError(Exception):
    """Stands for whatever ends a process that nobody asked to end."""


class Hooked:
    """Batches that call a function with their number, counted over the step, before they are
    trained on.
    """

    def __init__(self, batches, hook):
        self._batches, self._hook, self._number = batches, hook, 0

    def __len__(self):
        return len(self._batches)

    def size(self, number):
        return self._batches.size(number)

    def epoch(self, place, *, start=0):
        for batch in self._batches.epoch(place, start=start):
            self._number += 1
            self._hook(self._number)
            yield batch


class Step:
    """A small FedELMY step on a model with BatchNorm and dropout, with its checkpoints in a
    directory.
    """

    def __init__(
        self, directory, *, every=NEVER, key=KEY, network=None, training=None, bundle=None
    ):
        self.directory, self.events, self.stopping = directory, [], StopSignal()
        training = Training(**{"epochs": EPOCHS, "batch_size": 16, **PLAIN, **(training or {})})
        network = network or net(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.bench = make_bench(network, training=training, events=self.events)
        self.initial = self.bench.model.weights()
        self.store = CheckpointStore(directory, key, training)
        self.every = every
        self.bundle = bundle or directory.with_name("bundle")
        self.accuracies = None
        self.train = train
        self.strategy = Settings(pool_size=MEMBERS, warmup_epochs=WARM_UP, alpha=0.5)

    def run(self, hook=lambda number: None):
        """The sha256 of the bundle that the step gives."""
        bench = dataclasses.replace(self.bench, batches=Hooked(self.bench.batches, hook))
        saving = Checkpoints(self.store, bench.model, bench.emit, self.stopping, self.every)
        with saving:
            context = Context(
                model=bench.model, initial=self.initial, inputs=[], reads=bench, fit_one=saving.fit
            )
            result = self.train(context, self.strategy)
            bench.model.load(result.model)
            self.accuracies = context.accuracies
            return write_bundle(self.bundle, {"model": bench.model.state_dict()})[0]

    def stop_at(self, number):
        """SIGTERM while that batch is trained on."""
        with pytest.raises(Terminated):
            self.run(lambda at: self.stopping.request() if at == number else None)
        return self

    def of(self, kind):
        return [data for found, data in self.events if found is kind]

    @property
    def warnings(self):
        assert {data["code"] for data in self.of(EventKind.WARNING)} <= {"E-TRAINING-CHECKPOINT"}
        return [data["message"] for data in self.of(EventKind.WARNING)]


@functools.cache
def undisturbed(settings=None):
    """What the step gives without checkpoints: the bytes, and the accuracies for the report."""
    with tempfile.TemporaryDirectory() as directory:
        step = Step(Path(directory) / "checkpoints", training=SETTINGS.get(settings))
        bench = step.bench
        context = Context(model=bench.model, initial=step.initial, inputs=[], reads=bench)
        result = train(context, Settings(pool_size=MEMBERS, warmup_epochs=WARM_UP, alpha=0.5))
        bench.model.load(result.model)
        return write_bundle(Path(directory) / "bundle", {"model": bench.model.state_dict()})[
            0
        ], context.accuracies


def place(number):
    """Member, epoch, and batches done in it, after so many batches of the step."""
    epoch, batch = divmod(number - 1, BATCHES)
    if epoch < WARM_UP:
        return 0, epoch + 1, batch + 1
    member, epoch = divmod(epoch - WARM_UP, EPOCHS)
    return member + 1, epoch + 1, batch + 1


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def test_checkpoints_change_no_bit(tmp_path):
    step = Step(tmp_path / "checkpoints", every=0)
    assert (step.run(), step.accuracies) == undisturbed()
    assert step.of(EventKind.RESUMED) == step.warnings == []
    assert len(step.of(EventKind.EPOCH)) == WARM_UP + MEMBERS * EPOCHS


@pytest.mark.parametrize("number", range(1, TOTAL + 1))
def test_sigterm_at_any_batch_loses_no_batch(tmp_path, number):
    stopped = Step(tmp_path / "checkpoints").stop_at(number)
    resumed, trained = Step(tmp_path / "checkpoints"), []
    assert (resumed.run(trained.append), resumed.accuracies) == undisturbed()
    assert len(trained) == TOTAL - number
    assert resumed.warnings == []
    (told,) = resumed.of(EventKind.RESUMED)
    member, epoch, batch = place(number)
    fits = member
    assert told == {
        "member": member,
        "members": MEMBERS,
        "epoch": epoch,
        "batch": batch,
        "fits": fits,
    }
    epochs = [*stopped.of(EventKind.EPOCH), *resumed.of(EventKind.EPOCH)]
    assert [(data["member"], data["epoch"]) for data in epochs] == sorted(
        {place(batch)[:2] for batch in range(1, TOTAL + 1)}
    )
    assert epochs[-1]["eta_seconds"] == 0


def test_sigterm_while_an_epoch_is_judged_counts_after_it(tmp_path, monkeypatch):
    """Validation is finished and the epoch told; nothing is lost: between epochs, between fits, at
    the end.
    """
    for number in range(1, WARM_UP + MEMBERS * EPOCHS + 1):
        directory = tmp_path / str(number) / "checkpoints"
        directory.parent.mkdir()
        step = Step(directory)
        emit = step.bench.emit

        def ask_at(kind, data, step=step, emit=emit, number=number):
            emit(kind, data)
            if len(step.of(EventKind.EPOCH)) == number and not step.stopping.requested:
                step.stopping.request()

        step.bench = dataclasses.replace(step.bench, emit=ask_at)
        with pytest.raises(Terminated):
            step.run()
        resumed, trained = Step(directory), []
        assert (resumed.run(trained.append), resumed.accuracies) == undisturbed()
        assert len(trained) == TOTAL - BATCHES * number
        assert len(resumed.of(EventKind.RESUMED)) == 1


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    every=st.sampled_from([0.0, NEVER]),
    interruptions=st.lists(
        st.tuples(st.integers(1, TOTAL), st.sampled_from(["sigterm", "crash", "power"])),
        min_size=1,
        max_size=4,
    ),
)
def test_any_interruptions_give_the_same_bytes(tmp_path, every, interruptions):
    """sigterm and crash leave the newest checkpoint; a power cut leaves whatever is on disk at that
    moment.
    """
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    directory = root / "checkpoints"
    for attempt, (number, how) in enumerate(interruptions):
        step = Step(directory, every=every)
        left = root / f"left-{attempt}"

        def interrupt(at, step=step, number=number, how=how, left=left):
            if at == number:
                if how == "sigterm":
                    step.stopping.request()
                elif how == "power" and step.directory.exists():
                    copy_as_a_power_cut_would(step.directory, left)
                    raise CrashError
                else:
                    raise CrashError

        with contextlib.suppress(CrashError, Terminated):
            assert step.run(interrupt) == undisturbed()[0]
        assert step.warnings == []
        directory = left if left.exists() else directory
    last = Step(directory)
    assert (last.run(), last.accuracies) == undisturbed()
    assert last.warnings == []


def copy_as_a_power_cut_would(source, target):
    """Newest name first: a checkpoint whose JSON is copied has all that it needs, as if all were
    copied at once.
    """
    target.mkdir()
    present = sorted(source.iterdir(), key=lambda path: (path.suffix != ".json", path.name))
    for path in present:
        try:
            shutil.copy(path, target / path.name)
        except FileNotFoundError:  # pruned meanwhile: then so is the checkpoint that needed it
            (target / path.name).with_suffix(".json").unlink(missing_ok=True)


def two_checkpoints(directory):
    """One after batch 10, one after batch 11, both in the second epoch of member 1; gives the newer
    one's number.
    """
    Step(directory).stop_at(10)
    Step(directory).stop_at(1)
    newest = max(path.stem for path in directory.glob("*.json"))
    before = f"{int(newest) - 1:06d}"
    assert files(directory) == [
        f"{before}.json",
        f"{before}.safetensors",
        f"{newest}.json",
        f"{newest}.safetensors",
        "fit-000.safetensors",
    ]
    return newest


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    path.write_bytes(b"")


def not_a_table(path):
    path.write_bytes(b"[]")


def nested(path):
    path.write_bytes(b"[" * 100_000)


def a_directory(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        *[("json", damage) for damage in (flip, cut, empty, not_a_table, nested, a_directory)],
        *[("safetensors", damage) for damage in (flip, cut, empty, Path.unlink)],
    ],
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path, suffix, damage):
    directory = tmp_path / "checkpoints"
    newest = two_checkpoints(directory)
    damage(directory / f"{newest}.{suffix}")
    resumed, trained = Step(directory), []
    assert resumed.run(trained.append) == undisturbed()[0]
    (warning,) = resumed.warnings
    assert f"checkpoint {int(newest)} " in warning
    assert "resumes from an earlier checkpoint" in warning
    (told,) = resumed.of(EventKind.RESUMED)
    assert (told["member"], told["epoch"], told["batch"], told["fits"]) == (1, 2, 1, 1)
    assert len(trained) == TOTAL - 10


def test_a_checkpoint_that_was_not_completed_is_no_damage(tmp_path):
    directory = tmp_path / "checkpoints"
    newest = two_checkpoints(directory)
    (directory / f"{newest}.json").unlink()
    resumed = Step(directory)
    assert resumed.run() == undisturbed()[0]
    assert resumed.warnings == []
    assert resumed.of(EventKind.RESUMED)[0]["batch"] == 1


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
def test_a_damaged_result_of_a_fit_costs_that_fit(tmp_path, damage):
    directory = tmp_path / "checkpoints"
    Step(directory).stop_at(TOTAL)
    Step(directory, every=0).run()
    newest = max(directory.glob("*.json"))  # a slow disk may also have left one of an earlier fit
    for path in directory.glob("0*"):
        if path.stem != newest.stem:
            path.unlink()
    damage(directory / "fit-001.safetensors")
    resumed, trained = Step(directory), []
    assert (resumed.run(trained.append), resumed.accuracies) == undisturbed()
    (warning,) = resumed.warnings
    assert "fit 2" in warning
    assert resumed.of(EventKind.RESUMED)[0] == {
        "member": 1,
        "members": MEMBERS,
        "epoch": 1,
        "batch": 0,
        "fits": 1,
    }
    assert len(trained) == TOTAL - BATCHES * WARM_UP


def test_an_older_state_is_better_than_a_lost_fit(tmp_path):
    """The newest checkpoint is in member 2 and lacks member 1; the one before is in the midst of
    member 1.
    """
    directory = tmp_path / "checkpoints"
    Step(directory).stop_at(BATCHES * (WARM_UP + EPOCHS) - 1)
    keep = {path.name: path.read_bytes() for path in directory.iterdir()}
    Step(directory).stop_at(2)
    newest = max(directory.glob("*.json"))
    for path in directory.glob("0*"):
        if path.stem != newest.stem:
            path.unlink()
    for name, content in keep.items():
        (directory / name).write_bytes(content)
    flip(directory / "fit-001.safetensors")
    resumed, trained = Step(directory), []
    assert resumed.run(trained.append) == undisturbed()[0]
    assert "fit 2" in resumed.warnings[0]
    told = resumed.of(EventKind.RESUMED)[0]
    assert (told["member"], told["epoch"], told["batch"], told["fits"]) == (
        1,
        EPOCHS,
        BATCHES - 1,
        1,
    )


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_if_nothing_is_usable_the_step_begins_anew(tmp_path, suffix):
    directory = tmp_path / "checkpoints"
    two_checkpoints(directory)
    for path in [*directory.glob(f"0*.{suffix}"), directory / "fit-000.safetensors"]:
        flip(path)
    resumed, trained = Step(directory), []
    assert (resumed.run(trained.append), resumed.accuracies) == undisturbed()
    assert resumed.warnings
    assert "starts over" in resumed.warnings[-1]
    assert resumed.of(EventKind.RESUMED) == []
    assert len(trained) == TOTAL


def test_what_another_version_wrote_differently_is_named_and_the_step_begins_anew(tmp_path):
    directory = tmp_path / "checkpoints"
    two_checkpoints(directory)
    for path in directory.glob("*.json"):
        newer = {
            **json.loads(path.read_text())["checkpoint"],
            "format": 2,
            "more": "than this version knows",
        }
        path.write_text(json.dumps({"checkpoint": newer, "sha256": "ab", "signed": True}))
    resumed, trained = Step(directory), []
    assert (resumed.run(trained.append), resumed.accuracies) == undisturbed()
    assert len(resumed.warnings) == 2 and len(trained) == TOTAL
    assert all(
        "another version of fedelmy wrote it, in format 2; the step starts over" in w
        for w in resumed.warnings
    )


@pytest.mark.parametrize(
    "change", [{"key": "of another job"}, {"network": net(nn.Tanh(), nn.BatchNorm1d(8))}]
)
def test_a_checkpoint_of_another_job_or_model_is_not_used(tmp_path, change):
    directory = tmp_path / "checkpoints"
    two_checkpoints(directory)
    other, trained = Step(directory, **change), []
    other.stop_at(4)
    assert other.of(EventKind.RESUMED) == []
    if "key" in change:
        assert other.warnings == []
        own = Step(directory)
        assert own.run(trained.append) == undisturbed()[0]
        assert len(trained) == TOTAL, "and the other one's does not stand in the way"


def test_the_key_is_the_job(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    wanted = job("train", recipe(), output=tmp_path / "out")
    keys = [
        job_key(wanted, [], {"train": 5}),
        job_key(wanted, bundles(tmp_path / "a"), {"train": 5}),
        job_key(wanted, bundles(tmp_path / "b"), {"train": 5}),
        job_key(wanted, bundles(tmp_path / "a", tmp_path / "b"), {"train": 5}),
        job_key(wanted, bundles(tmp_path / "b", tmp_path / "a"), {"train": 5}),
        job_key(wanted, [], {"train": 6}),
        job_key(dataclasses.replace(wanted, visit=2), [], {"train": 5}),
        job_key(job("train", recipe(), site="south"), [], {"train": 5}),
        job_key(job("train", recipe(seed=8)), [], {"train": 5}),
        job_key(job("train", recipe(alpha=0.7)), [], {"train": 5}),
    ]
    assert len(set(keys)) == len(keys)
    elsewhere = dataclasses.replace(
        wanted, output=tmp_path / "other", device="cuda", keep_pool=tmp_path
    )
    assert job_key(elsewhere, [], {"train": 5}) == keys[0]


def test_the_last_two_are_kept_and_nothing_else(tmp_path):
    directory = tmp_path / "checkpoints"
    for _ in range(5):
        Step(directory).stop_at(2)
    (directory / ".000009.safetensors.partial").write_bytes(b"left by a killed process")
    Step(directory).stop_at(1)
    older, newer = sorted(path.stem for path in directory.glob("*.json"))
    assert files(directory) == [
        f"{older}.json",
        f"{older}.safetensors",
        f"{newer}.json",
        f"{newer}.safetensors",
        "fit-000.safetensors",
    ]
    contents = json.loads((directory / f"{newer}.json").read_bytes())["checkpoint"]
    assert contents["format"] == 1
    assert contents["state"]["batch"] == place(11)[2]
    assert (directory / f"{newer}.json").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


def test_after_a_divergence_nothing_is_gone_on_from(tmp_path):
    """The cause may have been corrected; a state that is on its way to infinity would diverge
    again.
    """
    directory = tmp_path / "checkpoints"
    steep = net(*[nn.Linear(8, 8) for _ in range(30)])
    with pytest.raises(TrainingError, match="E-TRAINING-DIVERGED"):
        Step(directory, every=0, network=steep, training={"learning_rate": 100.0}).run()
    assert (
        not directory.exists() or files(directory) == []
    )  # the writer may not have come to write at all


def test_a_disk_that_is_full_is_told_once_and_training_goes_on(tmp_path, monkeypatch):
    def full(path, groups):
        raise StoreError(
            "E-STORE-DISK", "a file cannot be written: No space left on device", private=str(path)
        )

    monkeypatch.setattr(store_module, "write_bundle", full)
    step = Step(tmp_path / "checkpoints", every=0)
    assert step.run() == undisturbed()[0]
    (warning,) = step.warnings
    assert "No space left on device" in warning
    assert files(step.directory) == []


def test_room_that_comes_back_is_used(tmp_path, monkeypatch):
    """Results of fits that could not be written are written later."""
    real, directory = store_module.write_bundle, tmp_path / "checkpoints"

    def full(path, groups):
        raise StoreError("E-STORE-DISK", "full")

    step = Step(directory)
    monkeypatch.setattr(store_module, "write_bundle", full)

    def hook(number):
        if number == TOTAL - BATCHES:
            monkeypatch.setattr(store_module, "write_bundle", real)
        if number == TOTAL - 1:
            step.stopping.request()

    with pytest.raises(Terminated):
        step.run(hook)
    assert len(step.warnings) == 1
    resumed, trained = Step(directory), []
    assert resumed.run(trained.append) == undisturbed()[0]
    assert len(trained) == 1


def test_a_real_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("not permitted to mount")
    try:
        step = Step(
            disk / "checkpoints", every=0, bundle=tmp_path / "bundle"
        )  # only the checkpoints have no room
        assert step.run() == undisturbed()[0]
        assert len(step.warnings) >= 1
        assert "No space left" in step.warnings[0]
        assert not [name for name in files(step.directory) if "partial" in name]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_directory_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    step = Step(tmp_path / "file" / "checkpoints", bundle=tmp_path / "bundle")
    assert step.run() == undisturbed()[0]
    assert len(step.warnings) == 1


def test_a_whole_job_is_resumed_and_narrated(tmp_path):
    """As the trainer does it, with inputs; and only inputs that are the same let it go on."""
    first = run(load(job("train", recipe(), output=tmp_path / "first")), (), lambda *_: None)
    small = recipe(training=Training(epochs=2, batch_size=256, threads=1), pool_size=2)
    wanted = job(
        "train", small, site="south", output=tmp_path / "b", checkpoints=tmp_path / "checkpoints"
    )
    plain = dataclasses.replace(wanted, checkpoints=None, output=tmp_path / "plain")
    expected = run(load(plain), bundles(tmp_path / "first"), lambda *_: None)
    assert first.sha256 != expected.sha256

    events, stopping = [], StopSignal()

    def stop_in_member_2(kind, data):
        events.append((kind, data))
        if kind is EventKind.EPOCH and (data["member"], data["epoch"]) == (2, 1):
            stopping.request()

    with pytest.raises(Terminated):
        run(load(wanted), bundles(tmp_path / "first"), stop_in_member_2, stopping)
    events.clear()
    assert (
        run(load(wanted), bundles(tmp_path / "first"), lambda *event: events.append(event))
        == expected
    )
    assert (tmp_path / "b").read_bytes() == (tmp_path / "plain").read_bytes()
    kinds = [kind for kind, _ in events]
    assert kinds == [EventKind.RESUMED, EventKind.BEGUN, EventKind.EPOCH, EventKind.MEMBER]
    event = Event(
        seq=1, time=0.0, run="r", site="south", step="s", kind=kinds[0], data=events[0][1]
    )
    assert narrate(event) == "resumed from a checkpoint: pool member 2/2, epoch 2, batch 0"

    events.clear()
    assert (
        run(load(wanted), bundles(tmp_path / "plain"), lambda *event: events.append(event))
        != expected
    )
    assert EventKind.RESUMED not in [kind for kind, _ in events]


def test_a_step_whose_fits_are_all_done_is_not_trained_again(tmp_path):
    directory = tmp_path / "checkpoints"
    step = Step(directory)
    monkeypatched = step.bench.model.load

    def crash_at_the_end(weights, step=step):
        if len(step.of(EventKind.MEMBER)) == MEMBERS:
            raise CrashError
        monkeypatched(weights)

    step.bench.model.load = crash_at_the_end
    with pytest.raises(CrashError):
        step.run()
    again, trained = Step(directory), []
    assert (again.run(trained.append), again.accuracies) == undisturbed()
    assert trained == []
    assert again.of(EventKind.RESUMED) == [
        {"member": MEMBERS, "members": MEMBERS, "epoch": EPOCHS, "batch": 0, "fits": 1 + MEMBERS}
    ]
    assert again.of(EventKind.EPOCH) == []


def test_moments_of_the_optimizer_are_part_of_it(tmp_path):
    """Without them the result would differ: what makes the other tests mean something."""
    directory = tmp_path / "checkpoints"
    Step(directory).stop_at(5)
    real = store_module.Underway.restore

    def forgetful(self, state):
        real(self, state)
        for tensor in state.optimizer.state.values():
            tensor.zero_()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module.Underway, "restore", forgetful)
        assert Step(directory).run() != undisturbed()[0]


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_optimizer_and_schedule_resumes_with_the_same_bytes(tmp_path, settings):
    """Killed in the midst of an epoch, at its end, between fits, and again after that."""
    wanted = undisturbed(settings)
    assert wanted != undisturbed()
    counted = []
    Step(tmp_path / "counted", training=SETTINGS[settings]).run(counted.append)
    for number in range(1, len(counted), 2):
        directory = tmp_path / str(number) / "checkpoints"
        directory.parent.mkdir()
        Step(directory, training=SETTINGS[settings]).stop_at(number)
        if number + 2 < len(counted):
            Step(directory, training=SETTINGS[settings]).stop_at(2)
        resumed = Step(directory, training=SETTINGS[settings])
        assert (resumed.run(), resumed.accuracies) == wanted
        assert resumed.warnings == [] and len(resumed.of(EventKind.RESUMED)) == 1


def test_a_fit_that_stopped_early_is_not_gone_on_with(tmp_path):
    """Asked to stop while the last epoch of such a fit is judged: what is left is the next fit."""
    settings = SETTINGS["stopped"]
    whole = Step(tmp_path / "whole", training=settings)
    whole.run()
    epochs = [(data["member"], data["epoch"]) for data in whole.of(EventKind.EPOCH)]
    assert len(epochs) < WARM_UP + MEMBERS * EPOCHS, "something was stopped early"
    for number in range(1, len(epochs) + 1):
        directory = tmp_path / str(number) / "checkpoints"
        directory.parent.mkdir()
        step = Step(directory, training=settings)
        emit = step.bench.emit

        def ask(kind, data, step=step, emit=emit, number=number):
            emit(kind, data)
            if len(step.of(EventKind.EPOCH)) == number:
                step.stopping.request()

        step.bench = dataclasses.replace(step.bench, emit=ask)
        with pytest.raises(Terminated):
            step.run()
        resumed = Step(directory, training=settings)
        assert (resumed.run(), resumed.accuracies) == undisturbed("stopped")
        rest = [(data["member"], data["epoch"]) for data in resumed.of(EventKind.EPOCH)]
        assert rest == epochs[number:]


def test_the_file_of_adam_has_the_names_it_always_had(tmp_path):
    """So that a step which an older version began goes on."""
    directory = tmp_path / "checkpoints"
    Step(directory).stop_at(2)
    (path,) = directory.glob("0*.safetensors")
    groups = read_bundle(path)
    assert set(groups["adam"]) == {"exp_avg", "exp_avg_sq", "step"}
    assert groups["adam"]["step"] == 2


def test_a_state_of_another_optimizer_is_told_and_the_step_begins_anew(tmp_path):
    """The key prevents it; if it did not, nothing would be taken for something else."""
    directory = tmp_path / "checkpoints"
    Step(directory).stop_at(2)
    other = Step(directory, training=SETTINGS["cosine"])
    assert (other.run(), other.accuracies) == undisturbed("cosine")
    (warning,) = other.warnings
    assert "belongs to another model or optimizer; the step starts over" in warning


def test_the_momentum_of_sgd_is_part_of_it(tmp_path):
    directory = tmp_path / "checkpoints"
    Step(directory, training=SETTINGS["cosine"]).stop_at(5)
    real = store_module.Underway.restore

    def forgetful(self, state):
        real(self, state)
        state.optimizer.state["momentum"].zero_()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module.Underway, "restore", forgetful)
        assert Step(directory, training=SETTINGS["cosine"]).run() != undisturbed("cosine")[0]


def distil(context, settings):
    """A strategy of two fits: the second one also learns what a fixed teacher says of each batch.

    All it takes is an argument of `Context.fit`.
    """
    generator = torch.Generator().manual_seed(settings.pool_size)
    teacher = torch.randn(16, 3, generator=generator)

    def term(images, scores, labels):
        taught = functional.softmax(images.flatten(1) @ teacher, dim=1)
        return 2 * functional.kl_div(
            functional.log_softmax(scores, dim=1), taught, reduction="batchmean"
        )

    context.expect(epochs=2 * EPOCHS)
    first = context.fit(context.initial, member=1, members=2, epochs=EPOCHS)
    model = context.fit(first, member=2, members=2, epochs=EPOCHS, term=term)
    return Outputs(model=model)


def test_a_strategys_term_is_learned_and_resumed(tmp_path):
    def step(name, strategy=distil):
        made = Step(tmp_path / name, training={"loss": "prior_corrected", "select": "last"})
        made.train = strategy
        return made

    plain = step("plain", lambda context, settings: distil(_Termless(context), settings)).run()
    whole = step("whole")
    expected = whole.run()
    assert expected != plain
    losses = [data["loss"] for data in whole.of(EventKind.EPOCH)]
    assert losses[EPOCHS] > losses[EPOCHS - 1], "the reported loss has the term"
    assert losses[-1] < losses[EPOCHS]
    for number in range(1, 2 * EPOCHS * BATCHES, 4):
        step(f"stopped-{number}").stop_at(number)
        assert step(f"stopped-{number}").run() == expected


class _Termless:
    """A context that ignores the term of a fit."""

    def __init__(self, context):
        self._context = context

    def __getattr__(self, name):
        return getattr(self._context, name)

    def fit(self, *arguments, term=None, **more):
        return self._context.fit(*arguments, **more)


def test_terms_scaled_by_the_mean_gradient_resume(tmp_path):
    def step(name):
        made = Step(tmp_path / name)
        made.strategy = dataclasses.replace(made.strategy, scaling="gradient", alpha=0.1, beta=0.2)
        return made

    wanted = step("undisturbed").run()
    assert wanted != undisturbed()[0]
    step("checkpoints").stop_at(TOTAL - 2)
    assert step("checkpoints").run() == wanted
