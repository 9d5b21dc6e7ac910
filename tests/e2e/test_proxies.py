"""Two real nodes behind one port of HAProxy and of nginx, which pass TLS through, with the files of
deploy/proxy/.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.identity import keystore
from fedelmy_node.rpc.channel import open_channel
from tests.e2e.support.fronts import Front
from tests.e2e.support.proxy import CountingProxy
from tests.e2e.support.testbed import COMMAND_SECONDS, Bed, launched

pytestmark = pytest.mark.full
BUNDLE = {"model": "mlp", "size": 160}
"""13 MB: more than what is lost with a connection, which is a window of 4 MiB."""
KILL_AT, LOST_AT_MOST = 8_000_000, 6_000_000
IDLE_SECONDS = 75.0
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


@pytest.fixture(scope="module")
def bed(make_bed: Callable[..., Bed]) -> Bed:
    made = make_bed("north", "south")
    made.partition()
    return made


class Scene:
    """North hands over to south. Both are behind one port; what goes to south is counted behind it."""

    def __init__(self, bed: Bed, kind: str, way: CountingProxy) -> None:
        self.bed, self.way = bed, way
        north, south = bed.sites.values()
        self.home = bed.root / kind
        self.home.mkdir()
        way.target = south.start("--indices", "parts/south.json").address
        north.start("--indices", "parts/north.json").stop()  # now it has a port
        self.front = Front(kind, self.home, {"north": north.address, "south": way.address}).start()
        # The peer without its name: the proxy knows south by the name of a host, too.
        peer = ["--peer", f"localhost:{self.front.port}", "--advertise", self.front.address]
        try:
            north.start("--indices", "parts/north.json", *peer, listen=north.address)
        except BaseException:
            self.front.stop()
            raise
        bed.write_file(**BUNDLE, addresses=dict.fromkeys(bed.sites, self.front.address))


@pytest.fixture(scope="module", params=["haproxy", "nginx"])
def scene(request: pytest.FixtureRequest, bed: Bed) -> Iterator[Scene]:
    with CountingProxy("") as way:
        made = Scene(bed, installed(request.param), way)
        yield made
        made.front.stop()
        for site in bed.sites.values():
            site.stop()


def installed(kind: str) -> str:
    if Front.missing(kind):
        pytest.skip(f"{kind} is not installed (apt-get install haproxy nginx libnginx-mod-stream)")
    return kind


def test_a_run_through_one_port_whose_proxy_dies_during_a_hand_over(scene: Scene) -> None:
    """Both sites have the same address; and what the proxy cut is resumed, not begun again."""
    bed, way, name = scene.bed, scene.way, f"through-{scene.front.kind}"
    check = bed.launch("check", "--json").ok().json
    assert check["ready"]
    assert [each for each in check["findings"]["north"] if each["check"] == "advertise"] == [], (
        "it is as the file says"
    )
    way.bytes_per_second, before = 4e6, way.to_target
    with launched(bed, name) as launcher:
        way.wait_for(before + KILL_AT, 200)
        scene.front.kill()
        way.bytes_per_second = None
        scene.front.start()
        out, err = launcher.communicate(timeout=COMMAND_SECONDS)
    assert launcher.returncode == 0, err
    moved = way.to_target - before
    result = json.loads(out.splitlines()[-1])
    bundle = result["bundle_bytes"]
    assert (result["state"], result["subset"]) == ("done", False) and bundle > 13_000_000
    assert bundle <= moved < bundle + LOST_AT_MOST, (
        "a second beginning would have taken KILL_AT more"
    )


def test_what_is_advertised_is_found(scene: Scene) -> None:
    """By whoever asks the node at another address, and by the node itself."""
    north = scene.bed.sites["north"]
    found = scene.bed.launch("discover", north.address, "--json").ok().json["sites"]
    assert [site["site"] for site in found] == ["north", "south"]
    assert found[0]["address"] == found[0]["advertise"] == scene.front.address != north.address
    looked = (
        north.node("doctor", "--data", "digits", "--listen", north.address, "--json")
        .ok()
        .json["findings"]
    )
    assert f"{scene.front.address} leads back to this node" in {each["message"] for each in looked}
    assert f", advertised as {scene.front.address}" in north.node("health").ok().out
    scene.bed.write_file(addresses={"north": north.address, "south": scene.front.address})
    check = scene.bed.launch("check", "--json").ok().json
    (told,) = [each for each in check["findings"]["north"] if each["check"] == "advertise"]
    assert (
        told["verdict"] == "warning" and f'write address = "{scene.front.address}"' in told["fix"]
    )


def test_a_name_that_the_proxy_does_not_know_is_told(scene: Scene) -> None:
    done = scene.bed.sites["north"].node(
        "doctor", "--data", "digits", "--peer", f"west={scene.front.address}"
    )
    assert done.code != 0 and "must route west.site.fedelmy to the node" in " ".join(
        done.out.split()
    )


@pytest.mark.parametrize(("patience", "stands"), [("45s", True), ("10s", False)])
def test_a_silent_stream_outlives_a_proxy_that_waits_longer_than_pings_take(
    scene: Scene, tmp_path: Path, patience: str, stands: bool
) -> None:
    """Pings go every 30 s: a proxy that waits for 45 s never sees silence, one that waits for 10 s
    hangs up.
    """
    south = scene.bed.sites["south"]
    lines = {"haproxy": ("timeout client", "timeout server"), "nginx": ("proxy_timeout",)}[
        scene.front.kind
    ]
    changes = {f"{line} 5m": f"{line} {patience}" for line in lines}
    front = Front(scene.front.kind, tmp_path, {"south": south.address}, changes).start()
    heard: list[int] = []
    began, ended = threading.Event(), threading.Event()

    def listen(stub: health_pb2_grpc.HealthStub) -> None:
        with suppress(grpc.RpcError):
            for answer in stub.Watch(
                health_pb2.HealthCheckRequest(service="fedelmy.v1.Transfer"),
                timeout=COMMAND_SECONDS,
            ):
                heard.append(answer.status)
                began.set()
        ended.set()

    operator = keystore.load(scene.bed.ca / "operator")
    with open_channel(
        Address(front.address), operator, expect_role="site", expect_site=SiteName("south")
    ) as channel:
        listener = threading.Thread(target=listen, args=[health_pb2_grpc.HealthStub(channel)])
        listener.start()
        assert began.wait(20) and heard == [SERVING]
        assert ended.wait(IDLE_SECONDS) is not stands
        if stands:
            south.stop()
            assert ended.wait(30) and heard == [SERVING, NOT_SERVING], (
                "the last word came on the same stream"
            )
            south.start("--indices", "parts/south.json", listen=south.address)
        listener.join(30)
    front.stop()


def test_a_proxy_that_opens_tls_is_named_with_its_ca(scene: Scene, tmp_path: Path) -> None:
    """Many hospitals have one that looks into TLS; the doctor says whose certificate it shows."""
    file = tmp_path / "inspection.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/O=Hospital IT/CN=Inspection CA",
            "-keyout",
            str(tmp_path / "key"),
            "-out",
            str(file),
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes(file.read_bytes() + (tmp_path / "key").read_bytes())
    north, south = scene.bed.sites.values()
    changes = {
        "haproxy": {
            "bind :443": f"bind :443 ssl crt {file} alpn h2",
            "{ req.ssl_hello_type 1 }": "TRUE",
            "req.ssl_sni": "ssl_fc_sni",
            "10.0.0.12:50051": "10.0.0.12:50051 ssl verify none alpn h2",
        },
        "nginx": {
            "listen 443;": f"listen 443 ssl; ssl_certificate {file}; ssl_certificate_key {file}; ssl_alpn h2;",
            "ssl_preread on;": "proxy_ssl on; ssl_protocols TLSv1.3;",
            "$ssl_preread_server_name": "$ssl_server_name",
        },
    }[scene.front.kind]
    front = Front(scene.front.kind, tmp_path, {"south": south.address}, changes).start()
    done = north.node("doctor", "--data", "digits", "--peer", f"south={front.address}")
    front.stop()
    said = " ".join(done.out.split())
    assert done.code != 0 and "E-IDENTITY-UNTRUSTED" in said
    assert "'CN=Inspection CA,O=Hospital IT' signed it" in said
    assert (
        "If that is the CA of a proxy or an antivirus that opens TLS, have it pass this address through"
        in said
    )
