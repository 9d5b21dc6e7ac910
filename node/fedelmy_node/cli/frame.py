"""What all commands of node and launcher share: lazy loading, and errors as people should see them."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from fedelmy_node import __version__
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import EXIT_DETACHED, FedelmyError, InternalError
from fedelmy_node.store.details import has_details

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["LazyGroup", "run", "emit_json", "configure_logging", "held_back"]

_LINE_CHARACTERS: Final = 4096
"""Of a line of a log; longer ones are cut."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; their one-line help is kept here."""

    def __init__(self, name: str, help: str, commands: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(name=name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._lazy = commands
        click.version_option(__version__, prog_name=name)(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands without importing one of them; options as every command."""
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=text) for name, (_, text) in self._lazy.items()]
        return [item for item in items if item.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


def run(group: click.Group) -> NoReturn:
    """Run a command; an error of ours becomes its code, its sentence and its advice, and its exit code."""
    try:
        code = group.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except FedelmyError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort as abort:
        interrupted = isinstance(abort.__context__, KeyboardInterrupt)
        click.echo("Interrupted." if interrupted else "Not confirmed: nothing was done.", err=True)
        sys.exit(EXIT_DETACHED if interrupted else 1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output went away; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception:  # noqa: BLE001 - the process boundary
        traceback.print_exc()
        fault = InternalError("E-INTERNAL", "this command met a fault")
        _complain(fault)
        sys.exit(fault.exit_code)


def _complain(error: FedelmyError) -> None:
    if "--json" in sys.argv:
        emit_json({"error": {"code": error.code, "message": error.whole, "hint": error.hint}})
    click.echo(f"{click.style('error', fg='red', bold=True)} {error.code}: {error.whole}", err=True)
    click.echo(f"  {error.hint}", err=True)


def emit_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of the standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def configure_logging(style: str, context: Mapping[str, str], level: int = logging.INFO) -> None:
    """Log to the standard error, one line per record, as text or as JSON; `context` is on every line.

    Logs travel: the private part of a record and the texts of exceptions are left to `store.details`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter(context) if style == "json" else _TextFormatter(context))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Whom we call may answer with rubbish, which grpc itself decodes: that is a line, not a traceback.
    logging.getLogger("grpc._common").addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


@contextmanager
def held_back() -> Iterator[None]:
    """What is logged meanwhile is written at the end, by whichever handlers there are then: the site's name may not
    be known yet."""
    root, held = logging.getLogger(), _Held()
    before, root.handlers = root.handlers, [held]
    try:
        yield
    finally:
        if root.handlers == [held]:
            root.handlers = before
        for record in held.records:
            root.handle(record)


class _Held(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _moment(record: logging.LogRecord, between: str = "T") -> str:
    """RFC 3339, UTC: sites are in many places, and their logs are laid side by side."""
    return time.strftime(f"%Y-%m-%d{between}%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class _TextFormatter(logging.Formatter):
    def __init__(self, context: Mapping[str, str]) -> None:
        prefix = "".join(f" {value}" for value in context.values())
        super().__init__(f"%(asctime)s %(levelname)-7s{prefix} %(run)s%(message)s", defaults={"run": ""})

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return _moment(record, " ")

    def format(self, record: logging.LogRecord) -> str:
        run = record.__dict__.get("run")
        told = {
            "run": f"{run}: " if run else "",
            "msg": _one_record(f"{record.getMessage()}{_more(record)}"),
            "args": (),
        }
        # A copy without the text that another handler may have made of the exception.
        return super().format(logging.makeLogRecord({**record.__dict__, **told, "exc_text": None}))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return _frames(ei)


def _one_record(message: str) -> str:
    """A message that cannot look like another line of the log: others' words may be in it."""
    return "\n    ".join(clean(line, _LINE_CHARACTERS) for line in message.split("\n"))


class _JsonFormatter(logging.Formatter):
    def __init__(self, context: Mapping[str, str]) -> None:
        super().__init__()
        self._context = dict(context)

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            **self._context,
            **{key: record.__dict__[key] for key in ("run", "step") if record.__dict__.get(key)},
            "logger": record.name,
            "message": f"{record.getMessage()}{_more(record)}",
        }
        if record.exc_info:
            entry["traceback"] = _frames(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _more(record: logging.LogRecord) -> str:
    return " (more in details.log)" if has_details(record) else ""


def _frames(exc_info: Any) -> str:
    """Where an exception was raised and of what type it is, without what it says."""
    kind, _, trace = exc_info
    return f"{''.join(traceback.format_tb(trace))}{kind.__name__ if kind else 'no exception'}"
