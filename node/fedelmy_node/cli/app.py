"""Shared by all commands of node and launcher: lazy loading, error messages and logging."""

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
from fedelmy_node.domain.errors import EXIT_DETACHED, FedelmyError, InternalError
from fedelmy_node.domain.text import clean
from fedelmy_node.store.details_log import has_details

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_LINE_CHARACTERS: Final = 4096
"""Longer lines of the log are cut."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is called; it has their one-line help."""

    def __init__(self, name: str, help: str, commands: Mapping[str, tuple[str, str]]) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        super().__init__(name=name, help=help, context_settings=settings)
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
        """Complete the names of commands without importing them."""
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=text) for name, (_, text) in self._lazy.items()]
        found = [item for item in items if item.value.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


def run(group: click.Group) -> NoReturn:
    """Run a command; print errors with code and hint, and exit with the error's exit code."""
    try:
        code = group.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except FedelmyError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort as abort:
        interrupted = isinstance(abort.__context__, KeyboardInterrupt)
        click.echo("Interrupted." if interrupted else "Not confirmed: nothing was done.", err=True)
        sys.exit(EXIT_DETACHED if interrupted else 1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output is gone; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception:  # noqa: BLE001 - the process boundary
        traceback.print_exc()
        _print_error(InternalError("E-INTERNAL", "internal error"))
        sys.exit(InternalError.exit_code)


def _print_error(error: FedelmyError) -> None:
    if "--json" in sys.argv:
        emit_json({"error": {"code": error.code, "message": error.whole, "hint": error.hint}})
    click.echo(f"{click.style('error', fg='red', bold=True)} {error.code}: {error.whole}", err=True)
    click.echo(f"  {error.hint}", err=True)


def emit_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def configure_logging(style: str, context: Mapping[str, str], level: int = logging.INFO) -> None:
    """Log to standard error as text or JSON, one line per record, each with `context`.

    Logs are collected elsewhere, so private parts and exception texts go to details.log only.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter(context) if style == "json" else _TextFormatter(context))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # grpc logs a traceback for every answer that it cannot decode.
    logging.getLogger("grpc._common").addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


@contextmanager
def buffered_logging() -> Iterator[None]:
    """Buffer log records until the end, when the site's name and the final handlers are known."""
    root, buffer = logging.getLogger(), _Buffer()
    before, root.handlers = root.handlers, [buffer]
    try:
        yield
    finally:
        if root.handlers == [buffer]:
            root.handlers = before
        for record in buffer.records:
            root.handle(record)


class _Buffer(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _timestamp(record: logging.LogRecord, between: str = "T") -> str:
    """Return an RFC 3339 time in UTC, so that logs of sites in different zones can be compared."""
    seconds = time.strftime(f"%Y-%m-%d{between}%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class _TextFormatter(logging.Formatter):
    def __init__(self, context: Mapping[str, str]) -> None:
        prefix = "".join(f" {value}" for value in context.values())
        line = f"%(asctime)s %(levelname)-7s{prefix} %(run)s%(message)s"
        super().__init__(line, defaults={"run": ""})

    def formatTime(  # noqa: N802 - logging's name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        return _timestamp(record, " ")

    def format(self, record: logging.LogRecord) -> str:
        run = record.__dict__.get("run")
        message = _one_record(f"{record.getMessage()}{_more(record)}")
        # exc_text may have the exception's text, cached by another handler.
        changes = {"run": f"{run}: " if run else "", "msg": message, "args": (), "exc_text": None}
        return super().format(logging.makeLogRecord({**record.__dict__, **changes}))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return _frames(ei)


def _one_record(message: str) -> str:
    """Indent further lines: texts of other sites must not look like records of this log."""
    return "\n    ".join(clean(line, _LINE_CHARACTERS) for line in message.split("\n"))


class _JsonFormatter(logging.Formatter):
    def __init__(self, context: Mapping[str, str]) -> None:
        super().__init__()
        self._context = dict(context)

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _timestamp(record),
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
    """Return the traceback and the type of an exception, without its message."""
    kind, _, trace = exc_info
    return f"{''.join(traceback.format_tb(trace))}{kind.__name__ if kind else 'no exception'}"
