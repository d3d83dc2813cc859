"""Shows how far a training is."""

from typing import Any

import keras
import rich.console
import rich.progress


class EpochProgress(keras.callbacks.Callback):
    """Moves a bar on a terminal, or prints ten lines elsewhere.

    Args:
        name: String. What is trained.
        epochs: Integer. Epochs of the training.
        console: The `rich.console.Console` to show it on.
    """

    def __init__(
        self, name: str, epochs: int, console: rich.console.Console
    ) -> None:
        super().__init__()
        self.name = name
        self.epochs = epochs
        self.console = console
        self._interval = max(1, epochs // 10)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("epochs {task.fields[loss]}"),
            rich.progress.TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=epochs, loss="")

    def __enter__(self) -> "EpochProgress":
        """Shows the bar."""
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leaves the terminal as it was, also after an error."""
        self._bar.stop()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Shows the epoch that has ended."""
        loss = f"loss {(logs or {})['loss']:.4f}"
        done = epoch + 1
        self._bar.update(self._task, completed=done, loss=loss)
        is_due = done % self._interval == 0 or done == self.epochs
        if is_due and not self.console.is_terminal:
            self.console.print(
                f"{self.name}: epoch {done}/{self.epochs}, {loss}"
            )
