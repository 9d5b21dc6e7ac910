"""`open_data`: a site's training, validation and test samples.

The split: samples are shuffled with the run's seed and the site's name. If the source has no test
set of its own, the first tenth is test data. Of the rest, the first tenth is validation data and
the remainder training data. A tenth is rounded down, but is at least one sample, so three samples
give one of each; fewer are an error.

The order is drawn before any file is read, and unreadable files are then dropped from it. Repairing
one later moves at most the samples at the two borders into another part.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedelmy_node.domain.errors import DataError, TrainingError
from fedelmy_node.domain.federation import Task
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data import Source, parse_source
from fedelmy_node.training.data.indices import read_indices
from fedelmy_node.training.data.samples import Reading, Samples, Storage, read_samples
from fedelmy_node.training.data.sources import RawData, RawSamples, load_source
from fedelmy_node.training.job import DataSpec
from fedelmy_node.training.seeds import derive


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SiteData:
    """A site's samples, ready for batches; only the counts may leave the site."""

    train: Samples
    validation: Samples
    """Selects the best epoch."""
    test: Samples
    """Used by `evaluate` only."""
    class_counts: dict[str, int]
    """Samples per class in all three parts; every class of the federation, in its order."""
    missing_classes: tuple[str, ...]
    """Classes without a sample in train and validation."""
    smallest_class: int
    """Samples in train and validation of the smallest class that has any there."""
    left_out: int
    """Unreadable files that were skipped."""
    unreadable: tuple[str, ...] = ()
    """Names of the first skipped files; these stay at the site."""
    on_disk: int = 0
    """Bytes of samples held on disk."""
    own_test: bool = False
    """The test samples are the source's own test set, not a part of its pool."""


def open_data(spec: DataSpec, task: Task, *, seed: int, site: SiteName) -> SiteData:
    """Read a site's samples in the task's input format, into memory or, if too large, onto disk."""
    reading = Reading(storage=Storage(spec.spill, spec.memory_bytes))
    source = parse_source(spec.source)
    raw = load_source(source)
    raw.require_kind(task.input.kind)
    positions = _site_positions(spec, source, raw, site)
    present = [raw.pool.labels[positions]] + ([raw.test.labels] if raw.test is not None else [])
    numbers = class_numbers(raw.classes, np.unique(np.concatenate(present)), task.classes)

    generator = torch.Generator().manual_seed(derive(seed, site, "split"))
    positions = positions[torch.randperm(len(positions), generator=generator).numpy()]

    def read(samples: RawSamples, positions: NDArray[np.int64]) -> tuple[Samples, int]:
        skip = spec.unreadable
        return read_samples(
            samples, positions, numbers, task.input, unreadable=skip, reading=reading
        )

    pool, left_out = read(raw.pool, positions)
    tested, validated, _ = split_sizes(len(pool), own_test=raw.test is not None)
    if raw.test is None:
        test = pool.part(0, tested)
    else:
        test, more = read(raw.test, np.arange(len(raw.test.labels)))
        left_out += more
        if len(test) == 0:
            raise DataError("E-DATA-EMPTY", "no sample of the source's own test set can be read")
    validation = pool.part(tested, tested + validated)
    train = pool.part(tested + validated, len(pool))
    data = _site_data(train, validation, test, task.classes, left_out)
    return replace(
        data,
        unreadable=tuple(reading.names),
        on_disk=reading.storage.on_disk,
        own_test=raw.test is not None,
    )


def split_sizes(samples: int, *, own_test: bool) -> tuple[int, int, int]:
    """The number of test, validation and training samples; see the module for the rule."""
    if samples < (2 if own_test else 3):
        parts = "training and validation" if own_test else "training, validation and test"
        message = f"{samples} sample(s) are too few for {parts} data"
        raise TrainingError("E-TRAINING-SAMPLES", message)
    test = 0 if own_test else max(1, samples // 10)
    validation = max(1, (samples - test) // 10)
    return test, validation, samples - test - validation


def class_numbers(
    names: Sequence[str], present: NDArray[np.int64], classes: Sequence[str]
) -> NDArray[np.int64]:
    """Map the source's classes to the federation's by name; -1 for an unknown, unused class.

    Names are compared in Unicode NFC: file systems differ in how they store accents.
    """
    normalize = partial(unicodedata.normalize, "NFC")
    number_of = {normalize(name): number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(normalize(name), -1) for name in names], np.int64)
    unknown = [names[label] for label in present if numbers[label] < 0]
    if unknown:
        # Folder names are private: they sometimes name people.
        count = f"{len(unknown)} class(es) of the site's data"
        message = f"{count} are not among the federation's classes"
        raise DataError("E-DATA-CLASS", message, private=_class_hint(unknown, classes))
    return numbers


def _class_hint(unknown: Sequence[str], classes: Sequence[str]) -> str:
    by_folded = {name.casefold(): name for name in classes}
    close = difflib.get_close_matches(unknown[0].casefold(), by_folded, n=1)
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return f"{unknown[0]!r}{others}" + (f": did you mean {by_folded[close[0]]!r}?" if close else "")


def _site_positions(
    spec: DataSpec, source: Source, raw: RawData, site: SiteName
) -> NDArray[np.int64]:
    """The positions of this site's samples in the source's pool."""
    if spec.indices is None:
        return np.arange(len(raw.pool.labels))
    indices = read_indices(spec.indices)
    indices.require_fit(source_kind=source.kind, samples=len(raw.pool.labels), site=site)
    # Sorted: the split must not depend on the order in the file.
    return np.array(sorted(indices.indices), np.int64)


def _site_data(
    train: Samples, validation: Samples, test: Samples, classes: Sequence[str], left_out: int
) -> SiteData:
    taught = torch.bincount(torch.cat((train.labels, validation.labels)), minlength=len(classes))
    counts = taught + torch.bincount(test.labels, minlength=len(classes))
    missing = [name for name, count in zip(classes, taught.tolist(), strict=True) if not count]
    return SiteData(
        train=train,
        validation=validation,
        test=test,
        class_counts=dict(zip(classes, counts.tolist(), strict=True)),
        missing_classes=tuple(missing),
        smallest_class=int(taught[taught > 0].min()),
        left_out=left_out,
    )
