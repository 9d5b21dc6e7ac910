"""`fedelmy-launch discover`: find the chain that the sites form with --peer."""

from __future__ import annotations

import click

from fedelmy_launcher.cli.options import Operator, json_option, operator_options
from fedelmy_node.cli.app import emit_json


@click.command()
@click.argument("head", metavar="HOST:PORT")
@click.option("--toml", "as_toml", is_flag=True, help="Print [[sites]] tables for federation.toml.")
@operator_options
@json_option
def discover(head: str, as_toml: bool, operator: Operator, as_json: bool) -> None:
    """Discover a chain of sites: start at HOST:PORT and follow each site's --peer.

    Every site must have exactly one --peer, the last one none. The addresses are those that the
    sites use for each other, so this machine must be able to reach them too. If a site answers at
    the address that it advertises (--advertise), that address is used instead.

    \b
    Examples:
      fedelmy-launch discover north.example:50051
      fedelmy-launch discover north.example:50051 --toml >> federation.toml
      fedelmy-launch run federation.toml --head north.example:50051
    """
    from fedelmy_launcher.plans.discovery import walk
    from fedelmy_node.domain.names import address
    from fedelmy_node.domain.text import clean

    chain = walk(address(head), operator())
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
            texts = (node.data, node.device, node.version)
            data, device, version = (clean(text, 40) or "-" for text in texts)
            click.echo(f"  {link.site:<16} {link.address:<28} {data:<14} {device:<8} {version}")
    for link in chain:
        if link.doubt and not as_json:
            click.echo(f"warning: using {link.address} for {link.site}: {link.doubt}", err=True)
