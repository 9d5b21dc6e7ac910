"""Everything that can go wrong, in one tree with one table.

    FedelmyError
    ├── ConfigError        a file, flag or environment variable is wrong           exit 2
    ├── DataError          the site's data cannot be used                          exit 3
    ├── IdentityError      a key, certificate or signature is wrong                exit 4
    ├── ConsentError       a site is not willing to do what is asked               exit 5
    ├── PeerError          another node cannot be reached or does not fit          exit 6
    ├── StoreError         this site's disk or journal cannot be used              exit 7
    ├── BundleError        weights do not fit, are damaged or not finite           exit 8
    ├── TransferError      a hand-over was refused or broke                        exit 9
    ├── RunError           a run is unknown, failed, or not in the right state     exit 10
    ├── TrainingError      a step cannot be computed                               exit 11
    └── InternalError      a fault of this software                                exit 70

An error carries a stable code, a sentence that says what is wrong, and optionally a hint that replaces
the catalogue's advice. Both may leave the site, so they name no file, no folder and nothing of a sample. What only
the site's administrator may read (the path, the system's own words) is its `private` part: commands on this
machine show it; the network, the journal and the log never do (store/details.py keeps it). `CATALOGUE` gives every code its class, gRPC status, and advice; the exit code
belongs to the class. A code that is not in the catalogue cannot be raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

__all__ = [
    "FedelmyError", "ConfigError", "DataError", "IdentityError", "ConsentError", "PeerError", "StoreError",
    "BundleError", "TransferError", "RunError", "TrainingError", "InternalError",
    "Entry", "CATALOGUE", "EXIT_SUBSET", "EXIT_DETACHED", "error_from_code",
]  # fmt: skip

EXIT_SUBSET: Final = 20
"""A run finished, but on a subset of its sites."""
EXIT_DETACHED: Final = 130
"""Ctrl-C: the command went away; a run that has started goes on."""


class FedelmyError(Exception):
    """The root: a stable code, what is wrong, and what to do about it."""

    exit_code: ClassVar[int] = 70

    def __init__(self, code: str, message: str, *, hint: str | None = None, private: str = "") -> None:
        entry = CATALOGUE.get(code)
        if entry is None or not isinstance(self, entry.kind):
            raise AssertionError(f"{code} is not a code of {type(self).__name__}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint if hint is not None else entry.advice
        self.private = private
        self.about = ""
        """The run that it is about, where whoever met it knew."""
        self.inputs: tuple[int, ...] = ()
        """Positions of the inputs of a step that cannot be used, where they are the cause."""

    @property
    def whole(self) -> str:
        """What is wrong, with what stays on this machine."""
        return f"{self.message} ({self.private})" if self.private else self.message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ConfigError(FedelmyError):
    exit_code = 2


class DataError(FedelmyError):
    exit_code = 3


class IdentityError(FedelmyError):
    exit_code = 4


class ConsentError(FedelmyError):
    exit_code = 5


class PeerError(FedelmyError):
    exit_code = 6


class StoreError(FedelmyError):
    exit_code = 7


class BundleError(FedelmyError):
    exit_code = 8


class TransferError(FedelmyError):
    exit_code = 9


class RunError(FedelmyError):
    exit_code = 10


class TrainingError(FedelmyError):
    exit_code = 11


class InternalError(FedelmyError):
    exit_code = 70


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the catalogue."""

    kind: type[FedelmyError]
    """The class that carries this code."""
    status: str
    """Name of the gRPC status under which the code travels."""
    advice: str
    """What to do, in one sentence, for whoever reads the message."""


CATALOGUE: Final[Mapping[str, Entry]] = {
    # configuration
    "E-CONFIG-SYNTAX": Entry(ConfigError, "INVALID_ARGUMENT", "Correct the file at the place named."),
    "E-CONFIG-MISSING": Entry(ConfigError, "INVALID_ARGUMENT", "Create the file (docs/federation.md, docs/site.md), or name another one."),
    "E-CONFIG-KEY": Entry(ConfigError, "INVALID_ARGUMENT", "Remove the key, or correct its spelling."),
    "E-CONFIG-VALUE": Entry(ConfigError, "INVALID_ARGUMENT", "Correct the value; docs/federation.md and docs/site.md list what is allowed."),
    "E-CONFIG-MODEL": Entry(ConfigError, "INVALID_ARGUMENT", "Choose one of the models listed in docs/federation.md."),
    "E-CONFIG-STRATEGY": Entry(ConfigError, "INVALID_ARGUMENT", "Choose one of the strategies listed in docs/federation.md."),
    "E-CONFIG-TOPOLOGY": Entry(ConfigError, "INVALID_ARGUMENT", "Choose one of the topologies listed in docs/federation.md."),
    "E-CONFIG-EXTENSION": Entry(ConfigError, "FAILED_PRECONDITION", "Repair, update or remove the package or module that is named; docs/extending.md says what it must have."),
    "E-CONFIG-ADDRESS": Entry(ConfigError, "INVALID_ARGUMENT", "Write addresses as HOST:PORT, peers as [SITE=]HOST:PORT."),
    "E-CONFIG-PORT": Entry(ConfigError, "FAILED_PRECONDITION", "Stop whatever uses the port, or choose another one with --listen."),
    "E-CONFIG-DEVICE": Entry(ConfigError, "FAILED_PRECONDITION", "Choose a device that this machine has, or --device cpu."),
    # data
    "E-DATA-MISSING": Entry(DataError, "FAILED_PRECONDITION", "Check the path after --data, and that this user may read it."),
    "E-DATA-EMPTY": Entry(DataError, "FAILED_PRECONDITION", "Put samples there, or point --data somewhere else."),
    "E-DATA-CLASS": Entry(DataError, "FAILED_PRECONDITION", "Rename or remove the class (details.log at the site names it), or have the operator add it to the federation's classes."),
    "E-DATA-UNREADABLE": Entry(DataError, "FAILED_PRECONDITION", "Repair or remove the file (details.log at the site names it), or set unreadable = \"skip\" under [data] in site.toml."),
    "E-DATA-SOURCE": Entry(DataError, "INVALID_ARGUMENT", "Write --data as KIND or KIND:PATH; docs/data.md lists the kinds."),
    "E-DATA-FORMAT": Entry(DataError, "FAILED_PRECONDITION", "Compare the file (details.log at the site names it) with its description in docs/data.md."),
    "E-DATA-INDICES": Entry(DataError, "FAILED_PRECONDITION", "Write the indices file anew with `fedelmy-launch partition` for this very data."),
    # identity
    "E-IDENTITY-MISSING": Entry(IdentityError, "FAILED_PRECONDITION", "Name the state directory that has it with --state; or `fedelmy-node identity init --site NAME`, have it signed, then `identity install`."),
    "E-IDENTITY-EXISTS": Entry(IdentityError, "ALREADY_EXISTS", "Keep the key that is there, or move it away first."),
    "E-IDENTITY-FILE": Entry(IdentityError, "FAILED_PRECONDITION", "Use the file as it was made; do not edit or convert it."),
    "E-IDENTITY-MISMATCH": Entry(IdentityError, "FAILED_PRECONDITION", "Install the certificate that was signed for this very key and site."),
    "E-IDENTITY-UNTRUSTED": Entry(IdentityError, "UNAUTHENTICATED", "Both ends need certificates of the same federation's CA."),
    "E-IDENTITY-EXPIRED": Entry(IdentityError, "UNAUTHENTICATED", "Have a new certificate signed, or correct the clock."),
    "E-IDENTITY-REVOKED": Entry(IdentityError, "UNAUTHENTICATED", "Whoever holds the certificate makes a new key (`fedelmy-node identity rotate`) and has it signed."),
    "E-IDENTITY-LIST": Entry(IdentityError, "FAILED_PRECONDITION", "Take the newest revocation list of this federation's CA, as `fedelmy-launch ca revoke` wrote it."),
    "E-IDENTITY-PIN": Entry(IdentityError, "PERMISSION_DENIED", "Ask on the phone whether the key was changed; if it was, correct the pinned fingerprint."),
    "E-IDENTITY-ROLE": Entry(IdentityError, "PERMISSION_DENIED", "Sites deliver, operators control: use a certificate of the right role."),
    "E-IDENTITY-SITE": Entry(IdentityError, "PERMISSION_DENIED", "Compare the site names in federation.toml, --peer and the certificates."),
    "E-IDENTITY-SIGNATURE": Entry(IdentityError, "PERMISSION_DENIED", "Have the operator sign the plan anew with a certificate of this federation."),
    "E-IDENTITY-TWICE": Entry(IdentityError, "FAILED_PRECONDITION", "Stop one of the two daemons, and delete its copy of the state; if nobody made a copy, revoke the certificate."),
    "E-IDENTITY-TLS": Entry(IdentityError, "UNAUTHENTICATED", "Allow TLS 1.3 end to end; a proxy in between must pass it through."),
    # consent
    "E-CONSENT-OPERATOR": Entry(ConsentError, "PERMISSION_DENIED", "The site adds the operator to `operators` under [consent] in site.toml."),
    "E-CONSENT-PEER": Entry(ConsentError, "PERMISSION_DENIED", "The site adds --peer SITE=HOST:PORT, or `peers` in site.toml, and starts again."),
    "E-CONSENT-ACCEPT": Entry(ConsentError, "PERMISSION_DENIED", "The site adds the sender to `accept_from` under [consent] in site.toml."),
    "E-CONSENT-EDGE": Entry(ConsentError, "PERMISSION_DENIED", "Only the edges of an accepted plan may be used, by the sites it names."),
    "E-CONSENT-FEDERATION": Entry(ConsentError, "PERMISSION_DENIED", "The site adds the federation to `federations` under [consent] in site.toml."),
    "E-CONSENT-MODEL": Entry(ConsentError, "PERMISSION_DENIED", "Choose a model that the site agrees to, or have it add this one to `models` under [consent]."),
    "E-CONSENT-CODE": Entry(ConsentError, "PERMISSION_DENIED", "The site lists this very name in `models` under [consent] in site.toml; `simulate` and `experiment` take --allow-code."),
    "E-CONSENT-STRATEGY": Entry(ConsentError, "PERMISSION_DENIED", "Choose a strategy that the site agrees to, or have it add this one to `strategies` under [consent]."),
    "E-CONSENT-DATA": Entry(ConsentError, "PERMISSION_DENIED", "Leave the class out, or have the site add it to `classes` under [consent]."),
    "E-CONSENT-LIMIT": Entry(ConsentError, "PERMISSION_DENIED", "Ask for less, or have the site raise its limit under [consent] in site.toml."),
    "E-CONSENT-APPROVAL": Entry(ConsentError, "FAILED_PRECONDITION", "The site's administrator decides with `fedelmy-node runs approve RUN` or `runs refuse RUN`."),
    "E-CONSENT-REFUSED": Entry(ConsentError, "PERMISSION_DENIED", "Talk to the site's administrator, then start a new run."),
    # peers
    "E-PEER-UNREACHABLE": Entry(PeerError, "UNAVAILABLE", "Check that the node runs, and that DNS, routes and firewalls let its port through."),
    "E-PEER-CONTRACT": Entry(PeerError, "FAILED_PRECONDITION", "Install versions of fedelmy that speak the same contract on both ends."),
    "E-PEER-PROTOCOL": Entry(PeerError, "INTERNAL", "Check that the port belongs to a fedelmy node and that no proxy answers for it."),
    "E-PEER-CHAIN": Entry(PeerError, "FAILED_PRECONDITION", "List the sites in federation.toml instead, or have each one name the next with one --peer."),
    "E-PEER-BUSY": Entry(PeerError, "RESOURCE_EXHAUSTED", "Try again later; the node limits what it does at once."),
    "E-PEER-CLOCK": Entry(PeerError, "FAILED_PRECONDITION", "Set the clocks of both machines by the network: `timedatectl set-ntp true`."),
    # store
    "E-STORE-UNWRITABLE": Entry(StoreError, "FAILED_PRECONDITION", "Give this user write access, or choose another directory with --state."),
    "E-STORE-LOCKED": Entry(StoreError, "FAILED_PRECONDITION", "Use the daemon that is running, or stop it first."),
    "E-STORE-NETWORK": Entry(StoreError, "FAILED_PRECONDITION", "Put --state on a local disk: SQLite is not safe on network file systems."),
    "E-STORE-PATH": Entry(StoreError, "FAILED_PRECONDITION", "Choose a shorter directory with --state."),
    "E-STORE-VERSION": Entry(StoreError, "FAILED_PRECONDITION", "Use the version of fedelmy that wrote this state, or a newer one."),
    "E-STORE-DISK": Entry(StoreError, "RESOURCE_EXHAUSTED", "Free disk space in the state directory."),
    "E-STORE-DAMAGED": Entry(StoreError, "DATA_LOSS", "Check the disk; restore the file from where it came from."),
    "E-STORE-DAEMON": Entry(StoreError, "UNAVAILABLE", "Start `fedelmy-node serve` on this state directory first."),
    # backups
    "E-BACKUP-FILE": Entry(StoreError, "DATA_LOSS", "Take another backup, as `fedelmy-node backup` wrote it; nothing was restored from this one."),
    "E-BACKUP-TARGET": Entry(StoreError, "FAILED_PRECONDITION", "Stop the node, move what is there away, and restore again; or name an empty directory with --state."),
    # audit log
    "E-AUDIT-MISSING": Entry(StoreError, "NOT_FOUND", "Run this as the node's user, with the node's --state; the log begins when the node does."),
    "E-AUDIT-BROKEN": Entry(StoreError, "DATA_LOSS", "Keep a copy of the files as they are, and find out who or what changed them; compare with an older copy."),
    # bundles
    "E-BUNDLE-FORMAT": Entry(BundleError, "INVALID_ARGUMENT", "The sender must write bundles with this software; check its version."),
    "E-BUNDLE-MANIFEST": Entry(BundleError, "INVALID_ARGUMENT", "All sites must build the same model: compare the plan's model and the versions."),
    "E-BUNDLE-NONFINITE": Entry(BundleError, "INVALID_ARGUMENT", "The sender's training diverged: lower the learning rate, look at its losses."),
    "E-BUNDLE-CHANGE": Entry(BundleError, "INVALID_ARGUMENT", "Ask whoever trained before; the site's `max_change` under [consent] says how much it accepts."),
    # transfers
    "E-TRANSFER-HASH": Entry(TransferError, "DATA_LOSS", "The sender repeats the transfer by itself; if it recurs, check memory and network."),
    "E-TRANSFER-SEQUENCE": Entry(TransferError, "ABORTED", "The sender begins again by itself from the last verified block."),
    "E-TRANSFER-SIZE": Entry(TransferError, "INVALID_ARGUMENT", "The announced and the delivered size must agree; check the sender's version."),
    "E-TRANSFER-OFFER": Entry(TransferError, "INVALID_ARGUMENT", "The offer does not fit the plan that this site accepted; compare the versions of both sites."),
    "E-TRANSFER-CONFLICT": Entry(TransferError, "ALREADY_EXISTS", "Another input was journaled for this edge first; it stays."),
    "E-TRANSFER-UNNEEDED": Entry(TransferError, "ALREADY_EXISTS", "Nothing to do: the receiver's need was met on another way, because a site was skipped."),
    "E-TRANSFER-STALLED": Entry(TransferError, "DEADLINE_EXCEEDED", "The sender repeats the transfer by itself; check the link if it recurs."),
    # runs
    "E-RUN-UNKNOWN": Entry(RunError, "NOT_FOUND", "List the runs with `fedelmy-node runs list`."),
    "E-RUN-PLAN": Entry(RunError, "INVALID_ARGUMENT", "Use the launcher of this software to make plans; check its version."),
    "E-RUN-CONFLICT": Entry(RunError, "ALREADY_EXISTS", "Choose another run id: this one belongs to another plan."),
    "E-RUN-REFUSED": Entry(RunError, "FAILED_PRECONDITION", "Correct what the sites named, then run again; nothing was started."),
    "E-RUN-FAILED": Entry(RunError, "ABORTED", "See the failing site's log; correct the cause, then run again."),
    "E-RUN-CANCELLED": Entry(RunError, "CANCELLED", "The operator ended this run; start a new one."),
    "E-RUN-ABORTED": Entry(RunError, "ABORTED", "The plan ends a run if a site stays out of reach; bring the site back and start a new run, or choose on_unreachable = \"wait\" or \"skip\"."),
    "E-RUN-EXPIRED": Entry(RunError, "FAILED_PRECONDITION", "The run was prepared but never started: run the launcher again."),
    "E-RUN-SKIPPED": Entry(RunError, "FAILED_PRECONDITION", "Nothing to do: the run went on without a site that had been out of reach."),
    "E-RUN-UNFINISHED": Entry(RunError, "FAILED_PRECONDITION", "Wait until the run is done at this site."),
    "E-RUN-LOST": Entry(RunError, "DATA_LOSS", "Have the operator cancel the run: this site has lost what it needs. If it is done elsewhere, the other sites have its result."),
    # training
    "E-TRAINING-CRASH": Entry(TrainingError, "INTERNAL", "The site's node log names the trainer's log; check memory and device."),
    "E-TRAINING-DIVERGED": Entry(TrainingError, "FAILED_PRECONDITION", "Lower the learning rate, or look for damaged samples."),
    "E-TRAINING-SAMPLES": Entry(TrainingError, "FAILED_PRECONDITION", "Give the site more samples, or leave it out of the federation."),
    "E-TRAINING-MODEL": Entry(TrainingError, "FAILED_PRECONDITION", "Check that the model fits the federation's input size, channels and classes."),
    "E-TRAINING-MEMORY": Entry(TrainingError, "RESOURCE_EXHAUSTED", "Choose a smaller batch_size or model, or a device with more free memory."),
    "E-TRAINING-RANGE": Entry(TrainingError, "FAILED_PRECONDITION", "Set wire_dtype to bfloat16 or float32 in federation.toml."),
    "E-TRAINING-CHECKPOINT": Entry(TrainingError, "DATA_LOSS", "Training goes on by itself; check the disk of the state directory, and its free space."),
    # faults
    "E-INTERNAL": Entry(InternalError, "INTERNAL", "This is a fault of the software: please report it with the log."),
}  # fmt: skip


def error_from_code(code: str, message: str, hint: str | None = None, private: str = "") -> FedelmyError:
    """The error that another process reported; a code that this version does not know becomes internal."""
    entry = CATALOGUE.get(code)
    if entry is None:
        return InternalError("E-INTERNAL", f"{code}: {message}", hint=hint, private=private)
    return entry.kind(code, message, hint=hint, private=private)
