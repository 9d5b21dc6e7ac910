"""Three sites with a link between each two that can be cut: one federation for many schedules of
faults.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.e2e.support.fault_schedules import Fault, Opening, Schedule
from tests.e2e.support.gates import Gate
from tests.e2e.support.killbed import KillBed, Tally
from tests.e2e.support.testbed import Bed
from tests.e2e.support.witness import Trainer, Witness, wait_until

__all__ = ["NAMES", "SoakBed", "Storm", "SoakError"]

NAMES = ("north", "south", "west")
QUIET_SECONDS = 120.0
"""Without any news, at any site, after everything was healed: longer than every back-off and
keep-alive.
"""
STALL_SECONDS = 6.0
"""Without any news, the next fault comes although the run is not as far as it says."""
END_SECONDS = 600.0
"""After everything was healed, whatever the news."""
STOP_SECONDS = 90.0
ASKED_AGAIN = 6
"""So often a person takes the run up again, at most."""
_TICK_SECONDS = 0.03
_TAIL_LINES = 12


class SoakError(Exception):
    """A schedule that did not end as it must."""


class SoakBed(KillBed):
    """Each site reaches each other one by a gate of its own: `gates["north-south"]` is what north
    sends to south.
    """

    news = 0
    """Events of a run that nothing happens to."""

    def _make_gates(self) -> dict[str, Gate]:
        return {
            f"{one}-{other}": Gate()
            for one in self.bed.sites
            for other in self.bed.sites
            if one != other
        }

    def open(self) -> SoakBed:
        for name, site in self.bed.sites.items():
            others = [f'"not-{other}"' for other in self.bed.sites if other != name]
            (site.state / "site.toml").write_text(
                f'[consent]\nfederations = ["bed", {", ".join(others)}]\n'
            )
        super().open()
        for name in self.bed.sites:  # a federation that only this site refuses
            text = self.bed.file.read_text().replace('name = "bed"', f'name = "not-{name}"')
            (self.bed.root / f"not-{name}.toml").write_text(text)
        return self

    def start(self, name: str) -> None:
        site = self.bed.sites[name]
        peers = [
            f"--peer={other}={self.gates[f'{name}-{other}'].address}"
            for other in self.bed.sites
            if other != name
        ]
        site.start(*peers, data=f"npz:{name}.npz", listen=site.address or "127.0.0.1:0")
        for other in self.bed.sites:
            if other != name:
                self.gates[f"{other}-{name}"].target = site.address

    def links(self, one: str, other: str) -> tuple[Gate, Gate]:
        return self.gates[f"{one}-{other}"], self.gates[f"{other}-{one}"]

    def measure(self) -> None:
        """How much there is to tell of a run that nothing happens to."""
        storm = Storm(self, Schedule(-1, (), ()))
        storm.weather()
        self.news = storm.news()


class Storm:
    """One schedule, carried out."""

    def __init__(self, bed: SoakBed, schedule: Schedule) -> None:
        self.bed, self.schedule, self.name = bed, schedule, schedule.name
        self._watch(self.name)
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._asides: list[subprocess.Popen[bytes]] = []
        """Launchers of other runs, which somebody refuses."""
        self._heals: list[tuple[float, Callable[[], bool]]] = []
        self._frozen: set[str] = set()
        self._stopped: list[Trainer] = []
        self.missed = 0
        """Faults whose process was not there."""
        self.asked_again = 0
        """How often a person had to take the run up again."""

    def _watch(self, name: str) -> None:
        self.name = name
        self.witnesses = {site: Witness(found, name) for site, found in self.bed.bed.sites.items()}

    def news(self) -> int:
        return sum(witness.count() for witness in self.witnesses.values())

    def states(self) -> dict[str, str]:
        return {name: witness.state() for name, witness in self.witnesses.items()}

    def weather(self) -> Tally:
        """Everything, from the first refusal to the end of the run, and what must hold then."""
        try:
            for opening in self.schedule.openings:
                self._open(opening)
            before = self.news()
            self._run(self.name)
            self._faults(before)
            self._heal()
            self._end()
            for aside in self._asides:
                if aside.wait(END_SECONDS) == 0:
                    raise SoakError("a run that somebody refuses came to its end")
        finally:
            for launcher in self._launchers:
                _kill(launcher)
            self._heal()
        tally = Tally.of(self.witnesses.values())
        wrong = list(tally.wrong)
        for name, witness in self.witnesses.items():
            if witness.result() != self.bed.undisturbed:
                wrong.append(
                    f"{name} has {witness.result()[:12]}, undisturbed it is {self.bed.undisturbed[:12]}"
                )
        if wrong:
            raise SoakError("; ".join(wrong))
        return tally

    def _run(self, name: str, file: str = "federation.toml") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedelmy_launcher", "run", file, "--json", "--run", name]
        root = self.bed.bed.root
        with (root / f"{name}.out").open("ab") as out, (root / f"{name}.err").open("ab") as err:
            launcher = subprocess.Popen(command, cwd=root, stdout=out, stderr=err)
        self._launchers.append(launcher)
        return launcher

    def _open(self, opening: Opening) -> None:
        """The same name, and it comes to nothing."""
        root, before = self.bed.bed.root, self.name
        if opening.how == "cancel":
            launcher = self._run(before)
            wait_until(
                lambda: launcher.poll() is not None or "prepared" in self.states().values(),
                "prepared run",
                every=0.01,
            )
            _kill(launcher)
            cancelled = self.bed.bed.launch("cancel", "--run", before)
            codes = set(re.findall(r"E-[A-Z-]+", cancelled.out + cancelled.err))
            if codes - {"E-RUN-UNKNOWN"}:  # that is a site that was not asked yet, or answers later
                raise SoakError(f"cancel ended with {cancelled.code}: {', '.join(sorted(codes))}")
            if any(witness.find("run", state="running") for witness in self.witnesses.values()):
                self._watch(f"{before}x")  # it had begun: that name is used up
        elif opening.how == "consent":
            self._refused(self._run(before, f"not-{opening.site}.toml"), "E-CONSENT")
        else:
            data, hidden = root / f"{opening.site}.npz", root / f"{opening.site}.hidden"
            data.rename(hidden)
            try:
                self._refused(self._run(before), "E-DATA")
            finally:
                hidden.rename(data)
        if opening.restarts:
            self.bed.bed.sites[opening.site].stop()
            self.bed.start(opening.site)

    def _refused(self, launcher: subprocess.Popen[bytes], code: str) -> None:
        ended = launcher.wait(QUIET_SECONDS)
        error = (self.bed.bed.root / f"{self.name}.err").read_text()
        if ended == 0 or code not in error:
            raise SoakError(
                f"expected a refusal with {code}, got exit code {ended}: {error[-500:]}"
            )

    def _faults(self, before: int) -> None:
        """Each when there is as much news as it says, beyond that of the openings."""
        for fault in self.schedule.faults:
            wanted, last, since = before + fault.at * self.bed.news, -1, time.monotonic()
            while (now := self.news()) < wanted and time.monotonic() - since < STALL_SECONDS:
                if now != last:
                    last, since = now, time.monotonic()
                self._mend_what_is_due()
                if set(self.states().values()) == {"done"}:
                    return
                time.sleep(_TICK_SECONDS)
            self._mend_what_is_due()
            if not self._happen(fault):
                self.missed += 1

    def _mend_what_is_due(self) -> None:
        due = [heal for heal in self._heals if heal[0] <= time.monotonic()]
        for heal in due:
            if heal[1]():
                self._heals.remove(heal)

    def _after(self, seconds: float, heal: Callable[[], bool]) -> bool:
        self._heals.append((time.monotonic() + seconds, heal))
        return True

    def _happen(self, fault: Fault) -> bool:
        """Whether there was somebody whom it could happen to."""
        match fault.kind:
            case "cut" | "silence" | "hold":
                return self._disturb_link(fault)
            case "kill-launcher":
                return self._kill_launchers()
            case "refused-run":
                self._asides.append(self._run(f"{self.name}-aside", f"not-{fault.other}.toml"))
                return True
        return self._disturb_site(fault)

    def _disturb_site(self, fault: Fault) -> bool:
        daemon = self.bed.bed.sites[fault.site].process
        if daemon is None or daemon.poll() is not None or fault.site in self._frozen:
            return False
        trainers = self.witnesses[fault.site].trainers()
        if fault.kind in ("kill-trainer", "freeze-trainer"):
            return self._disturb_trainers(fault, trainers)
        if fault.kind == "kill-both":
            for trainer in trainers:
                trainer.kill()
        if fault.kind == "freeze-daemon":
            os.kill(daemon.pid, signal.SIGSTOP)
            self._frozen.add(fault.site)
            return self._after(fault.seconds, lambda: self._thaw(fault.site))
        daemon.send_signal(signal.SIGTERM if fault.kind == "stop-daemon" else signal.SIGKILL)
        return self._after(fault.seconds, lambda: self._restart(fault.site, daemon))

    def _kill_launchers(self) -> bool:
        running = [launcher for launcher in self._launchers if launcher.poll() is None]
        for launcher in running:
            _kill(launcher)
        return bool(running)

    def _disturb_trainers(self, fault: Fault, trainers: list[Trainer]) -> bool:
        for trainer in trainers:
            if fault.kind == "kill-trainer":
                trainer.kill()
            else:
                trainer.stop()
                self._stopped.append(trainer)
        if self._stopped:
            self._after(fault.seconds, self._thaw_trainers)
        return bool(trainers)

    def _disturb_link(self, fault: Fault) -> bool:
        links = self.bed.links(fault.site, fault.other)
        for gate in links:
            if fault.kind == "cut":
                gate.cut()
            else:  # nothing passes any more, or nothing but the beginning of a bundle
                share = fault.at if fault.kind == "hold" else 0.0
                gate.hold_bytes(at=int(share * self.bed.bundle_bytes))

        def mend() -> bool:
            for gate in links:
                gate.mend()
                gate.release()
            return True

        return self._after(fault.seconds, mend)

    def _restart(self, name: str, ended: subprocess.Popen[bytes]) -> bool:
        """Start the daemon that follows `ended`, unless another fault at that one has done so."""
        if self.bed.bed.sites[name].process is not ended:
            return True
        if ended.poll() is None:
            return False  # it still shuts down
        self.bed.start(name)
        return True

    def _thaw(self, name: str) -> bool:
        process = self.bed.bed.sites[name].process
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        self._frozen.discard(name)
        return True

    def _thaw_trainers(self) -> bool:
        while self._stopped:
            self._stopped.pop().go_on()
        return True

    def _heal(self) -> None:
        """Every daemon is up, every link is whole, nothing is stopped."""
        self._thaw_trainers()
        for name in list(self._frozen):
            self._thaw(name)
        deadline = time.monotonic() + STOP_SECONDS
        while self._heals:
            self._heals = [(0.0, heal) for _, heal in self._heals]
            self._mend_what_is_due()
            if time.monotonic() > deadline:
                raise SoakError(f"a daemon did not stop within {STOP_SECONDS:g} s")
            time.sleep(_TICK_SECONDS)
        for name, site in self.bed.bed.sites.items():
            if site.process is None or site.process.poll() is not None:
                code = site.process.poll() if site.process else None
                raise SoakError(f"the daemon of {name} ended by itself with {code}")

    def _end(self) -> None:
        """It ends by itself; a person is needed only if nothing has begun, or somebody says that it
        failed.
        """
        last: object = None
        since = begun = time.monotonic()
        while set((states := self.states()).values()) != {"done"}:
            now = (self.news(), states, self.asked_again)
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > QUIET_SECONDS:
                raise SoakError(f"no end, and no news for {QUIET_SECONDS:g} s: {self._open_ends()}")
            if time.monotonic() - begun > END_SECONDS:
                raise SoakError(
                    f"no end within {END_SECONDS:g} s, although there is news: {self._open_ends()}"
                )
            followed = any(
                launcher.poll() is None
                for launcher in self._launchers
                if launcher not in self._asides
            )
            goes_on = "running" in states.values() and set(states.values()) <= {
                "prepared",
                "running",
                "done",
            }
            if not followed and not goes_on:
                if self.asked_again == ASKED_AGAIN:
                    raise SoakError(
                        f"asked for {ASKED_AGAIN} times in vain: {states}: {self._last_error()}"
                    )
                self.asked_again += 1
                self._run(self.name)
            time.sleep(_TICK_SECONDS)

    def _open_ends(self) -> str:
        """Every site that is not over, and what its journal still waits for."""
        told = []
        for name, witness in self.witnesses.items():
            if (state := witness.state()) not in ("done", ""):
                missing = ", ".join(witness.open_ends()) or "nobody, as its journal says"
                told.append(f"{name} is {state} and waits for {missing}")
            elif not state:
                told.append(f"{name} does not know the run")
        return "; ".join(told)

    def _last_error(self) -> str:
        return " ".join((self.bed.bed.root / f"{self.name}.err").read_text().splitlines()[-3:])

    def evidence(self) -> str:
        """What `status` says, and the last that the sites have logged."""
        with suppress(Exception):
            told = self.bed.bed.launch("status", "--run", self.name)
            parts = [f"-- status\n{told.out}{told.err}"]
            for name, site in self.bed.bed.sites.items():
                lines = Path(site.log).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
                parts.append(f"-- {name}.log\n" + "\n".join(lines))
            return "\n".join(parts)
        return "-- nobody could be asked"


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def make_bed(root: Path) -> SoakBed:
    """A bed of its own, its daemons up."""
    root.mkdir()
    bed = Bed(root, NAMES)
    bed.provision()
    made = SoakBed(bed)
    try:
        return made.open()
    except BaseException:
        made.close()
        raise
