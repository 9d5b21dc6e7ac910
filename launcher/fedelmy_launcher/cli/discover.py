"""`fedelmy-launch discover`: the chain that the sites form by their --peer."""

from __future__ import annotations

from pathlib import Path

import click

from fedelmy_launcher.cli.options import json_option, load_operator, operator_options
from fedelmy_node.cli.frame import emit_json

__all__ = ["discover"]


@click.command()
@click.argument("head", metavar="HOST:PORT")
@click.option("--toml", "as_toml", is_flag=True, help="Print the [[sites]] tables for federation.toml.")
@operator_options
@json_option
def discover(head: str, as_toml: bool, identity: Path, insecure: bool, as_json: bool) -> None:
    """Walk the chain of sites from the first one, at HOST:PORT: each is asked for its --peer.

    Every site must name at most one peer; the last one names none. Addresses are those that the sites use for each
    other, so this machine must reach them, too. Where a site advertises another one (--advertise) and answers there,
    that one is taken.

    \b
    Examples:
      fedelmy-launch discover north.example:50051
      fedelmy-launch discover north.example:50051 --toml >> federation.toml
      fedelmy-launch run federation.toml --head north.example:50051
    """
    from fedelmy_launcher.chain import walk
    from fedelmy_node.domain.names import address
    from fedelmy_node.domain.texts import clean

    chain = walk(address(head), load_operator(identity, insecure))
    if as_json:
        keys = ("site", "version", "device", "data", "torch")
        sites = [
            {"address": link.address, "advertise": link.node.advertise, "doubt": link.doubt}
            | {key: getattr(link.node, key) for key in keys}
            for link in chain
        ]
        emit_json({"sites": sites})
    elif as_toml:
        for link in chain:
            click.echo(f'\n[[sites]]\nname = "{link.site}"\naddress = "{link.address}"')
    else:
        click.echo(f"  {'site':<16} {'address':<28} {'data':<14} {'device':<8} version")
        for link in chain:
            node = link.node
            data, device, version = (clean(text, 40) or "-" for text in (node.data, node.device, node.version))
            click.echo(f"  {link.site:<16} {link.address:<28} {data:<14} {device:<8} {version}")
    for link in chain:
        if link.doubt and not as_json:
            click.echo(f"warning: {link.site} is taken to be at {link.address}: {link.doubt}", err=True)
