"""docs/deploy.md, followed literally: every command of it, on machines with an address and a file
system of their own.

A fence of the page says where it is typed: at every `site`, or at the `operator`'s. `yours` is what
a reader adapts, `by-hand` is what needs the internet, a firewall or a GPU: it is listed, not
executed. While a `meanwhile` fence runs, the next one is typed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.e2e.support.machines import HAS_SYSTEMD, REPOSITORY, Machine, Network, permitted
from tests.e2e.support.unit_file import without_systemd

PAGE = REPOSITORY / "docs" / "deploy.md"
SITES = ("north", "south")
YES = "y\n" * 4
FOLLOWED = {"site", "operator"}

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(permitted() != "", reason=permitted() or "machines can be made"),
]


@dataclass(frozen=True)
class Fence:
    """Commands of the page, and where they are typed."""

    at: str
    how: frozenset[str]
    text: str


def fences() -> list[Fence]:
    found = re.findall(
        r"^```sh ([^\n]*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Fence(where.split()[0], frozenset(where.split()[1:]), text) for where, text in found]


class Reader:
    """Whoever sits at a machine with the page in front of him."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name = machine.name
        self._own = "umask 077\n"
        """His shell: careful as an administrator's is, with what he adapted."""
        self.transcript: list[str] = []

    def type(self, fence: Fence) -> None:
        if "yours" in fence.how:
            self._own += adapted(fence.text, self.name)
            return
        self._note(fence.text)
        if not HAS_SYSTEMD and (begun := re.search(r"^systemctl enable --now (\S+)\n", fence.text)):
            self._start(begun[1])
            self._note(self.machine.run(self._own + fence.text.replace(begun[0], ""), typed=YES))
        else:
            self._note(self.machine.run(self._own + fence.text, typed=YES))

    def _start(self, service: str) -> None:
        """What systemd would do: the unit's own command, until it says that it is ready."""
        root = self.machine.root
        unit = root / "etc/systemd/system" / f"{service}.service"
        self.machine.serve(without_systemd(unit, root), "var/log/node", "node.sock")

    def begin(self, fence: Fence) -> subprocess.Popen[str]:
        """What goes on while something else is typed."""
        self._note(fence.text)
        command = self.machine.inside("sh", "-e", "-c", f"cd /root; {self._own}{fence.text}")
        return subprocess.Popen(
            command,
            env=self.machine.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _note(self, text: str) -> None:
        self.transcript.append(text)


def adapted(text: str, site: str) -> str:
    """What the page asks for: one's own name for north's, and the other site for south."""
    if site != "south":
        return text
    return re.sub("north|south", lambda name: {"north": "south", "south": "north"}[name[0]], text)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    directory = tmp_path_factory.mktemp("machines")
    with Network(directory, ["operator", *SITES]) as network:
        for seed, name in enumerate(SITES):
            write_images(directory / name / "srv/xray", seed)
        for machine in network.machines.values():
            shutil.copytree(REPOSITORY / "deploy", machine.root / "root/deploy")
        yield {name: Reader(machine) for name, machine in network.machines.items()}


@pytest.fixture(scope="module")
def followed(readers: dict[str, Reader]) -> list[Fence]:
    """The page, from its first command to its last; returns what was not executed."""
    left, beside = [], None
    for fence in fences():
        assert fence.at in FOLLOWED, f"no such machine: {fence}"
        if "by-hand" in fence.how:
            left.append(fence)
            continue
        at = [readers["operator"]] if fence.at == "operator" else [readers[name] for name in SITES]
        if "meanwhile" in fence.how:
            beside = at[0].begin(fence)
            wait_for_people(beside)
            continue
        post(readers)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda reader, fence=fence: reader.type(fence), at))  # type: ignore[misc]
        if beside is not None:
            said, _ = beside.communicate(timeout=300)
            assert beside.returncode == 0, said
            readers["operator"].transcript.append(said)
            beside = None
    return left


def write_images(directory: Path, seed: int) -> None:
    """Grey images of two classes; readable to root alone, as a hospital's would be."""
    chance = np.random.default_rng(seed)
    for name, brightness in (("healthy", 90), ("pneumonia", 160)):
        (directory / name).mkdir(parents=True)
        for number in range(60):
            pixels = chance.normal(brightness, 40, (48, 48)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(directory / name / f"{number}.png")
    directory.chmod(0o700)


def wait_for_people(launcher: subprocess.Popen[str]) -> None:
    """Until the launcher has said of every site that it waits for its administrator."""
    assert launcher.stdout is not None
    waiting, said = set(SITES), ""
    while waiting:
        line = launcher.stdout.readline()
        assert line, said
        said += line
        waiting -= {site for site in SITES if f"administrator of {site}" in line}


def post(readers: dict[str, Reader]) -> None:
    """The mail: requests to the operator, certificates back."""
    office = readers["operator"].machine.root / "root"
    for name in SITES:
        home = readers[name].machine.root
        for letter, to in (
            (home / f"tmp/{name}.csr", office),
            (office / f"{name}.site.pem", home / "root"),
        ):
            if letter.exists():
                shutil.copy(letter, to)


def test_the_page_leads_to_a_result_at_every_site(
    readers: dict[str, Reader], followed: list[Fence]
) -> None:
    digests = set()
    for name in SITES:
        shown = json.loads(readers[name].machine.run("fedelmy-node runs show first --json"))
        assert shown["state"] == "done", shown
        exported = readers[name].machine.root / "tmp/first.safetensors"
        assert exported.stat().st_size > 10_000
        digests.add(readers[name].machine.run("sha256sum < /tmp/first.safetensors"))
    assert len(digests) == 1
    told = "\n".join(readers["operator"].transcript)
    assert not re.search(r"failure|warning|\bE-[A-Z]+-[A-Z]+", told), told


def test_only_what_needs_the_outside_is_left_out(followed: list[Fence]) -> None:
    for fence in followed:
        print(f"not executed, typed at every {fence.at}:\n{fence.text}")  # noqa: T201
    lines = [line for fence in followed for line in fence.text.splitlines()]
    internet, firewall, gpu = lines[:5], lines[5:7], lines[7:]
    assert [line.split()[0] for line in internet] == [
        "apt-get",
        "dnf",
        "umask",
        "$PYTHON",
        "/opt/fedelmy/bin/pip",
    ]
    assert [line.split()[0] for line in firewall] == ["ufw", "firewall-cmd"]
    assert "gpu.conf" in gpu[0] and "nvidia" in gpu[1] and len(gpu) == 3


def test_the_doctor_is_green(readers: dict[str, Reader], followed: list[Fence]) -> None:
    for name in SITES:
        report = next(text for text in readers[name].transcript if "\nidentity\n" in f"\n{text}")
        assert re.search(r"^\d+ ok(, \d+ warnings?)?$", report.strip().splitlines()[-1]), report
        assert "failure" not in report, report


def test_the_launchers_machine_cannot_reach_the_data(
    readers: dict[str, Reader], followed: list[Fence]
) -> None:
    operator = readers["operator"].machine
    kept = [path for path in operator.root.rglob("*") if path.suffix in {".png", ".safetensors"}]
    assert kept == []
    for name in SITES:
        site = readers[name].machine
        # Nothing but the node listens there, and nobody but root and the node's user reads the
        # data.
        listening = [
            line.split()[3].rpartition(":")[2] for line in site.run("ss -Htln").splitlines()
        ]
        assert listening == ["50051"]
        assert "Permission denied" in site.run(
            "setpriv --reuid=nobody --clear-groups ls /srv/xray 2>&1 || true"
        )
        assert "Permission denied" in site.run(
            "setpriv --reuid=nobody --clear-groups ls /var/lib/fedelmy 2>&1 || true"
        )
        assert site.run("find /srv -name '*.png' | wc -l").strip() == "120"
        assert site.run("find /srv ! -group fedelmy ! -path /srv").strip() == ""
    data_bytes = sum(
        path.stat().st_size for path in (readers["north"].machine.root / "srv").rglob("*.png")
    )
    assert operator.received_bytes() < data_bytes


def test_a_site_sees_nothing_of_another_but_its_node(
    readers: dict[str, Reader], followed: list[Fence]
) -> None:
    north = readers["north"].machine
    north.run("touch /srv/only-north")
    assert not (readers["south"].machine.root / "srv/only-north").exists()
    assert readers["south"].machine.run("ls /srv").split() == ["xray"]


needs_systemd = pytest.mark.skipif(
    not HAS_SYSTEMD, reason="there is no systemd here: the unit's command was run without it"
)


@needs_systemd
def test_the_service_is_confined(readers: dict[str, Reader], followed: list[Fence]) -> None:
    north = readers["north"].machine
    process = north.run("systemctl show --property MainPID --value fedelmy-node").strip()
    status = north.run(f"cat /proc/{process}/status")
    user = north.run("id -u fedelmy").strip()
    for line in (
        f"Uid:\t{user}\t{user}\t{user}\t{user}",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapBnd:\t0000000000000000",
    ):
        assert line in status
    inside = f"nsenter --target {process} --mount"
    for place in ("/etc/fedelmy", "/opt/fedelmy", "/srv/xray", "/usr/local/sbin"):
        assert "Read-only file system" in north.run(f"{inside} touch {place}/new 2>&1 || true")
    assert north.run(f"{inside} ls /root 2>&1 || true").split() == []
    north.run(f"{inside} runuser -u fedelmy -- touch /var/lib/fedelmy/new")


@needs_systemd
def test_a_killed_node_is_started_again(readers: dict[str, Reader], followed: list[Fence]) -> None:
    south = readers["south"].machine
    cursor = (
        south.run("journalctl --lines 0 --show-cursor --quiet").strip().removeprefix("-- cursor: ")
    )
    south.run("systemctl kill --signal KILL --kill-who main fedelmy-node")
    follow = south.inside(
        "journalctl", "--follow", "--unit", "fedelmy-node", f"--after-cursor={cursor}"
    )
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as journal:
        assert journal.stdout is not None
        said = []
        for line in journal.stdout:
            said.append(line)
            if "listens on" in line:
                break
        journal.kill()
    assert "Scheduled restart job" in "".join(said)
    assert "site south is serving" in south.run("fedelmy-node health")


@needs_systemd
def test_a_wrong_setting_is_not_tried_again_and_again(
    readers: dict[str, Reader], followed: list[Fence]
) -> None:
    north = readers["north"].machine
    north.run("systemctl stop fedelmy-node")
    shown = "systemctl show --property ActiveState,Result,ExecMainStatus,NRestarts fedelmy-node"
    assert {"ActiveState=inactive", "Result=success", "ExecMainStatus=0"} <= set(
        north.run(shown).split()
    )
    north.run("cp /etc/fedelmy/site.toml /root/; echo 'lisen = 1' >> /etc/fedelmy/site.toml")
    assert "control process exited" in north.run("systemctl start fedelmy-node 2>&1 || true")
    assert {"ActiveState=failed", "ExecMainStatus=2", "NRestarts=0"} <= set(
        north.run(shown).split()
    )
    assert "unknown key" in north.run("journalctl --unit fedelmy-node --lines 20 --no-pager")
    north.run("cp /root/site.toml /etc/fedelmy/; systemctl start fedelmy-node; fedelmy-node health")
