"""`fedelmy-node identity`: this site's key, its request, and the certificate that comes back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedelmy_node.cli.audit import record_locally
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, state_flag, state_option

__all__ = ["identity"]

_home_option = click.option(
    "--identity",
    "home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory of an operator's identity, instead of the one in the site's state directory.",
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
    os.umask(0o077)  # the state directory and what is in it are the site's own


@identity.command("init")
@click.option("--site", help="The site's name: lower-case letters, digits and hyphens.")
@click.option("--operator", help="Instead of --site: the name of another operator.")
@state_option
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the request here, to send it.")
@json_option
def init(site: str | None, operator: str | None, state: Path, out: Path | None, as_json: bool) -> None:
    """Make this site's key, and a request for its certificate. The key never leaves this machine.

    \b
    Examples:
      fedelmy-node identity init --site north
      fedelmy-node identity init --site north --state /var/lib/fedelmy --out north.csr
    """
    from fedelmy_node.durable import write_durably
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.files import read_file
    from fedelmy_node.store.layout import Layout

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
    """Print who this site is, its fingerprint, and until when its certificate is valid.

    The server name is what others ask for when they connect (SNI): a proxy that passes TLS through routes by it.

    \b
    Examples:
      fedelmy-node identity show
      fedelmy-node identity show --json
      fedelmy-node identity show --identity study-ca/operator
    """
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.certificates import parse_certificates, tls_name
    from fedelmy_node.store.layout import Layout

    directory = home or Layout(state).identity
    request = keystore.pending(directory)
    if not keystore.is_installed(directory):
        _show(_describe(request, None), _next_steps(request, None, _named(state, home)), as_json)
        return
    loaded, rotation = keystore.look_at(directory), keystore.rotation(directory)
    if loaded.flaw is not None and as_json:
        raise loaded.flaw
    server_name = tls_name(parse_certificates(loaded.certificate_pem, "certificate.pem")[0])
    lines = [
        str(loaded.subject),
        *([f"Server name {server_name}"] if loaded.subject.role == "site" else []),
        f"Fingerprint {loaded.fingerprint}",
        f"Valid until {loaded.not_after:%Y-%m-%d %H:%M} UTC",
        *(f"Revocation list {one.number} of {one.issuer.rfc4514_string()}" for one in loaded.trust.lists),
        *(f"Warning: {warning}" for warning in loaded.warnings() if loaded.flaw is None),
    ]
    if rotation is not None:
        lines += ["", f"A new key waits for its certificate: {rotation.fingerprint}, request {rotation.path}"]
    _show(
        _describe(request, None)
        | {
            "not_after": loaded.not_after.isoformat(),
            "server_name": server_name,
            "lists": [one.number for one in loaded.trust.lists],
            "warnings": list(loaded.warnings()),
            "rotation": rotation.fingerprint if rotation else None,
        },
        "\n".join(lines),
        as_json,
    )
    if loaded.flaw is not None:
        raise loaded.flaw


@identity.command("rotate")
@state_option
@_home_option
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the request here, to send it.")
@json_option
def rotate(state: Path, home: Path | None, out: Path | None, as_json: bool) -> None:
    """Make a new key, and a request for its certificate. The old key stays in use until that is installed.

    \b
    Examples:
      fedelmy-node identity rotate --out north-2.csr
      fedelmy-node identity install north.site.pem      (what came back: puts the new key into use)
    """
    from fedelmy_node.durable import write_durably
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.files import read_file
    from fedelmy_node.store.layout import Layout

    request = keystore.rotate(home or Layout(state).identity)
    _record(state, home, "identity-rotated", subject=str(request.subject), fingerprint=request.fingerprint)
    if out is not None:
        write_durably(out, read_file(request.path), 0o644)
    following = _next_steps(request, out, _named(state, home))
    _show(_describe(request, out), f"{following}\n      Until then, the old key stays in use.", as_json)


@identity.command("install")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--ca",
    "ca_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Whom to trust: the CA's certificate, if it is not the federation's own. Several may be in one file.",
)
@state_option
@_home_option
@json_option
def install(file: Path, ca_file: Path | None, state: Path, home: Path | None, as_json: bool) -> None:
    """Take in what came back: a certificate, or a revocation list. A running daemon uses it from then on.

    A certificate of another CA is followed by its intermediates in FILE; --ca names the root. A list that the CA
    did not sign, or that is older than the one in force, is refused.

    \b
    Examples:
      fedelmy-node identity install north.site.pem
      fedelmy-node identity install node1.pem --ca hospital-root.pem
      fedelmy-node identity install revoked.pem
      fedelmy-node identity install alice.operator.pem --identity study-ca/operator
    """
    from fedelmy_node.identity import keystore
    from fedelmy_node.identity.files import LIST_BYTES, read_file
    from fedelmy_node.identity.revocation import looks_like_list
    from fedelmy_node.store.layout import Layout

    directory = home or Layout(state).identity
    content = read_file(file, LIST_BYTES)
    if looks_like_list(content):
        lists = keystore.install_lists(directory, content, str(file))
        _record(state, home, "revocations-installed", number=lists[0].number)
        lines = (f"Revocation list {one.number} of {one.issuer.rfc4514_string()} is in force." for one in lists)
        _show({"lists": [one.number for one in lists]}, "\n".join(lines), as_json)
        return
    renewed = keystore.is_installed(directory)
    installed = keystore.install(directory, file, ca_file)
    _record(state, home, "identity-installed", subject=str(installed.subject), fingerprint=installed.fingerprint)
    options = f"--peer HOST:PORT --data KIND:PATH{_named(state)}"
    following = (
        f"Next: start `fedelmy-node serve {options}`;\n"
        "      `fedelmy-node doctor`, with the same options, tells before whether it would work."
    )
    if renewed:
        following = "A node that runs uses it from now on."
    if installed.subject.role == "operator":
        following = f"Next: use it with `fedelmy-launch run --identity {directory}`."
    _show(
        {
            "name": installed.subject.name,
            "role": installed.subject.role,
            "not_after": installed.not_after.isoformat(),
        },
        f"Installed for {installed.subject}, valid until {installed.not_after:%Y-%m-%d}.\n\n{following}",
        as_json,
    )


def _record(state: Path, home: Path | None, act: str, **facts: str | int) -> None:
    """In the site's audit log; an operator's identity belongs to no site."""
    if home is None:
        record_locally(state, act, **facts)


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
        f"Next: send {out or request.path} to the operator, and read the fingerprint out on the phone;\n"
        f"      then run `fedelmy-node identity install FILE{flag}` with the file that comes back."
    )


def _named(state: Path, home: Path | None = None) -> str:
    """The flag that leads to this directory again, if one is needed."""
    if home is not None:
        return f" --identity {home}"
    return state_flag(state)


def _show(values: Mapping[str, object], text: str, as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        click.echo(text)
