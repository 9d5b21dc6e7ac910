"""`fedelmy-launch ca`: create a federation and certify its sites."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click

from fedelmy_launcher.ca.validity import LEAF_DAYS
from fedelmy_launcher.cli.options import DIRECTORY, FILE, json_option
from fedelmy_node.cli.app import emit_json

_DEFAULT = Path("federation-ca")
_REASONS = (
    *("unspecified", "key-compromise", "superseded"),
    *("cessation-of-operation", "affiliation-changed"),
)
"""Reason codes of X.509."""
_DAYS = click.IntRange(min=1)
_OUT_FILE = "File to write.  [default: NAME.ROLE.pem]"
_KEY = "Only certificates for the key with this fingerprint. Repeatable."
_SERIAL = "Only this certificate (see `ca list`). Repeatable."

_directory = click.option(
    "--dir",
    "directory",
    type=DIRECTORY,
    default=_DEFAULT,
    envvar="FEDELMY_CA",
    show_default=True,
    show_envvar=True,
    help="Directory of the CA. Keep it secret: its key can certify anyone as a site.",
)


@click.group()
def ca() -> None:
    """Manage the federation's certificates.

    \b
    Examples:
      fedelmy-launch ca init
      fedelmy-launch ca sign north.csr
      fedelmy-launch ca list
      fedelmy-launch ca revoke north --reason key-compromise
    """


@ca.command("init")
@_directory
@click.option(
    "--operator",
    default="operator",
    show_default=True,
    help="Name of the operator, as sites list it.",
)
@json_option
def init(directory: Path, operator: str, as_json: bool) -> None:
    """Create the CA of a new federation and an identity for its operator.

    \b
    Examples:
      fedelmy-launch ca init
      fedelmy-launch ca init --dir /secure/study-7
    """
    from fedelmy_launcher.ca import authority

    signed = authority.init(directory, operator)
    _show(
        {
            "directory": str(directory),
            "operator": signed.subject.name,
            "identity": str(signed.path.parent),
            "fingerprint": signed.fingerprint,
            "not_after": signed.not_after.isoformat(),
        },
        f"Created a CA in {directory}; operator {signed.subject.name},"
        f" valid until {signed.not_after:%Y-%m-%d}.\n"
        f"Keep {directory} private and backed up.\n\n"
        "Next: every site runs `fedelmy-node identity init --site NAME` and sends you its"
        " request;\n"
        f"      you run `fedelmy-launch ca sign REQUEST{_dir_option(directory)}` on each.",
        as_json,
    )


@ca.command("sign")
@click.argument("request", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_directory
@click.option("--out", type=FILE, help=_OUT_FILE)
@click.option("--days", type=_DAYS, default=LEAF_DAYS, show_default=True, help="Validity in days.")
@click.option("--operator", "for_operator", is_flag=True, help="Certify an operator, not a site.")
@click.option("--replace", is_flag=True, help="Allow a new key for a name certified before.")
@click.option("--yes", is_flag=True, help="The fingerprint was compared; do not ask.")
@json_option
def sign(request: Path, directory: Path, out: Path | None, as_json: bool, **options: Any) -> None:
    """Certify the key of a site.

    First compare the fingerprint with the site by phone: only that tells its request from an
    impostor's. Sign the same request again to renew a certificate.

    \b
    Examples:
      fedelmy-launch ca sign north.csr
      fedelmy-launch ca sign north.csr --yes --out certificates/north.pem
      fedelmy-launch ca sign north-2.csr --replace      (north made a new key)
      fedelmy-launch ca sign bob.csr --operator         (bob is a second operator)
    """
    from fedelmy_launcher.ca import authority
    from fedelmy_node.identity.requests import read_request

    asked = read_request(request)
    role: Literal["site", "operator"] = "operator" if options["for_operator"] else "site"
    if not options["yes"]:
        _confirm(str(asked.subject), asked.fingerprint)
    out = out or Path(f"{asked.subject.name}.{asked.subject.role}.pem")
    days, replace = options["days"], options["replace"]
    signed = authority.sign(directory, request, out, days=days, role=role, replace=replace)
    following = (
        f"Next: send {signed.path} back (it is not secret). The {signed.subject.role} installs it\n"
        f"      with `fedelmy-node identity install {signed.path.name}`."
    )
    revoke = f"fedelmy-launch ca revoke {signed.subject.name}"
    revoke += " --operator" if role == "operator" else ""
    for old in signed.old_keys:
        following += (
            f"\n      The key {old} stays valid; once the new one is in use, revoke it:\n"
            f"      `{revoke} --key {old} --reason superseded{_dir_option(directory)}`."
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
        f"Signed for {signed.subject}, valid until {signed.not_after:%Y-%m-%d}: {signed.path}\n\n"
        + following,
        as_json,
    )


@ca.command("revoke")
@click.argument("name")
@_directory
@click.option("--operator", "of_operator", is_flag=True, help="NAME is an operator, not a site.")
@click.option("--key", "keys", multiple=True, help=_KEY)
@click.option("--serial", "serials", multiple=True, help=_SERIAL)
@click.option(
    "--reason",
    type=click.Choice(_REASONS),
    default=_REASONS[0],
    show_default=True,
    help="Reason recorded in the revocation list.",
)
@json_option
def revoke(name: str, directory: Path, of_operator: bool, as_json: bool, **options: Any) -> None:
    """Revoke the certificates of a site or an operator.

    Rewrites the revocation list. `fedelmy-launch check` and `run` send it to every site; a site can
    also install it. Sites that have it refuse the holder at once, even in the middle of a transfer.

    \b
    Examples:
      fedelmy-launch ca revoke north --reason key-compromise
      fedelmy-launch ca revoke bob --operator
      fedelmy-launch ca revoke north --key 4D0C-9F2E-61B7-33A8-5E10 --reason superseded
      fedelmy-launch ca revoke north --serial 4f2a90c1
    """
    from fedelmy_launcher.ca import authority

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
        "Next: `fedelmy-launch check` sends the list to every site that it reaches;\n"
        f"      elsewhere, install it with `fedelmy-node identity install {done.path.name}`.",
        as_json,
    )


@ca.command("list")
@_directory
@json_option
def list_command(directory: Path, as_json: bool) -> None:
    """List all certificates ever signed, oldest first, with their current state.

    \b
    Examples:
      fedelmy-launch ca list
      fedelmy-launch ca list --json
    """
    from fedelmy_launcher.ca import authority
    from fedelmy_node.config.decode import encode

    found = authority.certified(directory)
    if as_json:
        rows = []
        for each in found:
            row = {**encode(each.issued), "fingerprint": each.fingerprint, "state": each.state}
            row["days"] = round(each.days, 1)
            if each.revoked_at:
                row |= {"revoked_at": each.revoked_at, "reason": each.reason}
            rows.append(row)
        emit_json({"certificates": rows})
        return
    for each in found:
        state = {
            "valid": f"valid, expires in {each.days:.0f} days",
            "expired": f"expired {-each.days:.0f} days ago",
            "revoked": f"revoked on {(each.revoked_at or '')[:10]} ({each.reason})",
        }[each.state]
        who, serial = f"{each.issued.role}/{each.issued.name}", each.issued.serial[:12]
        dated = f"{who:<24} signed {each.issued.at[:10]}  serial {serial}"
        click.echo(f"{dated}  key {each.fingerprint}  {state}")


def _dir_option(directory: Path) -> str:
    """The --dir option for this CA, if one is needed."""
    return "" if directory == _DEFAULT or "FEDELMY_CA" in os.environ else f" --dir {directory}"


def _confirm(subject: str, fingerprint: str) -> None:
    from fedelmy_node.domain.errors import ConfigError

    if not sys.stdin.isatty():
        message = f"cannot confirm the fingerprint {fingerprint} of {subject} without a terminal"
        hint = "Compare it with the site, then sign with --yes."
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    click.echo(f"Request of  {subject}\nFingerprint {fingerprint}", err=True)
    click.confirm("Does the site read you the same fingerprint?", abort=True, err=True)


def _show(values: Mapping[str, object], text: str, as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        click.echo(text)
