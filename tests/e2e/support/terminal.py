"""A terminal as a person has one: a pseudo-terminal of a certain size, and what is to be read on
it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
SECONDS = 120.0


class Screen:
    """As much of a terminal as is needed to read what was drawn: a cursor that goes up, lines that
    are erased.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = [""]
        self.styled = ""
        """Everything as it came."""
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        self.styled += text
        text, position = self._rest + text, 0
        self._rest = ""
        while position < len(text):
            mark = text[position]
            if mark == "\x1b":
                found = _CONTROL.match(text, position)
                if found is None:  # the rest of it comes with the next piece
                    self._rest = text[position:]
                    return
                self._control(found[1], found[2])
                position = found.end()
                continue
            self._put(mark)
            position += 1

    def _control(self, number: str, what: str) -> None:
        if what == "A":
            self._row = max(0, self._row - int(number or 1))
        elif what == "K":
            self.lines[self._row] = ""

    def _put(self, mark: str) -> None:
        if mark == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        elif mark == "\r":
            self._column = 0
        else:
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + mark + line[self._column + 1 :]
            self._column += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).strip("\n")


def on_screen(
    arguments: Sequence[str],
    cwd: Path,
    *,
    width: int = 80,
    height: int = 30,
    env: Mapping[str, str] | None = None,
    look: Callable[[str, subprocess.Popen[bytes]], None] = lambda text, process: None,
) -> tuple[int, Screen]:
    """Run a command of ours in a terminal; `look` is shown what can be read after everything that
    was drawn.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    screen = Screen(width)
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "PYTHONIOENCODING": "utf-8",
        **(env or {}),
    }
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    drawn = bytearray()
    try:
        while select.select([ours], [], [], SECONDS)[0]:
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            text = drawn.decode("utf-8", "ignore")
            whole = len(text.encode())
            if drawn.startswith(text.encode()):  # not in the midst of a character
                del drawn[:whole]
                screen.feed(text)
                look(screen.text, process)
        return process.wait(SECONDS), screen
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
