"""What must hold inside the containers of docker-compose.yml while they run, each as seen from
inside them.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.e2e.support.engines import Stack

__all__ = ["SITES", "CHAIN", "container_checks"]

SITES = ("north", "east", "south", "west")
CHAIN = {frozenset(pair) for pair in itertools.pairwise(SITES)}

_SELF = """\
import json, os, pathlib
status = dict(line.split(":", 1) for line in open("/proc/1/status") if ":" in line)
def writable(place):
    try:
        pathlib.Path(place, "trial").touch()
        pathlib.Path(place, "trial").unlink()
        return True
    except OSError:
        return False
print(json.dumps({
    "users": status["Uid"].split(), "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"].strip() == "1",
    "writable": [p for p in ("/", "/etc", "/opt/fedelmy", "/usr", "/data", "/var/lib/fedelmy", "/tmp") if writable(p)],
}))
"""

_DIAL = """\
import json, socket, sys
def dial(host, port):
    try:
        socket.create_connection((host, int(port)), 5).close()
        return True
    except OSError:
        return False
print(json.dumps([dial(*target.rsplit(":", 1)) for target in sys.argv[1:]]))
"""

_TLS = """\
import json, socket, ssl, sys
from cryptography import x509
HOME = "/var/lib/fedelmy/identity/"
def talk(host, home):
    context = ssl.create_default_context(cafile=HOME + "ca.pem")
    context.check_hostname = False  # a certificate names the site, not its address
    if home:
        context.load_cert_chain(HOME + "certificate.pem", HOME + "key.pem")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, 50051), 10) as plain, context.wrap_socket(plain) as sure:
        leaf = x509.load_der_x509_certificate(sure.getpeercert(True))
        sure.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0")
        answered = len(sure.recv(9)) == 9  # its settings; in TLS 1.3 a refusal of our certificate comes here
        return sure.version(), leaf.subject.rfc4514_string(), answered
def outcome(host, home):
    try:
        return talk(host, home)
    except OSError as error:
        return (type(error).__name__, str(error), False)
def plaintext(host):
    with socket.create_connection((host, 50051), 10) as plain:
        plain.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0")
        try:
            return plain.recv(9)[3:4] == b"\\4"
        except OSError:
            return False
print(json.dumps({h: [outcome(h, True), outcome(h, False), plaintext(h)] for h in sys.argv[1:]}))
"""


def container_checks(stack: Stack, port: int, token: str) -> dict[str, Callable[[], str]]:
    """What is looked at, and how; each tells what is wrong, if anything."""
    return {
        "runs as 10001 with no capability, no way to gain one, and a read-only root": lambda: (
            _confined(stack)
        ),
        "TLS 1.3 with certificates on both ends at every site, and nothing else": lambda: _tls(
            stack
        ),
        "a site reaches its neighbours and no other site, by name or by address": lambda: (
            _separated(stack)
        ),
        "the volume with a key is mounted by its owner alone": lambda: _own_state(stack),
        "the dashboard answers on this machine's loopback, and to no site": lambda: _dashboard(
            stack, port, token
        ),
    }


def _inside(stack: Stack, service: str, program: str, *arguments: str) -> Any:
    done = stack.execute(service, "python3", "-c", program, *arguments)
    if done.returncode:
        raise AssertionError(f"in {service}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def _confined(stack: Stack) -> str:
    wrong = []
    for service in (*SITES, "dashboard"):
        seen = _inside(stack, service, _SELF)
        state = ["/var/lib/fedelmy", "/tmp"]
        if set(seen["users"]) != {"10001"}:
            wrong.append(f"{service} runs as {seen['users']}")
        if seen["capabilities"]:
            wrong.append(f"{service} has capabilities {seen['capabilities']:x}")
        if not seen["no_new_privileges"]:
            wrong.append(f"{service} may gain privileges")
        if seen["writable"] != state:
            wrong.append(f"{service} can write to {seen['writable']}")
    return "; ".join(wrong)


def _tls(stack: Stack) -> str:
    wrong = []
    for site, (certified, stranger, plain) in _inside(stack, "dashboard", _TLS, *SITES).items():
        version, subject, answered = certified
        if version != "TLSv1.3" or f"CN={site}" not in subject or not answered:
            wrong.append(f"{site} with a certificate: {certified}")
        if stranger[2]:
            wrong.append(f"{site} answers without a certificate")
        if plain:
            wrong.append(f"{site} speaks plaintext")
    return "; ".join(wrong)


def _separated(stack: Stack) -> str:
    wrong = []
    addresses = {site: stack.networks(site) for site in SITES}
    for site in SITES:
        for other in SITES:
            if other == site:
                continue
            shared = set(addresses[site]) & set(addresses[other])
            near = [addresses[other][network] for network in shared]
            far = [place for network, place in addresses[other].items() if network not in shared]
            neighbours = frozenset((site, other)) in CHAIN
            reached = _inside(
                stack, site, _DIAL, *(f"{host}:50051" for host in (other, *near, *far))
            )
            expected = [neighbours, *([True] * len(near)), *([False] * len(far))]
            if reached != expected or bool(near) != neighbours:
                wrong.append(f"{site} -> {other}: {reached}, expected {expected}")
    return "; ".join(wrong)


def _own_state(stack: Stack) -> str:
    mounted: dict[str, set[str]] = {}
    services = (*SITES, "ca", "launcher", "dashboard")
    for service in (*services, "out"):
        for mount in stack.engine.inspect(stack.container(service))["Mounts"]:
            if mount.get("Type") == "volume":
                mounted.setdefault(mount["Name"], set()).add(service)
    wrong = []
    for service in services:
        found = [users for name, users in mounted.items() if name.endswith(f"{service}-state")]
        if found != [{service}]:
            wrong.append(f"{service}: {found}")
    return "; ".join(wrong)


def _dashboard(stack: Stack, port: int, token: str) -> str:
    wrong = []
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{token}/", timeout=30) as page:
        if page.status != 200 or b"<html" not in page.read().lower():
            wrong.append("no page")
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/{'x' * 32}/", timeout=30).close()
        wrong.append("a page without the secret")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            wrong.append(f"without the secret: {error.code}")
    published = stack.engine.inspect(stack.container("dashboard"))["NetworkSettings"][
        "Ports"
    ].values()
    hosts = {each["HostIp"] for bindings in published for each in bindings or ()}
    if hosts != {"127.0.0.1"}:
        wrong.append(f"published on {hosts}")
    targets = [f"{place}:{port}" for place in stack.networks("dashboard").values()]
    for site in SITES:
        if any(_inside(stack, site, _DIAL, *targets)):
            wrong.append(f"{site} reaches it")
    return "; ".join(wrong)
