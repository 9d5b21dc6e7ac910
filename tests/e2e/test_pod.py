"""What the pod of deploy/kubernetes does, done here: make or take over its identity, serve, answer
probes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.support.testbed import Bed

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "node.yaml"


class Pod:
    """The pod's volume, its Secret, and its commands, with paths of this machine for those in the
    manifest.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.secret = root, root / "secret"
        programs = root / "bin"
        programs.mkdir()
        node = programs / "fedelmy-node"
        node.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedelmy_node "$@"\n')
        node.chmod(0o755)
        spec = next(
            one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "StatefulSet"
        )
        pod = spec["spec"]["template"]["spec"]
        (self.identity,), (self.node,) = pod["initContainers"], pod["containers"]
        (root / "volume").mkdir()
        self.state = root / "volume" / "state"

    @contextmanager
    def command(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        here = [word.replace("/identity/", f"{self.secret}/") for word in command]
        environment = {
            "SITE": "north",
            "FEDELMY_STATE": str(self.state),
            "FEDELMY_DATA": "digits",
            "FEDELMY_LISTEN": "127.0.0.1:0",
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
        }
        with subprocess.Popen(
            here,
            env={**os.environ, **environment},
            cwd=self.root,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def probe(self, name: str) -> int:
        with self.command(self.node[name]["exec"]["command"]) as probe:
            return probe.wait(60)


@pytest.fixture(scope="module")
def bed(make_bed: Any) -> Bed:
    """A CA."""
    return make_bed()


@pytest.fixture(scope="module")
def pod(bed: Bed) -> Iterator[Pod]:
    pod = Pod(bed.root)
    yield pod
    shutil.rmtree(pod.root / "volume", ignore_errors=True)


def test_the_pod_makes_a_key_and_waits_for_its_certificate(bed: Bed, pod: Pod) -> None:
    with pod.command(pod.identity["command"]) as script:
        assert script.stdout is not None
        said = ""
        while "Fingerprint" not in said.partition("-----END")[2]:
            line = script.stdout.readline()
            assert line, said
            said += line
        request = bed.root / "north.csr"
        begin = said.index("-----BEGIN")
        request.write_text(said[begin : said.index("\n", said.index("-----END")) + 1])
        assert script.poll() is None
        bed.launch("ca", "sign", str(request), "--yes", "--out", "north.site.pem").ok()
        with pod.command(["fedelmy-node", "identity", "install", "north.site.pem"]) as install:
            assert install.wait(60) == 0
        assert script.wait(60) == 0


def test_a_restarted_pod_keeps_its_key(pod: Pod) -> None:
    key = (pod.state / "identity/key.pem").read_bytes()
    with pod.command(pod.identity["command"]) as script:
        assert script.wait(60) == 0
    assert (pod.state / "identity/key.pem").read_bytes() == key


def test_probes(pod: Pod) -> None:
    assert pod.probe("livenessProbe") == 7
    with pod.command(pod.node["command"]) as node:
        assert node.stdout is not None
        while "listens on" not in (line := node.stdout.readline()):
            assert line
        assert [
            pod.probe(name) for name in ("startupProbe", "livenessProbe", "readinessProbe")
        ] == [0, 0, 0]
        node.terminate()
        node.stdout.read()
        assert node.wait(60) == 0


def test_an_identity_comes_from_a_secret(pod: Pod) -> None:
    """Whose files are not private, as the kubelet mounts them."""
    made = pod.state / "identity"
    shutil.copytree(made, pod.secret)
    for path in pod.secret.iterdir():
        path.chmod(0o644)
    key = (made / "key.pem").read_bytes()
    shutil.rmtree(pod.state)
    with pod.command(pod.identity["command"]) as script:
        assert script.stdout is not None
        said = script.stdout.read()
        assert script.wait(60) == 0
    assert "Valid until" in said
    assert (made / "key.pem").read_bytes() == key
    assert (made / "key.pem").stat().st_mode & 0o777 == 0o600
    assert made.stat().st_mode & 0o777 == pod.state.stat().st_mode & 0o777 == 0o700
