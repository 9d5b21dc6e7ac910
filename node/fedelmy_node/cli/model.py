"""`fedelmy-node model`: use the result of a run at this site; the daemon says where it is."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import data_kinds, json_option, run_names, state_option

if TYPE_CHECKING:
    from fedelmy_node.domain.errors import DataError
    from fedelmy_node.domain.reports import ResultModel

_SHOWN_ERRORS: Final = 5

_run_argument = click.argument("run", required=False, shell_complete=run_names)


@click.group()
def model() -> None:
    """Export, evaluate and use the result of a run; RUN defaults to the newest one.

    \b
    Examples:
      fedelmy-node model export --out model.safetensors
      fedelmy-node model evaluate
      fedelmy-node model predict scan-17.png
    """


@model.command()
@_run_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("model.safetensors"),
    show_default=True,
    help="File to write; an existing file is not overwritten.",
)
@click.option(
    "--bundle",
    is_flag=True,
    help="Write the bundle exactly as transferred instead of a plain state dict.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "onnx"]),
    help="File format.  [default: from the suffix of --out]",
)
@state_option
@json_option
def export(
    run: str | None, out: Path, bundle: bool, form: str | None, state: Path, as_json: bool
) -> None:
    """Write the result of RUN as a safetensors or ONNX file.

    A safetensors file is a plain state dict:
    `module.load_state_dict(safetensors.torch.load_file(FILE))`. Model, classes and input format are
    in its metadata. An ONNX file takes images with values from 0 to 1 and gives the probability of
    every class; it is checked against the model and needs `pip install 'fedelmy[onnx]'`.

    \b
    Examples:
      fedelmy-node model export --out model.safetensors
      fedelmy-node model export --out model.onnx
      fedelmy-node model export xray-20270301-120000-4f2a --bundle --out bundle.safetensors
    """
    from fedelmy_node.domain.errors import ConfigError
    from fedelmy_node.store.durable_files import replacing

    suffix = out.suffix.lower()
    form = form or ("onnx" if suffix == ".onnx" and not bundle else "safetensors")
    if suffix not in ("", f".{form}", ".bundle" if bundle else ""):
        message = f"cannot write {out}: a model is exported as {form}, not {out.suffix}"
        hint = f"Use --out {out.with_suffix(f'.{form}')}; convert that file if you need to."
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    if bundle and form == "onnx":
        message = "a bundle is written exactly as transferred, so it cannot be ONNX"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Omit --bundle or --format.")
    _check_new(out, "--out")
    found = _find(run, state)
    if bundle:
        with replacing(out, mode=0o644) as partial:
            shutil.copyfile(found.path, partial)
    elif form == "onnx":
        from fedelmy_node.training.evaluation.onnx_export import export_onnx

        export_onnx(found, out)
    else:
        from fedelmy_node.training.evaluation.inference import export_model

        export_model(found, out)
    size, sha256 = out.stat().st_size, found.sha256
    if as_json:
        emit_json({"run": found.run, "file": str(out), "bundle_sha256": sha256, "bytes": size})
    else:
        click.echo(f"{out}: the result of run {found.run} ({size} bytes, bundle {sha256[:16]})")


@model.command()
@_run_argument
@click.option(
    "--data",
    metavar="KIND[:PATH]",
    shell_complete=data_kinds,
    help="Evaluate on all samples of this source instead of the site's test data.",
)
@state_option
@json_option
def evaluate(run: str | None, data: str | None, state: Path, as_json: bool) -> None:
    """Evaluate the result of RUN on this site's test data, or on other data.

    \b
    Examples:
      fedelmy-node model evaluate
      fedelmy-node model evaluate --data imagefolder:/data/new-scanner --json
    """
    found = _find(run, state)
    from fedelmy_node.training.evaluation.inference import evaluate_model

    result = evaluate_model(found, data)
    if as_json:
        emit_json({"run": found.run, **result})
        return
    click.echo(f"run {found.run}: {result['correct']} of {result['samples']} correct")
    for name in ("accuracy", "balanced_accuracy", "auc"):
        if result[name] is not None:
            click.echo(f"  {name:<18} {result[name]:.4f}")
    for name, row in result["classes"].items():
        keys = (key for key in ("sensitivity", "specificity") if row[key] is not None)
        values = "  ".join(f"{key} {row[key]:.4f}" for key in keys)
        count = row["tp"] + row["fn"]
        samples = "sample " if count == 1 else "samples"
        click.echo(f"  class {name:<16} {count:>6} {samples}  {values}")


@model.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--run", shell_complete=run_names, help="The run.  [default: the newest that has a result here]"
)
@click.option(
    "--top", type=click.IntRange(1), default=1, show_default=True, help="Number of classes to show."
)
@click.option(
    "--csv",
    "table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a CSV file: file, class, and the probability of every class.",
)
@state_option
@json_option
def predict(
    files: tuple[Path, ...],
    run: str | None,
    top: int,
    table: Path | None,
    state: Path,
    as_json: bool,
) -> None:
    """Classify image FILES with the result of a run; for a directory, all images in it.

    Unreadable files are reported, and the others are classified.

    Exit code 0: all files were classified; 3: some cannot be read.

    \b
    Examples:
      fedelmy-node model predict scan-17.png
      fedelmy-node model predict --top 3 --json scans/*.png
      fedelmy-node model predict scans --csv predictions.csv
    """
    if table is not None:
        _check_new(table, "--csv")
    found = _find(run, state)
    from fedelmy_node.domain.errors import DataError
    from fedelmy_node.training.data.image_folder import expand_directories
    from fedelmy_node.training.evaluation.inference import load_result

    trained, paths = load_result(found), expand_directories(files)
    classes = trained.task.classes
    rows: list[tuple[str, ...]] = [("file", "class", *classes)]
    unreadable: list[DataError] = []
    for path in paths:
        try:
            guesses = trained.predict(path, len(classes))
        except DataError as error:
            unreadable.append(error)
            continue
        chances = dict(guesses)
        rows.append((str(path), guesses[0][0], *(f"{chances[name]:.6f}" for name in classes)))
        _show(path, guesses[:top], as_json)
    if table is not None:
        _write_csv(table, rows)
    if unreadable:
        raise _summary(unreadable, len(paths))


def _summary(errors: list[DataError], files: int) -> DataError:
    """The only error as it is; several as one, with the advice of the first."""
    if len(errors) == 1:
        return errors[0]
    from fedelmy_node.domain.errors import DataError

    lines = [f"  {error.whole}" for error in errors[:_SHOWN_ERRORS]]
    if len(errors) > _SHOWN_ERRORS:
        lines.append(f"  and {len(errors) - _SHOWN_ERRORS} more")
    message = "\n".join([f"{len(errors)} of {files} files were not classified:", *lines])
    return DataError(errors[0].code, message, hint=errors[0].hint)


def _show(path: Path, guesses: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        named = [{"name": name, "probability": probability} for name, probability in guesses]
        emit_json({"file": str(path), "classes": named})
    else:
        click.echo(f"{path}: " + ", ".join(f"{name} {100 * p:.1f}%" for name, p in guesses))


def _write_csv(out: Path, rows: Iterable[tuple[str, ...]]) -> None:
    from fedelmy_node.store.durable_files import write_durably

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_durably(out, text.getvalue().encode(), mode=0o644)


def _check_new(out: Path, option: str) -> None:
    """Refuse a file that exists, or whose directory does not, before any work is done."""
    from fedelmy_node.domain.errors import ConfigError

    if out.exists():
        hint = f"Choose another name with {option}."
        raise ConfigError("E-CONFIG-VALUE", f"{out} exists already", hint=hint)
    if not out.parent.is_dir():
        hint = f"Create it, or choose another one with {option}."
        raise ConfigError("E-CONFIG-VALUE", f"{out.parent} is not a directory", hint=hint)


def _find(run: str | None, state: Path) -> ResultModel:
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.clients import admin_client

    with admin_client(state) as client:
        return client.model(run_id(run) if run else None)
