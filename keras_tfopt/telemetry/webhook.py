"""Telling somebody over HTTP, without ever waiting for them."""

from collections.abc import Mapping
import json
import logging
import queue
import threading
from typing import Any
import urllib.parse
import urllib.request

_logger = logging.getLogger("keras_tfopt")

_MAX_WAITING = 100


class Webhook:
    """Posts JSON to an address, in a thread of its own.

    What cannot be delivered is dropped: nothing here waits for a server that
    does not answer, and nothing is kept for one that never will.

    Args:
        url: String. `http` or `https`.
        timeout_seconds: Float. For each post. Defaults to 5.

    Raises:
        ValueError: If the URL is none.
    """

    def __init__(self, url: str, timeout_seconds: float = 5.0) -> None:
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https"):
            raise ValueError(
                "Invalid value for argument `webhook_url`. "
                f"Received: webhook_url={url!r}. Expected: a URL that begins "
                "with http:// or https://."
            )
        self._url = url
        # An URL may hold a secret.
        self._host = parts.hostname
        self._timeout_seconds = timeout_seconds
        self._queue: queue.Queue = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def post(self, body: Mapping[str, Any]) -> None:
        """Lets the thread post a body, or drops it if too many wait."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="keras_tfopt webhook", daemon=True
            )
            self._thread.start()
        try:
            self._queue.put_nowait(body)
        except queue.Full:
            self._complain("too many alerts wait to be delivered")

    def close(self) -> None:
        """Ends the thread, after what a server takes in its time."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            # It is stuck; as a daemon it ends with the process.
            return
        thread.join(2 * self._timeout_seconds)

    def _run(self) -> None:
        while (body := self._queue.get()) is not None:
            request = urllib.request.Request(
                self._url,
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(
                    request, timeout=self._timeout_seconds
                ):
                    self._is_failing = False
            except Exception as error:
                self._complain(f"{type(error).__name__}: {error}")

    def _complain(self, reason: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            _logger.warning(
                "Alerts are not delivered to %s: %s.", self._host, reason
            )
