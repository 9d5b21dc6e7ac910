"""Child processes: whatever lies in the working directory is none of their code, and paths mean
what they meant.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedelmy_node.child_process import import_environment, python
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.device.trainer_process import OneJob
from fedelmy_node.domain.federation import Training
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.data import absolute_source
from tests.support.small_recipes import job, recipe

SHADOWED = ("secrets", "random", "torch", "numpy", "fedelmy_node", "sitecustomize")


@pytest.fixture
def shadows(tmp_path, monkeypatch):
    """A working directory with files that are named like modules."""
    place = tmp_path / "anybody"
    place.mkdir()
    for name in SHADOWED:
        (place / f"{name}.py").write_text('raise SystemExit("shadowed")')
    monkeypatch.chdir(place)
    return place


def test_a_trainer_imports_nothing_from_where_the_daemon_was_started(shadows, tmp_path):
    assert OneJob(job("prepare", recipe()), tmp_path / "scratch").run().report["parameters"]


def test_nor_do_the_other_processes_of_a_trainer(shadows, tmp_path):
    wanted = job(
        "train",
        recipe(training=Training(epochs=1, batch_size=64, threads=1)),
        output=tmp_path / "o" / "out",
    )
    (tmp_path / "o").mkdir()
    assert OneJob(replace(wanted, processes=2), tmp_path / "step").run().sha256


@pytest.mark.parametrize("entries", ["", ":", "code", ":code", "."])
def test_only_what_the_administrator_names_is_on_the_path(shadows, monkeypatch, entries):
    base = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(part for part in (base, entries) if part))
    path = import_environment()["PYTHONPATH"]
    found = path.split(os.pathsep) if path else []  # an empty one says nothing
    assert "" not in found
    assert (str(shadows / "code") in found) == ("code" in entries)
    assert (str(shadows) in found) == (entries == ".")


def test_a_module_of_python_path_is_found_from_any_directory(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "ward_of_ours.py").write_text("print('found')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["code", os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        python("ward_of_ours"),
        cwd="/",
        env={**os.environ, **import_environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "found\n", done.stderr


def test_commands_run_as_a_module_find_what_the_installed_ones_find(tmp_path):
    (tmp_path / "beside.py").write_text("def load(): ...")
    for program in ("fedelmy_node", "fedelmy_launcher"):
        code = (
            f"import runpy, sys; sys.path[0] = {str(tmp_path)!r}; sys.argv = ['x', '--version']\n"
        )
        code += f"try: runpy.run_module({program!r}, run_name='__main__')\n"
        code += "except SystemExit: pass\n"
        code += (
            "from fedelmy_node.config.registry import is_importable; print(is_importable('beside'))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "False"


def test_the_worker_of_an_experiment_imports_nothing_from_there(shadows):
    env = {**os.environ, **import_environment()}
    done = subprocess.run(
        python("fedelmy_launcher.experiments.worker"), env=env, stdin=subprocess.DEVNULL, check=True
    )
    assert done.returncode == 0


def test_a_relative_path_means_what_it_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 10
    np.savez(tmp_path / "north.npz", images=images, labels=labels)
    config = load_site_config(Given(state=tmp_path / "state", data="npz:north.npz"))
    workspace = Workspace(config, Layout(config.state))
    assert workspace.data.source == f"npz:{tmp_path}/north.npz"
    looked = OneJob(
        replace(job("prepare", recipe()), data=workspace.data), tmp_path / "scratch"
    ).run()
    assert looked.report["samples"]["train"] > 0
    assert json.dumps(looked.report)


def test_sources_with_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ward_data.py").write_text("def load(path): ...")
    (tmp_path / "scans").mkdir()
    for given, meant in {
        "digits": "digits",
        "imagefolder:data": f"imagefolder:{tmp_path}/data",
        "imagefolder:/data/x": "imagefolder:/data/x",
        "shifted:plain:digits": "shifted:plain:digits",
        "shifted:edges:npz:a:b.npz": f"shifted:edges:npz:{tmp_path}/a:b.npz",
        "shifted:plain": "shifted:plain",
        "shifted:plain:nothing:x": "shifted:plain:nothing:x",
        "ward_data:load": "ward_data:load",
        "ward_data:load:scans": f"ward_data:load:{tmp_path}/scans",
        "ward_data:load:bed-7": "ward_data:load:bed-7",  # whatever that means, it is no file here
        "unknown:x": "unknown:x",
        "": "",
    }.items():
        assert absolute_source(given) == meant
