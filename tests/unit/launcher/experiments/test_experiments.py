"""Experiments: from a file to cells and their keys, to tables and plots; nothing is trained here."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedelmy_launcher.experiments import experiments, find_experiment
from fedelmy_launcher.experiments.cell_metrics import Measures
from fedelmy_launcher.experiments.cells import Prepared, prepare_cell
from fedelmy_launcher.experiments.datasets import NoDataError, datasets, given_data, parse_given
from fedelmy_launcher.experiments.display import Pace
from fedelmy_launcher.experiments.grid import (
    Cell,
    Experiment,
    Line,
    cells_of,
    chosen,
    distinct,
    merged,
    parse_setting,
    read_experiment,
    unfolded,
)
from fedelmy_launcher.experiments.result_table import csv_table, markdown_table, text_table
from fedelmy_launcher.experiments.results import FILE, known_results, open_results
from fedelmy_launcher.experiments.session import NOT_INSTALLED, Session, Work
from fedelmy_launcher.experiments.summary import ExperimentOutcome, Statistic
from fedelmy_launcher.experiments.worker_pool import Finished, WorkerPool
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.config.decode import decode
from fedelmy_node.domain.errors import ConfigError, StoreError
from fedelmy_node.domain.names import StepId

GRID: dict[str, Any] = {
    "title": "Digits",
    "seeds": [0, 1],
    "base": {
        "sites": {"data": "digits", "count": 3},
        "model": {"name": "mlp"},
        "training": {"epochs": 4, "threads": 1},
        "strategies": {"fedelmy": {"pool_size": 2, "warmup_epochs": 1}},
    },
    "rows": [
        {"label": "FedELMY", "set": {"strategy.name": "fedelmy"}},
        {"label": "FedSeq", "set": {"strategy.name": "fedseq"}},
        {"label": "MetaFed", "set": {"strategy.name": "metafed"}},
    ],
    "columns": [
        {"group": "skew", "label": "Dir(0.1)", "x": 0.1, "set": {"sites.alpha": 0.1}},
        {"group": "skew", "label": "Dir(0.5)", "x": 0.5, "set": {"sites.alpha": 0.5}},
        {"label": "shift", "set": {"sites.data": "pacs"}},
    ],
    "settings": {"small": {"about": "Short.", "set": {"training.epochs": 1}, "seeds": [7]}},
}


def grid(**changed: Any) -> Experiment:
    return decode(Experiment, {**GRID, **changed})


def first_cell(experiment: Experiment, changes: str = "") -> Cell:
    return cells_of(experiment, parse_setting([changes] if changes else []))[0]


def prepared(changes: str = "", **changed: Any) -> Prepared:
    return prepare_cell(first_cell(grid(**changed), changes), {})


# --- settings


def test_later_settings_go_before_earlier_ones() -> None:
    tree = merged(
        unfolded({"a.b": 1, "a.c": [1, 2]}),
        unfolded({"a": {"c": [3]}, "d": "x"}),
        unfolded({"a.b": 2}),
    )
    assert tree == {"a": {"b": 2, "c": [3]}, "d": "x"}


def test_the_command_line_has_values_as_toml_has_them() -> None:
    assert parse_setting(["a.b=3", "a.c=0.5", 'd="3"', "e=word", "f=[1, 2]", "g=true"]) == {
        "a": {"b": 3, "c": 0.5},
        "d": "3",
        "e": "word",
        "f": [1, 2],
        "g": True,
    }
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_setting(["epochs"])


# --- the file


def test_a_setting_changes_what_it_names_and_keeps_the_rest() -> None:
    small = grid().at("small")
    assert small.seeds == (7,)
    assert small.base["training"] == {"epochs": 1, "threads": 1}
    assert [row.label for row in small.rows] == ["FedELMY", "FedSeq", "MetaFed"]
    assert grid().usual() == "small" and grid(settings={}).usual() == "full"
    with pytest.raises(ConfigError, match="no setting 'smal'") as caught:
        grid().at("smal")
    assert "small" in caught.value.hint


def test_mistakes_in_a_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('title = "x"\nrow = 3\n')
    with pytest.raises(ConfigError, match=r"grid.toml: unknown key 'row'"):
        read_experiment(path)
    with pytest.raises(ConfigError, match="rows must not be empty or contain a name twice"):
        grid(rows=[{"label": "a"}, {"label": "a"}])
    with pytest.raises(ConfigError, match="seeds"):
        grid(seeds=[1, 1])


@pytest.mark.parametrize(
    ("wrong", "code", "hint"),
    [
        ('strategy.name = "fedelmi"', "E-CONFIG-STRATEGY", "'fedelmy'"),
        ('strategy.name = "metafde"', "E-CONFIG-STRATEGY", "'metafed'"),
        ('federation.topology = "chian"', "E-CONFIG-TOPOLOGY", "'chain'"),
        ('model.name = "cnn-pasc"', "E-CONFIG-MODEL", "'cnn-pacs'"),
        ("strategies.fedesq = {}", "E-CONFIG-STRATEGY", "'fedseq'"),
        ("topologies.msh = {}", "E-CONFIG-TOPOLOGY", "'mesh'"),
    ],
)
@pytest.mark.parametrize("place", ["base", "rows", "columns", "settings", "settings.columns"])
def test_misspelt_names_are_refused_when_the_file_is_read(
    tmp_path: Path, place: str, wrong: str, code: str, hint: str
) -> None:
    parts = {"base": "", "rows": "", "columns": "", "settings": "", "settings.columns": ""}
    parts[place] = wrong if place == "base" else f"set = {{ {wrong} }}"
    path = tmp_path / "grid.toml"
    path.write_text(
        f'title = "x"\n[base]\n{parts["base"]}\n'
        f'[[rows]]\nlabel = "row"\n{parts["rows"]}\n'
        f'[[columns]]\nlabel = "column"\n{parts["columns"]}\n'
        f"[settings.small]\n{parts['settings']}\n"
        f'[[settings.small.columns]]\nlabel = "other"\n{parts["settings.columns"]}\n'
    )
    with pytest.raises(ConfigError, match=r"grid.toml: there is no ") as caught:
        read_experiment(path)
    assert caught.value.code == code and hint in caught.value.hint


def test_misspelt_names_on_the_command_line_are_refused_too() -> None:
    experiment = grid(columns=[{"label": "one"}])
    for change, code in (
        ("strategy.name=fedelmi", "E-CONFIG-STRATEGY"),
        ("federation.topology=chian", "E-CONFIG-TOPOLOGY"),
        ("model.name=mpl", "E-CONFIG-MODEL"),
    ):
        cells = cells_of(experiment, parse_setting([change]))
        with pytest.raises(ConfigError, match="FedELMY, one, seed 0: ") as caught:
            Session.of(
                ExperimentOutcome("digits", "full", experiment, change),
                cells,
                lambda cell: prepare_cell(cell, {}),
            )
        assert caught.value.code == code and "Did you mean" in caught.value.hint


def test_lines_that_a_change_makes_equal_become_one() -> None:
    columns = read_experiment(experiments()["table-1"].path).at("small").columns
    pacs = chosen(columns, ["PACS"], "column")
    assert [line.label for line in pacs] == ["E=6", "E=12"]
    assert distinct(pacs, {}) == pacs
    assert distinct(pacs, parse_setting(["training.batch_size=8"])) == pacs
    (one,) = distinct(pacs, parse_setting(["training.epochs=1"]))
    assert (one.name, one.set["sites.data"]) == ("PACS training.epochs=1", "pacs")
    # E=6 is what the command line asks for; E=12 is no longer.
    (one,) = distinct(pacs, parse_setting(["training.epochs=6"]))
    assert one.name == "PACS training.epochs=6"
    both = distinct(columns, parse_setting(["training.epochs=1"]))
    assert [line.name for line in both] == [
        f"{group} training.epochs=1" for group in ("CIFAR-10", "PACS", "Office-Caltech-10")
    ]


def test_merged_lines_keep_names_of_their_own() -> None:
    lines = [
        Line(label=f"{data} {epochs}", set={"sites.data": data, "training.epochs": epochs})
        for data in ("a", "b")
        for epochs in (1, 2)
    ]
    assert [line.name for line in distinct(lines, parse_setting(["training.epochs=3"]))] == [
        "training.epochs=3",
        "b 1 = b 2",
    ]


def test_rows_are_chosen_by_name_and_columns_by_group_too() -> None:
    lines = grid().columns
    assert [line.label for line in chosen(lines, ["skew"], "column")] == ["Dir(0.1)", "Dir(0.5)"]
    assert [line.label for line in chosen(lines, ["skew Dir(0.5)", "shift"], "column")] == [
        "Dir(0.5)",
        "shift",
    ]
    with pytest.raises(ConfigError, match="no column 'shfit'") as caught:
        chosen(lines, ["shfit"], "column")
    assert "'shift'" in caught.value.hint


def test_an_experiment_of_the_package_is_found_by_name() -> None:
    wanted = {
        *(f"table-{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9)),
        *(f"figure-{n}" for n in (5, 6, 7, 9, 10)),
    }
    assert wanted | {"ablation-cnn", "prior-correction"} <= set(experiments())
    assert find_experiment("table-8").stem == "table-8"
    with pytest.raises(ConfigError, match="no experiment 'tabel-8'") as caught:
        find_experiment("tabel-8")
    assert "'table-8'" in caught.value.hint


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_of_the_package_can_be_read(name: str) -> None:
    """Every setting has cells whose data set is known, and whose strategy's settings are the
    strategy's.
    """
    experiment = read_experiment(experiments()[name].path)
    assert experiment.title == experiments()[name].title and experiment.about
    for setting in ("full", *experiment.settings):
        for cell in cells_of(experiment.at(setting), {}):
            assert cell.settings["sites"]["data"] in datasets()
            assert "model" in cell.settings and "epochs" in cell.settings["training"]
    if name.startswith(("table", "figure")):
        assert "Small: " in experiment.at("small").about


# --- data


def test_what_was_not_given_is_said_with_how_to_give_it() -> None:
    with pytest.raises(NoDataError) as caught:
        given_data("pacs", {})
    assert "--data pacs=" in caught.value.hint and "--data cifar10=" in caught.value.hint
    with pytest.raises(ConfigError, match="no data set 'cifar'"):
        parse_given(["cifar=imagefolder:/x"])


def test_domains_are_folders_or_a_synthetic_shift_that_says_so() -> None:
    real = given_data("pacs", parse_given(["pacs=/data/pacs"]))
    assert not real.synthetic and real.sources["sketch"] == "imagefolder:/data/pacs/sketch"
    assert given_data("pacs", parse_given(["pacs=imagefolder:/data/pacs"])).sources == real.sources
    stands_in = given_data("pacs", parse_given(["cifar10=cifar10:/data/c"]))
    assert stands_in.synthetic and "synthetic shift of CIFAR-10" in stands_in.title
    assert stands_in.sources["sketch"] == "shifted:edges:cifar10:/data/c"


# --- cells


def test_a_cell_is_a_federation_with_the_parts_of_its_data() -> None:
    cell = prepared()
    recipe = cell.federation.recipe
    assert (
        recipe.seed == 0
        and recipe.training.epochs == 4
        and recipe.strategy.settings["pool_size"] == 2
    )
    assert [member.name for member in cell.federation.members] == ["site-1", "site-2", "site-3"]
    assert sum(len(positions) for _, positions in cell.parts.values()) == 1797
    # The digits have no test set of their own: every site's tenth is measured on.
    assert cell.federation.deliver == "all"
    assert sum(len(p) for _, p in prepared("sites.samples=300").parts.values()) == 300


def test_settings_of_a_strategy_are_those_of_the_cells_that_have_it() -> None:
    fedseq = next(cell for cell in cells_of(grid(), {}) if cell.row.label == "FedSeq")
    assert prepare_cell(fedseq, {}).federation.recipe.strategy.settings == {}


def test_the_key_is_of_everything_that_matters_and_of_nothing_else() -> None:
    key = prepared().key
    assert prepared(rows=[{"label": "renamed", "set": {"strategy.name": "fedelmy"}}]).key == key
    others = [
        prepared(change).key
        for change in ("training.epochs=5", "sites.alpha=0.2", "sites.samples=900")
    ]
    others.append(prepared(seeds=[3]).key)
    assert len({key, *others}) == 5


def test_one_domain_per_site_in_the_order_asked_for(tmp_path: Path) -> None:
    from PIL import Image

    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        for name in ("cat", "dog") if domain != "sketch" else ("cat",):
            folder = tmp_path / domain / name
            folder.mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    base = {**GRID["base"], "sites": {"data": "pacs", "domains": ["sketch", "photo"], "count": 4}}
    cell = prepare_cell(
        first_cell(grid(base=base, columns=[{"label": "one"}])), {"pacs": str(tmp_path)}
    )
    assert list(cell.parts) == ["sketch-1", "photo-1", "sketch-2", "photo-2"]
    assert [len(positions) for _, positions in cell.parts.values()] == [4, 8, 4, 8]
    # Of several sources, the classes that any of them has.
    assert cell.federation.recipe.task.classes == ("cat", "dog")
    assert cell.federation.deliver == "all" and not cell.synthetic


def test_rows_that_are_not_installed_and_data_that_are_not_there_are_left_out() -> None:
    experiment = grid()
    outcome = ExperimentOutcome("digits", "full", experiment, "")
    session = Session.of(outcome, cells_of(experiment, {}), lambda cell: prepare_cell(cell, {}))
    assert len(session.prepared) == 2 * 2 * 2
    assert outcome.cells["MetaFed", "skew Dir(0.1)"].why == NOT_INSTALLED
    assert outcome.cells["FedSeq", "shift"].why == "no data"
    assert len(session.hints) == 1 and "PACS was not given" in session.hints[0]


def test_an_experiment_without_any_data_is_an_error(tmp_path: Path) -> None:
    def session(*columns: dict[str, Any]) -> Session:
        experiment = grid(columns=list(columns))
        outcome = ExperimentOutcome("digits", "full", experiment, "")
        return Session.of(outcome, cells_of(experiment, {}), lambda cell: prepare_cell(cell, {}))

    shift = GRID["columns"][2]
    session(GRID["columns"][0], shift).check_work()  # some cells can be computed
    with pytest.raises(NoDataError, match="no cell has data") as caught:
        session(shift).check_work()
    assert "--data pacs=" in caught.value.hint


def test_an_experiment_without_any_installed_strategy_is_an_error() -> None:
    experiment = grid(rows=GRID["rows"][2:], columns=GRID["columns"][:1])
    outcome = ExperimentOutcome("digits", "full", experiment, "")
    session = Session.of(outcome, cells_of(experiment, {}), lambda cell: prepare_cell(cell, {}))
    with pytest.raises(ConfigError, match="not installed") as caught:
        session.check_work()
    assert caught.value.code == "E-CONFIG-STRATEGY"


def test_balanced_accuracy_needs_two_classes_with_samples() -> None:
    def balanced(**rows: tuple[int, int]) -> float | None:
        classes = {name: {"tp": tp, "fn": fn} for name, (tp, fn) in rows.items()}
        site = SimpleNamespace(evaluation={"classes": classes})
        progress = cast(RunProgress, SimpleNamespace(steps=(), sites={"north": site}))
        return Measures(progress)._balanced()

    assert balanced(cat=(3, 1), dog=(1, 3)) == 0.5
    assert balanced(cat=(4, 0), dog=(0, 0)) is None


def test_validation_accuracy_is_that_of_all_validation_samples() -> None:
    def site(*rows: tuple[int, int]) -> SimpleNamespace:
        counts = {
            f"class {number}": {"samples": samples, "correct": correct}
            for number, (correct, samples) in enumerate(rows)
        }
        return SimpleNamespace(evaluation={"validated_classes": counts})

    sites = {"north": site((3, 4), (0, 2)), "south": site((1, 4)), "silent": site()}
    progress = cast(RunProgress, SimpleNamespace(steps=(), sites=sites))
    assert Measures(progress)._validated() == 0.4


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_the_command_without_any_data_ends_with_an_error(
    tmp_path: Path, dry_run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from fedelmy_launcher.cli.experiment import experiment

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(experiment, ["table-1", "--column", "PACS", *dry_run])
    assert isinstance(result.exception, ConfigError) and result.exit_code != 0
    assert not list(tmp_path.iterdir()), "nothing was computed, so nothing is written"


def test_other_mistakes_are_named_with_their_cell() -> None:
    experiment = grid(rows=[{"label": "odd", "set": {"strategy.alpha": -1.0}}])
    with pytest.raises(ConfigError, match=r"odd, skew Dir\(0.1\), seed 0: .*alpha"):
        Session.of(
            ExperimentOutcome("digits", "full", experiment, ""),
            cells_of(experiment, {}),
            lambda cell: prepare_cell(cell, {}),
        )


@pytest.mark.parametrize(
    "change",
    [
        "strategy=fedseq",
        "federation=mine",
        "strategies=3",
        "strategies.fedelmy=3",
        "topology=ring",
        "topologies.chain=3",
        "strategy.name=[1]",
        "training=3",
        f"{'a.' * 5000}b=1",
    ],
)
def test_a_value_where_a_table_belongs_is_a_mistake_with_a_name(change: str) -> None:
    with pytest.raises(ConfigError):
        prepared(change)


def test_the_work_of_a_cell_is_counted_before_it_is_done() -> None:
    work = Work.of(prepared())
    sizes = [len(positions) for _, positions in prepared().parts.values()]
    # Two members of four epochs everywhere, and the warm-up at the first site.
    assert work.samples == 8 * sum(sizes) + sizes[0]
    pace = Pace({"a": work.epochs, "b": {StepId("train.1@x"): (1, 10)}})
    for _ in range(9):
        pace.epoch("a", next(iter(work.epochs)))
    assert pace.passed == 9 * sizes[0]
    pace.end("b")
    assert (pace.share_of("b"), pace.count_text()) == (1.0, "1 of 2 cells")


# --- results


def test_a_torn_line_is_cut_off_and_whole_ones_stay(tmp_path: Path) -> None:
    with open_results(tmp_path) as results:
        results.add({"key": "a", "accuracy": 0.5})
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"key": "b", "accu')
    assert set(known_results(tmp_path)) == {"a"}
    with open_results(tmp_path) as results:
        assert results.known == {"a": {"key": "a", "accuracy": 0.5}}
        results.add({"key": "c"})
    assert [json.loads(line)["key"] for line in (tmp_path / FILE).read_text().splitlines()] == [
        "a",
        "c",
    ]


def test_one_command_at_a_time_writes_a_results_file(tmp_path: Path) -> None:
    with (
        open_results(tmp_path),
        pytest.raises(StoreError, match="another command") as caught,
        open_results(tmp_path),
    ):
        pass
    assert caught.value.code == "E-STORE-LOCKED"


@pytest.mark.parametrize(
    "text", ["my notes\n", "my notes", '{"key": "a"}\nmy notes', "[" * 100_000 + "\n"]
)
def test_another_file_of_that_name_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreError, match="not a results file"), open_results(tmp_path):
        pass
    assert (tmp_path / FILE).read_text() == text


@pytest.mark.parametrize("torn", ["{", '{"key": ', '{"key": "b", "accu', "\0\0\0"])
def test_what_a_crash_leaves_of_a_line_is_cut_off(tmp_path: Path, torn: str) -> None:
    (tmp_path / FILE).write_text(f'{{"key": "a"}}\n{torn}')
    with open_results(tmp_path) as results:
        assert set(results.known) == {"a"}
    assert (tmp_path / FILE).read_text() == '{"key": "a"}\n'


# --- processes


def test_a_process_that_dies_costs_its_cell_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one dies in the middle of a line, the second before it is asked again."""
    codes = [
        "print('{\"step', end='')",
        "print('{\"result\": {}}')",
        "input(); print('{\"result\": {}}')",
    ]
    started = []

    def child(hand: Any) -> Any:
        if hand._process is None:
            command = [sys.executable, "-c", codes[len(started)]]
            hand._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            started.append(hand._process)
            if len(started) == 2:
                hand._process.wait()  # its answer stays in the pipe
        return hand._process

    monkeypatch.setattr("fedelmy_launcher.experiments.worker_pool._Worker._child", child)
    with WorkerPool([replace(prepared(), key=key) for key in ("a", "b", "c")], 1) as pool:
        ends = [news for news in pool.news() if isinstance(news, Finished)]
    assert [end.result for end in ends] == [None, None, {}] and len(started) == 3
    for process in started:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


# --- tables and plots


def filled(experiment: Experiment | None = None, *, synthetic: bool = False) -> ExperimentOutcome:
    """Two seeds of everything but MetaFed."""
    experiment = experiment or grid(columns=GRID["columns"][:2])
    outcome = ExperimentOutcome("digits", "small", experiment, "")
    for cell in cells_of(experiment, {}):
        if cell.row.label == "MetaFed":
            outcome.leave_out(cell, NOT_INSTALLED)
            continue
        accuracy = 0.5 + 0.02 * cell.seed + (0.1 if cell.row.label == "FedELMY" else 0)
        outcome.add(
            cell,
            {
                "key": cell.name,
                "accuracy": accuracy,
                "balanced_accuracy": accuracy,
                "bytes": 2_000_000,
                "seconds": 3.0,
                "data": "digits",
                "synthetic": synthetic,
                "subset": False,
                "versions": {"torch": "2.6"},
                "pool_distances": [[0.0, 1.5], [1.5, 0.0]],
            },
        )
    return outcome


def test_deviations_are_those_of_a_sample() -> None:
    assert Statistic.of([0.5]).deviation is None
    assert Statistic.of([1.0, 3.0]) == Statistic(2.0, pytest.approx(2**0.5), 2)


def test_the_table_says_what_it_is_a_table_of() -> None:
    text = text_table(filled(synthetic=True), 80)
    assert "61.00 ± 1.41" in text and "51.00 ± 1.41" in text and NOT_INSTALLED in text
    assert "Setting: small; seeds 0, 1." in text and "torch 2.6" in text
    assert "domain shift is synthetic" in text
    assert max(map(len, text.splitlines()[:-4])) <= 80


def test_a_narrow_terminal_gets_the_columns_below_each_other() -> None:
    lines = text_table(filled(), 34).splitlines()
    assert sum(line.startswith("  FedELMY") for line in lines) == 2


def test_the_average_is_over_the_columns() -> None:
    outcome = filled(grid(columns=GRID["columns"][:2], average=True))
    assert "61.00 ± 1.41 | 61.00 ± 1.41 | 61.00 |" in markdown_table(outcome)


def test_differences_are_those_on_the_same_partitions() -> None:
    outcome = filled(grid(columns=GRID["columns"][:1], against="FedSeq"))
    table = markdown_table(outcome)
    assert "61.00 ± 1.41 (+10.00 ± 0.00)" in table and "| FedSeq | 51.00 ± 1.41 |" in table
    assert "of the difference from FedSeq on the same partitions" in table
    (row,) = [row for row in outcome.encoded()["table"] if row["row"] == "FedELMY"]
    assert row["difference"] == pytest.approx(0.1)


def test_a_row_to_compare_with_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('title = "x"\nagainst = "FedSec"\nrows = [{ label = "FedSeq" }]\n[base]\n')
    with pytest.raises(ConfigError, match="against names 'FedSec'"):
        read_experiment(path)


def test_a_bar_in_a_name_does_not_break_the_markdown() -> None:
    outcome = filled(replace(grid(columns=GRID["columns"][:2]), rows=(Line(label="a|b"),)))
    row = next(line for line in markdown_table(outcome).splitlines() if "a\\|b" in line)
    assert row.replace("\\|", "").count("|") == 4


def test_the_csv_is_tidy() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(filled()))))
    found = [row for row in rows if row["row"] == "FedELMY" and row["measure"] == "accuracy"]
    assert [(row["column"], float(row["mean"]), row["seeds"]) for row in found] == [
        ("Dir(0.1)", pytest.approx(0.61), "2"),
        ("Dir(0.5)", pytest.approx(0.61), "2"),
    ]
    assert {row["remark"] for row in rows if row["row"] == "MetaFed"} == {NOT_INSTALLED}


@pytest.mark.parametrize("kind", ["bars", "lines", "heatmap"])
def test_every_plot_is_drawn_with_what_it_shows(tmp_path: Path, kind: str) -> None:
    from fedelmy_launcher.experiments.plots import write_plots

    experiment = grid(columns=GRID["columns"][:2], plot={"kind": kind, "x": "alpha"})
    svg, png = write_plots(filled(experiment, synthetic=True), tmp_path)
    text = svg.read_text()
    assert "Digits" in text and "setting small, synthetic domain shift" in text
    assert "Dir(0.1)" in text and ("FedSeq" in text or kind == "heatmap") and "MetaFed" not in text
    assert png.read_bytes().startswith(b"\x89PNG")
