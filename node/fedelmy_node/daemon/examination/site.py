"""A site examines itself, on its own machine, with or without a daemon: `fedelmy-node doctor`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.consent import efforts
from fedelmy_node.daemon.examination.advertised import examine_advertised
from fedelmy_node.daemon.examination.identity import examine_files, open_identity
from fedelmy_node.daemon.examination.machine import examine_clock, examine_daemon, running_daemon
from fedelmy_node.daemon.examination.peers import Caller, examine_peer
from fedelmy_node.daemon.examination.work import Looked, examine_disk, examine_work, of_work
from fedelmy_node.daemon.orders import accepted
from fedelmy_node.daemon.room import USUAL_BUNDLES, needed_bytes
from fedelmy_node.daemon.trainers import OneJob
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
from fedelmy_node.domain.findings import Finding, Tell
from fedelmy_node.domain.names import Address, PeerAddress, SiteName, site_name
from fedelmy_node.domain.reports import Health
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import DataError, FedelmyError, IdentityError, StoreError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.live import LiveIdentity
from fedelmy_node.store.beside import newest_plan
from fedelmy_node.store.integrity import refuse_damaged
from fedelmy_node.store.layout import Layout
from fedelmy_node.training.data import absolute_source, parse_source
from fedelmy_node.training.job import DataSpec, Job, Outcome
from fedelmy_node.training.models import check_model
from fedelmy_node.training.strategies import Effort, effort_of, settings_for

__all__ = ["UNLISTED", "SiteExamination"]

_UNKNOWN_SITE: Final = site_name("this-site")
UNLISTED: Final = Member(name=_UNKNOWN_SITE, address=Address("localhost:0"))
"""For a federation.toml without sites, because the operator finds them by asking (`--head`)."""
_STAND_IN: Final = InputFormat(height=8, width=8, channels=1)
"""For data that is looked at before anybody has said what for: every image is decoded, none is used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Aim:
    """What the site is examined for."""

    recipe: Recipe | None
    efforts: tuple[Effort, ...] = ()
    bundles: int = USUAL_BUNDLES
    neighbours: tuple[PeerAddress, ...] = ()


class SiteExamination:
    """One look at everything; nothing is changed but a temporary directory, which goes again."""

    def __init__(self, config: SiteConfig, federation: Federation | None = None) -> None:
        self._config = config
        self._federation = federation
        self._layout = Layout(config.state)

    def findings(self, tell: Tell = lambda _: None) -> Iterator[Finding]:
        """Everything that was found, as it is found."""
        config, identity = self._config, self._open()
        usable = identity if isinstance(identity, Identity) else None
        site = config.site or (usable.subject.name if usable else None)
        if config.insecure:
            yield from self._nameless()
        else:
            yield from examine_files(self._layout.identity, identity, config.site) if identity else ()
        yield examine_clock()
        running = running_daemon(self._layout)
        yield from examine_daemon(running, config.listen)
        me = Caller(name=f"site/{site or _UNKNOWN_SITE}", identity=usable, insecure=config.insecure)
        yield from examine_advertised(config.advertise, site, me, running, tell)
        damage = list(self._journal(running, site))
        yield from damage
        aim = yield from self._aim(site, self._layout.journal if not damage else None)
        for peer in self._peers(aim, site):
            yield from examine_peer(peer, me, tell)
        yield from self._work(aim, site or _UNKNOWN_SITE, running, tell)

    def _open(self) -> Identity | FedelmyError | None:
        return None if self._config.insecure else open_identity(self._layout.identity, self._config.trust)

    def _nameless(self) -> Iterator[Finding]:
        fix = "Leave --insecure away, except for a trial on one machine."
        yield Finding(
            subject="identity", check="tls", verdict="warning", code="E-IDENTITY-TLS", fix=fix,
            message="--insecure: no certificate, anybody who reaches this node can pose as anybody",
        )  # fmt: skip

    def _journal(self, running: Health | FedelmyError | None, site: SiteName | None) -> Iterator[Finding]:
        """What would keep a daemon from starting; one that runs has looked, and is writing."""
        if running is not None or site is None or not self._layout.root.is_dir():
            return
        try:
            identity = None if self._config.insecure else LiveIdentity(self._layout.identity, self._config.trust)
            refuse_damaged(self._layout.journal, site, accepted(identity))
        except StoreError as error:
            yield Finding.of(error, "disk", "journal")
        except FedelmyError:
            return  # of the identity: it was told above

    # --- what for ---------------------------------------------------------------------------------------------

    def _aim(self, site: SiteName | None, journal: Path | None) -> Generator[Finding, None, _Aim]:
        if self._federation is not None:
            return (yield from self._of_federation(self._federation, site))
        try:
            newest = newest_plan(journal) if journal else None
        except FedelmyError as error:
            yield Finding.of(error, "disk", "journal")
            newest = None
        if newest is None:
            message = "no federation is known: neither its classes, nor its model, nor how long it would take"
            yield Finding(subject="plan", check="federation", verdict="ok", message=f"{message} (--federation FILE)")
            return _Aim(recipe=None)
        message = f"as in run {newest.run}, the newest here; --federation FILE says otherwise"
        yield Finding(subject="plan", check="federation", verdict="ok", message=message)
        return _Aim(
            recipe=newest.recipe, efforts=tuple(efforts(newest)), bundles=len(newest.edges_in) + len(newest.steps),
            neighbours=tuple(PeerAddress(n.site, n.address) for n in newest.neighbours),
        )  # fmt: skip

    def _of_federation(self, federation: Federation, site: SiteName | None) -> Generator[Finding, None, _Aim]:
        recipe = federation.recipe
        members = [member for member in federation.members if member != UNLISTED]
        names = [member.name for member in members]
        try:
            check_model(recipe.model.name)
            settings_for(recipe.strategy)
        except FedelmyError as error:
            yield Finding.of(error, "plan", "federation")
            return _Aim(recipe=None)
        if site is not None and names and site not in names:
            absent = IdentityError("E-IDENTITY-SITE", f"federation {federation.name} does not list site {site}")
            yield Finding.of(absent, "plan", "federation", "warning")
        else:
            who = f"{len(names)} sites" if names else "sites to be found"
            message = f"{federation.name}: {who}, {recipe.model.name}, {recipe.strategy.name}"
            yield Finding(subject="plan", check="federation", verdict="ok", message=message)
        place = names.index(site) if site in names else 0
        begins = place == 0 or federation.order != "listed"
        beside = [m for m in members if m.name != site and abs(names.index(m.name) - place) == 1]
        return _Aim(
            recipe=recipe, efforts=(effort_of(recipe, begins=begins),),
            neighbours=tuple(PeerAddress(m.name, m.address) for m in beside) if federation.order == "listed" else (),
        )  # fmt: skip

    def _peers(self, aim: _Aim, site: SiteName | None) -> list[PeerAddress]:
        """Those of --peer, and the neighbours of the plan that they do not name; the site's own word goes first."""
        own = list(self._config.peers)
        # An address may lead to several sites, behind a proxy; one without a name stands for whoever is there.
        named, placed = {peer.site for peer in own if peer.site}, {peer.address for peer in own if not peer.site}
        more = [n for n in aim.neighbours if n.site not in named and n.address not in placed and n.site != site]
        return own + more

    # --- data, device, disk -----------------------------------------------------------------------------------

    def _work(self, aim: _Aim, site: SiteName, running: Health | FedelmyError | None, tell: Tell) -> Iterator[Finding]:
        config = self._config
        if config.data is None:
            yield from examine_disk(self._layout, None)
            hint = "Add --data KIND[:PATH], or source under [data] in site.toml; docs/data.md lists the kinds."
            yield Finding.of(DataError("E-DATA-SOURCE", "no data is named", hint=hint), "data", "open")
            return
        busy = isinstance(running, Health) and bool(running.active)
        try:
            recipe = aim.recipe or self._stand_in(config.data, tell)
            tell("reading the data" + (", then training a few batches" if aim.recipe and not busy else ""))
            outcome = self._look(recipe, site, trial=aim.recipe is not None and not busy)
        except FedelmyError as error:
            yield from examine_disk(self._layout, None)
            yield of_work(error)
            return
        members = max((effort.members for effort in aim.efforts), default=0)
        need = needed_bytes(outcome.manifest, bundles=aim.bundles, members=members, keep_pool=config.keep_pool)
        yield from examine_disk(self._layout, need if aim.recipe else None)
        looked = Looked(
            report=outcome.report, unreadable=outcome.private, rule=config.unreadable, recipe=aim.recipe,
            efforts=aim.efforts,
        )  # fmt: skip
        yield from examine_work(looked)
        if aim.recipe and busy:
            message = "not tried: the daemon is training, and the device is its own"
            yield Finding(subject="device", check="trial", verdict="ok", message=message)

    def _look(self, recipe: Recipe, site: SiteName, *, trial: bool) -> Outcome:
        """Have a trainer open the data; unreadable files are counted, whatever the site does with them in a run."""
        config = self._config
        scratch = Path(tempfile.mkdtemp(prefix="fedelmy-doctor-"))
        data = DataSpec(
            source=absolute_source(config.data or ""), indices=config.indices, unreadable="skip",
            spill=self._layout.place, memory_bytes=config.trainer.data_bytes,
        )  # fmt: skip
        job = Job(
            kind="prepare", site=site, visit=0, recipe=recipe, data=data, device=config.device,
            processes=config.trainer.processes, fast=config.trainer.fast, trial=trial,
            code=config.consent.code,
        )  # fmt: skip
        looking = OneJob(job, scratch)
        try:
            return looking.run()
        except FedelmyError as error:
            if error.code == "E-TRAINING-CRASH":
                log = scratch / "trainer.log"
                last = log.read_text("utf-8", errors="replace").strip().splitlines()[-1:] if log.exists() else []
                error.private = clean("".join(last), 300)  # the traceback is of no use to an administrator
            raise
        finally:
            looking.stop()
            shutil.rmtree(scratch, ignore_errors=True)

    def _stand_in(self, data: str, tell: Tell) -> Recipe:
        """Without a federation: a recipe of the data's own classes, so that the same look can be taken."""
        source = parse_source(data)
        from fedelmy_node.training.data.raw import load_source  # and numpy

        tell("looking through the data")
        classes = load_source(source).classes
        if len(classes) < 2:
            classes = (*classes, *(f"(no other class {number})" for number in range(2 - len(classes))))
        return Recipe(
            seed=0, task=Task(classes=classes, input=_STAND_IN), model=ModelSpec(name="mlp"),
            training=Training(epochs=1, batch_size=1), strategy=StrategySpec(name="fedelmy"),
        )  # fmt: skip
