"""A line that changes in place."""

import os
from typing import TextIO

# Of ECMA-48 and the VT100, which terminals have in common.
_CLEAR = "\r\x1b[2K"
# A line more, if the cursor is on the last one; the column stays.
_ROOM_BELOW = "\x1bD\x1b[A"
_SAVE, _RESTORE, _DOWN = "\x1b7", "\x1b8", "\x1b[B"


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite its lines."""
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    return not is_dumb and hasattr(stream, "isatty") and stream.isatty()


def columns_of(stream: TextIO) -> int:
    """Returns the width of a terminal, 80 if it does not tell."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class LiveLine:
    """Rewrites a line of a terminal, in the thread that writes to it.

    Args:
        stream: Text stream of a terminal.
        is_below: Boolean. Whether the line is the one under that of the
            cursor, which somebody else keeps rewriting.
    """

    def __init__(self, stream: TextIO, is_below: bool) -> None:
        self._stream = stream
        self._is_below = is_below
        self._is_shown = False

    def show(self, text: str) -> None:
        """Writes a text in the place of the one before."""
        self._is_shown = True
        self._write(text[: columns_of(self._stream) - 1])

    def clear(self) -> None:
        """Takes the text away, if there is one."""
        if self._is_shown:
            self._is_shown = False
            self._write("")

    def _write(self, text: str) -> None:
        line = _CLEAR + text
        if self._is_below:
            line = f"{_ROOM_BELOW}{_SAVE}{_DOWN}{line}{_RESTORE}"
        self._stream.write(line)
        self._stream.flush()
