"""A site that lists its operators answers no other, whatever is asked; with real certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import signed_cancel
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import ConsentError, RunError
from fedelmy_node.domain.names import run_id
from fedelmy_node.domain.reports import Signed
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import OperatorClient
from tests.integration.support.serving import lay_down, serving

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
    stack = ExitStack()

    def begin(listed: str) -> OperatorClient:
        lay_down(tmp_path / "s", identities["south"])
        (tmp_path / "s" / "site.toml").write_text(f'[consent]\noperators = ["{listed}"]\n')
        node = Node(
            load_site_config(Given(state=tmp_path / "s", listen="127.0.0.1:0", data="digits"))
        )
        stack.enter_context(serving(node))
        client = OperatorClient(
            open_channel(node.address, identities["operator"], expect_role="site"), "south"
        )
        stack.callback(client.close)
        return client

    with stack:
        yield begin


def test_an_operator_who_is_not_listed_gets_no_answer(
    ask: Callable[[str], OperatorClient], identities: Identities
) -> None:
    client = ask("alice")
    cancel = signed_cancel(RUN, "", "enough", identities["operator"])
    for question in [*QUESTIONS, lambda client: client.cancel(cancel)]:
        with pytest.raises(ConsentError, match="E-CONSENT-OPERATOR") as caught:
            question(client)
        assert "does not accept operator operator" in caught.value.message


def test_one_who_is_listed_does(ask: Callable[[str], OperatorClient]) -> None:
    client = ask("operator")
    assert client.describe().site == "south"
    with pytest.raises(RunError, match="E-RUN-UNKNOWN"):
        client.report(RUN)
