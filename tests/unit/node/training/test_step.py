"""Jobs from their description to their outcome, in one process, as simulation runs them."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedelmy_node.bundle.format import read_header
from fedelmy_node.bundle.verification import check_bundle
from fedelmy_node.config.decode import encode
from fedelmy_node.domain.errors import BundleError, ConfigError, RunError, TrainingError
from fedelmy_node.domain.event_data import check_result
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import ModelSpec, StrategySpec, Training
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.bundle_file import read_bundle, write_bundle
from fedelmy_node.training.job import Input
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from tests.support import methods
from tests.support.small_recipes import bundles, job, recipe, task


def ignore(kind, data):
    """Nobody listens."""


def do(wanted, *inputs, emit=ignore):
    return run(load(wanted), bundles(*inputs), emit)


@pytest.fixture(autouse=True)
def _restore_torch():
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "first.safetensors"
    return path, do(job("train", recipe(), output=path))


def test_prepare_describes_the_bundle_that_training_writes(trained):
    path, outcome = trained
    prepared = do(job("prepare", recipe()))
    assert prepared.specs["train"].manifest == read_header(path).manifest
    assert prepared.report["bundle_bytes"] == outcome.bytes == path.stat().st_size
    assert prepared.report["parameters"] == 17_226
    assert prepared.report["samples"] == {"train": 1457, "validation": 161, "test": 179}
    assert sum(prepared.report["class_counts"].values()) == 1797
    assert prepared.report["missing_classes"] == []
    assert prepared.report["torch"] == torch.__version__
    assert prepared.report["device"] == "cpu"
    assert prepared.sha256 is None
    json.dumps(encode(prepared), allow_nan=False)


def test_a_chain_of_two_sites_learns_the_digits(trained, tmp_path):
    path, _ = trained
    events = []
    second = do(
        job("train", recipe(), site="south", output=tmp_path / "second"),
        path,
        emit=lambda *event: events.append(event),
    )
    assert len(second.report["member_accuracies"]) == 2
    assert second.report["received_accuracy"] > 0.5
    distances = second.report["pool_distances"]
    assert [len(row) for row in distances] == [3, 3, 3]
    assert all(distances[i][i] == 0 < distances[i][j] for i in range(3) for j in range(3) if i != j)
    assert second.report["validation_accuracy"] > 0.8
    assert {data["phase"] for kind, data in events if kind is EventKind.EPOCH} == {"member"}
    check_bundle(tmp_path / "second", read_header(path).manifest, "")

    result = do(job("evaluate", recipe(), site="south"), tmp_path / "second").report
    assert result["samples"] == 179
    assert result["accuracy"] > 0.8
    assert list(result["classes"]) == [str(digit) for digit in range(10)]
    # The same model on the same validation data as at the end of the step that trained it.
    assert result["validated_classes"] == second.report["validated_classes"]
    assert result["validation_accuracy"] == pytest.approx(
        second.report["validation_accuracy"], abs=1e-6
    )
    json.dumps(result, allow_nan=False)


def test_features_are_drawn_only_if_they_are_asked_for(trained, tmp_path):
    path, _ = trained
    plain = do(job("evaluate", recipe()), path).report
    drawn = do(dataclasses.replace(job("evaluate", recipe()), features=40), path).report
    embedding = drawn.pop("embedding")
    assert drawn == plain
    assert len(embedding["points"]) == len(embedding["labels"]) == 40
    assert embedding["of"] == 179
    assert set(embedding["labels"]) <= set(range(10))
    check_result(drawn | {"embedding": embedding})
    # Samples of one class lie together: a nearest neighbour usually is of the same class.
    points, labels = torch.tensor(embedding["points"]), torch.tensor(embedding["labels"])
    nearest = (torch.cdist(points, points) + torch.eye(40) * 1e9).argmin(dim=1)
    assert (labels[nearest] == labels).float().mean() > 0.5


def test_nothing_of_an_earlier_job_shows_in_a_later_one(trained, tmp_path):
    """The same job after others with another model, other threads and other random numbers."""
    _, outcome = trained
    training = Training(epochs=1, batch_size=200, threads=2)
    other = recipe(model="cnn-small", seed=3, training=training, pool_size=1, warmup_epochs=0)
    first = do(job("train", other, site="west", output=tmp_path / "other"))
    torch.manual_seed(99)
    again = do(job("train", recipe(), output=tmp_path / "again"))
    assert (again.sha256, again.bytes) == (outcome.sha256, outcome.bytes)
    assert again.report == outcome.report
    assert do(job("train", other, site="west", output=tmp_path / "other")) == first


def test_a_loaded_job_can_be_run_twice(trained, tmp_path):
    loaded = load(job("train", recipe(), output=tmp_path / "b"))
    assert run(loaded, (), ignore) == run(loaded, (), ignore) == trained[1]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"alpha": 1.0},
        {"training": Training(epochs=2, batch_size=32, learning_rate=0.004, threads=1)},
    ],
)
def test_the_recipe_decides(trained, tmp_path, change):
    assert do(job("train", recipe(**change), output=tmp_path / "b")).sha256 != trained[1].sha256


def test_site_and_visit_decide(trained, tmp_path):
    elsewhere = job("train", recipe(), site="south", output=tmp_path / "b")
    later = dataclasses.replace(job("train", recipe(), output=tmp_path / "b"), visit=2)
    assert len({do(elsewhere).sha256, do(later).sha256, trained[1].sha256}) == 3


def test_the_pool_is_kept_if_the_site_wants_it(trained, tmp_path):
    pool = tmp_path / "pool"
    pool.mkdir()
    outcome = do(job("train", recipe(), output=tmp_path / "b", keep_pool=pool))
    assert outcome.sha256 == trained[1].sha256
    members = sorted(pool.iterdir())
    assert [path.name for path in members] == [
        f"member-{number:03d}.safetensors" for number in range(3)
    ]
    states = [read_bundle(path)["model"] for path in members]
    mean = read_bundle(tmp_path / "b")["model"]
    for name, tensor in mean.items():
        wanted = torch.stack([state[name] for state in states]).double().mean(dim=0)
        assert torch.allclose(tensor.double(), wanted, atol=1e-7)


def test_weights_of_another_model_are_refused(trained, tmp_path):
    other = recipe(model="cnn-small")
    for kind in ("train", "evaluate"):
        with pytest.raises(BundleError, match="E-BUNDLE-MANIFEST"):
            do(job(kind, other, output=tmp_path / "b"), trained[0])


def test_weights_that_are_not_finite_are_refused(trained, tmp_path):
    state = read_bundle(trained[0])
    state["model"]["1.weight"][0, 0] = float("nan")
    write_bundle(tmp_path / "bad", state)
    with pytest.raises(BundleError, match="E-BUNDLE-NONFINITE"):
        do(job("evaluate", recipe()), tmp_path / "bad")


def test_a_model_that_went_too_far_is_refused_before_anything_is_trained(trained, tmp_path):
    far = read_bundle(trained[0])
    far["model"] = {name: tensor * 1e20 for name, tensor in far["model"].items()}
    write_bundle(tmp_path / "far", far)
    events = []
    for kind in ("train", "evaluate"):
        wanted = job(kind, recipe(), site="south", output=tmp_path / "b", max_change=10.0)
        with pytest.raises(BundleError, match=r"E-BUNDLE-CHANGE.*this site accepts up to 10"):
            do(wanted, tmp_path / "far", emit=lambda *event: events.append(event))
    assert not events and not (tmp_path / "b").exists()
    honest = job("train", recipe(), site="south", output=tmp_path / "b", max_change=10.0)
    unbounded = job("train", recipe(), site="south", output=tmp_path / "c")
    assert do(honest, trained[0]).sha256 == do(unbounded, trained[0]).sha256
    with pytest.raises(BundleError, match="E-BUNDLE-CHANGE"):
        do(dataclasses.replace(honest, max_change=1e-6), trained[0])


@pytest.mark.parametrize("wrong", [0, 1])
def test_every_model_of_a_bundle_is_checked(tmp_path, monkeypatch, wrong):
    methods.install(monkeypatch)
    votes = dataclasses.replace(recipe(), strategy=StrategySpec(name="votes"))
    path = tmp_path / "collected"
    model = load(job("train", votes)).model.state_dict()

    def evaluated(*factors):
        groups = {
            f"model.{number}": {name: tensor * factor for name, tensor in model.items()}
            for number, factor in enumerate(factors)
        }
        write_bundle(path, groups)
        given = Input(path, file_sha256(path), operation="collect")
        return run(load(job("evaluate", votes, max_change=10.0)), (given,), ignore).report

    assert evaluated(1.0, 2.0)["loss"] > 0
    with pytest.raises(BundleError, match=r"E-BUNDLE-CHANGE.*99 times.*accepts up to 10"):
        evaluated(*(100.0 if number == wrong else 1.0 for number in range(2)))


def test_evaluate_needs_its_one_input():
    with pytest.raises(RunError, match="E-RUN-PLAN"):
        do(job("evaluate", recipe()))


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "cuda:x", ""])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(ConfigError) as caught:
        load(job("prepare", recipe(), device=device))
    assert caught.value.code == "E-CONFIG-DEVICE"
    assert repr(device) in caught.value.message


def test_auto_finds_a_device():
    assert do(job("prepare", recipe(), device="auto")).report["device"] in ("cpu", "cuda")


def test_a_model_that_does_not_fit_is_found_by_prepare():
    big = dataclasses.replace(recipe(), model=ModelSpec(name="cnn"))
    with pytest.raises(TrainingError, match="E-TRAINING-MODEL"):
        load(job("prepare", big))


def test_left_out_files_are_told(trained):
    loaded = load(job("prepare", recipe()))
    loaded = dataclasses.replace(loaded, opened=dataclasses.replace(loaded.data, left_out=3))
    events = []
    assert run(loaded, (), lambda *event: events.append(event)).report["left_out"] == 3
    ((kind, data),) = events
    assert (kind, data["code"]) == (EventKind.WARNING, "E-DATA-UNREADABLE")
    assert "3 file(s)" in data["message"]


def test_threads_are_the_recipes():
    load(job("prepare", recipe(training=Training(epochs=1, threads=1))))
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()


COMPILER = """
import sys
from pathlib import Path

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.loading import load
from fedelmy_node.training.optimizer import OPTIMIZERS
from fedelmy_node.training.step import run
from tests.support.small_recipes import bundles, job, recipe

output = Path(sys.argv[1])
for name in OPTIMIZERS:
    training = Training(epochs=1, optimizer=name, threads=1)
    run(load(job("train", recipe(training=training), output=output)), (), lambda *_: None)
run(load(job("evaluate", recipe())), bundles(output), lambda *_: None)
print(len(OPTIMIZERS), sorted({"torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_torchs_compiler_is_not_imported(tmp_path):
    """It costs a trainer one to two seconds."""
    command = [sys.executable, "-c", COMPILER, str(tmp_path / "output.safetensors")]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "3 []\n"


def test_batch_norm_statistics_travel(tmp_path):
    """A model with buffers through a whole step: they are part of the bundle and of the mean."""
    small = dataclasses.replace(
        recipe(
            pool_size=1, warmup_epochs=0, training=Training(epochs=1, batch_size=500, threads=1)
        ),
        task=task(size=8),
        model=ModelSpec(name="torchvision:shufflenet_v2_x0_5"),
    )
    outcome = do(job("train", small, output=tmp_path / "b"))
    state = read_bundle(tmp_path / "b")["model"]
    assert outcome.report["validation_accuracy"] is not None
    assert state["conv1.1.num_batches_tracked"].item() == 3
    assert state["conv1.1.running_var"].isfinite().all()


def test_a_narrow_wire_type_halves_the_bundle_and_not_the_learning(trained, tmp_path):
    narrow = dataclasses.replace(recipe(), wire_dtype="bfloat16")
    prepared = do(job("prepare", narrow))
    pool = tmp_path / "pool"
    first = do(job("train", narrow, output=tmp_path / "first", keep_pool=pool))
    assert prepared.report["bundle_bytes"] == first.bytes == (tmp_path / "first").stat().st_size
    assert first.bytes < 0.6 * trained[1].bytes
    assert prepared.specs["train"].manifest == read_header(tmp_path / "first").manifest
    kept = read_header(pool / "member-001.safetensors").manifest
    assert {tensor.dtype for tensor in kept} == {"F32"}
    second = do(job("train", narrow, site="south", output=tmp_path / "second"), tmp_path / "first")
    assert second.report["validation_accuracy"] > 0.8
    assert do(job("evaluate", narrow), tmp_path / "second").report["accuracy"] > 0.8
    with pytest.raises(BundleError, match="E-BUNDLE-MANIFEST"):
        do(job("evaluate", recipe()), tmp_path / "second")
