"""Plans that are handed over as files: one per site, signed, and all of one run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from fedelmy_launcher.plans import signed_slices
from fedelmy_node.config.plan_file import plan_file_of, read_plan_file, read_slice
from fedelmy_node.domain.names import RunId, SiteName, site_name
from fedelmy_node.domain.plan import Plan
from fedelmy_node.durable import cannot_write, write_durably
from fedelmy_node.errors import ConfigError, RunError
from fedelmy_node.identity.keystore import Identity

__all__ = ["write_plans", "handed_run", "with_handed_id", "known_sites"]

_ENDING: Final = ".plan"


def write_plans(plan: Plan, identity: Identity | None, directory: Path) -> dict[SiteName, Path]:
    """A file for every site of the plan, in a directory that has none yet."""
    if any(directory.glob(f"*{_ENDING}")):
        hint = "Name another directory with --out, or remove it if nobody has accepted these."
        raise ConfigError("E-CONFIG-VALUE", f"{directory} has plans already", hint=hint)
    written: dict[SiteName, Path] = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for site, signed in signed_slices(plan, identity).items():
            written[site] = directory / f"{site}{_ENDING}"
            write_durably(written[site], plan_file_of(signed), mode=0o644)
    except OSError as error:
        raise cannot_write(directory, error) from error
    return written


def _slices(directory: Path) -> dict[SiteName, bytes]:
    found = {site_name(path.stem): read_plan_file(path).payload for path in sorted(directory.glob(f"*{_ENDING}"))}
    if not found:
        hint = "Write them with `fedelmy-launch plan FEDERATION --out DIRECTORY`."
        raise ConfigError("E-CONFIG-MISSING", f"{directory} has no plan files", hint=hint)
    return found


def handed_run(directory: Path) -> RunId:
    """The run that the plans of a directory are of."""
    return read_slice(next(iter(_slices(directory).values()))).run


def with_handed_id(plan: Plan, directory: Path) -> Plan:
    """The plan that the files of a directory are parts of: this one, or it is another federation by now."""
    found = _slices(directory)
    handed = replace(plan, plan_id=read_slice(next(iter(found.values()))).plan_id)
    slices = signed_slices(handed, None)
    other = [site for site, payload in found.items() if site not in slices or slices[site].payload != payload]
    if other:
        message = f"the plans in {directory} are not what the federation file says now: {', '.join(other)}"
        hint = "Undo what was changed in the file since, or write new plans into another directory."
        raise RunError("E-RUN-CONFLICT", message, hint=hint)
    return handed


def known_sites(names: Collection[str], plan: Plan) -> set[SiteName]:
    """Sites that are not asked, by name: all of them in the plan, and at least one is left that is told to start."""
    sites, members = {site_name(name) for name in names}, {site.site for site in plan.sites}
    if sites - members:
        raise ConfigError("E-CONFIG-VALUE", f"the federation has no site {', '.join(sorted(sites - members))}")
    if sites == members:
        hint = "Leave --accepted away for a site that you can call: the others begin when they hear of it."
        raise ConfigError("E-CONFIG-VALUE", "no site is left that could be told to start the run", hint=hint)
    return sites
