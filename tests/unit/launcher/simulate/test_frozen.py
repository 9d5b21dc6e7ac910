"""Simulate a federation that trains the head of a model that every site has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedelmy_launcher.cli.simulate import simulate
from fedelmy_node.domain.errors import BundleError, ConfigError
from tests.support.small_weights import make_weights, save_images

TOML = """
[federation]
name = "frozen"
topology = "mesh"

[[sites]]
name = "north"
address = "north.example:50051"

[[sites]]
name = "south"
address = "south.example:50051"

[task]
classes = ["0", "1", "2"]
input = {{ height = 32, width = 32, channels = 3 }}

[model]
name = "cnn-small"
weights = {{ file = "backbone.safetensors", sha256 = "{sha256}" }}
train = {train}

[training]
epochs = 1
threads = 1

[strategy]
name = "fedavg"
"""


@pytest.fixture
def invoke(tmp_path: Path) -> Any:
    weights = make_weights(tmp_path / "weights", "cnn-small")
    data, path = save_images(tmp_path / "data.npz"), tmp_path / "federation.toml"

    def simulated(*arguments: str, train: str = '"head"') -> Result:
        path.write_text(TOML.format(sha256=weights.sha256, train=train))
        command = [str(path), "--data", data, "--json", *arguments]
        return CliRunner().invoke(simulate, command)

    return simulated


def last_line(result: Result) -> Any:
    assert result.exception is None, result.exception
    return json.loads(result.output.splitlines()[-1])


def test_heads_are_sent_and_averaged(invoke: Any) -> None:
    head, whole = (last_line(invoke(train=train)) for train in ('"head"', '"all"'))
    assert head["state"] == "done" and not head["results_differ"]
    assert 4 * 3 * 513 <= head["bundle_bytes"] < 4 * 3 * 513 + 800 < whole["bundle_bytes"]
    assert head["bundle_sha256"] == last_line(invoke())["bundle_sha256"]


def test_mistakes_are_found_before_anything_is_trained(invoke: Any, tmp_path: Path) -> None:
    missing = invoke("--weights", str(tmp_path / "elsewhere")).exception
    assert isinstance(missing, BundleError) and missing.code == "E-WEIGHTS-MISSING"
    pattern = invoke(train='["8.*"]').exception
    assert isinstance(pattern, ConfigError) and pattern.code == "E-CONFIG-TRAIN"
