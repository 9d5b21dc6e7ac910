"""`fedelmy-launch advise`: recommend a strategy and settings, and say why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedelmy_launcher.advice.asking import Answers
    from fedelmy_launcher.advice.evidence import Row
    from fedelmy_launcher.advice.recommendations import Advice

_BAR = 10
_LEVELS = {
    "none": "nearly the same at all sites",
    "moderate": "unevenly distributed",
    "strong": "very unevenly distributed",
}


@click.command()
@options.federation_argument
@options.head_option
@options.operator_options
@options.json_option
def advise(federation: Path, head: str | None, operator: options.Operator, as_json: bool) -> None:
    """Recommend a strategy and settings for FEDERATION, with reasons; change nothing.

    Every site is asked whether it would take part, as `check --quick` does. A site answers with its
    sample counts and, if it discloses them, its class counts. The recommended keys of
    federation.toml depend on these counts and on whether the model is pretrained. The output cites
    the measurements in docs/results.md behind them, names the sites that disclose no class counts,
    and says what was assumed about them.

    \b
    Examples:
      fedelmy-launch advise federation.toml
      fedelmy-launch advise federation.toml --json
      fedelmy-launch advise federation.toml --head north.example:50051
    """
    from fedelmy_launcher.advice.advisor import advise as recommend
    from fedelmy_launcher.advice.asking import ask_counts
    from fedelmy_launcher.control.sites import Sites
    from fedelmy_node.cli.progress_line import ProgressLine

    described = options.described_federation(federation, head, operator)
    with Sites(described, operator()) as sites, ProgressLine(quiet=as_json) as progress:
        answers = ask_counts(sites, described, progress.show)
    advice = recommend(described, answers.counts)
    if as_json:
        emit_json(_advice_json(advice, answers))
    else:
        _show_sites(advice, answers, len(described.recipe.task.classes))
        _show_advice(advice)
        _show_next(advice, answers)


def _advice_json(advice: Advice, answers: Answers) -> dict[str, Any]:
    skew, problems = advice.skew, {**answers.silent, **answers.refused}
    distances = skew.distances if skew else {}
    rows = ("id", "method", "setting", "accuracy", "std", "seeds", "place")
    return {
        "sites": {
            each.site: {
                "train": each.train,
                "validation": each.validation,
                "class_counts": each.classes and dict(each.classes),
                "distance": distances.get(each.site),
            }
            for each in answers.counts
        },
        "problems": {site: options.problem_json(error) for site, error in problems.items()},
        "skew": {
            "level": advice.level,
            "distance": skew and skew.distance,
            "by_chance": skew and skew.by_chance,
            "absent": skew and skew.absent,
            "nowhere": list(skew.nowhere) if skew else [],
        },
        "assumed": list(advice.assumed),
        "recommended": [
            {key: getattr(each, key) for key in ("key", "current", "recommended", "reason")}
            | {"changes": each.changes, "evidence": [row.id for row in each.evidence]}
            for each in advice.recommendations
        ],
        "remove": list(advice.remove),
        "toml": "\n".join(fragment(advice)),
        "notes": [
            {"text": note.text, "evidence": [row.id for row in note.evidence]}
            for note in advice.notes
        ],
        "evidence": [{key: getattr(row, key) for key in rows} for row in advice.rows],
    }


def fragment(advice: Advice) -> Iterator[str]:
    """The lines of federation.toml that change; the keys to remove are comments."""
    for table in ("model", "training", "strategy"):
        changed = [each for each in advice.changes if each.key.startswith(f"{table}.")]
        removed = [key for key in advice.remove if key.startswith(f"{table}.")]
        if changed or removed:
            yield f"[{table}]"
        for each in changed:
            now = "" if each.current is None else f"  # now {_toml(each.current)}"
            yield f"{each.key.partition('.')[2]} = {_toml(each.recommended)}{now}"
        if removed:
            yield f"# remove {', '.join(key.partition('.')[2] for key in removed)}"


def _toml(value: Any) -> str:
    """A scalar or a list of strings; JSON writes these as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _show_sites(advice: Advice, answers: Answers, classes: int) -> None:
    from fedelmy_launcher.view.glyphs import marks_for

    marks = marks_for(sys.stdout.encoding)
    distances = advice.skew.distances if advice.skew else {}
    click.echo(f"  {'site':<16} {'training':>8}  {'classes':<11} skew")
    for each in answers.counts:
        train = "-" if each.train is None else each.train
        present = "-" if each.classes is None else f"{len(each.present)} of {classes}"
        distance = distances.get(each.site)
        skew = "-" if distance is None else f"{marks.bar(distance, _BAR)} {distance:.2f}"
        problem = ""
        if each.problem:
            verdict = "no answer" if each.site in answers.silent else "would refuse"
            problem = click.style(f"  {verdict} ({each.problem})", fg="red")
        click.echo(f"  {each.site:<16} {train:>8}  {present:<11} {skew}{problem}")
    click.echo()
    if advice.skew is not None:
        found = advice.skew
        _say(
            f"Classes are {_LEVELS[advice.level]}: skew {found.distance:.2f} on average"
            f" ({found.by_chance:.2f} by chance alone); {found.absent:.0%} of the"
            " site-class pairs have no samples."
        )
    for text in advice.assumed:
        _say(text)


def _show_advice(advice: Advice) -> None:
    lines = list(fragment(advice))
    click.echo()
    if lines:
        click.echo("Recommended, in federation.toml:\n")
        for number, line in enumerate(lines):
            click.echo(f"\n{line}" if number and line.startswith("[") else line)
    else:
        click.echo("federation.toml already follows the advice.")
    numbers = {row: number for number, row in enumerate(advice.rows, 1)}

    def cited(rows: Sequence[Row]) -> str:
        return f" [{', '.join(str(numbers[row]) for row in rows)}]" if rows else ""

    if advice.recommendations:
        click.echo("\nWhy:\n")
    for each in advice.recommendations:
        _say(f"{each.key} = {_toml(each.recommended)}: {each.reason}{cited(each.evidence)}")
    if advice.notes:
        click.echo("\nNotes:\n")
    for note in advice.notes:
        _say(f"{note.text}{cited(note.evidence)}")
    if numbers:
        click.echo("\nMeasured (accuracy in percent, on CIFAR-10 unless stated otherwise):\n")
    for row, number in numbers.items():
        click.echo(f"  {f'[{number}]':<4} {row.figure:<10}  {row.method}")
        click.echo(f"{'':<19}{row.setting}; {row.place}")


def _show_next(advice: Advice, answers: Answers) -> None:
    if answers.silent or answers.refused:
        text = "Some sites would not take part: `fedelmy-launch check` says why."
    elif advice.changes or advice.remove:
        text = "After changing the file, check the sites with `fedelmy-launch check`."
    else:
        return
    click.echo()
    _say(text)


def _say(text: str) -> None:
    """Print a paragraph, wrapped in a terminal."""
    from fedelmy_node.cli.finding_lines import wrapped

    first, *others = wrapped(text, 4)
    click.echo(f"  {first}")
    for line in others:
        click.echo(f"    {line}")
