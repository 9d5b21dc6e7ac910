"""The work itself: room on the disk, data that can be read, a device that can train, and how long it would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from fedelmy_node.daemon.room import check_room
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.narration import bytes_text
from fedelmy_node.errors import ConfigError, DataError, FedelmyError, StoreError, TrainingError
from fedelmy_node.store.layout import Layout
from fedelmy_node.training.strategies import Effort

__all__ = ["Looked", "examine_disk", "examine_work", "of_work", "training_seconds", "duration_text"]

_SHOWN_CLASSES: Final = 12
_SHOWN_FILES: Final = 5
_FEW: Final = "Give the site more samples, or have the operator choose a smaller batch_size."


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What a trainer found when it opened the data and, unless the device was busy, tried the model."""

    report: Mapping[str, Any]
    """As of a prepare job, with `trial` if there was one."""
    unreadable: Sequence[str] = ()
    """Files by name; for this machine alone."""
    rule: Literal["refuse", "skip"] = "refuse"
    """What the site does with them."""
    recipe: Recipe | None = None
    """None: it was not known, so only the data and the device count."""
    efforts: Sequence[Effort] = ()
    """What the site's train steps take."""


def examine_disk(layout: Layout, need: int | None) -> Iterator[Finding]:
    """Where the state directory is, and whether there is room for a run."""
    try:
        layout.check()
    except FedelmyError as error:
        yield Finding.of(error, "disk", "place")
        return
    free = layout.free_bytes()
    facts = {"free_bytes": free} | ({} if need is None else {"needed_bytes": need})
    where = "" if layout.root.exists() else "; `serve` will make the state directory"
    try:
        check_room(need or 1, free)
    except StoreError as error:
        yield replace(Finding.of(error, "disk", "room"), facts=facts, private=str(layout.root))
        return
    message = f"{bytes_text(free)} free" + ("" if need is None else f", a run needs about {bytes_text(need)}") + where
    yield Finding(subject="disk", check="room", verdict="ok", message=message, facts=facts)


def of_work(error: FedelmyError) -> Finding:
    """Why the data could not be opened, or the model not be tried."""
    if isinstance(error, DataError) or error.code == "E-TRAINING-SAMPLES":
        return Finding.of(error, "data", "open")
    if isinstance(error, TrainingError) or error.code == "E-CONFIG-DEVICE":
        return Finding.of(error, "device", "trial")
    return Finding.of(error, "plan" if isinstance(error, ConfigError) else "data", "open")


def examine_work(looked: Looked) -> Iterator[Finding]:
    """What a look at data and device comes to."""
    yield from _samples(looked)
    yield from _classes(looked)
    yield from _unreadable(looked)
    yield from _device(looked)


def _samples(looked: Looked) -> Iterator[Finding]:
    sizes = looked.report["samples"]
    message = f"{sizes['train']:,} training, {sizes['validation']:,} validation, {sizes['test']:,} test samples"
    found = Finding(subject="data", check="samples", verdict="ok", message=message, facts={"samples": dict(sizes)})
    batch = looked.recipe.training.batch_size if looked.recipe else 0
    if sizes["train"] < batch:
        error = TrainingError("E-TRAINING-SAMPLES", f"{message}: fewer than one batch of {batch}", hint=_FEW)
        found = replace(Finding.of(error, "data", "samples", "warning"), facts=found.facts)
    yield found


def _classes(looked: Looked) -> Iterator[Finding]:
    counts, missing = looked.report["class_counts"], looked.report["missing_classes"]
    if looked.recipe is None and len(counts) < 1:
        return
    parts = [f"{name}: {count:,}" for name, count in counts.items()]
    more = f" and {len(parts) - _SHOWN_CLASSES} more" if len(parts) > _SHOWN_CLASSES else ""
    message = f"{len(parts)} classes ({', '.join(parts[:_SHOWN_CLASSES])}{more})"
    facts = {"class_counts": dict(counts)}
    if not missing:
        yield Finding(subject="data", check="classes", verdict="ok", message=message, facts=facts)
        return
    names = ", ".join(repr(name) for name in missing[:_SHOWN_CLASSES])
    fix = (
        "If this site has such samples, name their class exactly so (a folder, a label). If it has none, nothing is"
        " wrong: it teaches the model nothing about them."
    )
    yield Finding(
        subject="data", check="classes", verdict="warning", code="E-DATA-CLASS", fix=fix,
        message=f"no training sample of {names}; {message}", facts=facts | {"missing_classes": list(missing)},
    )  # fmt: skip


def _unreadable(looked: Looked) -> Iterator[Finding]:
    left_out = looked.report["left_out"]
    facts = {"left_out": left_out}
    if not left_out:
        yield Finding(subject="data", check="readable", verdict="ok", message="every sample can be read", facts=facts)
        return
    names = ", ".join(looked.unreadable[:_SHOWN_FILES])
    names += f" and {left_out - _SHOWN_FILES} more" if left_out > _SHOWN_FILES else ""
    message = f"{left_out} file(s) cannot be read"
    if looked.rule == "skip":
        fix = "They are left out, as site.toml says; repair or remove them all the same."
        verdict: Literal["warning", "failure"] = "warning"
    else:
        fix, verdict = 'Repair or remove them, or set unreadable = "skip" under [data] in site.toml.', "failure"
    yield Finding(
        subject="data", check="readable", verdict=verdict, message=message, code="E-DATA-UNREADABLE", fix=fix,
        facts=facts, private=names,
    )  # fmt: skip


def _device(looked: Looked) -> Iterator[Finding]:
    report = looked.report
    facts = {key: report[key] for key in ("device", "torch", "cpu_capability")}
    message = f"{report['device']}, torch {report['torch']}, {report['cpu_capability']}"
    trial = report.get("trial")
    if trial:
        message += f", {bytes_text(trial['memory_bytes'])} of memory"
        facts["memory_bytes"] = trial["memory_bytes"]
    yield Finding(subject="device", check="device", verdict="ok", message=message, facts=facts)
    if not trial or looked.recipe is None:
        return
    size, per_batch = looked.recipe.training.batch_size, trial["seconds_per_batch"]
    message = (
        f"{looked.recipe.model.name}, {report['parameters']:,} parameters: a batch of {size} in {_short(per_batch)}"
    )
    yield Finding(
        subject="device", check="trial", verdict="ok",
        message=f"{message}, at most {bytes_text(trial['peak_bytes'])} of memory",
        facts={key: trial[key] for key in ("seconds_per_batch", "batches", "peak_bytes")},
    )  # fmt: skip
    epochs = sum(effort.total_epochs for effort in looked.efforts)
    seconds = sum(training_seconds(effort, trial) for effort in looked.efforts)
    yield Finding(
        subject="device", check="time", verdict="ok", facts={"seconds": round(seconds, 3)},
        message=f"about {duration_text(seconds)} for this site's part of a run, {epochs} epochs",
    )  # fmt: skip


def training_seconds(effort: Effort, trial: Mapping[str, Any]) -> float:
    """How long a train step takes, by a trial: every epoch has its batches, and is judged on the validation data."""
    per_epoch = trial["batches"] * trial["seconds_per_batch"] + trial["validation_seconds"]
    return float(effort.total_epochs * per_epoch)


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration_text(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`: as precise as an estimate is."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "a second"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
