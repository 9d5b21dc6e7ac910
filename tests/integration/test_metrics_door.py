"""The HTTP door of the metrics, from outside: what it answers, what it refuses, and whom it does
not wait for.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import Address
from fedelmy_node.node import Node
from fedelmy_node.ops.metrics.service import MetricsServer
from tests.integration.support.serving import serving


@pytest.fixture
def rendered() -> list[float]:
    return []


@pytest.fixture
def door(rendered: list[float]) -> Iterator[MetricsServer]:
    def render() -> bytes:
        rendered.append(time.monotonic())
        return b"up 1\n"

    made = MetricsServer(Address("127.0.0.1:0"), render)
    made.start("metrics")
    yield made
    made.close()


def ask(door: MetricsServer, method: str = "GET", path: str = "/metrics") -> tuple[int, bytes]:
    host, _, port = door.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def connect(door: MetricsServer) -> socket.socket:
    host, _, port = door.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_it_answers_one_question(door: MetricsServer) -> None:
    assert ask(door) == (200, b"up 1\n")
    assert ask(door, path="/metrics?name=x")[0] == 200
    assert ask(door, path="/")[0] == 404
    assert ask(door, path="/../../etc/passwd")[0] == 404
    assert ask(door, "POST")[0] == 405
    assert ask(door, "DELETE")[0] == 405


@pytest.mark.parametrize(
    "rubbish", [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n"]
)
def test_rubbish_is_answered_and_closed(door: MetricsServer, rubbish: bytes) -> None:
    with connect(door) as caller:
        caller.sendall(rubbish)
        assert caller.recv(100).startswith(b"HTTP/1.1 4")
    assert ask(door)[0] == 200


def test_a_head_without_end_is_cut_off(door: MetricsServer) -> None:
    with connect(door) as caller:
        with pytest.raises(OSError, match=r"."):
            for _ in range(1000):
                caller.sendall(b"X-Filler: " + b"y" * 4096 + b"\r\n")
        assert ask(door)[0] == 200


def test_who_is_slow_is_not_waited_for(
    door: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then, for ten seconds, does not buy more time: it is counted for the whole
    request.
    """
    monkeypatch.setattr(door, "request_seconds", 0.5)
    with connect(door) as caller:
        begun = time.monotonic()
        caller.sendall(b"GET /metrics HTTP/1.1\r\n")
        caller.settimeout(0.1)
        while time.monotonic() - begun < 60:
            try:
                caller.sendall(b"X")
                if caller.recv(100):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("it is still served")


def test_many_callers_hold_nobody_else_up(door: MetricsServer) -> None:
    """However many dawdle, whoever asks is answered at once, and threads do not pile up."""
    before = threading.active_count()
    idle = [connect(door) for _ in range(40)]
    time.sleep(0.2)  # the door accepts on its own thread, and nothing tells that it has
    assert threading.active_count() - before <= 8
    for _ in range(3):
        begun = time.monotonic()
        assert ask(door)[0] == 200
        assert time.monotonic() - begun < door.request_seconds, "before slow callers time out"
    for caller in idle:
        caller.close()


def test_metrics_are_collected_once_a_second_at_most(
    door: MetricsServer, rendered: list[float]
) -> None:
    begun = time.monotonic()
    for _ in range(20):
        assert ask(door)[0] == 200
    assert len(rendered) <= 1 + (time.monotonic() - begun)


def test_a_fault_while_collecting_is_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([ValueError("a bug")])

    def render() -> bytes:
        for error in answers:
            raise error
        return b"up 1\n"

    made = MetricsServer(Address("127.0.0.1:0"), render)
    made.start("metrics")
    try:
        assert ask(made)[0] == 500
        assert ask(made)[0] == 200
    finally:
        made.close()
    assert "internal error while collecting metrics" in caplog.text


def test_nobody_is_answered_after_the_end(door: MetricsServer) -> None:
    door.close()
    with pytest.raises(OSError, match="refused"):
        connect(door)


def given(state: Path, metrics: str) -> Given:
    return Given(
        state=state,
        listen="127.0.0.1:0",
        data="digits",
        insecure=True,
        site="north",
        metrics=metrics,
    )


def test_a_port_in_use_is_an_error_before_anything_is_written(
    door: MetricsServer, tmp_path: Path
) -> None:
    port = door.address.rpartition(":")[2]
    with pytest.raises(ConfigError, match="metrics cannot listen") as caught:
        Node(load_site_config(given(tmp_path / "s", port)))
    assert caught.value.code == "E-CONFIG-PORT" and "--metrics" in caught.value.hint
    assert not (tmp_path / "s").exists()


def test_a_whole_node_is_scraped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(load_site_config(given(tmp_path / "s", "0.0.0.0:0")))
    with serving(node):
        found = node.admin.health()
        port = int(found.metrics.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert 'fedelmy_serving{service="fedelmy.v1.Transfer",site="north"} 1.0' in text
    assert 'fedelmy_runs{site="north",state="running"} 0.0' in text
    assert "fedelmy_disk_free_bytes" in text and "process_cpu_seconds_total" in text
    assert "anyone who reaches" in caplog.text, "another address than loopback is warned of"
