"""All errors of fedelmy: one class tree and one catalogue of codes.

    FedelmyError
    ├── ConfigError        invalid file, option or environment variable    exit 2
    ├── DataError          unusable data at a site                         exit 3
    ├── IdentityError      invalid key, certificate or signature           exit 4
    ├── ConsentError       a site does not permit the request              exit 5
    ├── PeerError          another node is unreachable or incompatible     exit 6
    ├── StoreError         unusable disk, state directory or journal       exit 7
    ├── BundleError        invalid, damaged or non-finite weights          exit 8
    ├── TransferError      a transfer was refused or interrupted           exit 9
    ├── RunError           unknown run, failed run, or wrong run state     exit 10
    ├── TrainingError      a training step failed                          exit 11
    └── InternalError      internal error                                  exit 70

Every error has a stable code, a message (what happened) and a hint (what to do; by default the
catalogue's advice). Message and hint may leave the site, so they contain no paths and nothing about
single samples. Such details go into `private`: commands on this machine show it; the network, the
journal and the log never do (store/details_log.py keeps it). `CATALOGUE` maps each code to its
class, gRPC status and advice; the exit code belongs to the class. Unknown codes cannot be raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

EXIT_SUBSET: Final = 20
"""The run finished, but without some of its sites."""
EXIT_DETACHED: Final = 130
"""Ctrl-C ended the command; a started run continues."""


class FedelmyError(Exception):
    """The root of all errors."""

    exit_code: ClassVar[int] = 70

    def __init__(
        self, code: str, message: str, *, hint: str | None = None, private: str = ""
    ) -> None:
        entry = CATALOGUE.get(code)
        if entry is None or not isinstance(self, entry.kind):
            raise AssertionError(f"{code} is not a code of {type(self).__name__}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint if hint is not None else entry.advice
        self.private = private
        self.about = ""
        """The run concerned, if known."""
        self.inputs: tuple[int, ...] = ()
        """Positions of the step inputs that caused the error, if any did."""

    @property
    def whole(self) -> str:
        """The message with its private details, for this machine only."""
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
    """The catalogue entry of a code."""

    kind: type[FedelmyError]
    status: str
    """Name of the gRPC status that carries the code."""
    advice: str
    """What to do, in one sentence."""


_KINDS: Final[Mapping[str, type[FedelmyError]]] = {
    **{kind.__name__.removesuffix("Error").upper(): kind for kind in FedelmyError.__subclasses__()},
    "AUDIT": StoreError,
    "BACKUP": StoreError,
    "WEIGHTS": BundleError,
}
"""Error class by the second part of the code."""

# One code and its gRPC status per entry; the advice follows, indented.
_CATALOGUE: Final = r"""
E-CONFIG-SYNTAX INVALID_ARGUMENT
    Fix the file at the location shown.
E-CONFIG-MISSING INVALID_ARGUMENT
    Create the file (see docs/federation.md and docs/site.md), or pass another path.
E-CONFIG-KEY INVALID_ARGUMENT
    Remove the key, or fix its spelling.
E-CONFIG-VALUE INVALID_ARGUMENT
    Fix the value; docs/federation.md and docs/site.md list the allowed values.
E-CONFIG-MODEL INVALID_ARGUMENT
    Choose one of the models listed in docs/federation.md.
E-CONFIG-TRAIN INVALID_ARGUMENT
    Fix train under [model]; docs/federation.md describes patterns and heads.
E-CONFIG-STRATEGY INVALID_ARGUMENT
    Choose one of the strategies listed in docs/federation.md.
E-CONFIG-TOPOLOGY INVALID_ARGUMENT
    Choose one of the topologies listed in docs/federation.md.
E-CONFIG-EXTENSION FAILED_PRECONDITION
    Fix, update or remove the package or module; docs/extending.md describes the requirements.
E-CONFIG-ADDRESS INVALID_ARGUMENT
    Write addresses as HOST:PORT, peers as [SITE=]HOST:PORT.
E-CONFIG-PORT FAILED_PRECONDITION
    Stop the process that uses the port, or choose another port with --listen.
E-CONFIG-DEVICE FAILED_PRECONDITION
    Choose a device that this machine has, or use --device cpu.

E-DATA-MISSING FAILED_PRECONDITION
    Check the path given with --data and its read permissions.
E-DATA-EMPTY FAILED_PRECONDITION
    Add samples, or pass another path with --data.
E-DATA-CLASS FAILED_PRECONDITION
    Rename or remove the class (named in details.log at the site), or have the operator add it to
    the federation's classes.
E-DATA-UNREADABLE FAILED_PRECONDITION
    Repair or remove the file (named in details.log at the site), or set unreadable = "skip" under
    [data] in site.toml.
E-DATA-SOURCE INVALID_ARGUMENT
    Write --data as KIND or KIND:PATH; docs/data.md lists the kinds.
E-DATA-FORMAT FAILED_PRECONDITION
    Check the file (named in details.log at the site) against the format in docs/data.md.
E-DATA-INDICES FAILED_PRECONDITION
    Recreate the indices file for this data set with `fedelmy-launch partition`.

E-IDENTITY-MISSING FAILED_PRECONDITION
    Pass the right --state; or run `fedelmy-node identity init --site NAME`, have the request
    signed, then run `identity install`.
E-IDENTITY-EXISTS ALREADY_EXISTS
    Keep the existing key, or move it away first.
E-IDENTITY-FILE FAILED_PRECONDITION
    Use the original file; do not edit or convert it.
E-IDENTITY-MISMATCH FAILED_PRECONDITION
    Install the certificate that was signed for this key and site.
E-IDENTITY-UNTRUSTED UNAUTHENTICATED
    Use certificates of the same federation's CA on both ends.
E-IDENTITY-EXPIRED UNAUTHENTICATED
    Have a new certificate signed, or correct the clock.
E-IDENTITY-REVOKED UNAUTHENTICATED
    The certificate's owner must create a new key (`fedelmy-node identity rotate`) and have it
    signed.
E-IDENTITY-LIST FAILED_PRECONDITION
    Use the newest revocation list of this federation's CA, written by `fedelmy-launch ca revoke`.
E-IDENTITY-PIN PERMISSION_DENIED
    Ask the other site by phone whether its key changed; if so, update the pinned fingerprint.
E-IDENTITY-ROLE PERMISSION_DENIED
    Use a certificate with the right role: sites transfer models, operators control runs.
E-IDENTITY-SITE PERMISSION_DENIED
    Compare the site names in federation.toml, --peer and the certificates.
E-IDENTITY-SIGNATURE PERMISSION_DENIED
    Have the operator sign the plan again with a certificate of this federation.
E-IDENTITY-TWICE FAILED_PRECONDITION
    Stop one of the two daemons and delete its copy of the state; if nobody made a copy, revoke the
    certificate.
E-IDENTITY-TLS UNAUTHENTICATED
    Allow TLS 1.3 end to end; proxies must pass it through.

E-CONSENT-OPERATOR PERMISSION_DENIED
    The site must add the operator to `operators` under [consent] in site.toml.
E-CONSENT-PEER PERMISSION_DENIED
    The site must add --peer SITE=HOST:PORT, or `peers` in site.toml, and restart.
E-CONSENT-ACCEPT PERMISSION_DENIED
    The site must add the sender to `accept_from` under [consent] in site.toml.
E-CONSENT-EDGE PERMISSION_DENIED
    Use only the edges of an accepted plan, between the sites that the plan lists.
E-CONSENT-FEDERATION PERMISSION_DENIED
    The site must add the federation to `federations` under [consent] in site.toml.
E-CONSENT-MODEL PERMISSION_DENIED
    Choose a model that the site allows, or have it add this one to `models` under [consent].
E-CONSENT-CODE PERMISSION_DENIED
    The site must list this exact name in `models` under [consent] in site.toml; for `simulate` and
    `experiment`, pass --allow-code.
E-CONSENT-STRATEGY PERMISSION_DENIED
    Choose a strategy that the site allows, or have it add this one to `strategies` under [consent].
E-CONSENT-DATA PERMISSION_DENIED
    Remove the class, or have the site add it to `classes` under [consent].
E-CONSENT-LIMIT PERMISSION_DENIED
    Request less, or have the site raise its limit under [consent] in site.toml.
E-CONSENT-SMALL PERMISSION_DENIED
    The site can lower `min_class_samples` under [consent] in site.toml, add samples, or leave out
    the class.
E-CONSENT-APPROVAL FAILED_PRECONDITION
    The site's administrator must run `fedelmy-node runs approve RUN` or `runs refuse RUN`.
E-CONSENT-REFUSED PERMISSION_DENIED
    Contact the site's administrator, then start a new run.

E-PEER-UNREACHABLE UNAVAILABLE
    Check that the node is running, and that DNS, routing and firewalls allow its port.
E-PEER-CONTRACT FAILED_PRECONDITION
    Install fedelmy versions with the same contract on both ends.
E-PEER-PROTOCOL INTERNAL
    Check that the port belongs to a fedelmy node and that no proxy answers in its place.
E-PEER-CHAIN FAILED_PRECONDITION
    List the sites in federation.toml, or start every site with one --peer for the next site.
E-PEER-BUSY RESOURCE_EXHAUSTED
    Try again later; the node limits concurrent work.
E-PEER-CLOCK FAILED_PRECONDITION
    Synchronise the clocks of both machines: `timedatectl set-ntp true`.

E-STORE-UNWRITABLE FAILED_PRECONDITION
    Give this user write access, or choose another directory with --state.
E-STORE-LOCKED FAILED_PRECONDITION
    Use the running daemon, or stop it first.
E-STORE-NETWORK FAILED_PRECONDITION
    Put --state on a local disk: SQLite is not safe on network file systems.
E-STORE-PATH FAILED_PRECONDITION
    Choose a shorter directory with --state.
E-STORE-VERSION FAILED_PRECONDITION
    Use the fedelmy version that wrote this state, or a newer one.
E-STORE-DISK RESOURCE_EXHAUSTED
    Free disk space in the state directory.
E-STORE-DAMAGED DATA_LOSS
    Check the disk; restore the file from its source.
E-STORE-DAEMON UNAVAILABLE
    Start `fedelmy-node serve` on this state directory first.

E-BACKUP-FILE DATA_LOSS
    Use another backup made by `fedelmy-node backup`; nothing was restored from this one.
E-BACKUP-TARGET FAILED_PRECONDITION
    Stop the node, move the existing state away and restore again; or pass an empty directory with
    --state.

E-AUDIT-MISSING NOT_FOUND
    Run this as the node's user, with the node's --state; the log is created when the node starts.
E-AUDIT-BROKEN DATA_LOSS
    Keep a copy of the files, find out what changed them, and compare them with an older copy.

E-BUNDLE-FORMAT INVALID_ARGUMENT
    Check the sender's fedelmy version: only fedelmy can write bundles.
E-BUNDLE-MANIFEST INVALID_ARGUMENT
    Compare the plan's model and the versions: all sites must build the same model.
E-BUNDLE-NONFINITE INVALID_ARGUMENT
    The sender's training diverged: lower the learning rate and check its losses.
E-BUNDLE-CHANGE INVALID_ARGUMENT
    Contact the previous site; `max_change` under [consent] limits how far a model may move.

E-WEIGHTS-MISSING FAILED_PRECONDITION
    Put the file into the site's weights directory with `fedelmy-node weights import FILE`.
E-WEIGHTS-DIGEST FAILED_PRECONDITION
    Get the file that the operator named, and compare `fedelmy-node weights list` with the plan.
E-WEIGHTS-FORMAT INVALID_ARGUMENT
    Use a safetensors file, or a torch state dict that contains tensors only.
E-WEIGHTS-MODEL FAILED_PRECONDITION
    Choose the model that the weights were made for, or weights of this model.

E-TRANSFER-HASH DATA_LOSS
    The sender retries automatically; if it recurs, check memory and network.
E-TRANSFER-SEQUENCE ABORTED
    The sender resumes automatically from the last verified block.
E-TRANSFER-SIZE INVALID_ARGUMENT
    Check the sender's version: the announced and the delivered size must be equal.
E-TRANSFER-OFFER INVALID_ARGUMENT
    Compare the versions of both sites: the offer does not match the plan accepted here.
E-TRANSFER-CONFLICT ALREADY_EXISTS
    Nothing to do: another input was journaled for this edge first, and is kept.
E-TRANSFER-UNNEEDED ALREADY_EXISTS
    Nothing to do: a site was skipped, and the receiver got its input over another edge.
E-TRANSFER-STALLED DEADLINE_EXCEEDED
    The sender retries automatically; if it recurs, check the link.

E-RUN-UNKNOWN NOT_FOUND
    List the runs with `fedelmy-node runs list`.
E-RUN-PLAN INVALID_ARGUMENT
    Create plans with fedelmy-launch, and check its version.
E-RUN-CONFLICT ALREADY_EXISTS
    Choose another run id: this one belongs to another plan.
E-RUN-REFUSED FAILED_PRECONDITION
    Fix the problems reported by the sites, then run again; nothing was started.
E-RUN-FAILED ABORTED
    See the cause with `fedelmy-node runs show RUN` at the failed site; fix it, then run again.
E-RUN-CANCELLED CANCELLED
    The operator cancelled this run; start a new one.
E-RUN-ABORTED ABORTED
    The plan aborts the run if a site stays unreachable; bring the site back and start a new run, or
    set on_unreachable to "wait" or "skip".
E-RUN-EXPIRED FAILED_PRECONDITION
    The run was prepared but never started; run the launcher again.
E-RUN-SKIPPED FAILED_PRECONDITION
    Nothing to do: the run continued without a site that was unreachable.
E-RUN-UNFINISHED FAILED_PRECONDITION
    Wait until the run is done at this site.
E-RUN-LOST DATA_LOSS
    Have the operator cancel the run: this site has lost files that it needs. If the run is done
    elsewhere, the other sites have its result.

E-TRAINING-CRASH INTERNAL
    Check memory and device; details.log in the site's state directory has the trainer's output.
E-TRAINING-DIVERGED FAILED_PRECONDITION
    Lower the learning rate, or check for damaged samples.
E-TRAINING-SAMPLES FAILED_PRECONDITION
    Add samples at the site, or remove it from the federation.
E-TRAINING-MODEL FAILED_PRECONDITION
    Check that the model fits the federation's input size, channels and classes.
E-TRAINING-MEMORY RESOURCE_EXHAUSTED
    Choose a smaller batch_size or model, or a device with more free memory.
E-TRAINING-RANGE FAILED_PRECONDITION
    Set wire_dtype to bfloat16 or float32 in federation.toml.
E-TRAINING-CHECKPOINT DATA_LOSS
    Training continues automatically; check the state directory's disk and its free space.

E-INTERNAL INTERNAL
    This is a bug: please report it with the log.
"""


def _entries(text: str) -> Iterator[tuple[str, Entry]]:
    for block in re.split(r"\n+(?=E-)", text.strip()):
        head, *advice = block.splitlines()
        code, status = head.split()
        kind = _KINDS[code.split("-")[1]]
        yield code, Entry(kind, status, " ".join(line.strip() for line in advice))


CATALOGUE: Final[Mapping[str, Entry]] = dict(_entries(_CATALOGUE))


def error_from_code(
    code: str, message: str, hint: str | None = None, private: str = ""
) -> FedelmyError:
    """Rebuild an error that another process reported; an unknown code becomes E-INTERNAL."""
    entry = CATALOGUE.get(code)
    if entry is None:
        return InternalError("E-INTERNAL", f"{code}: {message}", hint=hint, private=private)
    return entry.kind(code, message, hint=hint, private=private)
