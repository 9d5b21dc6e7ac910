"""Results that are not one whole model: a head on weights that every site has, and a model of its
own at every site.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from fedelmy_node.domain.federation import ModelSpec
from fedelmy_node.training.models import build
from tests.e2e.support.packages import importable, install_strategy
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Done, launched
from tests.e2e.support.witness import Witness, wait_until
from tests.support.small_recipes import task

OWN = '''
"""Every site trains a model of its own, which nobody else gets."""

from fedelmy_node.training.operations import Operation, Result
from fedelmy_node.training.strategies.fedseq import OPERATIONS, Settings


def wire(sites, settings):
    from fedelmy_launcher.plans.topologies.wiring import Wiring, train

    steps = tuple(train(1, site, 1) for site in sites)
    return Wiring(steps=steps, results=tuple(step.id for step in steps))


RESULT = Result(is_personal=True)
'''
WEIGHTS = "backbone.safetensors"


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two sites with the same weights to start from."""
    packages = tmp_path_factory.mktemp("packages")
    install_strategy(packages, "own", OWN)
    made = make_bed("north", "south")
    (made.root / "weights").mkdir()
    save_file(build(ModelSpec(name="mlp"), task(), 3).state_dict(), made.root / "weights" / WEIGHTS)
    for site in made.sites.values():
        site.node("weights", "import", f"weights/{WEIGHTS}").ok()
    made.partition()
    with importable(packages):
        made.start_chain()
        made.write_file()
        yield made


def describe(bed: Bed, strategy: str, model: str = "") -> Done:
    """Write the federation file; return what simulation says."""
    bed.write_file()
    text = re.sub(
        r"\[strategy\].*", f'[strategy]\nname = "{strategy}"\n', bed.file.read_text(), flags=re.S
    )
    bed.file.write_text(text.replace('name = "mlp"\n', f'name = "mlp"\n{model}'))
    return bed.launch("simulate", "--json").ok()


def head(bed: Bed) -> str:
    shown = bed.sites["north"].node("weights", "list", "--json").ok().json
    (found,) = shown["weights"]
    return f'weights = {{ file = "{WEIGHTS}", sha256 = "{found["sha256"]}" }}\ntrain = "head"\n'


def run(bed: Bed, name: str) -> Any:
    with launched(bed, name) as launcher:
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def second_process(bed: Bed) -> bool:
    """Whether a trainer of the south has one now."""
    about = b"south processes train.2@south process 1"
    commands = (path / "cmdline" for path in Path("/proc").glob("[0-9]*"))
    with suppress(OSError):
        return any(about in command.read_bytes() for command in commands)
    return False


def test_a_head_has_the_bytes_of_simulation(bed: Bed) -> None:
    simulated = describe(bed, "fedseq", head(bed)).json
    found = run(bed, "head")
    assert found["bundle_sha256"] == simulated["bundle_sha256"]
    assert found["bundle_bytes"] == simulated["bundle_bytes"] < 4000 + 4 * 10 * 513
    exported = bed.root / "head.safetensors"
    bed.sites["south"].node("model", "export", "--out", str(exported)).ok()
    backbone, whole = load_file(bed.root / "weights" / WEIGHTS), load_file(exported)
    same = [name for name in backbone if whole[name].equal(backbone[name])]
    assert len(same) == len(backbone) - 2, "all but weight and bias of the head"


@pytest.mark.full
def test_several_processes_train_a_head(bed: Bed) -> None:
    """Their sums of gradients are rounded differently from those of one process."""
    simulated = describe(bed, "fedseq", head(bed)).json
    south = bed.sites["south"]
    south.stop()
    (south.state / "site.toml").write_text("[trainer]\nprocesses = 2\n")
    south.start("--indices", "parts/south.json", listen=south.address)
    with launched(bed, "processes") as launcher:
        wait_until(lambda: launcher.poll() is not None or second_process(bed), "second process")
        assert launcher.poll() is None, "train.2@south has two processes"
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["bundle_bytes"] == simulated["bundle_bytes"] and not found["results_differ"]
    assert abs(found["accuracy"] - simulated["accuracy"]) < 0.05
    south.stop()
    (south.state / "site.toml").unlink()
    south.start("--indices", "parts/south.json", listen=south.address)


def test_a_personal_result_stays_at_its_site(bed: Bed) -> None:
    simulated = describe(bed, "own").json
    found = run(bed, "own")
    digests = {}
    for name, site in bed.sites.items():
        exported = bed.root / f"{name}.safetensors"
        site.node("model", "export", "--out", str(exported)).ok()
        digests[name] = load_file(exported)
        journal = f"file:{site.state / 'journal.db'}?mode=ro"
        with closing(sqlite3.connect(journal, uri=True)) as rows:
            assert rows.execute("SELECT edge FROM edges WHERE run = 'own'").fetchall() == []
        seen = [event.kind for event in Witness(site, "own").events()]
        assert not {"sending", "sent", "received"} & set(seen)
        run_directory = Witness(site, "own").step_directory(f"train.1@{name}").parents[1]
        assert run_directory.exists() and not list(run_directory.glob("inputs/*"))
    north, south = digests.values()
    assert north.keys() == south.keys()
    assert not all(north[name].equal(south[name]) for name in north)
    trained, wanted = (
        {site["name"]: site["bundle_sha256"] for site in result["sites"]}
        for result in (found, simulated)
    )
    assert trained == wanted and len(set(trained.values())) == 2
