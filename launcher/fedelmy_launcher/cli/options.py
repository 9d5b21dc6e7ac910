"""Options that several commands of the launcher have, and the identity that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedelmy_node.domain.names import address, site_name
from fedelmy_node.errors import ConfigError, ConsentError, IdentityError, RunError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from fedelmy_launcher.control import Sites
    from fedelmy_node.domain.federation import Federation
    from fedelmy_node.domain.names import RunId
    from fedelmy_node.domain.reports import RunSummary
    from fedelmy_node.identity.keystore import Identity

__all__ = [
    "federation_argument", "target_arguments", "operator_options", "run_option", "at_option", "head_option",
    "json_option", "load_operator", "described_federation", "Target", "target_of", "federation_file",
    "open_sites", "find_run", "newest_run", "federation_files", "code_option", "check_code",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
_NO_RUN = "Start one with `fedelmy-launch run`. One that was asked for just now is known as soon as a site has agreed."
_TARGET = "Give [FEDERATION] [RUN], in any order: what ends with .toml, has a slash or is a file is the federation."


def federation_argument(function: F) -> F:
    return click.argument(
        "federation", type=click.Path(path_type=Path, dir_okay=False), default="federation.toml",
        shell_complete=federation_files,
    )(function)  # fmt: skip


def federation_files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete`: files that may be federations."""
    from fedelmy_node.cli.completion import complete_federation

    return complete_federation(ctx, parameter, incomplete)


def target_arguments(function: F) -> F:
    """[FEDERATION] [RUN] as `words`, --run and --at."""
    words = click.argument("words", nargs=-1, metavar="[FEDERATION] [RUN]", shell_complete=federation_files)
    run = run_option("The run, as the argument RUN.  [default: the newest of this federation]")
    return words(run(at_option(function)))


def at_option(function: F) -> F:
    help_text = "Without FEDERATION: any one site of the run; the others are found through it."
    return click.option("--at", metavar="HOST:PORT", help=help_text)(function)


def head_option(function: F) -> F:
    help_text = "The first site of the chain: the others are found by asking each for its --peer, not in [[sites]]."
    return click.option("--head", metavar="HOST:PORT", help=help_text)(function)


def operator_options(function: F) -> F:
    """--identity and --insecure."""
    insecure = click.option("--insecure", is_flag=True, help="No TLS: only for nodes that were started so, too.")
    identity = click.option(
        "--identity",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FEDELMY_IDENTITY",
        default=Path("federation-ca/operator"),
        show_default=True,
        show_envvar=True,
        help="The operator's key and certificate.",
    )
    return identity(insecure(function))


def run_option(help_text: str) -> Callable[[F], F]:
    return click.option("--run", "run_name", metavar="RUN", help=help_text)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for machines.")(function)


def code_option(function: F) -> F:
    help_text = "Run this function, which the file names, on this machine. Repeatable."
    return click.option("--allow-code", "code", multiple=True, metavar="MODULE:FUNCTION", help=help_text)(function)


def check_code(names: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse functions that a file names and nobody here has allowed: the file may be somebody else's."""
    from fedelmy_node.config.code import is_code

    for name in names:
        if is_code(name) and name not in allowed:
            hint = f"If you know what it does, add --allow-code {name}."
            raise ConsentError("E-CONSENT-CODE", f"the file wants {name} to be run on this machine", hint=hint)


def load_operator(directory: Path, insecure: bool) -> Identity | None:
    """The operator's identity; None only if --insecure says so."""
    from fedelmy_node.identity import keystore

    if insecure:
        return None
    try:
        return keystore.load(directory)
    except IdentityError as error:
        if error.code != "E-IDENTITY-MISSING":
            raise
        hint = "Name the operator's directory with --identity; `fedelmy-launch ca init` makes one."
        raise IdentityError(error.code, error.message, hint=hint) from error


def described_federation(path: Path, head: str | None, operator: Callable[[], Identity | None]) -> Federation:
    """The federation of a file; with --head, its sites are found by asking, once the file is right."""
    from fedelmy_launcher.federation_file import load_federation
    from fedelmy_node.domain.federation import Member

    if head is None:
        return load_federation(path)
    place = address(head)
    load_federation(path, [Member(name=site_name("head"), address=place)])
    from fedelmy_launcher.chain import walk

    return load_federation(path, [Member(name=link.site, address=link.address) for link in walk(place, operator())])


@dataclass(frozen=True, slots=True)
class Target:
    """Which run a command is about, and where its sites are looked for."""

    federation: Path | None
    """federation.toml; None: --at."""
    at: str | None
    run: str | None
    """None: the newest."""


def target_of(words: Sequence[str], run_name: str | None, at: str | None) -> Target:
    """[FEDERATION] [RUN] in any order: a word that looks like a file, or is one, is the federation file."""
    files = [word for word in words if word.endswith(".toml") or "/" in word or Path(word).is_file()]
    names = [word for word in words if word not in files] + ([] if run_name is None else [run_name])
    if len(files) > 1 or len(set(names)) > 1:
        what, given = ("federation file", files) if len(files) > 1 else ("run", names)
        raise ConfigError("E-CONFIG-VALUE", f"only one {what} can be given, not {' and '.join(given)}", hint=_TARGET)
    file, name = next(iter(files), None), next(iter(names), None)
    return Target(federation_file(None if file is None else Path(file), at), at, name)


def federation_file(named: Path | None, at: str | None) -> Path | None:
    """The file that was named, or federation.toml here; none if --at says where to ask."""
    if named is not None and at is not None:
        raise ConfigError("E-CONFIG-VALUE", f"{named} and --at both say where the sites are", hint="Give only one.")
    if at is not None:
        address(at)
        return None
    if named is not None:
        return named
    usual = Path("federation.toml")
    if not usual.exists():
        hint = "Name the federation file, or any one site: --at HOST:PORT."
        raise ConfigError("E-CONFIG-MISSING", f"there is no {usual} here", hint=hint)
    return usual


def open_sites(target: Target, identity: Identity | None) -> tuple[Sites, str | None]:
    """The sites of the file, or the one at --at, which will name the others; and the federation's name, if known."""
    from fedelmy_launcher.control import Sites

    if target.federation is not None:
        from fedelmy_launcher.federation_file import load_federation

        described = load_federation(target.federation)
        return Sites(described, identity), described.name
    from fedelmy_launcher.discovery import site_at

    assert target.at is not None
    place = address(target.at)
    sites = Sites(None, identity)
    sites.addresses[site_at(place, identity)] = place
    return sites, None


def find_run(sites: Sites, name: str | None, federation: str | None) -> RunId:
    """The run that was named, or the one to look at: the newest, or the one that goes on if that was cancelled."""
    from fedelmy_node.domain.names import run_id

    if name is not None:
        return run_id(name)
    newest, going = newest_run(sites, federation)
    return (going or newest).run


def newest_run(sites: Sites, federation: str | None) -> tuple[RunSummary, RunSummary | None]:
    """The run that changed last; and, if that one was cancelled, the newest of those that go on."""
    from fedelmy_launcher.control import ASK_AGAIN, refused
    from fedelmy_node.domain.events import RunState

    nodes, unreachable = sites.describe()
    known = [run for node in nodes.values() for run in node.runs if federation in (None, run.federation)]
    if not known:
        if unreachable:
            raise refused(unreachable, ASK_AGAIN)
        of = f" of {federation}" if federation else ""
        raise RunError("E-RUN-UNKNOWN", f"no site knows a run{of}", hint=_NO_RUN)
    newest = max(known, key=lambda run: run.changed_at)
    if newest.state != RunState.CANCELLED:
        return newest, None
    ended = {run.run for run in known if run.state in (RunState.CANCELLED, RunState.ABORTED)}
    going = [run for run in known if run.run not in ended and not run.state.is_final]
    return newest, max(going, key=lambda run: run.changed_at, default=None)
