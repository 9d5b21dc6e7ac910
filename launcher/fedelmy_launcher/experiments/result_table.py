"""The table of an experiment as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedelmy_launcher.experiments.grid import Line
from fedelmy_launcher.experiments.summary import ExperimentOutcome, Statistic
from fedelmy_node.domain.text import bytes_text

MEASURES = {
    "accuracy": "test accuracy (%)",
    "balanced_accuracy": "balanced test accuracy (%)",
    "validation_accuracy": "validation accuracy (%)",
    "bytes": "bytes sent while training",
    "seconds": "seconds of computation",
}


def shown(statistic: Statistic, measure: str) -> str:
    """`27.41 ± 1.20`, or only the mean for a single seed."""
    if measure == "bytes":
        return bytes_text(round(statistic.mean))
    factor, digits = (100, 2) if measure.endswith("accuracy") else (1, 1)
    mean = f"{factor * statistic.mean:.{digits}f}"
    if statistic.deviation is None:
        return mean
    return f"{mean} ± {factor * statistic.deviation:.{digits}f}"


def text_table(outcome: ExperimentOutcome, width: int) -> str:
    """Aligned columns; those that do not fit continue below."""
    head, body = _rows(outcome)
    widths = [max(len(row[number]) for row in [*head, *body]) for number in range(len(body[0]))]
    blocks, first, free = [], 1, width - 2 - widths[0]
    while first < len(widths):
        last, used = first + 1, widths[first] + 2
        while last < len(widths) and used + widths[last] + 2 <= free:
            used += widths[last] + 2
            last += 1
        picked = [0, *range(first, last)]
        blocks.append("\n".join(_line(row, widths, picked) for row in [*head, *body]))
        first = last
    measure = MEASURES[outcome.experiment.measure]
    lead = f"{outcome.experiment.title}\n{measure}, mean ± standard deviation\n"
    return "\n".join([lead, "\n\n".join(blocks), "", *outcome.remarks()])


def _line(row: Sequence[str], widths: Sequence[int], picked: Sequence[int]) -> str:
    cells = [row[number].rjust(widths[number]) for number in picked[1:]]
    return "  ".join(["", row[0].ljust(widths[0]), *cells]).rstrip()


def markdown_table(outcome: ExperimentOutcome) -> str:
    head, body = _rows(outcome)
    names = [" ".join(filter(None, column)) for column in zip(*head, strict=True)]
    lines = [f"### {outcome.experiment.title}", ""]
    if outcome.experiment.about:
        lines += [outcome.experiment.about, ""]
    measure = MEASURES[outcome.experiment.measure].capitalize()
    lines += [f"{measure}, mean ± standard deviation over the seeds.", ""]
    lines += [_pipes(names), _pipes(["---", *["---:"] * (len(names) - 1)]), *map(_pipes, body), ""]
    return "\n".join([*lines, *(f"- {remark}" for remark in outcome.remarks())]) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def csv_table(outcome: ExperimentOutcome) -> str:
    """Tidy data: a line per row, column and measure, with the number of seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "group", "column", "measure", "mean", "std", "seeds", "remark"])
    for row in outcome.experiment.rows:
        for column in outcome.experiment.columns:
            known = outcome.of(row, column)
            for measure in MEASURES:
                found = known.statistic(measure)
                if found is None and measure != outcome.experiment.measure:
                    continue
                numbers = [found.mean, found.deviation, found.count] if found else ["", "", 0]
                line = [row.name, column.group, column.label, measure, *numbers, known.why]
                writer.writerow(line)
    return text.getvalue()


def _rows(outcome: ExperimentOutcome) -> tuple[list[list[str]], list[list[str]]]:
    """Head and body; a group's name is above its first column."""
    experiment = outcome.experiment
    ends = ["average"] if experiment.average else []
    groups, before = [""], ""
    for column in experiment.columns:
        groups.append(column.group if column.group != before else "")
        before = column.group
    labels = ["", *(column.label for column in experiment.columns), *ends]
    head = [[*groups, *("" for _ in ends)], labels] if any(groups) else [labels]
    body = []
    for row in experiment.rows:
        cells = [_cell(outcome, row, column) for column in experiment.columns]
        body.append([row.name, *cells, *(_average(outcome, row) for _ in ends)])
    return head, body


def _cell(outcome: ExperimentOutcome, row: Line, column: Line) -> str:
    known, measure = outcome.of(row, column), outcome.experiment.measure
    found = known.statistic(measure)
    if found is None:
        return known.why or "-"
    text = shown(found, measure)
    if apart := outcome.difference(row, column):
        text += f" ({'+' if apart.mean >= 0 else ''}{shown(apart, measure)})"
    return text + (f" ({known.why})" if known.why else "")


def _average(outcome: ExperimentOutcome, row: Line) -> str:
    found = outcome.average(row)
    return "-" if found is None else shown(found, outcome.experiment.measure)
