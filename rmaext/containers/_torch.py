# SPDX-License-Identifier: BSD-3-Clause
"""Stores as a data set of PyTorch, which need not be installed for the rest."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._store import Store

__all__ = ["TorchDataset"]


class TorchDataset:
    """Stores as a `torch.utils.data.Dataset`: an item is a record, as a tensor.

    Parameters
    ----------
    *stores : Store
        One or more of the same length, as features and labels. With several, an item is a tuple.
    transform : callable, optional
        Called with each item; what it returns is the item.

    Raises
    ------
    ImportError
        There is no PyTorch: `pip install torch`.
    TypeError
        There are no tensors of the dtype of a store, as of records with fields.
    ValueError
        The stores have different lengths, or there are none.

    Notes
    -----
    Local. A DataLoader fetches a batch by one call of `__getitems__`, which is one `Store.get`
    of each store. Give it `num_workers=0`, as by default: workers are forked, and cannot read
    stores (ClosedError). A sampler, as torch.utils.data.RandomSampler with a generator of
    the rank's own seed, says which records this rank reads. Any threads may read at once.

    Examples
    --------
    >>> from rmaext.containers import Store, TorchDataset
    >>> with Store(MPI.COMM_SELF, np.arange(8.0).reshape(4, 2)) as store:
    ...     data = TorchDataset(store)  # doctest: +SKIP
    ...     for batch in torch.utils.data.DataLoader(data, batch_size=2):  # doctest: +SKIP
    ...         print(batch.shape)
    torch.Size([2, 2])
    torch.Size([2, 2])
    """

    def __new__(cls, *stores: Store[Any], transform: Callable[[Any], Any] | None = None) -> Any:
        """Make one that is a Dataset of PyTorch, too."""
        if cls is TorchDataset:
            cls = _with_torch()
        return super().__new__(cls)

    def __init__(self, *stores: Store[Any], transform: Callable[[Any], Any] | None = None) -> None:
        lengths = {len(store) for store in stores}
        if len(lengths) != 1:
            some = f"of {sorted(lengths)} records" if lengths else "there are none"
            raise ValueError(f"TorchDataset: needs stores of one length: {some}")
        self._tensor = importlib.import_module("torch").from_numpy
        for store in stores:
            self._tensor(np.empty(0, store.dtype))  # TypeError now, and not in the first batch
        self._stores, self._transform = stores, transform

    def __len__(self) -> int:
        return len(self._stores[0])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch of items: what PyTorch's fetcher calls. Local, blocking."""
        columns = [self._tensors(store.get(list(indices))) for store in self._stores]
        items = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return items if self._transform is None else [self._transform(item) for item in items]

    def _tensors(self, batch: Any) -> list[Any]:
        if isinstance(batch, np.ndarray):
            return list(self._tensor(batch).unbind(0))
        return [self._tensor(record) for record in batch]


_made: dict[str, type[TorchDataset]] = {}


def _with_torch() -> type[TorchDataset]:
    """Return the class with PyTorch's as a base; there is one, when it is first asked for."""
    if not _made:
        try:
            data = importlib.import_module("torch.utils.data")
        except ImportError as exc:
            text = "TorchDataset needs PyTorch, which cannot be imported: pip install torch"
            raise ImportError(text, name="torch") from exc
        bases = (TorchDataset, data.Dataset)
        _made["class"] = type("TorchDataset", bases, {"__module__": TorchDataset.__module__})
    return _made["class"]
