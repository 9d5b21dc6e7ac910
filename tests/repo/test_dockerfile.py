"""What Dockerfile and Compose files promise, as far as it can be read in them;
tests/e2e/containers.py runs them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SITE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose" / "site.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DEMO = ROOT / "deploy" / "compose" / "demo"
CHAIN = ("north", "east", "south", "west")


def sources(service: dict[str, Any]) -> dict[str, str]:
    """What a service mounts, and where."""
    found = (each.split(":") for each in service.get("volumes", ()))
    return {parts[0]: parts[1] for parts in found}


def everyone() -> list[Any]:
    return [
        pytest.param(service, id=name)
        for name, service in [*SERVICES.items(), ("site.yml", SITE["services"]["node"])]
    ]


@pytest.mark.parametrize("service", everyone())
def test_every_container_is_confined(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges"]
    assert "/tmp" in service["tmpfs"]
    assert service["stop_grace_period"] == "45s"
    assert not {"privileged", "devices", "pid", "ipc", "extra_hosts"} & set(service)


def test_only_the_service_that_opens_the_output_is_root_and_it_sees_nothing_else() -> None:
    roots = {
        name for name, service in SERVICES.items() if "user" in service or "cap_add" in service
    }
    assert roots == {"out"}
    assert SERVICES["out"]["network_mode"] == "none" and SERVICES["out"]["cap_add"] == ["FOWNER"]
    assert set(sources(SERVICES["out"])) == {"./out"}


def test_sites_share_a_network_with_their_neighbours_alone() -> None:
    networks = {site: set(SERVICES[site]["networks"]) for site in CHAIN}
    neighbours = {frozenset(pair) for pair in pairwise(CHAIN)}
    for one in CHAIN:
        for other in CHAIN:
            if one != other:
                shared = networks[one] & networks[other]
                assert len(shared) == (frozenset((one, other)) in neighbours), (
                    f"{one} and {other} share {shared}"
                )
        members = {
            name
            for name, service in SERVICES.items()
            if f"operator-{one}" in service.get("networks", ())
        }
        assert members == {one, "launcher", "dashboard"}


def test_no_network_but_the_dashboards_window_leads_anywhere() -> None:
    leading = {name for name, network in COMPOSE["networks"].items() if not network.get("internal")}
    assert leading == {"window"}
    assert [
        name for name, service in SERVICES.items() if "window" in service.get("networks", ())
    ] == ["dashboard"]
    for name, service in SERVICES.items():
        assert service.get("network_mode") == "none" or service["networks"], (
            f"{name} is in the default network"
        )


def test_nothing_is_published_but_the_dashboard_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"dashboard"}
    assert all(port.startswith("127.0.0.1:") for port in published["dashboard"])


@pytest.mark.parametrize("owner", [*CHAIN, "ca", "launcher", "dashboard"])
def test_a_key_is_in_a_volume_that_only_its_owner_mounts(owner: str) -> None:
    assert sources(SERVICES[owner])[f"{owner}-state"] == "/var/lib/fedelmy"
    assert [name for name, service in SERVICES.items() if f"{owner}-state" in sources(service)] == [
        owner
    ]


def test_the_chain_of_peers_is_the_chain_of_the_federation() -> None:
    federation = tomllib.loads((DEMO / "federation.toml").read_text())
    assert [site["name"] for site in federation["sites"]] == list(CHAIN)
    for site, following in pairwise(CHAIN):
        assert SERVICES[site]["environment"]["FEDELMY_PEER"] == f"{following}={following}:50051"
    assert "FEDELMY_PEER" not in SERVICES[CHAIN[-1]]["environment"]


def test_the_containers_run_the_federation_of_the_demo(tmp_path: Path) -> None:
    from fedelmy_launcher.control.demo_sites import SITES, DemoFederation
    from fedelmy_launcher.plans.compiler import load_federation
    from fedelmy_node.domain.names import Address

    demo = DemoFederation(tmp_path, seed=0)
    demo.write_file({site: Address(f"{site}:50051") for site in SITES})
    ours, theirs = (
        (file.read_text(), load_federation(file)) for file in (DEMO / "federation.toml", demo.file)
    )
    assert tomllib.loads(ours[0]) == tomllib.loads(theirs[0])


def test_the_real_site_keeps_its_state_and_only_reads_its_data() -> None:
    node = SITE["services"]["node"]
    targets = {each.rpartition(":/")[2].removesuffix(":ro"): each for each in node["volumes"]}
    assert set(targets) == {"var/lib/fedelmy", "data", "etc/fedelmy/site.toml"}
    assert [target for target, each in targets.items() if not each.endswith(":ro")] == [
        "var/lib/fedelmy"
    ]
    assert node["healthcheck"]["test"] == ["CMD", "fedelmy-node", "health", "--quiet"]
    written = (ROOT / "deploy" / "compose" / "site.yml").read_text()
    example = (ROOT / "deploy" / "compose" / "env.example").read_text()
    assert set(re.findall(r"\$\{(\w+)", written)) == set(
        re.findall(r"^(\w+)=", example, re.MULTILINE)
    )


def test_the_image_has_a_number_for_its_user_a_probe_and_nothing_of_the_host() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert re.search(
        r'^HEALTHCHECK .*CMD \["fedelmy-node", "health", "--quiet"\]$', final, re.MULTILINE
    )
    assert re.search(r"^EXPOSE 50051$", final, re.MULTILINE) and re.search(
        r"^STOPSIGNAL SIGTERM$", final, re.MULTILINE
    )
    copied = re.findall(r"^COPY (.+)$", final, re.MULTILINE)
    assert copied and all(each.startswith("--from=") for each in copied), (
        "the last stage takes built things only"
    )
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "what is not named does not go to the builder"
    named = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    wanted = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in line.split()
    }
    assert named == wanted


def test_every_dependency_has_one_exact_version_that_pyproject_allows() -> None:
    lines = [
        line
        for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pinned = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }
    assert len(pinned) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
        asked = Requirement(text)
        version = pinned.get(canonicalize_name(asked.name))
        assert version is not None, f"{asked.name} has no version: run deploy/lock.py"
        assert asked.specifier.contains(version), (
            f"{asked} does not allow {version}: run deploy/lock.py"
        )


@pytest.mark.parametrize("script", sorted(path.name for path in DEMO.glob("*.sh")))
def test_scripts_are_posix_and_executable_unless_they_are_sourced(script: str) -> None:
    path = DEMO / script
    assert path.read_text().startswith("#!") == bool(path.stat().st_mode & 0o111)
    subprocess.run(["/bin/sh", "-n", str(path)], check=True)


def test_without_an_engine_the_containers_are_skipped_with_the_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.e2e.containers"]
    done = subprocess.run(
        command,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert (
        done.stdout.startswith("skipped: ")
        and "docker is not installed; podman is not installed" in done.stdout
    )
