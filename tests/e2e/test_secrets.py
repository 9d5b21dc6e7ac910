"""What stays at a site: no key, no path and no file's name leaves it, or gets into a log; files are
the site's own.

File names are sometimes patients' names, so here they are: whatever must not be told carries one of
`WORDS`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.start_run import prepare_run, start_run
from fedelmy_launcher.plans.compiler import compile_plan, load_federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity import keystore
from tests.e2e.support.testbed import Bed, Done, Site
from tests.e2e.support.witness import Witness, trainers_of, wait_until
from tests.e2e.test_classes import write_folder
from tests.e2e.test_recovery import CLASSES

WORDS = ("DOE-JANE-1953", "secret-north", "secret-south")
CREDENTIALS = {
    "AWS_SECRET_ACCESS_KEY": "aws-credential",
    "HTTPS_PROXY": "http://user:proxy-credential@proxy.example",
    "FEDELMY_TOKEN": "fedelmy-credential",
    "PGPASSWORD": "database-credential",
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = Bed(tmp_path_factory.mktemp("bed"), ("north", "south"))
    mask = os.umask(0o022)
    try:
        for name, site in made.sites.items():
            site.state = made.root / "sites" / f"secret-{name}"
            site.state.mkdir(parents=True)
            site.state.chmod(0o755)
        made.provision(by_commands=True)
        for name, site in made.sites.items():
            data = made.root / "data" / f"DOE-JANE-1953-{name}"
            write_folder(data, range(10))
            (data / "zero" / "DOE-JANE-1953.png").write_bytes(b"no image")
            (site.state / "site.toml").write_text(
                f'[data]\nsource = "imagefolder:{data}"\nunreadable = "skip"\n'
            )
        start(made)
        made.write_file()
        text = made.file.read_text().replace(
            '["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]', CLASSES
        )
        made.file.write_text(text)
        yield made
    finally:
        os.umask(mask)
        made.close()


def data_of(bed: Bed, name: str) -> Path:
    return bed.root / "data" / f"DOE-JANE-1953-{name}"


def start(bed: Bed) -> None:
    south = serve(bed.sites["south"])
    serve(bed.sites["north"], "--peer", south.address)


def serve(site: Site, *arguments: str) -> Site:
    """With credentials in its environment, as people's shells have them."""
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    try:
        source = (site.state / "site.toml").read_text().split('"')[1]
        return site.start(*arguments, data=source, listen=site.address or "127.0.0.1:0")
    finally:
        os.environ.clear()
        os.environ.update(before)


def key_lines(bed: Bed) -> list[str]:
    """The base64 of every private key, line by line."""
    keys = [*bed.root.glob("sites/*/identity/key.pem"), *bed.root.glob("federation-ca/**/*key*")]
    lines = [
        line for key in keys for line in key.read_text().splitlines() if not line.startswith("-")
    ]
    assert len(lines) >= 6
    return [line for line in lines if len(line) > 16]


def journal_text(site: Site) -> str:
    with contextlib.closing(sqlite3.connect(site.state / "journal.db")) as journal:
        return "\n".join(line.replace("X'", "\n") + _blobs(line) for line in journal.iterdump())


def _blobs(line: str) -> str:
    """The BLOBs of a line of a dump, as text."""
    found = [part.split("'", 1)[0] for part in line.split("X'")[1:]]
    return "".join(bytes.fromhex(part).decode(errors="replace") for part in found)


def told(bed: Bed, *outputs: Done) -> str:
    """Everything that others can read."""
    texts = [text for done in outputs for text in (done.out, done.err)]
    for site in bed.sites.values():
        texts += [site.log.read_text(), journal_text(site)]
        texts += [path.read_text() for path in site.state.glob("audit*")]
    return "\n".join(texts)


def assert_nothing_told(bed: Bed, *outputs: Done) -> None:
    text = told(bed, *outputs)
    for word in (
        *WORDS,
        *(value.rpartition(":")[2] for value in CREDENTIALS.values()),
        *key_lines(bed),
    ):
        place = text.find(word)
        assert place < 0, text[max(0, place - 300) : place + 100]
    assert len(text) > 10_000  # it was looked at


def test_a_run_that_succeeds_and_counts_what_it_left_out(bed: Bed) -> None:
    done = bed.launch("run", "--run", "good").ok()
    as_json = bed.launch("run", "--run", "good", "--json").ok()
    status = [bed.launch("status", "--run", "good", *more) for more in ((), ("--json",))]
    assert "1 file(s) of this site's data cannot be read" in bed.sites["north"].log.read_text()
    assert_nothing_told(bed, done, as_json, bed.launch("check"), *status)


def test_files_are_the_sites_own(bed: Bed) -> None:
    """After a run, under a usual umask, in a directory that others could read before."""
    public = {"request.csr", "certificate.pem", "ca.pem"}
    for site in bed.sites.values():
        seen = [site.state, *site.state.rglob("*")]
        names = {path.name for path in seen}
        assert {"journal.db", "audit.jsonl", "audit.head", "trainer.log"} <= names
        assert [name for name in names if name.endswith(".safetensors")]
        for path in seen:
            mode, own = (
                path.lstat().st_mode,
                path.name != "site.toml",
            )  # that one is the administrator's
            wanted = 0o700 if stat.S_ISDIR(mode) else 0o644 if path.name in public else 0o600
            assert not own or stat.S_IMODE(mode) == wanted, f"{path} has {stat.S_IMODE(mode):o}"


def test_what_a_running_trainer_is_given(bed: Bed) -> None:
    long = bed.file.read_text()
    bed.file.write_text(long.replace("epochs = 2", "epochs = 400"))
    north = bed.sites["north"]
    assert north.process is not None
    daemon = Path(f"/proc/{north.process.pid}")
    try:
        with Sites(load_federation(bed.file), keystore.load(bed.ca / "operator")) as sites:
            plan = compile_plan(load_federation(bed.file), run_id("long"))
            start_run(sites, plan.run, prepare_run(sites, plan))
            wait_until(lambda: Witness(north, "long").find("epoch"), "epoch")
            (trainer,) = trainers_of(north.process.pid)
            os.kill(trainer.pid, signal.SIGSTOP)
            try:
                process = Path(f"/proc/{trainer.pid}")
                environment = (process / "environ").read_bytes().decode()
                command = (process / "cmdline").read_bytes().decode()
                files = [str(link.readlink()) for link in (process / "fd").iterdir()]
                maps = (process / "maps").read_text()
                limits = (process / "limits").read_text()
            finally:
                os.kill(trainer.pid, signal.SIGCONT)
            states, _ = sites.cancel(
                run_id("long"), "seen enough", sites.reports(run_id("long"))[0]
            )
            assert set(states.values()) == {"cancelled"}
    finally:
        bed.file.write_text(long)
    assert "NOTIFY_SOCKET" in (daemon / "environ").read_bytes().decode()  # the daemon has them
    assert "aws-credential" in (daemon / "environ").read_bytes().decode()
    for secret in ("NOTIFY_SOCKET", "FEDELMY_", "AWS_", "PROXY", "credential", *key_lines(bed)):
        assert secret not in environment and secret not in command
    for name in ("key.pem", "identity", "journal", "audit", "socket:", "admin", "details"):
        assert not [file for file in files if name in file], files
    assert "grpc" not in maps and "cryptography" not in maps
    for text in (limits, (daemon / "limits").read_text()):
        (core,) = [
            line.split() for line in text.splitlines() if line.startswith("Max core file size")
        ]
        assert core[4:6] == ["0", "0"]  # what is in memory is never written


def test_a_run_that_is_refused(bed: Bed) -> None:
    south = bed.sites["south"]
    settings = south.state / "site.toml"
    text = settings.read_text()
    south.stop()
    settings.write_text(text.replace('"skip"', '"refuse"'))
    serve(south)
    try:
        refused = [
            bed.launch("run", "--run", "refused", *more).failed("E-DATA-UNREADABLE", 3)
            for more in ((), ("--json",))
        ]
        check = [bed.launch("check", *more) for more in ((), ("--json",))]
    finally:
        south.stop()
        settings.write_text(text)
        serve(south)
    assert_nothing_told(bed, *refused, *check)
    assert "details.log" in south.log.read_text()
    assert "DOE-JANE-1953.png" in (south.state / "details.log").read_text()
    assert (south.state / "details.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_a_run_that_fails(bed: Bed) -> None:
    """The data vanish between the preparation and the step."""
    south, hidden = bed.sites["south"], bed.root / "elsewhere"
    federation, run = load_federation(bed.file), run_id("failing")
    data = data_of(bed, "south")
    with Sites(federation, keystore.load(bed.ca / "operator")) as sites:
        plan = compile_plan(federation, run)
        _, refusals = sites.prepare(plan, check_only=False)
        assert not refusals
        data.rename(hidden)
        try:
            start_run(sites, plan.run, prepare_run(sites, plan))
            wait_until(lambda: Witness(south, run).state() == "failed", "failure")
        finally:
            hidden.rename(data)
    outputs = [bed.launch("run", "--attach", run, *more) for more in ((), ("--json",))]
    outputs += [bed.launch("status", "--run", run, *more) for more in ((), ("--json",))]
    assert all("E-DATA-MISSING" in done.out + done.err for done in outputs)
    assert_nothing_told(bed, *outputs)
    # The administrator is told on this machine.
    for done in (south.node("runs", "show", run), south.node("runs", "show", run, "--json")):
        assert str(data) in done.ok().out
    done = south.node("model", "evaluate", "good", "--data", f"imagefolder:{data}-typo").failed(
        "E-DATA-MISSING", 3
    )
    assert f"{data}-typo" in done.err


def test_a_disk_that_fails_is_not_named(bed: Bed) -> None:
    """A fault ends the node; what it prints last is in its log, too."""
    south = bed.sites["south"]
    south.stop()
    (south.state / "audit.jsonl").rename(south.state / "audit.away")
    (south.state / "audit.jsonl").mkdir()
    try:
        done = south.node("serve", "--listen", "127.0.0.1:0").failed("E-STORE-UNWRITABLE", 7)
    finally:
        (south.state / "audit.jsonl").rmdir()
        (south.state / "audit.away").rename(south.state / "audit.jsonl")
        serve(south)
    assert not [word for word in WORDS if word in done.err]
    assert south.node("audit", "verify").ok()


def test_every_act_is_in_the_audit_log(bed: Bed) -> None:
    text = bed.sites["south"].node("audit", "show", "--json").ok().out
    for act in (
        "identity-installed",
        "node-started",
        "plan-accepted",
        "plan-refused",
        "plan-asked",
        "run-started",
    ):
        assert f'"{act}"' in text, act
    for act in (
        "delivery-received",
        "delivery-offered",
        "delivery-sent",
        "run-cancelled",
        "node-stopped",
    ):
        assert f'"{act}"' in text, act
    for site in bed.sites.values():
        site.node("audit", "verify").ok()
