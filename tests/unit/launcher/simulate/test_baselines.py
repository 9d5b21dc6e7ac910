"""A site without the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedelmy_launcher.experiments.cells import prepare_cell
from fedelmy_launcher.experiments.grid import Cell, Line, unfolded
from fedelmy_launcher.plans.compiler import compile_plan, federation_from
from fedelmy_launcher.simulate.baselines import every_site_alone
from fedelmy_launcher.simulate.simulation import Simulation, data_of
from fedelmy_node.domain.names import run_id
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.sources import load_source

RUN = run_id("baseline")
LINE = Line(label="one")
SETTINGS = {
    "sites": {"data": "digits", "count": 3, "samples": 200},
    "model.name": "mlp",
    "training": {"epochs": 1, "learning_rate": 0.003, "batch_size": 64, "threads": 1},
    "strategy.name": "fedseq",
}


def cell(**sites: str) -> Cell:
    settings = unfolded({**SETTINGS, "sites": {**SETTINGS["sites"], **sites}})  # type: ignore[dict-item]
    return Cell(row=LINE, column=LINE, seed=4, settings=settings)


def test_alone_is_a_federation_of_one_on_the_test_data_of_all(tmp_path: Path) -> None:
    federation = federation_from(prepare_cell(cell(baseline="alone"), {}).write_parts(tmp_path))
    found = every_site_alone(federation, RUN, tmp_path)
    assert set(found) == {"site-1", "site-2", "site-3"}
    single = replace(federation, members=federation.members[1:2])
    simulation = Simulation(
        compile_plan(single, RUN), data_of(federation), tmp_path, lambda _: None
    )
    simulation.run()
    results = [
        simulation.evaluate(simulation.bundle(compile_plan(single, RUN).steps[0].id), site)
        for site in data_of(federation)
    ]
    samples = sum(result["samples"] for result in results)
    assert found[single.members[0].name].samples == samples
    assert found[single.members[0].name].accuracy == pytest.approx(
        sum(result["correct"] for result in results) / samples
    )


def test_the_result_counts_not_the_first_step(tmp_path: Path) -> None:
    """The first step of analytic gives sums, not a model."""
    settings = {**SETTINGS, "model.name": "linear", "strategy.name": "analytic"}
    solved = replace(cell(baseline="alone"), settings=unfolded(settings))
    federation = federation_from(prepare_cell(solved, {}).write_parts(tmp_path))
    found = every_site_alone(federation, RUN, tmp_path)
    assert all(own.accuracy for own in found.values())


def test_pooled_is_one_site_with_the_samples_of_all() -> None:
    apart, pooled = prepare_cell(cell(), {}), prepare_cell(cell(baseline="pooled"), {})
    ((_, samples),) = pooled.parts.values()
    every = sorted(int(at) for _, part in apart.parts.values() for at in part)
    assert samples.tolist() == every


def test_domains_of_a_synthetic_shift_are_pooled_as_they_are_at_the_sites(tmp_path: Path) -> None:
    images = np.arange(80 * 8 * 8 * 3, dtype=np.uint8).reshape(80, 8, 8, 3)
    np.savez(tmp_path / "some.npz", images=images, labels=np.arange(80) % 4)
    shifted = {"data": "pacs", "count": 4, "method": "domains", "samples": 10}
    given = {"cifar10": f"npz:{tmp_path}/some.npz"}
    cells = [
        replace(cell(), settings=unfolded({**SETTINGS, "sites": {**shifted, "baseline": kind}}))
        for kind in ("none", "pooled")
    ]
    apart, pooled = (prepare_cell(each, given) for each in cells)
    ((source, positions),) = pooled.parts.values()
    assert source == f"shifted:mixed:npz:{tmp_path}/some.npz"
    whole = load_source(parse_source(source)).pool.images.read(positions)
    kept = [
        load_source(parse_source(own)).pool.images.read(places)
        for own, places in apart.parts.values()
    ]
    assert len(whole) == 40
    assert sorted(image.tobytes() for image in whole) == sorted(
        image.tobytes() for part in kept for image in part
    )


def test_baselines_are_cells_of_their_own() -> None:
    kinds = ("none", "pooled", "alone")
    assert len({prepare_cell(cell(baseline=kind), {}).key for kind in kinds}) == len(kinds)
