# SPDX-License-Identifier: BSD-3-Clause
"""The live table of `python -m rmaext top`; the only place that needs textual."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from .columns import COLUMNS, below, headline
from .sampling import Sample, Sampler

__all__ = ["Top"]

_STYLES = {"waits": "yellow", "stopped": "red", "died": "bold red", "ended": "dim"}


class Top(App[None]):
    """Shows the ranks of running jobs, a row each.

    Parameters
    ----------
    sampler : Sampler
        Where they come from.
    interval : float
        Seconds from one look to the next.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "#head, #refused { height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"),
        # before the table, which would take them
        Binding("left", "sort(-1)", "sort by the column before", priority=True),
        Binding("right", "sort(1)", "by the next", priority=True),
        ("r", "reverse", "reverse"),
    ]

    def __init__(self, sampler: Sampler, interval: float) -> None:
        super().__init__()
        self._sampler, self._interval = sampler, interval
        self._sample = Sample()
        self._by, self._reversed = 0, False

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield Static(id="head")
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield Static(id="refused")
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to look."""
        self.query_one(DataTable).focus()
        # a look waits for the one before: a sampler is for one thread at a time
        await self._look()
        self.set_interval(self._interval, self._look)

    async def _look(self) -> None:
        self._sample = await asyncio.to_thread(self._sampler.sample)
        self._show()

    def _show(self) -> None:
        self.query_one("#head", Static).update(Text(headline(self._sample)))
        self.query_one("#refused", Static).update(Text("\n".join(below(self._sample))))
        table = self.query_one(DataTable)
        cursor, scrolled = table.cursor_row, table.scroll_y
        table.clear(columns=True)
        for i, column in enumerate(COLUMNS):
            mark = (" ▼" if self._reversed else " ▲") if i == self._by else ""
            table.add_column(f"{column.title}{mark}", key=column.title)
        ranks = sorted(self._sample.ranks, key=COLUMNS[self._by].key, reverse=self._reversed)
        for rank in ranks:
            style = _STYLES.get(rank.state, "")
            table.add_row(
                *(
                    Text(column.shown(rank), style, justify="left" if column.left else "right")
                    for column in COLUMNS
                )
            )
        table.move_cursor(row=min(cursor, max(len(ranks) - 1, 0)), scroll=False)
        table.scroll_to(y=scrolled, animate=False)

    def action_sort(self, step: int) -> None:
        """Sort by another column."""
        self._by = (self._by + step) % len(COLUMNS)
        self._show()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self._reversed = not self._reversed
        self._show()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked on, the second time the other way round."""
        self._reversed = not self._reversed if event.column_index == self._by else False
        self._by = event.column_index
        self._show()
