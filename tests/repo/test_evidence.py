"""What `fedelmy-launch advise` cites stands in docs/results.md, in the section that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedelmy_launcher.advice.evidence import PAGE, Row, load_evidence

ROOT = Path(__file__).parents[2]
EVIDENCE = load_evidence()


def sections() -> dict[str, str]:
    """The text below each heading, by anchor."""
    parts = re.split(r"^#+ (.*)\n", (ROOT / PAGE).read_text("utf-8"), flags=re.M)
    return {anchor(title): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def cells(line: str) -> list[str]:
    return [re.sub(r"[*`]", "", cell).strip() for cell in line.strip("|").split("|")]


def tables(text: str) -> Iterator[list[list[str]]]:
    """Every table: its headings, then its rows."""
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        head, _, *rows = table.splitlines()
        yield [cells(head), *map(cells, rows)]


def cited(row: Row, text: str) -> tuple[str, int | None]:
    """The cell of a row, and the number of seeds that its table shows; of a mean, those beside it."""
    for heads, *rows in tables(text):
        places = [at for at, head in enumerate(heads) if head.startswith(row.column)]
        lines = [line for line in rows if line[0] == row.row]
        if places and lines:
            at = places[0]
            if heads[at + 1 : at + 2] == ["mean"]:
                return lines[0][at + 1], len(lines[0][at].split(","))
            return lines[0][at], None
    raise AssertionError(f"no table of the section has line {row.row!r} and column {row.column!r}")


@pytest.mark.parametrize("row", EVIDENCE.rows, ids=lambda row: row.id)
def test_every_figure_stands_in_the_named_section(row: Row) -> None:
    text = sections()[row.section]
    if not row.row:
        assert re.search(rf"\b{row.accuracy:g}\b", text), "in a sentence"
        return
    cell, seeds = cited(row, text)
    mean, _, std = cell.partition("±")
    assert float(mean) == row.accuracy and cell.startswith(row.figure)
    assert (float(std) if std else None) == row.std
    assert seeds is None or seeds == row.seeds


def test_a_table_is_found_by_line_and_column() -> None:
    text = "\n| | Dir(0.1): seeds 0, 1 | mean | Dir(0.5) |\n|---|---|---|---|\n| `x` | 1, 3 | **2.0** ± 1.4 | 7 |\n"
    row = Row(id="", method="", setting="", accuracy=0.0, section="", row="x", column="Dir(0.1)")
    assert cited(row, text) == ("2.0 ± 1.4", 2)
    with pytest.raises(AssertionError):
        cited(Row(id="", method="", setting="", accuracy=0.0, section="", row="y"), text)


def test_every_reason_and_comparison_names_rows() -> None:
    ids = [row.id for row in EVIDENCE.rows]
    assert len(set(ids)) == len(ids)
    cited = {name for names in EVIDENCE.reasons.values() for name in names}
    cited |= {
        name for pair in EVIDENCE.equal_computation.values() for name in (pair.fedseq, pair.pool)
    }
    assert cited == set(ids), "every row is used"
    assert set(EVIDENCE.equal_computation) == {"none", "moderate", "strong"}
    assert all(EVIDENCE.compared(level)[1].pool_size for level in EVIDENCE.equal_computation)


def test_every_reason_is_given_by_a_rule() -> None:
    folder = ROOT / "launcher" / "fedelmy_launcher" / "advice"
    source = "".join(path.read_text("utf-8") for path in folder.glob("*_rules.py"))
    source += (folder / "advisor.py").read_text("utf-8")
    used = set(re.findall(r'"(\w+)"', source))
    names = {re.sub("_(moderate|strong)$", "", name) for name in EVIDENCE.reasons}
    assert names <= used
    for name in names:
        for level in EVIDENCE.equal_computation:
            EVIDENCE.rows_for(name, level)
