"""Checkpoints on disk: how they are written, and what of them can be trusted.

    DIRECTORY/
      fit-000.safetensors      the result of the step's first fit; written once
      000007.safetensors       the fit under way: model, optimizer, sums, best epoch so far
      000007.json              written last: with it the checkpoint exists

The JSON names the job, the sha256 of every file that it needs, and its own. The last two checkpoints are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.durable import cannot_write, file_sha256, write_durably
from fedelmy_node.errors import FedelmyError, TrainingError
from fedelmy_node.training.bundle import Groups, manifest_of, read_bundle, write_bundle
from fedelmy_node.training.checkpoint import MOMENTS, Done, Found, Underway
from fedelmy_node.training.fit import Best, FitOrder
from fedelmy_node.training.flat import FlatModel, Weights

__all__ = ["CheckpointStore"]

logger = logging.getLogger(__name__)

_FORMAT: Final = 1
_NUMBERED: Final = re.compile(r"([0-9]{6,9})\.(?:json|safetensors)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _FitEntry:
    """A completed fit in the JSON."""

    order: FitOrder
    epoch: int
    accuracy: float | None = None
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _StateEntry:
    """The fit under way in the JSON."""

    order: FitOrder
    epoch: int
    batch: int
    samples: int
    best_epoch: int = 0
    """0: there is none yet."""
    best_accuracy: float | None = None
    best_score: float | None = None
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contents:
    """What a checkpoint says."""

    format: int
    key: str
    fits: tuple[_FitEntry, ...]
    state: _StateEntry | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    """The JSON file."""

    checkpoint: _Contents
    sha256: str
    """Of the canonical JSON of `checkpoint`."""


@dataclass(slots=True)
class CheckpointStore:
    """The checkpoints of one job in a directory of their own. Used by one thread at a time."""

    directory: Path
    key: str
    """Of the job; see `job_key`."""
    _number: int = 0
    """The highest in use."""
    _kept: list[int] = field(default_factory=list)
    """Checkpoints that can be used, oldest first."""

    def load(self, model: FlatModel) -> Found:
        """The furthest that can be gone on from. Never raises: what cannot be used is among its problems."""
        try:
            numbers = self._numbers()
        except OSError as error:
            return Found(problems=(f"the checkpoints cannot be listed: {error.strerror}",))
        self._number = max(numbers, default=0)
        best, problems = Found(), []
        reader = _Reader(self.directory, model)
        for number in sorted(numbers, reverse=True):
            try:
                contents = _read_document(self.directory / f"{number:06d}.json")
            except FileNotFoundError:
                continue  # its process was killed before the checkpoint was complete
            except (OSError, FedelmyError, ValueError, RecursionError) as error:
                problems.append(f"checkpoint {number} cannot be read: {_reason(error)}")
                continue
            if contents.key != self.key:
                logger.info("checkpoint %d is of another job and is not used", number)
                continue
            found = reader.read(number, contents)
            problems += found.problems
            if found.progress > best.progress:
                best = found
                self._kept = [] if found.problems else [number]
            if not found.problems:
                break
        return Found(fits=best.fits, underway=best.underway, problems=tuple(dict.fromkeys(problems)))

    def write(self, fits: Sequence[Done], underway: Underway | None) -> None:
        """Add a checkpoint, and remove what the last two do not need."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.directory, error) from error
        for index, done in enumerate(fits):
            if done.sha256 is None:
                assert done.weights is not None, "a result stays until it is written"
                done.sha256, _ = write_bundle(self.directory / _fit_file(index), _weights_groups(done.weights))
                done.weights = None
        number = self._number + 1
        tensors = self.directory / f"{number:06d}.safetensors"
        try:
            state = _write_state(tensors, underway) if underway else None
            contents = _Contents(format=_FORMAT, key=self.key, fits=tuple(map(_fit_entry, fits)), state=state)
            document = _Document(checkpoint=contents, sha256=_checksum(contents))
            write_durably(tensors.with_suffix(".json"), canonical_json(document))
        except BaseException:
            tensors.unlink(missing_ok=True)
            raise
        self._number, self._kept = number, [*self._kept[-1:], number]
        self._prune(len(fits))

    def clear(self) -> None:
        """Remove every checkpoint: what they led to was a failure."""
        self._kept = []
        self._prune(0)

    def _prune(self, fits: int) -> None:
        wanted = {_fit_file(index) for index in range(fits)}
        wanted |= {f"{number:06d}.{suffix}" for number in self._kept for suffix in ("json", "safetensors")}
        # JSON first: a checkpoint that is half removed would be taken for a damaged one.
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        for path in sorted(paths, key=lambda path: (path.suffix != ".json", path.name)):
            if path.name not in wanted:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    logger.warning("%s is of no use any more and cannot be removed: %s", path, error.strerror)

    def _numbers(self) -> set[int]:
        if not self.directory.is_dir():
            return set()
        matches = (_NUMBERED.fullmatch(path.name) for path in self.directory.iterdir())
        return {int(match[1]) for match in matches if match}


class _Reader:
    """Reads tensor files for one model; each file once, however many checkpoints need it."""

    def __init__(self, directory: Path, model: FlatModel) -> None:
        self._directory = directory
        self._form = _formed_like(model.weights())
        self._results: dict[str, Weights | str] = {}

    def read(self, number: int, contents: _Contents) -> Found:
        """As much of a checkpoint as is intact: all of it, or some completed fits."""
        fits: list[Done] = []
        for index, entry in enumerate(contents.fits):
            weights = self._fit(index, entry)
            if isinstance(weights, str):
                return Found(fits=tuple(fits), problems=(f"the result of fit {index + 1} is lost: {weights}",))
            e = entry
            done = Done(order=e.order, epoch=e.epoch, accuracy=e.accuracy, weights=weights, sha256=e.sha256)
            fits.append(done)
        underway = None
        if contents.state is not None:
            try:
                underway = self._state(self._directory / f"{number:06d}.safetensors", contents.state)
            except (OSError, FedelmyError) as error:
                problem = f"checkpoint {number} cannot be used: {_reason(error)}"
                return Found(fits=tuple(fits), problems=(problem,))
        return Found(fits=tuple(fits), underway=underway)

    def _fit(self, index: int, entry: _FitEntry) -> Weights | str:
        """The result of a completed fit, or why there is none."""
        name = _fit_file(index)
        if name not in self._results:
            try:
                groups = _read_tensors(self._directory / name, entry.sha256, _weights_groups(self._form))
                self._results[name] = _weights(groups)
            except (OSError, FedelmyError) as error:
                self._results[name] = _reason(error)
        return self._results[name]

    def _state(self, path: Path, entry: _StateEntry) -> Underway:
        wanted: Groups = {
            **_weights_groups(self._form),
            "adam": {**{name: torch.empty_like(self._form.vector) for name in MOMENTS}, "step": torch.empty(())},
            "epoch": {"sums": torch.empty(3, dtype=torch.float64)},
            **(_weights_groups(_formed_like(self._form), "best-") if entry.best_epoch else {}),
        }
        groups, best = _read_tensors(path, entry.sha256, wanted), None
        if entry.best_epoch:
            weights = _weights(groups, "best-")
            best = Best(epoch=entry.best_epoch, accuracy=entry.best_accuracy, score=entry.best_score, weights=weights)
        return Underway(
            order=entry.order,
            epoch=entry.epoch,
            batch=entry.batch,
            samples=entry.samples,
            now=_weights(groups),
            adam=groups["adam"],
            sums=groups["epoch"]["sums"],
            best=best,
        )


def _write_state(path: Path, underway: Underway) -> _StateEntry:
    best = underway.best
    groups: Groups = {
        **_weights_groups(underway.now),
        "adam": underway.adam,
        "epoch": {"sums": underway.sums},
        **(_weights_groups(best.weights, "best-") if best else {}),
    }
    sha256, _ = write_bundle(path, groups)
    return _StateEntry(
        order=underway.order,
        epoch=underway.epoch,
        batch=underway.batch,
        samples=underway.samples,
        best_epoch=best.epoch if best else 0,
        best_accuracy=best.accuracy if best else None,
        best_score=best.score if best else None,
        sha256=sha256,
    )


def _read_document(path: Path) -> _Contents:
    raw = json.loads(path.read_bytes())
    said = raw.get("checkpoint") if isinstance(raw, dict) else None
    if isinstance(said, dict) and isinstance(said.get("format"), int) and said["format"] != _FORMAT:
        raise TrainingError("E-TRAINING-CHECKPOINT", f"another version of fedelmy wrote it, in format {said['format']}")
    document = decode(_Document, raw)
    if document.sha256 != _checksum(document.checkpoint):
        raise TrainingError("E-TRAINING-CHECKPOINT", "its checksum is wrong")
    return document.checkpoint


def _read_tensors(path: Path, sha256: str, wanted: Groups) -> dict[str, dict[str, Tensor]]:
    """The tensors of an intact file, which must be those of `wanted` but for their values."""
    if file_sha256(path) != sha256:
        raise TrainingError("E-TRAINING-CHECKPOINT", f"{path.name} is damaged")
    groups = read_bundle(path)
    if manifest_of(groups) != manifest_of(wanted):
        raise TrainingError("E-TRAINING-CHECKPOINT", f"{path.name} is of another model")
    return groups


def _weights_groups(weights: Weights, prefix: str = "") -> Groups:
    return {f"{prefix}vector": {"theta": weights.vector}, f"{prefix}rest": weights.rest}


def _weights(groups: Groups, prefix: str = "") -> Weights:
    return Weights(vector=groups[f"{prefix}vector"]["theta"], rest=groups[f"{prefix}rest"])


def _formed_like(weights: Weights) -> Weights:
    """Weights of that form without values or memory."""
    rest = {name: torch.empty_like(tensor, device="meta") for name, tensor in weights.rest.items()}
    return Weights(vector=torch.empty_like(weights.vector, device="meta"), rest=rest)


def _fit_entry(done: Done) -> _FitEntry:
    assert done.sha256 is not None, "fits are written before the checkpoint that needs them"
    return _FitEntry(order=done.order, epoch=done.epoch, accuracy=done.accuracy, sha256=done.sha256)


def _fit_file(index: int) -> str:
    return f"fit-{index:03d}.safetensors"


def _checksum(contents: _Contents) -> str:
    return hashlib.sha256(canonical_json(contents)).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, FedelmyError):
        return error.message
    return (isinstance(error, OSError) and error.strerror) or str(error)
