"""Checkpoints on disk: write, verify, load and remove them.

    DIRECTORY/
      fit-000.safetensors      the result of the step's first fit; written once
      loop-000-000040.safetensors  the step's first loop before an iteration; written once
      000007.safetensors       the current fit: model, optimizer, sums, best epoch so far
      000007.json              written last: makes the checkpoint valid

The JSON has the job's key, the sha256 of every file that it needs, and its own. The last two
checkpoints are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.errors import FedelmyError, TrainingError
from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.names import later
from fedelmy_node.store.durable_files import cannot_write, file_sha256, write_durably
from fedelmy_node.training.bundle_file import Groups, manifest_of, read_bundle, write_bundle
from fedelmy_node.training.checkpoint import Done, Found, Underway
from fedelmy_node.training.fit import Best, FitOrder
from fedelmy_node.training.loops import LoopOrder, LoopPoint
from fedelmy_node.training.optimizer import initial_state
from fedelmy_node.training.weights import FlatModel, Weights

logger = logging.getLogger(__name__)

_FORMAT: Final = 1
_PLACE: Final = ("order", "epoch", "batch", "samples")
_POINT: Final = ("number", "order", "index", "fits", "loops", "sha256")
_LOOP: Final = "loop"
_NUMBERED: Final = re.compile(r"([0-9]{6,9})\.(?:json|safetensors)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _FitEntry:
    order: FitOrder
    epoch: int
    accuracy: float | None = None
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _StateEntry:
    order: FitOrder
    epoch: int
    batch: int
    samples: int
    best_epoch: int = 0
    """0: none yet."""
    best_accuracy: float | None = None
    best_score: float | None = None
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _LoopEntry:
    number: int
    order: LoopOrder
    index: int
    fits: int
    loops: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contents:
    format: int
    key: str
    fits: tuple[_FitEntry, ...]
    state: _StateEntry | None = None
    loops: tuple[_LoopEntry, ...] = field(default=(), metadata=later())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    checkpoint: _Contents
    sha256: str
    """Digest of the canonical JSON of `checkpoint`."""


@dataclass(slots=True)
class CheckpointStore:
    """The checkpoints of one job in their own directory. Used by one thread at a time."""

    directory: Path
    key: str
    """See `job_key`."""
    training: Training
    """The job's; it decides what the optimizer remembers."""
    _number: int = 0
    """The highest in use."""
    _kept: dict[int, frozenset[str]] = field(default_factory=dict)
    """Usable checkpoints, oldest first, and their files of loops."""

    def load(self, model: FlatModel) -> Found:
        """The furthest usable checkpoint. Never raises: damaged ones are listed as problems."""
        try:
            numbers = self._numbers()
        except OSError as error:
            return Found(problems=(f"the checkpoints cannot be listed: {error.strerror}",))
        self._number = max(numbers, default=0)
        best, problems = Found(), []
        if not numbers:
            return best
        reader = _Reader(self.directory, model, self.training)
        for number in sorted(numbers, reverse=True):
            try:
                contents = _read_document(self.directory / f"{number:06d}.json")
            except FileNotFoundError:
                continue  # the process was killed before the checkpoint was complete
            except (OSError, FedelmyError, ValueError, RecursionError) as error:
                problems.append(f"checkpoint {number} cannot be read: {_reason(error)}")
                continue
            if contents.key != self.key:
                logger.info("checkpoint %d belongs to another job and is not used", number)
                continue
            found = reader.read(number, contents)
            problems += found.problems
            if found.progress > best.progress:
                best = found
                names = frozenset(map(_loop_file, contents.loops))
                self._kept = {} if found.problems else {number: names}
            if not found.problems:
                break
        return replace(best, problems=tuple(dict.fromkeys(problems)))

    def write(
        self, fits: Sequence[Done], underway: Underway | None, loops: Sequence[LoopPoint] = ()
    ) -> None:
        """Add a checkpoint, and remove files that the last two do not need."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.directory, error) from error
        for index, done in enumerate(fits):
            if done.sha256 is None:
                assert done.weights is not None, "a result is in memory until it is written"
                groups = _weights_groups(done.weights)
                done.sha256, _ = write_bundle(self.directory / _fit_file(index), groups)
                done.weights = None
        for point in loops:
            if point.sha256 is None:
                assert point.tensors is not None, "a state is in memory until it is written"
                path = self.directory / _loop_file(point)
                point.sha256, _ = write_bundle(path, {_LOOP: point.tensors})
                point.tensors = None
        number = self._number + 1
        tensors = self.directory / f"{number:06d}.safetensors"
        try:
            state = _write_state(tensors, underway, self.training) if underway else None
            entries = tuple(map(_fit_entry, fits))
            points = tuple(map(_loop_entry, loops))
            contents = _Contents(
                format=_FORMAT, key=self.key, fits=entries, state=state, loops=points
            )
            document = _Document(checkpoint=contents, sha256=_checksum(contents))
            write_durably(tensors.with_suffix(".json"), canonical_json(document))
        except BaseException:
            tensors.unlink(missing_ok=True)
            raise
        last = list(self._kept.items())[-1:]
        self._number, self._kept = number, {**dict(last), number: frozenset(map(_loop_file, loops))}
        self._prune(len(fits))

    def clear(self) -> None:
        """Remove all checkpoints, because training failed."""
        self._kept = {}
        self._prune(0)

    def _prune(self, fits: int) -> None:
        wanted = {_fit_file(index) for index in range(fits)}
        wanted = wanted.union(*self._kept.values())
        wanted |= {f"{n:06d}.{suffix}" for n in self._kept for suffix in ("json", "safetensors")}
        # JSON first: a partly removed checkpoint would look damaged.
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        for path in sorted(paths, key=lambda path: (path.suffix != ".json", path.name)):
            if path.name not in wanted:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    logger.warning("cannot remove the old %s: %s", path, error.strerror)

    def _numbers(self) -> set[int]:
        if not self.directory.is_dir():
            return set()
        matches = (_NUMBERED.fullmatch(path.name) for path in self.directory.iterdir())
        return {int(match[1]) for match in matches if match}


class _Reader:
    """Reads tensor files for one model, each file once."""

    def __init__(self, directory: Path, model: FlatModel, training: Training) -> None:
        self._directory = directory
        self._training = training
        self._form = _formed_like(model.weights())
        self._results: dict[str, Weights | str] = {}

    def read(self, number: int, contents: _Contents) -> Found:
        """The intact part of a checkpoint: all of it, or some completed fits."""
        fits: list[Done] = []
        for index, entry in enumerate(contents.fits):
            weights = self._fit(index, entry)
            if isinstance(weights, str):
                problem = f"the result of fit {index + 1} is lost: {weights}"
                return Found(fits=tuple(fits), problems=(problem,))
            values = {name: getattr(entry, name) for name in ("order", "epoch", "accuracy")}
            fits.append(Done(**values, weights=weights, sha256=entry.sha256))
        underway = None
        if contents.state is not None:
            path = self._directory / f"{number:06d}.safetensors"
            try:
                underway = self._state(path, contents.state)
            except (OSError, FedelmyError) as error:
                problem = f"checkpoint {number} cannot be used: {_reason(error)}"
                return Found(fits=tuple(fits), problems=(problem,))
        loops: list[LoopPoint] = []
        for point in contents.loops:
            path = self._directory / _loop_file(point)
            values = {name: getattr(point, name) for name in _POINT}
            try:
                tensors = _read_intact(path, point.sha256)[_LOOP]
            except (OSError, FedelmyError, KeyError) as error:
                problem = f"the loop {point.order.name!r} cannot be resumed: {_reason(error)}"
                found = Found(fits=tuple(fits), underway=underway, loops=tuple(loops))
                return replace(found, problems=(problem,))
            loops.append(LoopPoint(**values, tensors=tensors))
        return Found(fits=tuple(fits), underway=underway, loops=tuple(loops))

    def _fit(self, index: int, entry: _FitEntry) -> Weights | str:
        """The result of a completed fit, or why there is none."""
        name = _fit_file(index)
        if name not in self._results:
            try:
                wanted = _weights_groups(self._form)
                groups = _read_tensors(self._directory / name, entry.sha256, wanted)
                self._results[name] = _weights(groups)
            except (OSError, FedelmyError) as error:
                self._results[name] = _reason(error)
        return self._results[name]

    def _state(self, path: Path, entry: _StateEntry) -> Underway:
        optimizer = self._training.optimizer
        wanted: Groups = {
            **_weights_groups(self._form),
            optimizer: initial_state(self._training, self._form.vector),
            "epoch": {"sums": torch.empty(3, dtype=torch.float64)},
            **(_weights_groups(_formed_like(self._form), "best-") if entry.best_epoch else {}),
        }
        groups, best = _read_tensors(path, entry.sha256, wanted), None
        if entry.best_epoch:
            weights, accuracy = _weights(groups, "best-"), entry.best_accuracy
            score, epoch = entry.best_score, entry.best_epoch
            best = Best(epoch=epoch, accuracy=accuracy, score=score, weights=weights)
        place = {name: getattr(entry, name) for name in _PLACE}
        return Underway(
            **place,
            now=_weights(groups),
            optimizer=groups[optimizer],
            sums=groups["epoch"]["sums"],
            best=best,
        )


def _write_state(path: Path, underway: Underway, training: Training) -> _StateEntry:
    best = underway.best
    groups: Groups = {
        **_weights_groups(underway.now),
        training.optimizer: underway.optimizer,
        "epoch": {"sums": underway.sums},
        **(_weights_groups(best.weights, "best-") if best else {}),
    }
    sha256, _ = write_bundle(path, groups)
    return _StateEntry(
        **{name: getattr(underway, name) for name in _PLACE},
        best_epoch=best.epoch if best else 0,
        best_accuracy=best.accuracy if best else None,
        best_score=best.score if best else None,
        sha256=sha256,
    )


def _read_document(path: Path) -> _Contents:
    raw = json.loads(path.read_bytes())
    inner = raw.get("checkpoint") if isinstance(raw, dict) else None
    version = inner.get("format") if isinstance(inner, dict) else None
    if isinstance(version, int) and version != _FORMAT:
        message = f"another version of fedelmy wrote it, in format {version}"
        raise TrainingError("E-TRAINING-CHECKPOINT", message)
    document = decode(_Document, raw)
    if document.sha256 != _checksum(document.checkpoint):
        raise TrainingError("E-TRAINING-CHECKPOINT", "its checksum is wrong")
    return document.checkpoint


def _read_tensors(path: Path, sha256: str, wanted: Groups) -> dict[str, dict[str, Tensor]]:
    """Read an intact file, whose tensors must have the names, types and shapes of `wanted`."""
    groups = _read_intact(path, sha256)
    if manifest_of(groups) != manifest_of(wanted):
        message = f"{path.name} belongs to another model or optimizer"
        raise TrainingError("E-TRAINING-CHECKPOINT", message)
    return groups


def _read_intact(path: Path, sha256: str) -> dict[str, dict[str, Tensor]]:
    if file_sha256(path) != sha256:
        raise TrainingError("E-TRAINING-CHECKPOINT", f"{path.name} is damaged")
    return read_bundle(path)


def _weights_groups(weights: Weights, prefix: str = "") -> Groups:
    return {f"{prefix}vector": {"theta": weights.vector}, f"{prefix}rest": weights.rest}


def _weights(groups: Groups, prefix: str = "") -> Weights:
    return Weights(vector=groups[f"{prefix}vector"]["theta"], rest=groups[f"{prefix}rest"])


def _formed_like(weights: Weights) -> Weights:
    """Weights of the same shapes on the meta device."""
    rest = {name: torch.empty_like(tensor, device="meta") for name, tensor in weights.rest.items()}
    return Weights(vector=torch.empty_like(weights.vector, device="meta"), rest=rest)


def _fit_entry(done: Done) -> _FitEntry:
    assert done.sha256 is not None, "fits are written before the checkpoint that needs them"
    return _FitEntry(order=done.order, epoch=done.epoch, accuracy=done.accuracy, sha256=done.sha256)


def _loop_entry(point: LoopPoint) -> _LoopEntry:
    return _LoopEntry(**{name: getattr(point, name) for name in _POINT})


def _loop_file(point: LoopPoint | _LoopEntry) -> str:
    return f"loop-{point.number:03d}-{point.index:06d}.safetensors"


def _fit_file(index: int) -> str:
    return f"fit-{index:03d}.safetensors"


def _checksum(contents: _Contents) -> str:
    return hashlib.sha256(canonical_json(contents)).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, FedelmyError):
        return error.message
    return (isinstance(error, OSError) and error.strerror) or str(error)
