"""`fedelmy-node identity`: this site's key, its certificate request, and its certificate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.audit import record_locally
from fedelmy_node.cli.options import json_option, state_flag, state_option

_home_option = click.option(
    "--identity",
    "home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of an operator's identity, instead of the site's own.",
)


_out_option = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the request here."
)


@click.group()
def identity() -> None:
    """This site's key and certificate.

    \b
    Examples:
      fedelmy-node identity init --site north
      fedelmy-node identity install north.site.pem
      fedelmy-node identity show
      fedelmy-node identity rotate
    """
    os.umask(0o077)  # the state directory is private


@identity.command("init")
@click.option("--site", help="The site's name: lower-case letters, digits and hyphens.")
@click.option("--operator", help="The name of an operator, instead of --site.")
@state_option
@_out_option
@json_option
def init(
    site: str | None, operator: str | None, state: Path, out: Path | None, as_json: bool
) -> None:
    """Create this site's key and a certificate request. The key never leaves this machine.

    \b
    Examples:
      fedelmy-node identity init --site north
      fedelmy-node identity init --site north --state /var/lib/fedelmy --out north.csr
    """
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.keys import read_file
    from fedelmy_node.store.durable_files import write_durably
    from fedelmy_node.store.state_directory import Layout

    if (site is None) == (operator is None):
        raise click.UsageError("Give either --site NAME or --operator NAME.")
    directory = Layout(state).identity
    keystore.init(directory, site or operator or "", "site" if site else "operator")
    record_locally(state, "identity-made", name=site or operator or "")
    request = keystore.pending(directory)
    if out is not None:
        write_durably(out, read_file(request.path), 0o644)
    _show(_describe(request, out), _next_steps(request, out, _named(state)), as_json)


@identity.command("show")
@state_option
@_home_option
@json_option
def show(state: Path, home: Path | None, as_json: bool) -> None:
    """Print the site's name, its fingerprint, and how long its certificate is valid.

    The server name is the TLS server name (SNI) that others connect to; a proxy that passes TLS
    through can route by it.

    \b
    Examples:
      fedelmy-node identity show
      fedelmy-node identity show --json
      fedelmy-node identity show --identity study-ca/operator
    """
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.certificates import parse_certificates, tls_name
    from fedelmy_node.store.state_directory import Layout

    directory = home or Layout(state).identity
    request = keystore.pending(directory)
    if not keystore.is_installed(directory):
        _show(_describe(request, None), _next_steps(request, None, _named(state, home)), as_json)
        return
    loaded, rotation = keystore.load_unchecked(directory), keystore.rotation(directory)
    if loaded.flaw is not None and as_json:
        raise loaded.flaw
    server_name = tls_name(parse_certificates(loaded.certificate_pem, "certificate.pem")[0])
    lines = [
        str(loaded.subject),
        *([f"Server name {server_name}"] if loaded.subject.role == "site" else []),
        f"Fingerprint {loaded.fingerprint}",
        f"Valid until {loaded.not_after:%Y-%m-%d %H:%M} UTC",
        *map(_list_line, loaded.trust.lists),
        *(f"Warning: {warning}" for warning in loaded.warnings() if loaded.flaw is None),
    ]
    if rotation is not None:
        new = f"{rotation.fingerprint}, request {rotation.path}"
        lines += ["", f"A new key waits for its certificate: {new}"]
    more = {
        "not_after": loaded.not_after.isoformat(),
        "server_name": server_name,
        "lists": [one.number for one in loaded.trust.lists],
        "warnings": list(loaded.warnings()),
        "rotation": rotation.fingerprint if rotation else None,
    }
    _show(_describe(request, None) | more, "\n".join(lines), as_json)
    if loaded.flaw is not None:
        raise loaded.flaw


@identity.command("rotate")
@state_option
@_home_option
@_out_option
@json_option
def rotate(state: Path, home: Path | None, out: Path | None, as_json: bool) -> None:
    """Create a new key and a certificate request; the old key stays in use until `install`.

    \b
    Examples:
      fedelmy-node identity rotate --out north-2.csr
      fedelmy-node identity install north.site.pem      (activates the new key)
    """
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.keys import read_file
    from fedelmy_node.store.durable_files import write_durably
    from fedelmy_node.store.state_directory import Layout

    request = keystore.rotate(home or Layout(state).identity)
    facts = {"subject": str(request.subject), "fingerprint": request.fingerprint}
    _record(state, home, "identity-rotated", **facts)
    if out is not None:
        write_durably(out, read_file(request.path), 0o644)
    following = _next_steps(request, out, _named(state, home))
    text = f"{following}\n      Until then, the old key stays in use."
    _show(_describe(request, out), text, as_json)


@identity.command("install")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--ca",
    "ca_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA certificates to trust, if FILE is not signed by the federation's own CA.",
)
@state_option
@_home_option
@json_option
def install(
    file: Path, ca_file: Path | None, state: Path, home: Path | None, as_json: bool
) -> None:
    """Install a signed certificate or a revocation list; a running daemon uses it at once.

    For a certificate of another CA, FILE also contains the intermediates, and --ca names the root.
    A list that the CA did not sign, or that is older than the one in force, is refused.

    \b
    Examples:
      fedelmy-node identity install north.site.pem
      fedelmy-node identity install node1.pem --ca hospital-root.pem
      fedelmy-node identity install revoked.pem
      fedelmy-node identity install operator.operator.pem --identity study-ca/operator
    """
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.keys import LIST_BYTES, read_file
    from fedelmy_node.identity.revocation_list import looks_like_list
    from fedelmy_node.store.state_directory import Layout

    directory = home or Layout(state).identity
    content = read_file(file, LIST_BYTES)
    if looks_like_list(content):
        lists = keystore.install_lists(directory, content, str(file))
        _record(state, home, "revocations-installed", number=lists[0].number)
        text = "\n".join(f"{_list_line(one)} is in force." for one in lists)
        _show({"lists": [one.number for one in lists]}, text, as_json)
        return
    renewed = keystore.is_installed(directory)
    installed = keystore.install(directory, file, ca_file)
    facts = {"subject": str(installed.subject), "fingerprint": installed.fingerprint}
    _record(state, home, "identity-installed", **facts)
    options = f"--peer HOST:PORT --data KIND:PATH{_named(state)}"
    following = (
        f"Next: check the site with `fedelmy-node doctor {options}`,\n"
        "      then start it with `fedelmy-node serve` and the same options."
    )
    if renewed:
        following = "A running node uses it from now on."
    if installed.subject.role == "operator":
        following = f"Next: use it with `fedelmy-launch run --identity {directory}`."
    who, until = installed.subject, installed.not_after
    text = f"Installed for {who}, valid until {until:%Y-%m-%d}.\n\n{following}"
    _show({"name": who.name, "role": who.role, "not_after": until.isoformat()}, text, as_json)


def _record(state: Path, home: Path | None, act: str, **facts: str | int) -> None:
    """Record an act in the audit log; an operator's identity does not belong to a site."""
    if home is None:
        record_locally(state, act, **facts)


def _list_line(one: Any) -> str:
    return f"Revocation list {one.number} of {one.issuer.rfc4514_string()}"


def _describe(request: Any, out: Path | None) -> dict[str, object]:
    return {
        "name": request.subject.name,
        "role": request.subject.role,
        "fingerprint": request.fingerprint,
        "request": str(out or request.path),
        "not_after": None,
    }


def _next_steps(request: Any, out: Path | None, flag: str) -> str:
    return (
        f"{request.subject}\nFingerprint {request.fingerprint}\n\n"
        f"Next: send {out or request.path} to the operator, and confirm the fingerprint by phone;\n"
        f"      then run `fedelmy-node identity install FILE{flag}` with the signed file."
    )


def _named(state: Path, home: Path | None = None) -> str:
    return state_flag(state) if home is None else f" --identity {home}"


def _show(values: Mapping[str, object], text: str, as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        click.echo(text)
