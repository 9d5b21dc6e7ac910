"""Checks of disk space, data and device, and an estimate of the training time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from fedelmy_node.domain.errors import (
    ConfigError,
    DataError,
    FedelmyError,
    StoreError,
    TrainingError,
)
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.reports import Finding
from fedelmy_node.domain.text import bytes_text
from fedelmy_node.ops.doctor.findings import ok, problem
from fedelmy_node.store.disk_budget import check_room
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.operations import Effort

_SHOWN_CLASSES: Final = 12
_SHOWN_FILES: Final = 5
_FEW: Final = "Give the site more samples, or have the operator choose a smaller batch_size."


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """The trainer's report on the data and, unless the device was busy, on a trial of the model."""

    report: Mapping[str, Any]
    """The report of a prepare job; has `trial` if there was one."""
    unreadable: Sequence[str] = ()
    """Names of unreadable files; they stay on this machine."""
    rule: Literal["refuse", "skip"] = "refuse"
    """For unreadable files."""
    recipe: Recipe | None = None
    """None if no federation is known: only data and device are checked then."""
    efforts: Sequence[Effort] = ()
    """The site's train steps."""


def examine_disk(layout: Layout, need: int | None) -> Iterator[Finding]:
    """Check the state directory, and whether there is disk space for a run."""
    try:
        layout.check()
    except FedelmyError as error:
        yield Finding.of(error, "disk", "place")
        return
    free = layout.free_bytes()
    facts = {"free_bytes": free} | ({} if need is None else {"needed_bytes": need})
    where = "" if layout.root.exists() else "; `serve` will create the state directory"
    try:
        check_room(need or 1, free)
    except StoreError as error:
        yield replace(Finding.of(error, "disk", "room"), facts=facts, private=str(layout.root))
        return
    needed = "" if need is None else f"; a run needs about {bytes_text(need)}"
    yield ok("disk", "room", f"{bytes_text(free)} free{needed}{where}", facts)


def work_failure(error: FedelmyError) -> Finding:
    """Return why the data could not be opened, or the model could not be tried."""
    if isinstance(error, DataError) or error.code == "E-TRAINING-SAMPLES":
        return Finding.of(error, "data", "open")
    if isinstance(error, TrainingError) or error.code == "E-CONFIG-DEVICE":
        return Finding.of(error, "device", "trial")
    return Finding.of(error, "plan" if isinstance(error, ConfigError) else "data", "open")


def examine_work(found: Inspection) -> Iterator[Finding]:
    """Return the findings of an inspection of data and device."""
    yield _samples(found)
    yield from _classes(found)
    yield _unreadable(found)
    yield from _device(found)


def _samples(found: Inspection) -> Finding:
    sizes = found.report["samples"]
    train, validation, test = (sizes[part] for part in ("train", "validation", "test"))
    message = f"{train:,} training, {validation:,} validation, {test:,} test samples"
    facts = {"samples": dict(sizes)}
    batch = found.recipe.training.batch_size if found.recipe else 0
    if train < batch:
        message = f"{message}: fewer than one batch of {batch}"
        return problem("data", "samples", "E-TRAINING-SAMPLES", message, _FEW, facts=facts)
    return ok("data", "samples", message, facts)


def _classes(found: Inspection) -> Iterator[Finding]:
    counts, missing = found.report["class_counts"], found.report["missing_classes"]
    if found.recipe is None and len(counts) < 1:
        return
    parts = [f"{name}: {count:,}" for name, count in counts.items()]
    more = f" and {len(parts) - _SHOWN_CLASSES} more" if len(parts) > _SHOWN_CLASSES else ""
    message = f"{len(parts)} classes ({', '.join(parts[:_SHOWN_CLASSES])}{more})"
    facts: dict[str, Any] = {"class_counts": dict(counts)}
    if not missing:
        yield ok("data", "classes", message, facts)
        return
    names = ", ".join(repr(name) for name in missing[:_SHOWN_CLASSES])
    fix = (
        "If this site has such samples, give their folder or label exactly this name."
        " If it has none, nothing is wrong: the model learns nothing about them here."
    )
    facts["missing_classes"] = list(missing)
    message = f"no training sample of {names}; {message}"
    yield problem("data", "classes", "E-DATA-CLASS", message, fix, facts=facts)


def _unreadable(found: Inspection) -> Finding:
    left_out = found.report["left_out"]
    facts = {"left_out": left_out}
    if not left_out:
        return ok("data", "readable", "every sample can be read", facts)
    names = ", ".join(found.unreadable[:_SHOWN_FILES])
    names += f" and {left_out - _SHOWN_FILES} more" if left_out > _SHOWN_FILES else ""
    fix = 'Repair or remove them, or set unreadable = "skip" under [data] in site.toml.'
    if found.rule == "skip":
        fix = "They are skipped, as set in site.toml; still, repair or remove them."
    return problem(
        "data",
        "readable",
        "E-DATA-UNREADABLE",
        f"{left_out} file(s) cannot be read",
        fix,
        facts=facts,
        private=names,
        verdict="warning" if found.rule == "skip" else "failure",
    )


def _device(found: Inspection) -> Iterator[Finding]:
    report, recipe = found.report, found.recipe
    facts = {key: report[key] for key in ("device", "torch", "cpu_capability")}
    message = f"{report['device']}, torch {report['torch']}, {report['cpu_capability']}"
    trial = report.get("trial")
    if trial:
        message += f", {bytes_text(trial['memory_bytes'])} of memory"
        facts["memory_bytes"] = trial["memory_bytes"]
    yield ok("device", "device", message, facts)
    if not trial or recipe is None:
        return
    batch = f"a batch of {recipe.training.batch_size} in {_short(trial['seconds_per_batch'])}"
    memory = f"at most {bytes_text(trial['peak_bytes'])} of memory"
    message = f"{recipe.model.name}, {report['parameters']:,} parameters: {batch}, {memory}"
    facts = {key: trial[key] for key in ("seconds_per_batch", "batches", "peak_bytes")}
    yield ok("device", "trial", message, facts)
    epochs = sum(effort.total_epochs for effort in found.efforts)
    seconds = sum(training_seconds(effort, trial) for effort in found.efforts)
    message = f"about {duration_text(seconds)} for this site's part of a run, {epochs} epochs"
    yield ok("device", "time", message, {"seconds": round(seconds, 3)})


def training_seconds(effort: Effort, trial: Mapping[str, Any]) -> float:
    """Estimate a train step from a trial: all batches of every epoch, and its validation."""
    per_epoch = trial["batches"] * trial["seconds_per_batch"] + trial["validation_seconds"]
    return float(effort.total_epochs * per_epoch)


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration_text(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`: as precise as an estimate is."""
    if seconds < 90:
        return f"{max(1, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
