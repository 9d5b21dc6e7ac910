"""What is in deploy/ asks only for metrics that a node has, with labels that these have."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scrapes import Scraped, full_scrape

DEPLOY = Path(__file__).parents[2] / "deploy"
GRAFANA = DEPLOY / "grafana" / "fedelmy.json"
PROMETHEUS = DEPLOY / "prometheus"
_NAME = re.compile(r"\b(?:fedelmy|process)_[a-z_]+\b")
_SELECTOR = re.compile(r"\b((?:fedelmy|process)_[a-z_]+)\{([^}]*)\}")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    return full_scrape(tmp_path_factory.mktemp("node") / "journal.db")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(GRAFANA.read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in json.loads(GRAFANA.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]
    for line in (PROMETHEUS / "alerts.yml").read_text().splitlines():
        if line.strip().startswith("expr:"):
            yield f"alert {line.strip()}", line.partition(":")[2].strip()


@pytest.mark.parametrize(
    ("where", "expression"), list(expressions()), ids=lambda text: str(text)[:60]
)
def test_every_query_has_its_metric_and_its_labels(
    scraped: Scraped, where: str, expression: str
) -> None:
    names = set(_NAME.findall(expression))
    assert names or "up{" in expression, f"{where} asks for nothing"
    assert names <= scraped.names, f"{where} asks for {names - scraped.names}, which no node has"
    sampled: dict[str, set[str]] = {}
    for name, labels in scraped.series():
        sampled.setdefault(name, set()).update(labels)
    assert names <= sampled.keys(), f"{where}: no sample of {names - sampled.keys()}"
    for name, selector in _SELECTOR.findall(expression):
        used = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", selector))
        assert used <= sampled[name], f"{where}: {name} has no label {used - sampled[name]}"


def test_every_legend_uses_labels_that_are_left(scraped: Scraped) -> None:
    for panel in panels():
        for target in panel.get("targets", ()):
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            if grouped:
                left = {label.strip() for label in grouped[0].split(",")}
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, panel["title"]


def test_the_dashboard_is_laid_out() -> None:
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == ["Health", "Runs", "Training curves", "Transfers", "Disk and certificates"]
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        assert panel["type"] == "row" or panel["targets"], panel["title"]
        for text in (panel["title"], panel.get("description", "")):
            assert "TODO" not in text


def test_every_alert_says_what_to_do() -> None:
    blocks = (PROMETHEUS / "alerts.yml").read_text().split("- alert: ")[1:]
    assert len(blocks) >= 5
    for block in blocks:
        for key in ("expr:", "severity:", "summary:", "action:"):
            assert key in block, block
    assert {block.splitlines()[0] for block in blocks} >= {
        "FedelmyCertificateExpires",
        "FedelmyDiskLow",
        "FedelmyNotServing",
        "FedelmyNeighbourUnreachable",
    }


@pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="PyYAML is not installed")
@pytest.mark.parametrize("path", sorted(PROMETHEUS.glob("*.yml")), ids=lambda path: path.name)
def test_the_files_are_yaml(path: Path) -> None:
    import yaml

    assert isinstance(yaml.safe_load(path.read_text()), dict)
