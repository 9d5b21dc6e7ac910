"""`fedelmy-launch ca`: found a federation, and certify its sites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import click

from fedelmy_launcher.cli.options import json_option
from fedelmy_node.cli.frame import emit_json

__all__ = ["ca"]

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("federation-ca"),
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
        "      you run `fedelmy-launch ca sign REQUEST` on each.",
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
    _show(
        {
            "name": signed.subject.name,
            "role": signed.subject.role,
            "fingerprint": signed.fingerprint,
            "path": str(signed.path),
            "not_after": signed.not_after.isoformat(),
        },
        f"Signed for {signed.subject}, valid until {signed.not_after:%Y-%m-%d}: {signed.path}\n\n"
        f"Next: send {signed.path} back (it is not secret); there,\n"
        f"      `fedelmy-node identity install {signed.path.name}` takes it in.",
        as_json,
    )


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


def _show(values: dict[str, str], text: str, as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        click.echo(text)
