"""docker-compose.yml, run to its end: undisturbed, with a site killed in mid-training, with a
site's network cut.

    python tests/e2e/containers.py [--image NAME] [--engine docker|podman] [--cut SECONDS] [--json]

All three results must be the bytes that `fedelmy-launch simulate` gives in the same image. Every
model is trained for more epochs than in the demo, so that there is a middle to be killed in. What
the containers may do is looked at from inside. Without an engine that works it says so and is
content (exit code 0). Exit code 1: something does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.support.container_checks import SITES, container_checks
from tests.e2e.support.engines import Engine, EngineError, NoEngineError, Stack, find_engine

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_KILLED, _CUT = "east", "south"
_EPOCHS = 200
_MOMENT = re.compile(rf"{_KILLED}\s+pool member 1/\d+ done")
"""The launcher's line after which the killed site trains its second model; the cut one waits for
it, then.
"""
_SIMULATE = (
    "mkdir /tmp/run; cp /demo/federation.toml /tmp/run; cd /tmp/run;"
    " fedelmy-launch partition digits --site north --site east --site south --site west --seed 0 --json >/dev/null;"
    " fedelmy-launch simulate federation.toml --json | tail -1"
)


@dataclass(kw_only=True, slots=True)
class Told:
    """What came of it."""

    digests: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    """What was looked at, and what is wrong with it."""
    figures: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return (
            len(self.digests) == 4
            and len(set(self.digests.values())) == 1
            and not any(self.checks.values())
        )


class Demo:
    """The stack of docker-compose.yml in a directory of its own, with nothing of it left
    afterwards.
    """

    def __init__(self, engine: Engine, image: str, directory: Path) -> None:
        self.engine, self.image, self.directory = engine, image, directory
        self.token = secrets.token_urlsafe(24)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        shutil.copy(_ROOT / "docker-compose.yml", directory)
        shutil.copytree(_ROOT / "deploy" / "compose", directory / "deploy" / "compose")
        federation = directory / "deploy" / "compose" / "demo" / "federation.toml"
        longer, changed = re.subn(
            r"(?m)^epochs = \d+$", f"epochs = {_EPOCHS}", federation.read_text("utf-8")
        )
        assert changed == 1
        federation.write_text(longer, "utf-8")
        settings = {
            "FEDELMY_IMAGE": image,
            "FEDELMY_DASHBOARD_PORT": str(self.port),
            "FEDELMY_DASHBOARD_TOKEN": self.token,
        }
        self.stack = Stack(engine, f"fedelmy-e2e-{secrets.token_hex(3)}", directory, settings)

    def up(self) -> None:
        """Everything is started; the launcher, which comes last, begins the first run."""
        self.stack.compose("up", "--detach", "--no-build")

    def down(self) -> str:
        """Everything goes; what is left all the same."""
        self.stack.compose("down", "--volumes", "--timeout", "45")
        label = f"label=com.docker.compose.project={self.stack.project}"
        left = self.engine.run("ps", "--all", "--quiet", "--filter", label).split()
        for kind in ("volume", "network"):
            names = self.engine.run(kind, "ls", "--format", "{{.Name}}").split()
            left += [name for name in names if name.startswith(self.stack.project)]
        return ", ".join(left)

    def first_run(self) -> str:
        """The run that `up` began; its digest."""
        with self.stack.lines("logs", "--follow", self.stack.container("launcher")) as lines:
            said = [_say(f"  | {line}") for line in lines]
        return self._digest(said)

    def another_run(self, act: Callable[[], None], trace: str) -> str:
        """The launcher again; `act` is done once, at the moment, and must leave this trace in what
        the sites tell.
        """
        said, done = [], False
        with self.stack.lines("start", "--attach", self.stack.container("launcher")) as lines:
            for line in lines:
                said.append(_say(f"  | {line}"))
                if not done and _MOMENT.search(line):
                    done = True
                    act()
        if not done:
            raise EngineError("the moment never came")
        if not any(re.search(trace, line) for line in said):
            raise EngineError(f"it was not noticed: no line like {trace!r}")
        return self._digest(said)

    def _digest(self, said: Sequence[str]) -> str:
        state = self.engine.inspect(self.stack.container("launcher"))["State"]
        if state["ExitCode"]:
            raise EngineError(
                f"the launcher ended with {state['ExitCode']}: {' / '.join(said[-5:])}"
            )
        report = json.loads((self.directory / "out" / "report.json").read_text("utf-8"))
        if report["state"] != "done" or report["subset"] or tuple(report["contributors"]) != SITES:
            raise EngineError(
                f"the run is {report['state']} with the work of {report['contributors']}"
            )
        digest: str = report["bundle_sha256"]
        return digest

    def kill(self) -> None:
        """SIGKILL to every process of a site, and the container again."""
        container = self.stack.container(_KILLED)
        self.engine.run("kill", "--signal", "KILL", container)
        self.engine.run("wait", container)
        _say(f"  # {_KILLED} killed: {self.engine.inspect(container)['State']['ExitCode']}")
        self.engine.run("start", container)

    def cut(self, seconds: float) -> None:
        """A site without any network for so long; it comes back under its name, often with other
        addresses.
        """
        container, networks = self.stack.container(_CUT), list(self.stack.networks(_CUT))
        for network in networks:
            self.engine.run("network", "disconnect", network, container)
        _say(f"  # {_CUT} cut off {len(networks)} networks")
        time.sleep(seconds)
        for network in networks:
            self.engine.run("network", "connect", "--alias", _CUT, network, container)
        _say(f"  # {_CUT} back after {seconds:g} s")

    def simulated(self) -> str:
        """The digest of the same federation in one process, in the same image."""
        demo = self.directory / "deploy" / "compose" / "demo"
        printed = self.engine.run(
            "run",
            "--rm",
            "--network",
            "none",
            "--read-only",
            "--tmpfs",
            "/tmp",
            "--cap-drop",
            "ALL",
            "--volume",
            f"{demo}:/demo:ro,z",
            "--entrypoint",
            "/bin/sh",
            self.image,
            "-ec",
            _SIMULATE,
        )
        digest: str = json.loads(printed.splitlines()[-1])["bundle_sha256"]
        return digest

    def start_up_seconds(self) -> tuple[float, float]:
        """A site's container that is started again: until the node is well, and of that the last
        probe.
        """
        container = self.stack.container("west")
        self.engine.run("stop", "-t", "45", container)
        stopped = self.engine.inspect(container)["State"]["ExitCode"]
        if stopped:
            raise EngineError(f"west did not stop in good order: {stopped}")
        begun = time.monotonic()
        self.engine.run("start", container)
        while True:
            asked = time.monotonic()
            if (
                self.engine.ask("exec", container, "fedelmy-node", "health", "--quiet").returncode
                == 0
            ):
                return time.monotonic() - begun, time.monotonic() - asked
            if asked - begun > 120:
                raise EngineError("west does not become healthy")

    def health_checks(self) -> str:
        """The engine's own probe, as it runs it."""
        if self.engine.name == "podman":
            wrong = [site for site in SITES if self._probe(site)]
        else:
            states = {
                site: self.engine.inspect(self.stack.container(site))["State"]["Health"]
                for site in SITES
            }
            wrong = [site for site, state in states.items() if state["Status"] != "healthy"]
        return f"not healthy: {', '.join(wrong)}" if wrong else ""

    def _probe(self, site: str) -> int:
        return self.engine.ask("healthcheck", "run", self.stack.container(site)).returncode


def perform(demo: Demo, told: Told, cut_seconds: float) -> None:
    """Everything, in order; the stack is up once, and the launcher is started again for every run."""
    begun = time.monotonic()

    def timed(name: str, run: Callable[[], str]) -> None:
        nonlocal begun
        _say(f"# {name}")
        told.digests[name] = run()
        told.seconds[name] = time.monotonic() - begun
        begun = time.monotonic()

    _say("# up")
    demo.up()
    timed("undisturbed", demo.first_run)
    checks = container_checks(demo.stack, demo.port, demo.token)
    checks["the engine's health check passes at every site"] = demo.health_checks
    for what, look in checks.items():
        try:
            told.checks[what] = look()
        except (AssertionError, OSError, EngineError) as error:
            told.checks[what] = str(error)
        _say(f"# {what}: {told.checks[what] or 'ok'}")
    begun = time.monotonic()
    killed, cut = (
        rf"{_KILLED}\s+resumed from a checkpoint",
        rf"{_KILLED}\s+(transfer to {_CUT}|{_CUT} unreachable)",
    )
    timed(f"{_KILLED} killed in mid-training", lambda: demo.another_run(demo.kill, killed))
    timed(
        f"{_CUT} cut off for {cut_seconds:g} s",
        lambda: demo.another_run(lambda: demo.cut(cut_seconds), cut),
    )
    timed("simulated", demo.simulated)
    whole, probe = demo.start_up_seconds()
    told.figures["container start until healthy"] = (
        f"{whole:.1f} s, of which the last probe {probe:.1f} s"
    )


def table(told: Told) -> str:
    lines = [
        f"{name:<34} {digest[:16]}  {told.seconds[name]:>5.0f} s"
        for name, digest in told.digests.items()
    ]
    lines += [
        f"FAIL {what}: {wrong}" if wrong else f"ok   {what}" for what, wrong in told.checks.items()
    ]
    return "\n".join([*lines, *(f"{name:<34} {value}" for name, value in told.figures.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--image", default=os.environ.get("FEDELMY_IMAGE"), help="use this one, and build none"
    )
    parser.add_argument("--engine", choices=("docker", "podman"), help="only this one")
    parser.add_argument(
        "--cut", type=float, default=30.0, metavar="SECONDS", help="how long a site is cut off (30)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    options = parser.parse_args(arguments)
    try:
        engine = find_engine(options.engine)
    except NoEngineError as error:
        _say(f"skipped: there is no container engine that works here ({error})")
        return 0
    told = Told()
    image = options.image or "fedelmy"
    if options.image is None:
        _say(f"# building {image} with {engine.name}")
        engine.build(_ROOT, image)
    told.figures["image"] = (
        f"{engine.inspect('--type', 'image', image)['Size'] / 1e9:.2f} GB ({engine.name})"
    )
    with tempfile.TemporaryDirectory(prefix="fedelmy-containers-") as directory:
        demo = Demo(engine, image, Path(directory))
        try:
            perform(demo, told, options.cut)
        except (EngineError, AssertionError, subprocess.TimeoutExpired, OSError) as error:
            told.checks["everything could be done"] = str(error)
            for service in (*SITES, "launcher"):
                shown = engine.ask("logs", "--tail", "15", demo.stack.container(service))
                _say(f"# {service}\n{shown.stdout}{shown.stderr}")
        finally:
            told.checks["nothing is left"] = demo.down()
    _say("")
    _say(table(told))
    _say("green" if told.good else "FAIL")
    if options.json:
        facts = {
            "digests": told.digests,
            "seconds": told.seconds,
            "checks": told.checks,
            "figures": told.figures,
        }
        _say(json.dumps(facts | {"green": told.good}))
    return 0 if told.good else 1


def _say(text: str) -> str:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return text


if __name__ == "__main__":
    sys.exit(main())
