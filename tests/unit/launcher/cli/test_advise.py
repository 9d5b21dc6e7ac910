"""`fedelmy-launch advise` with sites that answer, refuse, disclose little or are down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from fedelmy_launcher.cli.advise import advise
from fedelmy_launcher.control import sites as control
from fedelmy_launcher.control.sites import Refusal
from fedelmy_node.domain.errors import ConsentError, PeerError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import PrepareAnswer
from tests.repo import json_keys
from tests.support.federations import TOML, write_toml

Reports = Mapping[str, Mapping[str, Any]]


def report(*counts: int) -> dict[str, Any]:
    return {
        "samples": {"train": sum(counts), "validation": 10, "test": 10},
        "class_counts": {str(number): count for number, count in enumerate(counts)},
        "missing_classes": [str(number) for number, count in enumerate(counts) if not count],
    }


SITES = {"north": report(*[90] * 6, *[0] * 4), "south": report(*[30] * 10), "west": {}}


class FakeSites:
    """Answers instead of connections."""

    reports: ClassVar[dict[str, Mapping[str, Any]]] = {}
    down: ClassVar[set[str]] = set()
    refusing: ClassVar[set[str]] = set()
    alone: ClassVar[list[Plan]] = []

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> FakeSites:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe(self) -> tuple[dict[SiteName, Any], list[Refusal]]:
        gone = [Refusal(SiteName(n), PeerError("E-PEER-UNREACHABLE", n)) for n in self.down]
        return {SiteName(n): SimpleNamespace() for n in self.reports if n not in self.down}, gone

    def prepare(
        self, plan: Plan, *, check_only: bool, sites: Iterable[SiteName]
    ) -> tuple[dict[SiteName, PrepareAnswer], list[Refusal]]:
        assert check_only and {step.site for step in plan.steps} == set(self.reports)
        refused = [
            Refusal(name, ConsentError("E-CONSENT-PEER", name))
            for name in sites
            if name in self.refusing
        ]
        return {n: self.answer(n) for n in sites if n not in self.refusing}, refused

    def prepare_alone(
        self, plans: Mapping[SiteName, Plan]
    ) -> tuple[dict[SiteName, PrepareAnswer], list[Refusal]]:
        self.alone.extend(plans.values())
        return {name: self.answer(name) for name in plans}, []

    def answer(self, name: str) -> PrepareAnswer:
        return PrepareAnswer(report=self.reports[name], state=RunState.PREPARED)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeSites]:
    monkeypatch.setattr(control, "Sites", FakeSites)
    FakeSites.reports, FakeSites.down, FakeSites.refusing = dict(SITES), set(), set()
    FakeSites.alone = []
    return FakeSites


def call(directory: Path, *options: str, text: str = TOML) -> Result:
    arguments = [str(write_toml(directory, text)), "--insecure", *options]
    return CliRunner().invoke(advise, arguments, standalone_mode=False, catch_exceptions=False)


def test_what_people_read(tmp_path: Path) -> None:
    out = call(tmp_path).output
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "north 540 6 of 10 █░░░░░░░░░ 0.14" in lines
    assert "west - - -" in lines
    assert "west disclosed no class counts; the other sites are assumed to be typical." in out
    table = out.partition("Recommended, in federation.toml:")[2].partition("Why:")[0].strip()
    assert table == (
        '[training]\nepochs = 4  # now 2\nloss = "prior_corrected"  # now "cross_entropy"\n'
        'distil_absent = 1.0  # now 0.0\n\n[strategy]\nname = "fedseq"  # now "fedelmy"\n'
        "# remove pool_size, warmup_epochs"
    )
    for line in (
        "  [1]  ",
        "docs/results.md#a-loss-that-does-not-forget",
        "`fedelmy-launch check`",
    ):
        assert line in out


def test_a_file_that_follows_the_advice(tmp_path: Path) -> None:
    text = TOML.partition("[strategy]")[0] + '[strategy]\nname = "fedseq"\n'
    text = text.replace("epochs = 2", 'epochs = 2\nloss = "prior_corrected"\ndistil_absent = 1.0')
    out = call(tmp_path, text=text).output
    assert "federation.toml already follows the advice." in out and "Recommended" not in out
    assert "Why:" in out and "check`" not in out.partition("Measured")[2]


def test_json(tmp_path: Path, fake: type[FakeSites]) -> None:
    fake.down = {"south"}
    out = call(tmp_path, "--json").output
    json_keys.check("fedelmy_launcher", ["advise", "--json"], out)
    found = json.loads(out)
    assert set(found["sites"]) == set(SITES) and list(found["problems"]) == ["south"]
    assert found["skew"]["level"] == "moderate" and found["skew"]["distance"] is None
    assert "skew is unknown" in found["assumed"][0]
    cited = {name for each in found["recommended"] for name in each["evidence"]}
    assert cited <= {row["id"] for row in found["evidence"]}
    assert found["remove"] == ["strategy.pool_size", "strategy.warmup_epochs"]
    assert 'name = "fedseq"' in found["toml"]


def test_a_site_that_refuses_tells_its_counts_alone(tmp_path: Path, fake: type[FakeSites]) -> None:
    fake.down, fake.refusing = {"west"}, {"south"}
    out = call(tmp_path).output
    (plan,) = fake.alone
    assert {step.site for step in plan.steps} == {"south"}
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(
        line.startswith("south 300 10 of 10") and line.endswith("would refuse (E-CONSENT-PEER)")
        for line in lines
    )
    assert "west - - - no answer (E-PEER-UNREACHABLE)" in lines
    assert lines[-1] == "Some sites would not take part: `fedelmy-launch check` says why."


@pytest.mark.parametrize(
    "text",
    [
        '[federation]\ntopology = "mesh"',
        '[federation]\ntopology = "superclients"\ndeliver = "last"\non_unreachable = "abort"',
    ],
)
def test_a_site_alone_needs_no_topology(tmp_path: Path, fake: type[FakeSites], text: str) -> None:
    fake.refusing = set(SITES)
    groups = '\n[topology]\ngroups = [["north", "south"], ["west"]]\n' if "super" in text else ""
    out = call(tmp_path, text=TOML.replace("[federation]", text) + groups).output
    assert len(fake.alone) == 3 and out.count("would refuse") == 3


def test_a_masked_chain_asks_each_site_alone_without_a_mask(
    tmp_path: Path, fake: type[FakeSites]
) -> None:
    fake.refusing = {"north"}
    strategy = '[strategy]\nname = "analytic"\nmasked = true\n'
    text = TOML.partition("[strategy]")[0].replace("mlp", "linear") + strategy
    out = call(tmp_path, text=text).output
    assert len(fake.alone) == 1 and "the last site needs a --peer for the first one" in out
