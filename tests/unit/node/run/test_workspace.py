"""The jobs of steps: what a site's own settings add to the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedelmy_node.config.decode import encode
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.state_directory import Layout
from tests.support.federations import make_federation, make_plan
from tests.unit.node.run.site import Site

SUMS = {"name": "analytic", "settings": {"finetune": True}}
ALONE = {"name": "analytic"}
MODELS = {"name": "fedseq"}


@pytest.mark.parametrize(
    ("strategy", "sites", "limited"),
    [(SUMS, "abc", {"train"}), (ALONE, "b", set()), (MODELS, "abc", set())],
)
@pytest.mark.parametrize(("table", "limit"), [("", 10), ("min_class_samples = 25", 25)])
def test_the_smallest_class_is_limited_where_sums_of_samples_leave(
    tmp_path: Path, strategy: Any, sites: str, limited: set[str], table: str, limit: int
) -> None:
    (tmp_path / "site.toml").write_text(f"[consent]\n{table}\n")
    layout = Layout(tmp_path)
    layout.create()
    workspace = Workspace(load_site_config(Given(state=tmp_path, data="digits")), layout)
    recipe = encode(make_federation().recipe) | {"strategy": strategy, "model": {"name": "linear"}}
    record = Site("b", make_plan(*sites, recipe=recipe)).record
    jobs = [workspace.assignment(record, step).job for step in record.slice.steps]
    assert {"train", "evaluate"} <= {job.kind for job in jobs}
    assert {job.kind: job.min_class_samples for job in jobs} == {
        job.kind: limit if job.kind in limited else 1 for job in jobs
    }
