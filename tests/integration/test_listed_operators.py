"""A site that lists its operators answers no other, whatever is asked; with real certificates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fedelmy_launcher.plans import signed_cancel
from fedelmy_node.config.site import Given, load_site_config
from fedelmy_node.daemon.node import Node
from fedelmy_node.domain.names import run_id
from fedelmy_node.domain.reports import Signed
from fedelmy_node.errors import ConsentError, RunError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import open_channel

Identities = Mapping[str, Identity]
RUN = run_id("run-1")
QUESTIONS: list[Callable[[OperatorClient], object]] = [
    lambda client: client.describe(),
    lambda client: client.prepare(Signed(payload=b"{}")),
    lambda client: client.start(RUN),
    lambda client: list(client.watch(RUN, 0)),
    lambda client: client.report(RUN),
]


@pytest.fixture
def ask(tmp_path: Path, identities: Identities) -> Iterator[Callable[[str], OperatorClient]]:
    """A client of the node of `south`, which lists these operators."""
    nodes: list[tuple[Node, threading.Thread, OperatorClient]] = []

    def begin(listed: str) -> OperatorClient:
        home = tmp_path / "s" / "identity"
        home.mkdir(parents=True)
        own = identities["south"]
        for file, data in (("key.pem", own.key_pem), ("certificate.pem", own.certificate_pem), ("ca.pem", own.ca_pem)):
            (home / file).write_bytes(data)
            (home / file).chmod(0o600)
        (tmp_path / "s" / "site.toml").write_text(f'[consent]\noperators = ["{listed}"]\n')
        node = Node(load_site_config(Given(state=tmp_path / "s", listen="127.0.0.1:0", data="digits")))
        thread = threading.Thread(target=node.serve)
        thread.start()
        assert node.ready.wait(20)
        client = OperatorClient(open_channel(node.address, identities["operator"], expect_role="site"), "south")
        nodes.append((node, thread, client))
        return client

    yield begin
    for node, thread, client in nodes:
        client.close()
        node.stop()
        thread.join(20)


def test_an_operator_who_is_not_listed_gets_no_answer(
    ask: Callable[[str], OperatorClient], identities: Identities
) -> None:
    client = ask("alice")
    cancel = signed_cancel(RUN, "enough", identities["operator"])
    for question in [*QUESTIONS, lambda client: client.cancel(cancel)]:
        with pytest.raises(ConsentError, match="E-CONSENT-OPERATOR") as caught:
            question(client)
        assert "does nothing for operator operator" in caught.value.message


def test_one_who_is_listed_does(ask: Callable[[str], OperatorClient]) -> None:
    client = ask("operator")
    assert client.describe().site == "south"
    with pytest.raises(RunError, match="E-RUN-UNKNOWN"):
        client.report(RUN)
