"""`fedelmy-launch ca`: found a federation, and certify its sites."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click

from fedelmy_launcher.cli.options import json_option
from fedelmy_node.cli.frame import emit_json

__all__ = ["ca"]

_DEFAULT = Path("federation-ca")
_REASONS = ("unspecified", "key-compromise", "superseded", "cessation-of-operation", "affiliation-changed")
"""Words of X.509, for people who read the list."""

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=_DEFAULT,
    envvar="FEDELMY_CA",
    show_default=True,
    show_envvar=True,
    help="Where the CA is kept. Guard it: its key can name anybody a site.",
)


@click.group()
def ca() -> None:
    """The federation's certificates.

    \b
    Examples:
      fedelmy-launch ca init
      fedelmy-launch ca sign north.csr
      fedelmy-launch ca list
      fedelmy-launch ca revoke north --reason key-compromise
    """


@ca.command("init")
@_directory
@click.option("--operator", default="operator", show_default=True, help="Name of the operator who founds it.")
@json_option
def init(directory: Path, operator: str, as_json: bool) -> None:
    """Make the CA of a new federation, and an identity for its operator.

    \b
    Examples:
      fedelmy-launch ca init
      fedelmy-launch ca init --dir /secure/study-7 --operator alice
    """
    from fedelmy_launcher import authority

    signed = authority.init(directory, operator)
    _show(
        {
            "directory": str(directory),
            "operator": signed.subject.name,
            "identity": str(signed.path.parent),
            "fingerprint": signed.fingerprint,
            "not_after": signed.not_after.isoformat(),
        },
        f"CA made in {directory}; operator {signed.subject.name}, valid until {signed.not_after:%Y-%m-%d}.\n"
        f"Keep {directory} private and backed up.\n\n"
        "Next: every site runs `fedelmy-node identity init --site NAME` and sends you its request;\n"
        f"      you run `fedelmy-launch ca sign REQUEST{_named(directory)}` on each.",
        as_json,
    )


@ca.command("sign")
@click.argument("request", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_directory
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: NAME.ROLE.pem]")
@click.option("--days", type=click.IntRange(min=1), default=825, show_default=True, help="How long it is valid.")
@click.option("--operator", "for_operator", is_flag=True, help="Certify another operator, not a site.")
@click.option("--replace", is_flag=True, help="Allow a new key for a name that was certified before.")
@click.option("--yes", is_flag=True, help="The fingerprint was compared; do not ask.")
@json_option
def sign(request: Path, directory: Path, out: Path | None, as_json: bool, **options: Any) -> None:
    """Certify the key of a site.

    Compare the fingerprint with the site on the phone first: it is all that tells the site's request from an
    impostor's. The same request may be signed again for a renewal.

    \b
    Examples:
      fedelmy-launch ca sign north.csr
      fedelmy-launch ca sign north.csr --yes --out certificates/north.pem
      fedelmy-launch ca sign north-2.csr --replace      (north has made a new key)
      fedelmy-launch ca sign alice.csr --operator
    """
    from fedelmy_launcher import authority

    asked = authority.read_request(request)
    role: Literal["site", "operator"] = "operator" if options["for_operator"] else "site"
    if not options["yes"]:
        _confirm(str(asked.subject), asked.fingerprint)
    signed = authority.sign(
        directory,
        request,
        out or Path(f"{asked.subject.name}.{asked.subject.role}.pem"),
        days=options["days"],
        role=role,
        replace=options["replace"],
    )
    following = (
        f"Next: send {signed.path} back (it is not secret); there,\n"
        f"      `fedelmy-node identity install {signed.path.name}` takes it in."
    )
    for old in signed.old_keys:
        flags = f"{' --operator' if role == 'operator' else ''} --key {old} --reason superseded{_named(directory)}"
        following += (
            f"\n      The key {old} stays valid; once the new one is in use, revoke it:\n"
            f"      `fedelmy-launch ca revoke {signed.subject.name}{flags}`."
        )
    _show(
        {
            "name": signed.subject.name,
            "role": signed.subject.role,
            "fingerprint": signed.fingerprint,
            "path": str(signed.path),
            "not_after": signed.not_after.isoformat(),
            "old_keys": list(signed.old_keys),
        },
        f"Signed for {signed.subject}, valid until {signed.not_after:%Y-%m-%d}: {signed.path}\n\n{following}",
        as_json,
    )


@ca.command("revoke")
@click.argument("name")
@_directory
@click.option("--operator", "of_operator", is_flag=True, help="NAME is an operator, not a site.")
@click.option("--key", "keys", multiple=True, help="Only certificates for the key with this fingerprint. Repeatable.")
@click.option("--serial", "serials", multiple=True, help="Only this certificate (see `ca list`). Repeatable.")
@click.option("--reason", type=click.Choice(_REASONS), default=_REASONS[0], show_default=True, help="Why, for people.")
@json_option
def revoke(name: str, directory: Path, of_operator: bool, as_json: bool, **options: Any) -> None:
    """Revoke the certificates of a site, or of an operator: from now on nobody is to believe them.

    Writes the revocation list anew. `fedelmy-launch check` and `run` hand it to every site; a site can also
    take it in by itself. Sites that have it refuse the holder at once, in the middle of a transfer, too.

    \b
    Examples:
      fedelmy-launch ca revoke north --reason key-compromise
      fedelmy-launch ca revoke alice --operator
      fedelmy-launch ca revoke north --key 4D0C-9F2E-61B7-33A8-5E10 --reason superseded
      fedelmy-launch ca revoke north --serial 4f2a90c1
    """
    from fedelmy_launcher import authority

    role: Literal["site", "operator"] = "operator" if of_operator else "site"
    done = authority.revoke(directory, name, role=role, **options)
    count = f"{len(done.serials)} certificate{'s' if len(done.serials) > 1 else ''}"
    _show(
        {
            "name": done.subject.name,
            "role": done.subject.role,
            "serials": list(done.serials),
            "number": done.number,
            "path": str(done.path),
        },
        f"Revoked {count} of {done.subject}; list {done.number} is in {done.path}\n\n"
        "Next: `fedelmy-launch check` hands the list to every site that it reaches;\n"
        f"      others take it in with `fedelmy-node identity install {done.path.name}` (it is not secret).",
        as_json,
    )


@ca.command("list")
@_directory
@json_option
def list_command(directory: Path, as_json: bool) -> None:
    """Show everything that was signed, oldest first, and what it is worth now.

    \b
    Examples:
      fedelmy-launch ca list
      fedelmy-launch ca list --json
    """
    from fedelmy_launcher import authority
    from fedelmy_node.config.decode import encode

    found = authority.certified(directory)
    if as_json:
        emit_json(
            {
                "certificates": [
                    {**encode(each.issued), "fingerprint": each.fingerprint, "state": each.state}
                    | {"days": round(each.days, 1)}
                    | ({"revoked_at": each.revoked_at, "reason": each.reason} if each.revoked_at else {})
                    for each in found
                ]
            }
        )
        return
    for each in found:
        state = {
            "valid": f"valid, expires in {each.days:.0f} days",
            "expired": f"expired {-each.days:.0f} days ago",
            "revoked": f"revoked on {(each.revoked_at or '')[:10]} ({each.reason})",
        }[each.state]
        who, serial = f"{each.issued.role}/{each.issued.name}", each.issued.serial[:12]
        click.echo(f"{who:<24} signed {each.issued.at[:10]}  serial {serial}  key {each.fingerprint}  {state}")


def _named(directory: Path) -> str:
    """The flag that leads to this CA again, if one is needed."""
    return "" if directory == _DEFAULT or "FEDELMY_CA" in os.environ else f" --dir {directory}"


def _confirm(subject: str, fingerprint: str) -> None:
    from fedelmy_node.errors import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"the fingerprint {fingerprint} of {subject} must be confirmed, but nobody is at the terminal",
            hint="Compare it with the site, then sign with --yes.",
        )
    click.echo(f"Request of  {subject}\nFingerprint {fingerprint}", err=True)
    click.confirm("Does the site read you the same fingerprint?", abort=True, err=True)


def _show(values: Mapping[str, object], text: str, as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        click.echo(text)
