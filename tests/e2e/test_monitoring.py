"""What whoever keeps a site running sees: metrics while a run goes on, logs for machines, probes,
an audit log gone.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, Done, launched
from tests.e2e.support.witness import Witness, wait_until

NAMES = ("north", "south")
RUN = "watched"
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed(*NAMES)
    made.partition()
    following = ""
    for name, site in reversed(made.sites.items()):
        peer = ["--peer", following] if following else []
        flags = ["--indices", f"parts/{name}.json", "--metrics", "0", "--log-format", "json"]
        following = site.start(*flags, *peer).address
    made.write_file()
    text = made.file.read_text().replace("batch_size = 64", "batch_size = 4")
    made.file.write_text(text)  # short epochs, but long enough to be held between two of them
    return made


class Scrapes:
    def __init__(self, bed: Bed) -> None:
        self._places = {
            name: site.node("health", "--json").ok().json["metrics"]
            for name, site in bed.sites.items()
        }

    def samples(self, site: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        with urllib.request.urlopen(f"http://{self._places[site]}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, site: str, name: str, **labels: str) -> float:
        """0 if there is none: counters with labels begin with their first event."""
        return self.samples(site).get((name, tuple(sorted({"site": site, **labels}.items()))), 0.0)

    def has_run(self, site: str, name: str, run: str) -> bool:
        return any(key[0] == name and ("run", run) in key[1] for key in self.samples(site))


@pytest.fixture(scope="module")
def scrapes(bed: Bed) -> Scrapes:
    return Scrapes(bed)


@pytest.fixture(scope="module")
def killed(bed: Bed, scrapes: Scrapes) -> str:
    """A run that has ended; while it went on, its curves were there, and a trainer was killed: its
    arguments.
    """
    south = Witness(bed.sites["south"], RUN)
    with launched(bed, RUN) as launcher:
        look: Callable[[], bool] = lambda: scrapes.has_run("north", "fedelmy_epoch_loss", RUN)  # noqa: E731
        with south.held("train.2@south") as trainer:
            wait_until(look, "loss of a run under way", every=0.1)
            command = Path(f"/proc/{trainer.pid}/cmdline").read_bytes()
            trainer.kill()
        launcher.wait(COMMAND_SECONDS)
    for site in bed.sites.values():
        wait_until(lambda site=site: Witness(site, RUN).state() == "done", "the end", every=0.1)
    return command.replace(b"\0", b" ").decode()


@pytest.fixture(scope="module")
def run(killed: str) -> str:
    return RUN


def test_metrics_count_what_happened(bed: Bed, scrapes: Scrapes, run: str) -> None:
    def sent() -> float:
        return scrapes.value("north", "fedelmy_sent_bytes_total", peer="south")

    wait_until(
        lambda: scrapes.value("south", "fedelmy_runs_ended_total", state="done") == 1,
        "a fresh scrape",
        every=0.2,
    )
    assert sent() == scrapes.value("south", "fedelmy_received_bytes_total", peer="north") > 1000
    for site in NAMES:
        assert scrapes.value(site, "fedelmy_epochs_total", phase="member") >= 4, (
            "two members, two epochs each"
        )
        assert scrapes.value(site, "fedelmy_pool_members_total") >= 2, (
            "a trainer that died may tell one again"
        )
        assert scrapes.value(site, "fedelmy_steps_ended_total", kind="train", state="done") == 1
        assert scrapes.value(site, "fedelmy_step_seconds_count", kind="train") == 1
        assert scrapes.value(site, "fedelmy_runs", state="done") == 1
        assert scrapes.value(site, "fedelmy_steps", state="running") == 0
        assert scrapes.value(site, "fedelmy_serving", service="fedelmy.v1.Transfer") == 1
        expires = bed.sites[site].node("health", "--json").ok().json["certificate_expires"]
        assert scrapes.value(site, "fedelmy_certificate_expiry_timestamp_seconds") == expires
    assert scrapes.value("north", "fedelmy_epochs_total", phase="member") == 4
    assert scrapes.value("north", "fedelmy_pool_members_total") == 2
    assert scrapes.value("north", "fedelmy_epochs_total", phase="warm-up") == 1
    assert scrapes.value("south", "fedelmy_warnings_total", code="E-TRAINING-CRASH") == 1
    assert scrapes.value("north", "fedelmy_handover_seconds_count") >= 1


def test_nothing_of_the_data_is_in_the_metrics(bed: Bed, scrapes: Scrapes, run: str) -> None:
    for site in NAMES:
        labels = {value for _, pairs in scrapes.samples(site) for _, value in pairs}
        assert not [
            value
            for value in labels
            if "/" in value or value in {str(digit) for digit in range(10)}
        ]


def lines(bed: Bed, site: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bed.sites[site].log.read_text().splitlines()]


def test_every_line_of_the_log_says_where_it_belongs(bed: Bed, run: str) -> None:
    for site in NAMES:
        found = lines(bed, site)
        assert len(found) > 10
        for line in found:
            assert _RFC_3339.fullmatch(line["time"]), line
            assert line["site"] == site and line["level"] and line["logger"] and line["message"], (
                line
            )
            told = line["message"]
            if line["logger"] == "fedelmy_node.store.event_bus":
                assert line["run"] == run, line
            if run in told and "audit" not in line["logger"]:
                assert line.get("run") == run, f"a line about a run does not say so: {line}"
            steps = set(re.findall(r"\b(?:train|evaluate|deliver)\.\d+@" + site, told))
            if len(steps) == 1 and line["logger"].startswith("fedelmy_node.store"):
                assert line["step"] in steps, line
        members = [line for line in found if "pool member" in line["message"]]
        assert members and all(line["step"].startswith("train.") for line in members)


def test_a_trainer_that_dies_is_logged_with_its_run_and_step(bed: Bed, killed: str) -> None:
    assert f"south {RUN} train.2@south" in killed, "whoever lists processes sees what each is for"
    (line,) = [
        line
        for line in lines(bed, "south")
        if line["logger"] == "fedelmy_node.device.trainer_process"
    ]
    assert "was killed by signal 9" in line["message"]
    assert (line["run"], line["step"]) == (RUN, "train.2@south")


def test_a_probe_has_its_exit_codes(bed: Bed, run: str) -> None:
    site = bed.sites["south"]
    well = site.node("health").ok()
    assert "is serving" in well.out and "free" in well.out and "http://127.0.0.1:" in well.out
    assert site.node("health", "--quiet", "--service", "transfer").ok().out == ""
    found = site.node("health", "--json").ok().json
    assert {service["name"] for service in found["services"] if service["serving"]} == {
        "",
        "fedelmy.v1.Control",
        "fedelmy.v1.Peer",
        "fedelmy.v1.Relay",
        "fedelmy.v1.Transfer",
    }
    assert found["version"] and 0 < found["free_bytes"] <= found["total_bytes"]
    assert site.stop() == 0
    nobody: Done = site.node("health", "--quiet")
    assert nobody.code == 7 and nobody.out == "" and "E-STORE-DAEMON" in nobody.err


def test_an_audit_log_that_is_gone_is_missed(bed: Bed, run: str) -> None:
    site = bed.sites["south"]
    if site.process is not None and site.process.poll() is None:
        site.stop()
    for name in ("audit.jsonl", "audit.head"):
        (site.state / name).unlink()
    broken = site.node("audit", "verify").failed("E-AUDIT-BROKEN", 7)
    assert "the journal has" in broken.err and "run" in broken.err
