"""A container engine with its Compose, found and asked: Docker, or Podman with podman-compose."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Engine", "Stack", "NoEngineError", "EngineError", "find_engine"]

_ANSWER_SECONDS = 30
_COMMAND_SECONDS = 600


class NoEngineError(Exception):
    """There is no engine here that works; the message says what was tried."""


class EngineError(Exception):
    """A command of the engine failed."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: `docker` or `podman`, and how its Compose is called."""

    name: str
    compose: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> str:
        """A command that must succeed; what it printed."""
        done = self.ask(*arguments, seconds=seconds)
        if done.returncode:
            raise EngineError(
                f"{self.name} {' '.join(arguments)[:200]}: {done.stderr.strip()[-2000:]}"
            )
        return done.stdout.strip()

    def ask(
        self, *arguments: str, seconds: float = _COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """A command that may fail."""
        return _call([self.name, *arguments], self.environment, seconds)

    def inspect(self, *what: str) -> Any:
        return json.loads(self.run("inspect", *what))[0]

    def build(self, root: Path, tag: str) -> None:
        """The image; with the host's network, because some machines give builds no other."""
        command = [
            self.name,
            "build",
            "--network",
            "host",
            "--file",
            "deploy/Dockerfile",
            "--tag",
            tag,
        ]
        if self.name == "podman":
            command += ["--format", "docker"]  # the OCI format has no HEALTHCHECK
        subprocess.run([*command, "."], cwd=root, env=self.environment, check=True)


@dataclass(frozen=True, slots=True)
class Stack:
    """One project of Compose, in a directory of its own."""

    engine: Engine
    project: str
    directory: Path
    environment: dict[str, str]

    def compose(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> str:
        """A command of Compose in this project; it must succeed."""
        command = [*self.engine.compose, "--project-name", self.project, *arguments]
        done = _call(command, self.engine.environment | self.environment, seconds, self.directory)
        if done.returncode:
            raise EngineError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-3000:]}")
        return done.stdout

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        labels = (
            ("com.docker.compose.project", self.project),
            ("com.docker.compose.service", service),
        )
        filters = [part for name, value in labels for part in ("--filter", f"label={name}={value}")]
        found = self.engine.run("ps", "--all", "--quiet", "--no-trunc", *filters).split()
        if len(found) != 1:
            raise EngineError(f"{service} has {len(found)} containers")
        return found[0]

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in a running container."""
        return self.engine.ask("exec", self.container(service), *command, seconds=120)

    def networks(self, service: str) -> dict[str, str]:
        """The networks of a container, each with the container's address there."""
        found = self.engine.inspect(self.container(service))["NetworkSettings"]["Networks"]
        return {name: each["IPAddress"] for name, each in found.items()}

    @contextmanager
    def lines(self, *arguments: str, seconds: float = _COMMAND_SECONDS) -> Iterator[Iterator[str]]:
        """What a command of the engine prints, line by line as it comes; it is ended with the
        context.
        """
        process = subprocess.Popen(
            [self.engine.name, *arguments],
            env=self.engine.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        guard = threading.Timer(seconds, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            yield (line.rstrip("\r\n") for line in process.stdout)
        finally:
            guard.cancel()
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def find_engine(wanted: str | None = None) -> Engine:
    """The first engine that answers, with a Compose that answers."""
    tried = []
    for name, compose in (("docker", ("docker", "compose")), ("podman", ("podman-compose",))):
        if wanted not in (None, name):
            continue
        trouble = _trouble([name, "info"]) or _trouble([*compose, "version"])
        if trouble is None:
            environment = dict(os.environ)
            if name == "podman" and not Path("/run/systemd/system").is_dir():
                # Podman's health checks are timers of systemd; without it, it must be told not to
                # make any.
                environment["DISABLE_HC_SYSTEMD"] = "true"
            return Engine(name, compose, environment)
        tried.append(trouble)
    raise NoEngineError("; ".join(tried))


def _trouble(command: Sequence[str]) -> str | None:
    """Why it does not answer; None if it does."""
    text = " ".join(command)
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    try:
        done = _call(command, dict(os.environ), _ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"`{text}` does not answer"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"`{text}` fails: {said[-1] if said else done.returncode}" if done.returncode else None


def _call(
    command: Sequence[str],
    environment: dict[str, str],
    seconds: float,
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(command),
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
