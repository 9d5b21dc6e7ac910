"""Completion as a shell does it: the real script in a real bash (zsh and fish where they are
installed).
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import compile_plan, signed_slices
from fedelmy_node.config.decode import decode
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import SiteName, run_id
from fedelmy_node.node import Node
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from tests.integration.support.serving import serving
from tests.integration.test_runs_cli import ALONE
from tests.support.federations import unsigned

Complete = Callable[..., list[str]]
PROGRAMS = {"fedelmy-node": "fedelmy_node", "fedelmy-launch": "fedelmy_launcher"}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both commands, as an installation puts them on the path, and the scripts
    that they print.
    """
    home = tmp_path_factory.mktemp("shell")
    for name, module in PROGRAMS.items():
        program = home / name
        # sys.argv[0] must be the command's name: click derives the variable's name from it.
        program.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module}.cli import main\nsys.argv[0] = {name!r}\nmain()\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        for kind in ("bash", "zsh", "fish"):
            script = subprocess.run(
                [program, "completion", kind], capture_output=True, text=True, check=True
            ).stdout
            (home / f"{name}.{kind}").write_text(script)
    return home


@pytest.fixture
def complete(shell: Path, tmp_path: Path) -> Complete:
    """What bash offers for a line whose last word is half typed."""

    def ask(*words: str, state: Path | None = None, seconds: float = 20) -> list[str]:
        name = words[0]
        function = f"_{name.replace('-', '_')}_completion"
        line = " ".join(f"'{word}'" for word in words)
        script = (
            f"source '{shell / name}.bash'; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMPREPLY=();"
            f' {function} {name}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        environment = {
            **os.environ,
            "PATH": f"{shell}:{os.environ['PATH']}",
            "FEDELMY_STATE": str(state or tmp_path),
        }
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
        assert done.stderr == "", done.stderr
        return [word for word in done.stdout.splitlines() if word]

    return ask


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A running node that knows two runs."""
    layout = Layout(tmp_path / "s")
    layout.create()
    journal = Journal(layout.journal, SiteName("north"))
    for name in ("xray-1", "xray-2"):
        plan = compile_plan(decode(Federation, ALONE), run_id(name))
        payload = signed_slices(plan, None)[SiteName("north")].payload
        prepared = unsigned(payload)
        journal.add_run(prepared, RunState.PENDING)
    journal.close()
    given = Given(
        state=layout.root, listen="127.0.0.1:0", data="digits", insecure=True, site="north"
    )
    with serving(Node(load_site_config(given))):
        yield layout.root


def test_commands_and_options(complete: Complete) -> None:
    assert complete("fedelmy-node", "he") == ["health"]
    assert {"serve", "runs", "completion"} <= set(complete("fedelmy-node", ""))
    assert complete("fedelmy-node", "runs", "ap") == ["approve"]
    assert complete("fedelmy-node", "serve", "--met") == ["--metrics"]
    assert complete("fedelmy-launch", "sim") == ["simulate"]
    assert complete("fedelmy-launch", "ca", "rev") == ["revoke"]


def test_values(complete: Complete) -> None:
    assert complete("fedelmy-node", "serve", "--data", "im") == ["imagefolder:"]
    assert complete("fedelmy-node", "serve", "--device", "c") == ["cpu", "cuda"]
    assert complete("fedelmy-node", "serve", "--log-format", "j") == ["json"]
    assert complete("fedelmy-node", "completion", "z") == ["zsh"]
    assert complete("fedelmy-launch", "partition", "dig") == ["digits"]


def test_federation_files(complete: Complete, tmp_path: Path) -> None:
    for name in ("federation.toml", "study/other.toml", "notes.txt", ".hidden.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert complete("fedelmy-launch", "run", "") == ["federation.toml", "study/"]
    assert complete("fedelmy-launch", "check", "fed") == ["federation.toml"]
    assert complete("fedelmy-launch", "status", "study/") == ["study/other.toml"]
    assert complete("fedelmy-launch", "cancel", "nowhere/") == []


def test_runs_come_from_the_daemon(complete: Complete, state: Path) -> None:
    assert complete("fedelmy-node", "runs", "show", "x", state=state) == ["xray-2", "xray-1"]
    assert complete("fedelmy-node", "runs", "prune", "xray-1", "", state=state) == ["xray-2"]
    assert complete("fedelmy-node", "model", "export", "--state", str(state), "xray-1") == [
        "xray-1"
    ]
    assert complete("fedelmy-node", "audit", "show", "--run", "xray-2", state=state) == ["xray-2"]


def test_where_there_is_nothing_it_says_nothing(complete: Complete, tmp_path: Path) -> None:
    begun = time.monotonic()
    assert complete("fedelmy-node", "runs", "show", "x", state=tmp_path / "none") == []
    assert time.monotonic() - begun < 30


def test_names_of_commands_import_no_command(shell: Path) -> None:
    """Completing must be quick: what a command needs is not loaded to say its name."""
    code = (
        "import sys; from fedelmy_launcher.cli import group; import click\n"
        "items = group.shell_complete(click.Context(group), 'r')\n"
        "print([item.value for item in items], [name for name in sys.modules if name.startswith('fedelmy_launcher.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['run', 'report'] ['fedelmy_launcher.cli']"


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_the_scripts_are_scripts(shell: Path, kind: str) -> None:
    program = shutil.which(kind)
    if program is None:
        pytest.skip(f"{kind} is not installed")
    for name in PROGRAMS:
        subprocess.run([program, "-n", shell / f"{name}.{kind}"], check=True, timeout=20)
