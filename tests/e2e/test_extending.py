"""docs/extending.md, word for word: what it shows is written down, installed, simulated and asked
of a real site.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedelmy_node import load_model
from tests.e2e.support.packages import importable, install, install_strategy
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Site, launched, run
from tests.e2e.support.witness import Witness

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text("utf-8")
BLOCK = re.compile(r"`(ward/\w+\.py|pyproject\.toml)`(?:, [^\n]*)?:\n\n```\w+\n(.*?)```", re.DOTALL)
FEDERATION = re.search(r"```toml\n(\[federation\].*?)```", PAGE, re.DOTALL)
RUBBLE = """
[project]
name = "rubble"
version = "2"

[project.entry-points."fedelmy.strategies"]
fedelmy = "rubble"
rubble = "rubble.nowhere"
"""
MORTAL = '''
"""The method of the page, in daemons that kill themselves around the commit of a step.

They do so once for every file `written-STEP` (what the trainer wrote is complete, the transaction
is open) and `committed-STEP` (it is committed, and nothing was done about it) beside the federation.
"""

import os, signal
from pathlib import Path

from fedelmy_node.store.changes import StepChange
from fedelmy_node.store.journal import Journal
from ward.votes import OPERATIONS, RESULT, Settings, wire

_apply, _publish = Journal._apply, Journal._publish
committed = []


def die(when, step):
    order = Path(f"{when}-{step}")
    if order.exists():
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def apply(self, run, change):
    _apply(self, run, change)
    if isinstance(change, StepChange) and change.record.state == "done":
        die("written", change.step)
        committed.append(change.step)


def publish(self, events):
    while committed:
        die("committed", committed.pop())
    _publish(self, events)


Journal._apply, Journal._publish = apply, publish
'''


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's package, in a directory that Python looks into, with the metadata that pip would
    have written.
    """
    root = tmp_path_factory.mktemp("elsewhere")
    files = dict(BLOCK.findall(PAGE))
    assert set(files) == {
        "ward/models.py",
        "ward/data.py",
        "ward/strategy.py",
        "ward/topology.py",
        "ward/votes.py",
        "pyproject.toml",
    }
    (root / "ward").mkdir()
    (root / "ward" / "__init__.py").touch()
    for name, text in files.items():
        (root / name).write_text(text)
    install(root, files["pyproject.toml"])
    install(root, RUBBLE)
    with importable(root):
        yield root


def federation(*changes: tuple[str, str]) -> str:
    assert FEDERATION is not None
    text = FEDERATION[1]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_what_is_installed_is_listed_with_where_it_comes_from(ward: Path) -> None:
    rows = {
        row["name"]: row
        for row in run("fedelmy_launcher", "list", "models", "--json").ok().json["models"]
    }
    assert rows["ward-tiny"]["origin"] == "ward 1.0" and rows["mlp"]["origin"] == "built in"
    assert rows["ward-tiny"]["description"] == "Networks and data of our ward"
    plain = " ".join(run("fedelmy_launcher", "list", "strategies").ok().out.split())
    assert re.search(r"fedelmy built in .* fedelmy rubble 2 .*the name is built in", plain)
    assert re.search(r"rubble rubble 2 .*its module is missing", plain)
    assert "longer ward 1.0 Networks and data of our ward" in plain


def test_the_federation_of_the_page_trains(ward: Path, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(federation())
    refused = run("fedelmy_launcher", "simulate", cwd=tmp_path).failed("E-CONSENT-CODE", 5)
    assert "--allow-code ward.data:scans" in refused.err, "the file may be somebody else's"
    told = (
        run(
            "fedelmy_launcher",
            "simulate",
            "--json",
            "--allow-code",
            "ward.data:scans",
            cwd=tmp_path,
        )
        .ok()
        .out
    )
    lines = [json.loads(line) for line in told.splitlines()]
    assert lines[-1]["state"] == "done" and lines[-1]["accuracy"] > 0.9
    events = [line["event"] for line in lines if "event" in line]
    epochs = [event["site"] for event in events if event["kind"] == "epoch"]
    assert epochs == ["north"] * 6 + ["south"] * 6 + ["north"] * 6, (
        "there and back, and three times two epochs"
    )


def test_a_broken_package_is_named_and_breaks_nothing_else(ward: Path, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(federation(('"longer"', '"rubble"')))
    ours = ("--data", "ward.data:scans")
    failed = run("fedelmy_launcher", "simulate", *ours, cwd=tmp_path).failed(
        "E-CONFIG-EXTENSION", 2
    )
    assert "strategy 'rubble' of package rubble 2 cannot be used" in failed.err


def test_a_real_site_runs_the_code_that_it_lists_and_no_other(
    ward: Path, make_bed: Callable[..., Bed]
) -> None:
    bed = make_bed("north")
    site = bed.sites["north"]
    (site.state / "site.toml").write_text('[consent]\nmodels = ["*", "ward.models:tiny"]\n')
    site.start(data="ward.data:scans")
    alone = re.sub(
        r"\[\[sites\]\].*?\n\n(?=\[task)",
        f'[[sites]]\nname = "north"\naddress = "{site.address}"\n\n',
        federation(),
        flags=re.DOTALL,
    )
    bed.file.write_text(alone.replace('"ward-tiny"', '"ward.models:tiny"'))
    found = bed.launch("check", "--quick", "--json").ok().json
    assert found["sites"]["north"]["parameters"] == 64 * 32 + 32 + 32 * 2 + 2
    shown = bed.launch("discover", site.address).ok().out
    assert "own code" in shown and "ward" not in shown
    assert found["sites"]["north"]["packages"] == ["ward 1.0"], "of the strategy"
    bed.file.write_text(alone.replace('"ward-tiny"', '"ward.models:other"'))
    refused = bed.launch("check", "--quick")
    assert refused.code == 5 and "E-CONSENT-CODE" in refused.out
    assert "ward.models:other" in refused.out and "allowed: ward.models:tiny" in refused.out


@pytest.fixture(scope="module")
def votes(ward: Path, make_bed: Callable[..., Bed]) -> tuple[Bed, dict[str, Any]]:
    """Two sites with the method of the page, and what comes out in simulation."""
    install_strategy(ward, "mortal", MORTAL)
    bed = make_bed("north", "south")
    bed.partition()
    north, south = bed.sites.values()
    south.start()
    north.start("--indices", "parts/north.json", "--peer", south.address)
    south.stop()
    again(south)
    bed.write_file()
    method(bed, "votes")
    bed.file.write_text(bed.file.read_text().replace("epochs = 2", "epochs = 80"))
    simulated = bed.launch("simulate", "--json").ok().json
    return bed, simulated


def again(site: Site) -> None:
    """Start a site where it was."""
    (other,) = (known for known in site.bed.sites.values() if known is not site)
    indices = ("--indices", f"parts/{site.name}.json")
    site.start(*indices, "--peer", other.address, listen=site.address)


def method(bed: Bed, name: str) -> None:
    text = bed.file.read_text()
    bed.file.write_text(
        re.sub(r"\[strategy\].*", f'[strategy]\nname = "{name}"\n', text, flags=re.S)
    )


def states(bed: Bed) -> list[Path]:
    return [path for site in bed.sites.values() for path in site.state.rglob("state.safetensors")]


def test_a_method_of_a_package_runs_on_real_sites_and_survives_a_kill(
    votes: tuple[Bed, dict[str, Any]],
) -> None:
    """Two operations, a state at every site, and an ensemble as the result."""
    bed, simulated = votes
    north, south = bed.sites.values()
    method(bed, "votes")
    with launched(bed, "votes") as launcher:
        with Witness(south, "votes").held("train.4@south"):
            told = bed.launch("status", "votes").ok().out
            assert "collect.5@south" in told and "trained by north" in told
            south.kill()
        again(south)
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["bundle_sha256"] == simulated["bundle_sha256"]
    assert result["accuracy"] == simulated["accuracy"] > 0.9
    exported = bed.root / "votes.safetensors"
    north.node("model", "export", "--out", str(exported)).ok()
    assert {name.partition("/")[0] for name in load_file(exported)} == {"model.0", "model.1"}
    assert len(load_model(exported).module.members) == 2
    assert north.node("model", "evaluate", "--json").ok().json["accuracy"] > 0.9
    assert not states(bed), "a run that is over leaves none"
    told = bed.launch("run", "--attach", "votes", "--json").ok().json
    assert (told["state"], told["contributors"]) == ("done", ["north", "south"])
    pages = bed.root / "votes.html", bed.root / "votes.json"
    bed.launch("report", "--run", "votes", "--out", str(pages[0])).ok()
    assert "input of collect" in pages[0].read_text()
    history = json.loads(pages[1].read_text())
    spans = [
        (site["name"], s["what"], s["detail"]) for site in history["sites"] for s in site["spans"]
    ]
    assert ("south", "computing", "collect.5@south") in spans
    trains = {step["step"] for site in history["sites"] for step in site["steps"] if step["trains"]}
    assert trains == {f"train.{n}@{site}" for n, site in enumerate(["north", "south"] * 2, 1)}


@pytest.mark.full
@pytest.mark.parametrize(
    "kills",
    [
        (("committed", "train.1@north"), ("written", "train.2@south")),
        (("written", "train.3@north"), ("committed", "train.4@south")),
    ],
    ids=["states-made", "states-used"],
)
def test_a_daemon_killed_around_a_commit_applies_a_state_once(
    votes: tuple[Bed, dict[str, Any]], kills: tuple[tuple[str, str], ...], request: Any
) -> None:
    bed, simulated = votes
    method(bed, "mortal")
    run = request.node.callspec.id
    for when, step in kills:
        (bed.root / f"{when}-{step}").touch()
    with launched(bed, run) as launcher:
        for when, step in kills:
            site = bed.sites[step.partition("@")[2]]
            witness, process = Witness(site, run), site.process
            assert process is not None and process.wait(COMMAND_SECONDS) == -signal.SIGKILL
            files = witness.step_directory(step)
            assert (files / "state.safetensors").exists() and (
                files / "output.safetensors"
            ).exists()
            done = witness.find("step", step, state="done")
            assert (done is not None) == (when == "committed")
            again(site)
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["bundle_sha256"] == simulated["bundle_sha256"]
    events = [event for site in bed.sites.values() for event in Witness(site, run).events()]
    done = [event.step for event in events if event.has("step", state="done")]
    assert len(done) == len(set(done)), "every step is done once"
    for when, step in kills:
        begun = [e for e in events if e.step == step and e.has("step", state="running")]
        assert len(begun) == (2 if when == "written" else 1)
    assert not states(bed)
