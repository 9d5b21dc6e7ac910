"""All checks of a site on its own machine, with or without a daemon: `fedelmy-node doctor`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.bundle.format import tensor_bytes
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.rules import efforts
from fedelmy_node.consent.signed_commands import accepted
from fedelmy_node.device.trainer_process import OneJob
from fedelmy_node.domain.errors import (
    DataError,
    FedelmyError,
    IdentityError,
    StoreError,
    TrainingError,
)
from fedelmy_node.domain.federation import (
    Federation,
    InputFormat,
    Member,
    ModelSpec,
    Recipe,
    StrategySpec,
    Task,
    Training,
)
from fedelmy_node.domain.names import Address, PeerAddress, SiteName, site_name
from fedelmy_node.domain.reports import Finding, Health, Tell
from fedelmy_node.domain.text import clean
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.ops.doctor.findings import ok, problem
from fedelmy_node.ops.doctor.identity_checks import examine_files, open_identity
from fedelmy_node.ops.doctor.machine_checks import examine_clock, examine_daemon, running_daemon
from fedelmy_node.ops.doctor.peer_checks import Caller, examine_advertised, examine_peer
from fedelmy_node.ops.doctor.training_checks import (
    Inspection,
    examine_disk,
    examine_work,
    work_failure,
)
from fedelmy_node.store.disk_budget import USUAL_BUNDLES, needed_bytes
from fedelmy_node.store.integrity import refuse_damaged
from fedelmy_node.store.readonly_journal import newest_plan
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.data import absolute_source, parse_source
from fedelmy_node.training.job import PREPARE, DataSpec, Job, Outcome
from fedelmy_node.training.models import check_model
from fedelmy_node.training.operations import Effort
from fedelmy_node.training.strategies import effort_of, settings_for

_UNKNOWN_SITE: Final = site_name("this-site")
UNLISTED: Final = Member(name=_UNKNOWN_SITE, address=Address("localhost:0"))
"""Placeholder for a federation.toml without sites, which the operator discovers (`--head`)."""
_STAND_IN: Final = InputFormat(height=8, width=8, channels=1)
"""Without a federation, images are only decoded."""
_CRASHED: Final = (
    "The end of the trainer's output is above. Check memory and device, then try again."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """The training that the site is checked for."""

    recipe: Recipe | None
    efforts: tuple[Effort, ...] = ()
    bundles: int = USUAL_BUNDLES
    neighbours: tuple[PeerAddress, ...] = ()


class SiteExamination:
    """All checks of a site; they change nothing but a temporary directory."""

    def __init__(self, config: SiteConfig, federation: Federation | None = None) -> None:
        self._config = config
        self._federation = federation
        self._layout = Layout(config.state)

    def findings(self, tell: Tell = lambda _: None) -> Iterator[Finding]:
        config, identity = self._config, self._open()
        usable = identity if isinstance(identity, Identity) else None
        site = config.site or (usable.subject.name if usable else None)
        if config.insecure:
            yield from self._nameless()
        else:
            home = self._layout.identity
            yield from examine_files(home, identity, config.site) if identity else ()
        yield examine_clock()
        running = running_daemon(self._layout)
        yield from examine_daemon(running, config.listen)
        me = Caller(f"site/{site or _UNKNOWN_SITE}", usable, config.insecure)
        yield from examine_advertised(config.advertise, site, me, running, tell)
        damage = list(self._journal(running, site))
        yield from damage
        target = yield from self._target(site, self._layout.journal if not damage else None)
        for peer in self._peers(target, site):
            yield from examine_peer(peer, me, tell)
        yield from self._work(target, site or _UNKNOWN_SITE, running, tell)

    def _open(self) -> Identity | FedelmyError | None:
        if self._config.insecure:
            return None
        return open_identity(self._layout.identity, self._config.trust)

    def _nameless(self) -> Iterator[Finding]:
        message = (
            "--insecure: no certificate, so anyone who reaches this node can impersonate anyone"
        )
        fix = "Omit --insecure, except for a test on a single machine."
        yield problem("identity", "tls", "E-IDENTITY-TLS", message, fix)

    def _journal(
        self, running: Health | FedelmyError | None, site: SiteName | None
    ) -> Iterator[Finding]:
        """Check the journal, unless a daemon runs: it has checked it, and is writing to it."""
        if running is not None or site is None or not self._layout.root.is_dir():
            return
        try:
            trust, home = self._config.trust, self._layout.identity
            identity = None if self._config.insecure else LiveIdentity(home, trust)
            refuse_damaged(self._layout.journal, site, accepted(identity))
        except StoreError as error:
            yield Finding.of(error, "disk", "journal")
        except FedelmyError:
            return  # about the identity, which was checked above

    def _target(
        self, site: SiteName | None, journal: Path | None
    ) -> Generator[Finding, None, _Target]:
        if self._federation is not None:
            return (yield from self._of_federation(self._federation, site))
        try:
            newest = newest_plan(journal) if journal else None
        except FedelmyError as error:
            yield Finding.of(error, "disk", "journal")
            newest = None
        if newest is None:
            message = "classes, model and duration are unknown without --federation FILE"
            yield ok("plan", "federation", message)
            return _Target(recipe=None)
        message = f"taken from run {newest.run}, the newest here; --federation FILE overrides it"
        yield ok("plan", "federation", message)
        return _Target(
            recipe=newest.recipe,
            efforts=tuple(efforts(newest)),
            bundles=len(newest.edges_in) + len(newest.steps),
            neighbours=tuple(PeerAddress(n.site, n.address) for n in newest.neighbours),
        )

    def _of_federation(
        self, federation: Federation, site: SiteName | None
    ) -> Generator[Finding, None, _Target]:
        recipe = federation.recipe
        members = [member for member in federation.members if member != UNLISTED]
        names = [member.name for member in members]
        try:
            check_model(recipe.model.name)
            settings_for(recipe.strategy)
        except FedelmyError as error:
            yield Finding.of(error, "plan", "federation")
            return _Target(recipe=None)
        if site is not None and names and site not in names:
            message = f"federation {federation.name} does not list site {site}"
            unlisted = IdentityError("E-IDENTITY-SITE", message)
            yield Finding.of(unlisted, "plan", "federation", "warning")
        else:
            sites = f"{len(names)} sites" if names else "sites to be discovered"
            message = f"{federation.name}: {sites}, {recipe.model.name}, {recipe.strategy.name}"
            yield ok("plan", "federation", message)
        place = names.index(site) if site in names else 0
        listed = federation.order == "listed"
        beside = [
            PeerAddress(m.name, m.address)
            for m in members
            if listed and m.name != site and abs(names.index(m.name) - place) == 1
        ]
        return _Target(
            recipe=recipe,
            efforts=(effort_of(recipe, begins=place == 0 or not listed),),
            neighbours=tuple(beside),
        )

    def _peers(self, target: _Target, site: SiteName | None) -> list[PeerAddress]:
        """Return the sites of --peer, then the plan's neighbours that --peer does not name."""
        own = list(self._config.peers)
        named = {peer.site for peer in own if peer.site} | {site}
        # Behind a proxy, an address may lead to several sites; without a name it matches any.
        unnamed = {peer.address for peer in own if not peer.site}
        return own + [
            n for n in target.neighbours if n.site not in named and n.address not in unnamed
        ]

    def _work(
        self, target: _Target, site: SiteName, running: Health | FedelmyError | None, tell: Tell
    ) -> Iterator[Finding]:
        config = self._config
        if config.data is None:
            yield from examine_disk(self._layout, None)
            hint = (
                "Add --data KIND[:PATH], or source under [data] in site.toml;"
                " docs/data.md lists the kinds."
            )
            error = DataError("E-DATA-SOURCE", "no data is configured", hint=hint)
            yield Finding.of(error, "data", "open")
            return
        busy = isinstance(running, Health) and bool(running.active)
        try:
            recipe = target.recipe or self._stand_in(config.data, tell)
            trial = target.recipe is not None and not busy
            tell(f"reading the data{', then training a few batches' if trial else ''}")
            outcome = self._inspect(recipe, site, trial=trial)
        except FedelmyError as failure:
            yield from examine_disk(self._layout, None)
            yield work_failure(failure)
            return
        members = max((effort.members for effort in target.efforts), default=0)
        manifests = (spec.manifest for spec in outcome.specs.values())
        largest = max(manifests, key=tensor_bytes)
        need = needed_bytes(
            largest, bundles=target.bundles, members=members, keep_pool=config.keep_pool
        )
        yield from examine_disk(self._layout, need if target.recipe else None)
        found = Inspection(
            report=outcome.report,
            unreadable=outcome.private,
            rule=config.unreadable,
            recipe=target.recipe,
            efforts=target.efforts,
        )
        yield from examine_work(found)
        if target.recipe and busy:
            yield ok("device", "trial", "not tried: the daemon is using the device for training")

    def _inspect(self, recipe: Recipe, site: SiteName, *, trial: bool) -> Outcome:
        """Have a trainer open the data; unreadable files are always counted, never refused."""
        config = self._config
        scratch = Path(tempfile.mkdtemp(prefix="fedelmy-doctor-"))
        data = DataSpec(
            source=absolute_source(config.data or ""),
            indices=config.indices,
            unreadable="skip",
            spill=self._layout.place,
            memory_bytes=config.trainer.data_bytes,
        )
        job = Job(
            kind=PREPARE,
            site=site,
            visit=0,
            recipe=recipe,
            data=data,
            device=config.device,
            processes=config.trainer.processes,
            fast=config.trainer.fast,
            trial=trial,
            code=config.consent.code,
            weights=config.weights,
        )
        trainer = OneJob(job, scratch)
        try:
            return trainer.run()
        except FedelmyError as error:
            log = scratch / "trainer.log"
            if error.code != "E-TRAINING-CRASH" or not log.exists():
                raise
            # The last line: a traceback is of no use to an administrator.
            last = log.read_text("utf-8", errors="replace").strip().splitlines()[-1:]
            private = clean("".join(last), 300)
            raise TrainingError(
                error.code, error.message, hint=_CRASHED, private=private
            ) from error
        finally:
            trainer.stop()
            shutil.rmtree(scratch, ignore_errors=True)

    def _stand_in(self, data: str, tell: Tell) -> Recipe:
        """Without a federation: return a recipe with the data's own classes."""
        source = parse_source(data)
        from fedelmy_node.training.data.sources import load_source  # imports numpy

        tell("searching the data")
        classes = load_source(source).classes
        fillers = [f"(no other class {number})" for number in range(2 - len(classes))]
        classes = (*classes, *fillers)
        return Recipe(
            seed=0,
            task=Task(classes=classes, input=_STAND_IN),
            model=ModelSpec(name="mlp"),
            training=Training(epochs=1, batch_size=1),
            strategy=StrategySpec(name="fedelmy"),
        )
