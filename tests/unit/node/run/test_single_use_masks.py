"""A mask serves one acceptance of one plan: the same through every restart, and never again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.step_traits import operation_of
from fedelmy_node.ops.backup import write_backup
from fedelmy_node.ops.restore import read_backup
from fedelmy_node.run.prepare import Preparation
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from tests.support import methods
from tests.support.federations import make_plan, unsigned
from tests.support.journal_writes import end_run, finish_step, set_run

A, RUN = SiteName("a"), RunId("run-1")


def masked_plan(**training: Any) -> Plan:
    """The plan of a masked run of three sites, always with the same id."""
    recipe = methods.recipe_of("analytic", **training) | {"model": {"name": "linear"}}
    return replace(make_plan("a", "b", "c", recipe=recipe), plan_id="0f" * 16)


class Site:
    """The first site, with its files and its journal; a trainer that finds nothing to object to."""

    def __init__(self, root: Path) -> None:
        config, self.layout = load_site_config(Given(state=root, data="digits")), Layout(root)
        self.layout.create()
        self.workspace = Workspace(config, self.layout)
        self.journal = Journal(self.layout.journal, A)
        self.preparation = Preparation(config, self.layout, A, self.workspace, self.journal, Mock())
        look: Any = lambda plan, signed, operator, trial: unsigned(signed.payload)  # noqa: E731
        self.preparation._look = look  # type: ignore[method-assign]

    def accept(self, plan: Plan) -> RunState:
        signed = Signed(
            payload=signed_slices(plan, None)[A].payload, signature=b"", certificate=b""
        )
        return self.preparation.accept(signed, "operator", check_only=False)[1]

    @property
    def mask(self) -> StepId:
        steps = self.journal.run(RUN).slice.steps
        return next(step.id for step in steps if operation_of(step.id) == "mask")

    @property
    def secret(self) -> str:
        """What the mask is made of."""
        record = self.journal.run(RUN)
        secret = self.workspace.assignment(record, record.slice.step(self.mask)).job.secret
        assert len(secret) == 64
        return secret

    def prune(self) -> None:
        self.workspace.remove(RUN)
        self.journal.remove_run(RUN)

    @property
    def outputs(self) -> list[Path]:
        return sorted(self.layout.run(RUN).glob("steps/*/output.safetensors"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "a")
    yield made
    made.journal.close()


def test_a_run_that_is_prepared_again_keeps_its_mask(site: Site) -> None:
    site.accept(masked_plan())
    first = site.secret
    assert site.accept(masked_plan()) == RunState.PREPARED and site.secret == first
    set_run(site.journal, RUN, RunState.RUNNING)
    assert site.accept(masked_plan()) == RunState.RUNNING and site.secret == first
    site.journal.close()
    again = Site(site.layout.root)
    assert again.secret == first
    again.journal.close()


def test_a_run_that_was_pruned_gets_another_mask(site: Site) -> None:
    """The same signed plan; with one more sample, a neighbour could subtract what it received."""
    site.accept(masked_plan())
    first = site.secret
    site.prune()
    site.accept(masked_plan())
    assert site.secret != first


@pytest.mark.parametrize("state", [RunState.EXPIRED, RunState.CANCELLED])
def test_a_run_that_never_began_gets_another_mask(site: Site, state: RunState) -> None:
    site.accept(masked_plan())
    first = site.secret
    set_run(site.journal, RUN, state)
    site.accept(masked_plan())
    assert site.secret != first and site.journal.run(RUN).state == RunState.PREPARED


def test_another_recipe_under_the_same_ids_gets_another_mask(site: Site) -> None:
    site.accept(masked_plan())
    record = site.journal.run(RUN)
    first, other = site.secret, masked_plan(epochs=2)
    site.prune()
    site.accept(other)
    known = site.journal.run(RUN)
    assert (known.slice.plan_id, known.slice.recipe) == (record.slice.plan_id, other.recipe)
    assert site.secret != first


def test_a_restored_run_keeps_its_mask_and_one_that_was_not_in_the_backup_gets_another(
    site: Site, tmp_path: Path
) -> None:
    AuditLog(site.layout.root).record(Act(act="node-started"))
    site.accept(masked_plan())
    old = site.secret  # there is a secret from now on
    site.prune()
    write_backup(site.layout.root, tmp_path / "before.tar")
    site.accept(masked_plan())
    set_run(site.journal, RUN, RunState.RUNNING)
    first = site.secret
    write_backup(site.layout.root, tmp_path / "during.tar")
    read_backup(tmp_path / "during.tar", tmp_path / "during")
    during = Site(tmp_path / "during")
    assert during.secret == first
    during.journal.close()
    read_backup(tmp_path / "before.tar", tmp_path / "before")
    before = Site(tmp_path / "before")
    before.accept(masked_plan())
    assert before.layout.secret.read_bytes() == site.layout.secret.read_bytes()
    assert len({old, first, before.secret}) == 3
    before.journal.close()


@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.ABORTED])
def test_a_run_that_is_over_leaves_no_mask(site: Site, state: RunState) -> None:
    """With it, a backup of the site would tell what it sent."""
    site.accept(masked_plan())
    set_run(site.journal, RUN, RunState.RUNNING)
    steps = [step.id for step in site.journal.run(RUN).slice.steps[:2]]
    assert [operation_of(step) for step in steps] == ["mask", "train"]
    mask, train = (site.layout.output(RUN, step) for step in steps)
    for step, path in zip(steps, (mask, train), strict=True):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"numbers")
        finish_step(site.journal, RUN, step, "ab", 7, {})
    end_run(site.journal, RUN, state)
    assert site.workspace.is_untidy(site.journal.run(RUN)), "killed before it was removed"
    site.workspace.tidy(site.journal.run(RUN))
    assert site.outputs == [train], "what was trained is kept"
    assert not site.workspace.is_untidy(site.journal.run(RUN))
