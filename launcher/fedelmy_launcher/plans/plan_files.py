"""Plans as signed files: one per site, all of the same run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.config.plan_file import plan_file_of, read_plan_file, read_slice
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.names import RunId, SiteName, site_name
from fedelmy_node.domain.plan import Plan
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.store.durable_files import cannot_write, write_durably

_SUFFIX: Final = ".plan"


def write_plans(plan: Plan, identity: Identity | None, directory: Path) -> dict[SiteName, Path]:
    """Write one file per site into a directory that has no plan files yet."""
    if any(directory.glob(f"*{_SUFFIX}")):
        hint = "Choose another directory with --out, or remove it if no site accepted these plans."
        raise ConfigError("E-CONFIG-VALUE", f"{directory} has plans already", hint=hint)
    written: dict[SiteName, Path] = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for site, signed in signed_slices(plan, identity).items():
            written[site] = directory / f"{site}{_SUFFIX}"
            write_durably(written[site], plan_file_of(signed), mode=0o644)
    except OSError as error:
        raise cannot_write(directory, error) from error
    return written


def _slices(directory: Path) -> dict[SiteName, bytes]:
    paths = sorted(directory.glob(f"*{_SUFFIX}"))
    if not paths:
        hint = "Write them with `fedelmy-launch plan FEDERATION --out DIRECTORY`."
        raise ConfigError("E-CONFIG-MISSING", f"{directory} has no plan files", hint=hint)
    return {site_name(path.stem): read_plan_file(path).payload for path in paths}


def run_of_files(directory: Path) -> RunId:
    """The run that the plan files of a directory belong to."""
    return read_slice(next(iter(_slices(directory).values()))).run


def with_file_id(plan: Plan, directory: Path) -> Plan:
    """The plan with the id of these plan files; fails if the federation has changed since."""
    found = _slices(directory)
    plan = replace(plan, plan_id=read_slice(next(iter(found.values()))).plan_id)
    slices = {site: signed.payload for site, signed in signed_slices(plan, None).items()}
    changed = [site for site, payload in found.items() if slices.get(site) != payload]
    if changed:
        message = f"the plans in {directory} do not match the federation file: {', '.join(changed)}"
        hint = "Undo the changes to the file, or write new plans into another directory."
        raise RunError("E-RUN-CONFLICT", message, hint=hint)
    return plan


def check_accepted(names: Collection[str], plan: Plan) -> set[SiteName]:
    """The sites that are not asked: all in the plan, and at least one other is left to start."""
    sites, members = {site_name(name) for name in names}, {site.site for site in plan.sites}
    if unknown := ", ".join(sorted(sites - members)):
        raise ConfigError("E-CONFIG-VALUE", f"the federation has no site {unknown}")
    if sites == members:
        hint = "Omit --accepted for a site that you can reach; the others start when it does."
        raise ConfigError("E-CONFIG-VALUE", "no site is left to start the run", hint=hint)
    return sites
