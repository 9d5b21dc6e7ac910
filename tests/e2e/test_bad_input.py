"""Whatever is wrong: a clear message with a stable code, its exit code, what to do, and nothing
changed on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.plans.compiler import compile_plan, load_federation, signed_slices
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.names import SiteName, run_id
from fedelmy_node.domain.reports import Signed
from fedelmy_node.identity import keystore
from fedelmy_node.identity.signatures import Purpose, sign
from tests.e2e.support.testbed import Bed, Done, run

NAMES = ("north", "south")


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """Two sites, provisioned; north runs, south is started by the tests that need it."""
    made = make_bed(*NAMES)
    made.partition()
    made.start_chain()
    made.write_file()
    return made


def snapshot(root: Path) -> dict[str, str]:
    """Every file under `root` that holds something, with its digest; a daemon's live files are left
    out.
    """
    live = {
        "journal.db-wal",
        "journal.db-shm",
        "admin.sock",
        "audit.jsonl",
        "audit.head",
    }  # refusals are written down
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in live and path.suffix != ".log"
    }


def serve(state: Path, *arguments: str) -> Done:
    """A daemon that is expected not to start."""
    return run("fedelmy_node", "serve", "--state", str(state), *arguments)


@pytest.mark.parametrize(
    ("old", "new", "code", "exit_code", "advice"),
    [
        ("epochs = 2", "epoch = 2", "E-CONFIG-KEY", 2, "epochs"),
        ('name = "mlp"', 'name = "mpl"', "E-CONFIG-MODEL", 2, "mlp"),
        ("seed = 3", "seed = -3", "E-CONFIG-VALUE", 2, "seed"),
    ],
)
def test_mistakes_in_federation_toml(
    bed: Bed, tmp_path: Path, old: str, new: str, code: str, exit_code: int, advice: str
) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(bed.file.read_text().replace(old, new))
    before = snapshot(bed.root)
    for command in ("run", "check", "simulate", "status"):
        done = bed.launch(command, str(path)).failed(code, exit_code)
        assert advice in done.err
    assert snapshot(bed.root) == before


def test_errors_for_machines(bed: Bed, tmp_path: Path) -> None:
    done = bed.launch("run", str(tmp_path / "none.toml"), "--json").failed("E-CONFIG-MISSING", 2)
    assert done.json["error"]["code"] == "E-CONFIG-MISSING"
    assert done.json["error"]["hint"]


def test_an_unreachable_site_starts_nothing(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    bed.write_file(addresses={"south": f"127.0.0.1:{free}"})
    try:
        done = bed.launch("run", "--run", "unreachable").failed("E-PEER-UNREACHABLE", 6)
        assert "south" in done.err and str(free) in done.err
    finally:
        bed.write_file()
    assert "unreachable" not in bed.sites["north"].node("runs", "list").ok().out


def test_a_peer_that_is_down_is_noticed_before_training(bed: Bed) -> None:
    north = bed.sites["north"]
    north.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    indices = ("--indices", "parts/north.json")
    north.start(*indices, "--peer", f"south=127.0.0.1:{free}", listen=north.address)
    try:
        done = bed.launch("run", "--run", "dead-peer").failed("E-PEER-UNREACHABLE", 6)
        assert "north cannot hand over to south" in done.err
    finally:
        north.stop()
        north.start(*indices, "--peer", bed.sites["south"].address, listen=north.address)
    runs = bed.sites["south"].node("runs", "list", "--json").ok().json["runs"]
    assert [entry["state"] for entry in runs if entry["run"] == "dead-peer"] == ["cancelled"]


def test_sending_needs_consent(bed: Bed) -> None:
    north = bed.sites["north"]
    north.stop()
    north.start("--indices", "parts/north.json", listen=north.address)
    try:
        done = bed.launch("run", "--run", "no-consent").failed("E-CONSENT-PEER", 5)
        assert f"--peer south={bed.sites['south'].address}" in done.err
    finally:
        north.stop()
        north.start(
            "--indices",
            "parts/north.json",
            "--peer",
            bed.sites["south"].address,
            listen=north.address,
        )


@pytest.mark.parametrize(
    ("make", "data", "code"),
    [
        (lambda path: None, "imagefolder:{}", "E-DATA-MISSING"),
        (lambda path: path.mkdir(), "imagefolder:{}", "E-DATA-EMPTY"),
        (lambda path: None, "npz:{}/x.npz", "E-DATA-MISSING"),
    ],
)
def test_data_that_is_not_there(
    bed: Bed, tmp_path: Path, make: Callable[[Path], None], data: str, code: str
) -> None:
    folder = tmp_path / "data"
    make(folder)
    refused(bed, data.format(folder), code)


def test_a_class_that_the_model_has_no_output_for(bed: Bed, tmp_path: Path) -> None:
    for name in ("0", "1", "eleven"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("L", (8, 8), number * 20).save(tmp_path / name / f"{number}.png")
    done = refused(bed, f"imagefolder:{tmp_path}", "E-DATA-CLASS")
    assert (
        "eleven" not in done.err and "details.log" in done.err
    )  # folders may be named after people
    assert "eleven" in (bed.sites["south"].state / "details.log").read_text()


def refused(bed: Bed, data: str, code: str) -> Done:
    """South starts with this data and refuses the run; north starts nothing."""
    south = bed.sites["south"]
    south.stop()
    south.start(data=data, listen=south.address)
    before = snapshot(south.state)
    try:
        done = bed.launch("run", "--run", "bad-data").failed(code, 3)
        assert "south" in done.err
        assert snapshot(south.state) == before
        states = bed.sites["north"].node("runs", "list", "--json").ok().json["runs"]
        assert [entry["state"] for entry in states if entry["run"] == "bad-data"][-1:] == [
            "cancelled"
        ]
        return done
    finally:
        south.stop()
        south.start("--indices", "parts/south.json", listen=south.address)


def test_an_unknown_kind_of_data_does_not_even_start(bed: Bed) -> None:
    state = bed.sites["south"].state
    before = snapshot(state)
    done = serve(state, "--data", "digitz").failed("E-DATA-SOURCE", 3)
    assert "digits" in done.err
    assert snapshot(state) == before


def test_files_that_cannot_be_written(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bed.launch("simulate", "--out", str(tmp_path / "file" / "out")).failed("E-STORE-UNWRITABLE", 7)
    bed.launch(
        "partition", "digits", "--site", "a", "--out", str(tmp_path / "file" / "out")
    ).failed("E-DATA-INDICES", 3)


def test_a_run_that_nobody_knows(bed: Bed) -> None:
    done = bed.launch("status", "--run", "typo")
    assert done.code == 10 and done.out.count("E-RUN-UNKNOWN") == len(NAMES)


def test_a_port_in_use(bed: Bed, make_bed: Callable[..., Bed]) -> None:
    other = make_bed("north")
    site = other.sites["north"]
    before = snapshot(site.state)
    done = site.node("serve", "--listen", bed.sites["north"].address, "--data", "digits").failed(
        "E-CONFIG-PORT", 2
    )
    assert "in use" in done.err
    assert snapshot(site.state) == before


def test_a_second_daemon_on_the_same_state(bed: Bed) -> None:
    site = bed.sites["south"]
    assert site.process is not None
    before = snapshot(site.state)
    done = site.node("serve", "--listen", site.address, "--data", "digits").failed(
        "E-STORE-LOCKED", 7
    )
    assert str(site.process.pid) in done.err
    assert snapshot(site.state) == before
    assert site.node("health").ok()


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    run(
        "fedelmy_node",
        "serve",
        "--insecure",
        "--site",
        "x",
        "--data",
        "digits",
        "--state",
        str(blocked / "state"),
    ).failed("E-STORE-UNWRITABLE", 7)
    assert blocked.read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_without_permission(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    run("fedelmy_node", "serve", "--insecure", "--site", "x", "--state", str(locked)).failed(
        "E-STORE-UNWRITABLE", 7
    )


def test_a_site_without_identity_is_told_what_to_do(tmp_path: Path) -> None:
    done = serve(tmp_path / "state", "--data", "digits").failed("E-IDENTITY-MISSING", 4)
    assert "identity init" in done.err
    assert not (tmp_path / "state").exists()


def test_site_toml_mistakes(bed: Bed, tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text('[site]\nlistne = "x"\n')
    done = serve(bed.sites["north"].state, "--config", str(config)).failed("E-CONFIG-KEY", 2)
    assert "listen" in done.err
    serve(bed.sites["north"].state, "--config", str(tmp_path / "none.toml")).failed(
        "E-CONFIG-MISSING", 2
    )


def test_administration_needs_a_daemon(tmp_path: Path) -> None:
    done = run("fedelmy_node", "runs", "list", "--state", str(tmp_path)).failed("E-STORE-DAEMON", 7)
    assert "fedelmy-node serve" in done.err
    typo = run("fedelmy_node", "runs", "list", "--state", str(tmp_path / "nort")).failed(
        "E-STORE-DAEMON", 7
    )
    assert "pass the site's directory with --state" in typo.err


def test_another_federations_operator_is_refused(bed: Bed, tmp_path: Path) -> None:
    run("fedelmy_launcher", "ca", "init", "--dir", str(tmp_path / "ca")).ok()
    done = bed.launch("run", "--identity", str(tmp_path / "ca" / "operator"), "--run", "stranger")
    done.failed("E-RUN-REFUSED", 10)
    assert done.err.count("E-IDENTITY-UNTRUSTED") == len(NAMES)


def test_a_plan_of_another_contract(bed: Bed) -> None:
    """The wire, spoken by hand: a launcher of the future asks this node."""
    federation = load_federation(bed.file)
    identity = keystore.load(bed.ca / "operator")
    slices = signed_slices(compile_plan(federation, run_id("future")), identity)
    payload = canonical_json(
        json.loads(slices[SiteName("north")].payload) | {"contract": "fedelmy.v2"}
    )
    signature = sign(identity, payload, purpose=Purpose.PLAN)
    signed = Signed(
        payload=payload, signature=signature.value, certificate=signature.certificate_pem
    )
    with (
        Sites(federation, identity) as sites,
        pytest.raises(PeerError, match=r"fedelmy\.v2.*fedelmy\.v1") as caught,
    ):
        sites.client(SiteName("north")).prepare(signed)
    assert (caught.value.code, caught.value.exit_code) == ("E-PEER-CONTRACT", 6)
    assert "future" not in bed.sites["north"].node("runs", "list").ok().out
