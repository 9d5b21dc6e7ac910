"""`open_data`: from what a site wrote after --data to the samples that it trains, validates and tests with.

How the samples are split: they are put into a random order, drawn from the run's seed and the site's
name. Where the source has no test set of its own, the first tenth is test data; of what is left, the
first tenth is validation data and the others are training data. A tenth is rounded down, but is at
least one sample. So three samples give one of each; below that there is nothing to train.

The order is drawn before any file is read and unreadable files then fall out of it: repairing one of
them later moves at most the samples at the two borders into another part.
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

from fedelmy_node.domain.federation import Task
from fedelmy_node.domain.names import SiteName
from fedelmy_node.errors import DataError, TrainingError
from fedelmy_node.training.data import Source, parse_source
from fedelmy_node.training.data.indices import read_indices
from fedelmy_node.training.data.raw import RawData, load_source
from fedelmy_node.training.data.samples import Reading, Samples, read_samples
from fedelmy_node.training.data.storage import Storage
from fedelmy_node.training.job import DataSpec
from fedelmy_node.training.seeds import derive

__all__ = ["SiteData", "open_data", "split_sizes", "class_numbers"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SiteData:
    """A site's samples, ready for batches; only the counts may leave the site."""

    train: Samples
    """What models are fitted to."""
    validation: Samples
    """What the best epoch is chosen by."""
    test: Samples
    """What `evaluate` measures on, and nothing else looks at."""
    class_counts: dict[str, int]
    """Samples per class in all three parts together; every class of the federation, in its order."""
    missing_classes: tuple[str, ...]
    """Classes of which neither train nor validation has a sample: the site teaches nothing about them."""
    left_out: int
    """Files that could not be read and were skipped."""
    unreadable: tuple[str, ...] = ()
    """The first of them, by name; these stay at the site."""
    on_disk: int = 0
    """Bytes of samples that memory does not hold."""


def open_data(spec: DataSpec, task: Task, *, seed: int, site: SiteName) -> SiteData:
    """Read a site's samples, as the federation's task wants them: into memory, or onto disk what does not fit."""
    reading = Reading(storage=Storage(spec.spill, spec.memory_bytes))
    source = parse_source(spec.source)
    raw = load_source(source)
    positions = _site_positions(spec, source, raw, site)
    present = [raw.pool.labels[positions]] + ([raw.test.labels] if raw.test is not None else [])
    numbers = class_numbers(raw.classes, np.unique(np.concatenate(present)), task.classes)

    generator = torch.Generator().manual_seed(derive(seed, site, "split"))
    positions = positions[torch.randperm(len(positions), generator=generator).numpy()]
    read = partial(read_samples, numbers=numbers, wanted=task.input, unreadable=spec.unreadable, reading=reading)
    pool, left_out = read(raw.pool, positions)
    if raw.test is None:
        tested, validated, _ = split_sizes(len(pool), own_test=False)
        test = pool.part(0, tested)
    else:
        tested, validated, _ = split_sizes(len(pool), own_test=True)
        everything = np.arange(len(raw.test.labels))
        test, more = read(raw.test, everything)
        left_out += more
        if len(test) == 0:
            raise DataError("E-DATA-EMPTY", "nothing in the source's own test set can be read")
    validation = pool.part(tested, tested + validated)
    train = pool.part(tested + validated, len(pool))
    data = _site_data(train, validation, test, task.classes, left_out)
    return replace(data, unreadable=tuple(reading.names), on_disk=reading.storage.on_disk)


def split_sizes(samples: int, *, own_test: bool) -> tuple[int, int, int]:
    """How many of a site's samples are test, validation and training data; the module says the rule."""
    if samples < (2 if own_test else 3):
        parts = "training and validation" if own_test else "training, validation and test"
        raise TrainingError("E-TRAINING-SAMPLES", f"{samples} sample(s) are too few for {parts} data")
    test = 0 if own_test else max(1, samples // 10)
    validation = max(1, (samples - test) // 10)
    return test, validation, samples - test - validation


def class_numbers(names: Sequence[str], present: NDArray[np.int64], classes: Sequence[str]) -> NDArray[np.int64]:
    """For every class of a source its number in the federation, by name; -1 where no sample is `present`.

    Names are compared in Unicode's composed form: file systems differ in how they store accents.
    """
    number_of = {unicodedata.normalize("NFC", name): number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(unicodedata.normalize("NFC", name), -1) for name in names], np.int64)
    unknown = [names[label] for label in present if numbers[label] < 0]
    if unknown:
        # Class names are folder names, and folders are sometimes named after people.
        message = f"{len(unknown)} class(es) of the site's data are not among the federation's classes"
        raise DataError("E-DATA-CLASS", message, private=_class_hint(unknown, classes))
    return numbers


def _class_hint(unknown: Sequence[str], classes: Sequence[str]) -> str:
    by_folded = {name.casefold(): name for name in classes}
    close = difflib.get_close_matches(unknown[0].casefold(), by_folded, n=1)
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return f"{unknown[0]!r}{others}" + (f": did you mean {by_folded[close[0]]!r}?" if close else "")


def _site_positions(spec: DataSpec, source: Source, raw: RawData, site: SiteName) -> NDArray[np.int64]:
    """Which samples of the source's pool are this site's."""
    if spec.indices is None:
        return np.arange(len(raw.pool.labels))
    indices = read_indices(spec.indices)
    indices.require_fit(source_kind=source.kind, samples=len(raw.pool.labels), site=site)
    # Sorted: a part is a set, and the split must not depend on the order in which a file lists it.
    return np.array(sorted(indices.indices), np.int64)


def _site_data(train: Samples, validation: Samples, test: Samples, classes: Sequence[str], left_out: int) -> SiteData:
    taught = torch.bincount(torch.cat((train.labels, validation.labels)), minlength=len(classes))
    counts = taught + torch.bincount(test.labels, minlength=len(classes))
    return SiteData(
        train=train,
        validation=validation,
        test=test,
        class_counts=dict(zip(classes, counts.tolist(), strict=True)),
        missing_classes=tuple(name for name, count in zip(classes, taught.tolist(), strict=True) if not count),
        left_out=left_out,
    )
