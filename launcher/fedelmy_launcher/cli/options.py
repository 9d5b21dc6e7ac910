"""Options that several launcher commands share, and the identity and sites they select."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import click

from fedelmy_node.domain.errors import ConfigError, ConsentError, FedelmyError, IdentityError
from fedelmy_node.domain.names import address, site_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from fedelmy_launcher.control.sites import Sites
    from fedelmy_node.domain.federation import Federation
    from fedelmy_node.identity.keystore import Identity


Operator = Callable[[], "Identity | None"]
"""Loads the operator's identity, once files and names are valid; None with --insecure."""
F = TypeVar("F", bound=Callable[..., Any])
FILE: Final = click.Path(path_type=Path, dir_okay=False)
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
_TARGET: Final = "Give [FEDERATION] [RUN] in any order; a name with .toml or / is the federation."


def federation_files(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """For `shell_complete`: files that may be federations."""
    from fedelmy_node.cli.completion import complete_federation

    return complete_federation(ctx, parameter, incomplete)


def federation_argument(function: F) -> F:
    """FEDERATION, by default federation.toml."""
    default, complete = "federation.toml", federation_files
    argument = click.argument("federation", type=FILE, default=default, shell_complete=complete)
    return argument(function)


class Given(NamedTuple):
    """The arguments [FEDERATION] [RUN], --run and --at."""

    names: tuple[str, ...]
    run: str | None
    at: str | None


def target_arguments(function: F) -> F:
    """[FEDERATION] [RUN], --run and --at, as `given: Given`."""

    @wraps(function)
    def command(
        *, names: tuple[str, ...], run_name: str | None, at: str | None, **more: Any
    ) -> Any:
        return function(given=Given(names, run_name, at), **more)

    metavar, complete = "[FEDERATION] [RUN]", federation_files
    target = click.argument("names", nargs=-1, metavar=metavar, shell_complete=complete)
    run = run_option("The same as RUN.  [default: the newest run of this federation]")
    return cast(F, target(run(at_option(command))))


def at_option(function: F) -> F:
    text = "Instead of FEDERATION: any site of the run; the others are found through it."
    return click.option("--at", metavar="HOST:PORT", help=text)(function)


def head_option(function: F) -> F:
    text = "First site of a chain; the others are found through --peer, not [[sites]]."
    return click.option("--head", metavar="HOST:PORT", help=text)(function)


def operator_options(function: F) -> F:
    """--identity and --insecure, as `operator: Operator`, which loads the identity when called."""

    @wraps(function)
    def command(*, identity: Path, insecure: bool, **more: Any) -> Any:
        return function(operator=partial(load_operator, identity, insecure), **more)

    text = "Disable TLS; the nodes must run with --insecure as well."
    insecure = click.option("--insecure", is_flag=True, help=text)
    identity = click.option(
        "--identity",
        type=DIRECTORY,
        envvar="FEDELMY_IDENTITY",
        default=Path("federation-ca/operator"),
        show_default=True,
        show_envvar=True,
        help="The operator's key and certificate.",
    )
    return cast(F, identity(insecure(command)))


def run_option(help_text: str) -> Callable[[F], F]:
    return click.option("--run", "run_name", metavar="RUN", help=help_text)


def json_option(function: F) -> F:
    text = "Print one JSON object per line."
    return click.option("--json", "as_json", is_flag=True, help=text)(function)


def code_option(function: F) -> F:
    metavar, text = "MODULE:FUNCTION", "Allow this function named in the file. Repeatable."
    return click.option("--allow-code", "code", multiple=True, metavar=metavar, help=text)(function)


def check_code(names: Iterable[str], allowed: Collection[str]) -> None:
    """Refuse functions that are not allowed: the file may come from someone else."""
    from fedelmy_node.config.registry import is_code

    for name in names:
        if is_code(name) and name not in allowed:
            hint = f"If you know what it does, add --allow-code {name}."
            message = f"the file asks to run {name} on this machine"
            raise ConsentError("E-CONSENT-CODE", message, hint=hint)


def problem_json(error: FedelmyError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def load_operator(directory: Path, insecure: bool) -> Identity | None:
    """The operator's identity; None with --insecure."""
    from fedelmy_node.identity import keystore

    if insecure:
        return None
    try:
        return keystore.load(directory)
    except IdentityError as error:
        if error.code != "E-IDENTITY-MISSING":
            raise
        hint = "Name its directory with --identity; `fedelmy-launch ca init` creates one."
        raise IdentityError(error.code, error.message, hint=hint) from error


def described_federation(path: Path, head: str | None, operator: Operator) -> Federation:
    """The federation of a file; with --head, its sites are discovered."""
    from fedelmy_launcher.plans.compiler import load_federation
    from fedelmy_node.domain.federation import Member

    if head is None:
        return load_federation(path)
    place = address(head)
    # Check the rest of the file before any site is asked.
    load_federation(path, [Member(name=site_name("head"), address=place)])
    from fedelmy_launcher.plans.discovery import walk

    chain = walk(place, operator())
    return load_federation(path, [Member(name=each.site, address=each.address) for each in chain])


@dataclass(frozen=True, slots=True)
class Target:
    """The run that a command is about, and where to find its sites."""

    federation: Path | None
    """The federation file; None with --at."""
    at: str | None
    run: str | None
    """None for the newest run."""


def target_of(given: Sequence[str], run: str | None, at: str | None) -> Target:
    """Parse [FEDERATION] [RUN] in any order: what looks like a file, or is one, is the file."""
    files = [
        each for each in given if each.endswith(".toml") or "/" in each or Path(each).is_file()
    ]
    names = [each for each in given if each not in files]
    names += [] if run is None else [run]
    if len(files) > 1 or len(set(names)) > 1:
        what, several = ("federation file", files) if len(files) > 1 else ("run", names)
        message = f"only one {what} can be given, not {' and '.join(several)}"
        raise ConfigError("E-CONFIG-VALUE", message, hint=_TARGET)
    file, name = next(iter(files), None), next(iter(names), None)
    return Target(federation_file(Path(file) if file else None, at), at, name)


def federation_file(named: Path | None, at: str | None) -> Path | None:
    """The named file, or federation.toml here; None with --at."""
    if named is not None and at is not None:
        message = f"{named} and --at both specify the sites"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Give only one.")
    if at is not None:
        address(at)
        return None
    if named is not None:
        return named
    usual = Path("federation.toml")
    if not usual.exists():
        hint = "Name the federation file, or any one site: --at HOST:PORT."
        raise ConfigError("E-CONFIG-MISSING", f"{usual} not found in this directory", hint=hint)
    return usual


def open_sites(target: Target, identity: Identity | None) -> tuple[Sites, str | None]:
    """The sites of the file, or the one at --at; and the federation's name, if known."""
    from fedelmy_launcher.control.sites import Sites

    if target.federation is not None:
        from fedelmy_launcher.plans.compiler import load_federation

        described = load_federation(target.federation)
        return Sites(described, identity), described.name
    from fedelmy_launcher.control.find_run import site_at

    assert target.at is not None
    place = address(target.at)
    sites = Sites(None, identity)
    sites.addresses[site_at(place, identity)] = place
    return sites, None


def recipe_warnings(federation: Federation) -> list[str]:
    """Warnings about settings that are valid, but known to do harm."""
    from fedelmy_node.training.strategies import warnings_of

    return list(warnings_of(federation.recipe))


def warn_of_recipe(federation: Federation) -> None:
    for text in recipe_warnings(federation):
        click.echo(f"{click.style('warning', fg='yellow')}: {text}", err=True)
