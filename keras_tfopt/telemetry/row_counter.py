"""How many rows batches have, without looking at them."""

from typing import Any

from keras_tfopt import _compat_fit
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch import without_optionals


class RowCounter:
    """Tells the rows of the batches of a `fit`, where the data fixes them.

    Args:
        epoch_iterator: What `fit` iterates over, or `None`.
    """

    def __init__(self, epoch_iterator: Any) -> None:
        self._size: int | None = None
        self._total: int | None = None
        if epoch_iterator is None:
            return
        if _compat_fit.is_array_data(epoch_iterator):
            arrays = _compat_fit.array_data(epoch_iterator)
            self._total, self._size = arrays[1], arrays[2]
        else:
            dataset = _compat_fit.dataset_of(epoch_iterator)
            self._size = static_rows(without_optionals(dataset.element_spec))

    @property
    def is_known(self) -> bool:
        """Whether the rows are fixed."""
        return self._size is not None

    def rows(self, first: int, last: int) -> int | None:
        """Returns the rows of some batches of an epoch.

        Args:
            first: Integer. Number of the first batch.
            last: Integer. Number of the last batch.
        """
        if self._size is None:
            return None
        begin, end = first * self._size, (last + 1) * self._size
        if self._total is not None:
            end = min(end, self._total)
        return end - begin
