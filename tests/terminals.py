"""A terminal of its own for what a test prints."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
import threading

import pyte


class Terminal:
    """What was written to a pseudo-terminal, and what it looks like.

    Attributes:
        columns: Integer.
        rows: Integer.
        written: Bytes so far.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.written = b""

    def screens(self, mark: bytes) -> Iterator[list[str]]:
        """Yields what is on the screen behind each of some bytes."""
        screen = pyte.Screen(self.columns, self.rows)
        stream = pyte.ByteStream(screen)
        for part in self.written.split(mark):
            stream.feed(part + mark)
            yield [line.rstrip() for line in screen.display]

    def screen(self) -> list[str]:
        """Returns the lines that are on the screen in the end."""
        screen = pyte.Screen(self.columns, self.rows)
        pyte.ByteStream(screen).feed(self.written)
        return [line.rstrip() for line in screen.display if line.strip()]


@contextlib.contextmanager
def terminal(columns: int = 100, rows: int = 12) -> Iterator[Terminal]:
    """Prints to a pseudo-terminal inside of the block."""
    master, slave = pty.openpty()
    size = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    seen = Terminal(columns, rows)

    def read() -> None:
        # The system says EIO when nobody holds the other end any more.
        with contextlib.suppress(OSError):
            while part := os.read(master, 4096):
                seen.written += part

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with (
            os.fdopen(slave, "w", encoding="utf-8") as stream,
            contextlib.redirect_stdout(stream),
        ):
            assert sys.stdout.isatty()
            yield seen
    finally:
        reader.join()
        os.close(master)
