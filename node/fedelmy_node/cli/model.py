"""`fedelmy-node model`: use the result of a run at this site. The daemon says where the result is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import data_kinds, json_option, run_names, state_option

if TYPE_CHECKING:
    from fedelmy_node.domain.reports import ResultModel

__all__ = ["model"]

_run_argument = click.argument("run", required=False, shell_complete=run_names)


@click.group()
def model() -> None:
    """Export, evaluate and use the result of a run; RUN is the newest one unless given.

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
    help="The file to write; one that exists is not overwritten.",
)
@click.option("--bundle", is_flag=True, help="The bundle as it travelled, bit for bit, instead of a plain state dict.")
@state_option
@json_option
def export(run: str | None, out: Path, bundle: bool, state: Path, as_json: bool) -> None:
    """Write the result of RUN as a safetensors file.

    The file is a plain state dict: `module.load_state_dict(safetensors.torch.load_file(FILE))`. Model, classes
    and input format are in its metadata.

    \b
    Examples:
      fedelmy-node model export --out model.safetensors
      fedelmy-node model export xray-20270301-120000-4f2a --bundle --out bundle.safetensors
    """
    from fedelmy_node.durable import replacing
    from fedelmy_node.errors import ConfigError

    found = _find(run, state)
    if out.exists():
        raise ConfigError("E-CONFIG-VALUE", f"{out} exists already", hint="Choose another name with --out.")
    if bundle:
        with replacing(out, mode=0o644) as partial:
            shutil.copyfile(found.path, partial)
    else:
        from fedelmy_node.training.use import export_model

        export_model(found, out)
    if as_json:
        emit_json({"run": found.run, "file": str(out), "bundle_sha256": found.sha256, "bytes": out.stat().st_size})
    else:
        click.echo(f"{out}: the result of run {found.run} ({out.stat().st_size} bytes, bundle {found.sha256[:16]})")


@model.command()
@_run_argument
@click.option(
    "--data",
    metavar="KIND[:PATH]",
    shell_complete=data_kinds,
    help="Other data than this site's; all of it is test data.",
)
@state_option
@json_option
def evaluate(run: str | None, data: str | None, state: Path, as_json: bool) -> None:
    """Measure the result of RUN on this site's test data, or on other data.

    \b
    Examples:
      fedelmy-node model evaluate
      fedelmy-node model evaluate --data imagefolder:/data/new-scanner --json
    """
    found = _find(run, state)
    from fedelmy_node.training.use import evaluate_model

    result = evaluate_model(found, data)
    if as_json:
        emit_json({"run": found.run, **result})
        return
    click.echo(f"run {found.run}: {result['correct']} of {result['samples']} right")
    for name in ("accuracy", "balanced_accuracy", "auc"):
        if result[name] is not None:
            click.echo(f"  {name:<18} {result[name]:.4f}")
    for name, row in result["classes"].items():
        values = "  ".join(f"{key} {row[key]:.4f}" for key in ("sensitivity", "specificity") if row[key] is not None)
        count = row["tp"] + row["fn"]
        click.echo(f"  class {name:<16} {count:>6} {'sample ' if count == 1 else 'samples'}  {values}")


@model.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--run", shell_complete=run_names, help="The run.  [default: the newest that has a result here]")
@click.option("--top", type=click.IntRange(1), default=1, show_default=True, help="How many classes to name.")
@state_option
@json_option
def predict(files: tuple[Path, ...], run: str | None, top: int, state: Path, as_json: bool) -> None:
    """Classify image FILES with the result of a run.

    \b
    Examples:
      fedelmy-node model predict scan-17.png
      fedelmy-node model predict --top 3 --json scans/*.png
    """
    found = _find(run, state)
    from fedelmy_node.training.use import predict_files

    for path, guesses in predict_files(found, files, top):
        if as_json:
            emit_json({"file": str(path), "classes": [{"name": n, "probability": p} for n, p in guesses]})
        else:
            click.echo(f"{path}: " + ", ".join(f"{name} {100 * probability:.1f}%" for name, probability in guesses))


def _find(run: str | None, state: Path) -> ResultModel:
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.admin import admin_client

    with admin_client(state) as client:
        return client.model(run_id(run) if run else None)
