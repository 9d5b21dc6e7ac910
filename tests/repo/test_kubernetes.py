"""deploy/kubernetes: valid by Kubernetes' own schemas, confined, and at one with itself and with
the node.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fedelmy_node.config.site_file import Given, load_site_config

DIRECTORY = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""From the oldest that is still found in hospitals to the newest that the validator knows."""
PATCH = DIRECTORY / "gpu.yaml"


def documents() -> list[dict[str, Any]]:
    """What kustomization.yaml lists."""
    listed = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())["resources"]
    return [one for name in listed for one in yaml.safe_load_all((DIRECTORY / name).read_text())]


def one(kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents() if document["kind"] == kind)
    return found


def containers() -> Iterator[dict[str, Any]]:
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    yield from pod["initContainers"]
    yield from pod["containers"]


def patched(whole: Any, patch: Any) -> Any:
    """A strategic merge, as far as we need it: tables by key, lists of named things by name."""
    if isinstance(whole, dict) and isinstance(patch, dict):
        return whole | {
            key: patched(whole[key], value) if key in whole else value
            for key, value in patch.items()
        }
    if isinstance(whole, list) and all("name" in entry for entry in patch):
        changes = {entry["name"]: entry for entry in patch}
        assert changes.keys() <= {entry["name"] for entry in whole}
        return [patched(entry, changes.get(entry["name"], {})) for entry in whole]
    return patch


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(version: str) -> None:
    found = documents()
    assert sorted(document["kind"] for document in found) == [
        "ConfigMap",
        "Namespace",
        "NetworkPolicy",
        "Service",
        "StatefulSet",
    ]
    for document in [*found, patched(one("StatefulSet"), yaml.safe_load(PATCH.read_text()))]:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_validator_would_notice() -> None:
    wrong = copy.deepcopy(one("StatefulSet"))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_is_in_use() -> None:
    text = (DIRECTORY / "kustomization.yaml").read_text()
    assert [
        path.name
        for path in DIRECTORY.iterdir()
        if path.name != "kustomization.yaml" and path.name not in text
    ] == []


def test_everything_is_in_the_confined_namespace() -> None:
    labels = one("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {document["metadata"].get("namespace", "fedelmy") for document in documents()} == {
        "fedelmy"
    }


def test_the_pod_is_confined() -> None:
    """What the `restricted` standard asks for, and more."""
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] == 45
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # With the default, Always, the kubelet would make key.pem readable to the group at every start.
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    for container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_mounts_ports_and_labels_fit_together() -> None:
    state, service, policy = (
        one("StatefulSet")["spec"],
        one("Service")["spec"],
        one("NetworkPolicy")["spec"],
    )
    pod, labels = state["template"]["spec"], state["template"]["metadata"]["labels"]
    volumes = {each["name"] for each in pod["volumes"]} | {
        each["metadata"]["name"] for each in state["volumeClaimTemplates"]
    }
    mounted = {mount["name"] for container in containers() for mount in container["volumeMounts"]}
    assert mounted == volumes
    assert state["serviceName"] == one("Service")["metadata"]["name"]
    for selector in (
        state["selector"]["matchLabels"],
        service["selector"],
        policy["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (node,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == service["ports"][0]["port"] == 50051
    assert policy["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 50051}]
    data = next(mount for mount in node["volumeMounts"] if mount["name"] == "data")
    assert data["readOnly"] is True


def test_the_settings_are_those_of_a_node(tmp_path: Path) -> None:
    text = one("ConfigMap")["data"]["site.toml"]
    (tmp_path / "site.toml").write_text(text)
    config = load_site_config(Given(state=tmp_path))
    assert config.listen == "0.0.0.0:50051"
    assert tomllib.loads(text)["data"]["source"] == f"imagefolder:{mount_of('data')}"
    (node,) = one("StatefulSet")["spec"]["template"]["spec"]["containers"]
    settings = {entry["name"]: entry["value"] for entry in node["env"]}
    assert settings["FEDELMY_CONFIG"] == f"{mount_of('config')}/site.toml"
    # Below the volume: its own top directory belongs to root, and could not be made private.
    assert Path(settings["FEDELMY_STATE"]).parent == Path(mount_of("state"))


def mount_of(volume: str) -> str:
    (node,) = one("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return str(
        next(mount["mountPath"] for mount in node["volumeMounts"] if mount["name"] == volume)
    )
