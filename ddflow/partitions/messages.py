"""Collect what tasks learn from the messages of an input: the table, its columns, and undeclared columns.

Each task makes a `MessageSummary` of its messages. The driver keeps a `SeenMessageColumns` for each input from epoch to
epoch.

>>> one, other = MessageSummary("orders", ("id",), ("id", "n")), MessageSummary("shop.orders", ("n",))
>>> merge_summaries("orders", one, other)
MessageSummary(table='shop.orders', had=('id', 'n'), names=('id', 'n'), more=(), tables={})
>>> [MessageSummary.from_text(text).had for text in one.to_texts(2).values()]
[('id',), ()]
>>> merge_summaries("orders", one, MessageSummary("people"))
Traceback (most recent call last):
    ...
ddflow.errors.BadMessage: messages for 'orders': some are of the table 'orders', some of 'people'; pass messages ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import field
from msgspec.json import Decoder

from ddflow.connectors.formats.base import MissingColumnFinder
from ddflow.connectors.formats.messages import match_table_names
from ddflow.engine.checkpoint import StoredInventory
from ddflow.errors import BadMessage, shorten
from ddflow.plan.plan import Plan
from ddflow.storage.fields import StrictRecord, decode_record, encode_record
from ddflow.storage.protocol import Blob, Store


class MessageSummary(StrictRecord, frozen=True):
    """A summary of the messages that one task, or several tasks, have read for one input.

    Every partition receives the name of the table, and partition 0 also receives the columns. Receipts carry the
    summaries to the driver. The driver passes `SeenMessageColumns` to the tasks of the next epoch, so that a task can
    refuse a message of another table.

    - ``table``: the table of the messages; None if no message names a table.
    - ``had``: declared columns that at least one message had.
    - ``names``: all columns of the messages, if a declared column was missing.
    - ``more``: columns of the messages that the flow does not declare.
    - ``tables``: the same as in `DecodedEvents`.
    """

    table: str | None = None
    had: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    tables: dict[str, int] = field(default_factory=dict)

    def to_texts(self, partitions: int) -> dict[int, str]:
        """Encode the summary as texts, one for each partition that needs a part of it.

        The result has no item for a partition that needs no summary. O(partitions).
        """
        alone = encode_record(MessageSummary(self.table)).decode()
        told = dict.fromkeys(range(partitions), alone) if self.table is not None else {}
        return told | ({0: encode_record(self).decode()} if self != MessageSummary() else {})

    @classmethod
    def from_text(cls, text: str) -> MessageSummary:
        """Decode a text that `to_texts` returned. Raises `CorruptState`."""
        return decode_record(_DECODER, text.encode(), "the message summary of a task", "run the job again")


_DECODER: Final = Decoder(MessageSummary)


class SeenMessageColumns:
    """The facts that the driver knows about the messages of an input.

    ``table``: the table of the messages. ``asked``: the table that the message format names. ``unseen``: the columns
    that no message has had yet. ``known``: the declared columns, and the undeclared columns that ddflow has warned of.

    >>> driver = SeenMessageColumns(["id", "n"], None)
    >>> driver.add_summary(MessageSummary(more=("city",)))
    ["they have the columns ['city'], which the flow does not declare, so ddflow skips their values: declare the \
columns that you want in the flow; older rows have null in them until their keys come again"]
    >>> driver.add_summary(MessageSummary(more=("city",)))
    []
    """

    def __init__(self, columns: Sequence[str], table: str | None, asked: str | None = None) -> None:
        self.unseen = MissingColumnFinder(columns, asked if table is None else None)
        self.table, self.known = table, frozenset(columns)

    def add_summary(self, said: MessageSummary) -> list[str]:
        """Add the summary of a committed epoch, and return warnings about columns seen for the first time. O(columns).

        The driver warns of each column only once.
        """
        if said.table is not None:
            self.table = match_table_names(self.table, said.table)
        self.unseen.note_worker_findings(said.had, said.names, said.tables, self.table)
        more = sorted({*said.more} - self.known)
        self.known |= {*more}
        found = f"they have the columns {more}, which the flow does not declare, so ddflow skips their values: "
        remedy = (
            "declare the columns that you want in the flow; older rows have null in them until their keys come again"
        )
        return [*self.unseen.pop_warnings(), *([found + remedy] if more else [])]


def load_known_messages(flow: Plan, store: Store, parts: Sequence[Blob]) -> dict[str, SeenMessageColumns]:
    """Load the facts about the messages of each input that takes messages.

    ``parts``: the inventories of stage 0, by partition. O(bytes of the inventories): the function reads inventories
    until it has found the table of each input. Raises `CorruptState`.
    """
    formats = {name: each.bound for name, each in flow.inputs.items() if each.bound.format is not None}
    left = [name for name, bound in formats.items() if bound.format is not None and bound.format.of_tables]
    tables = dict[str, str | None]()
    for blob in parts:
        if not left:
            break
        inputs = StoredInventory.read(store, blob).of.inputs
        tables |= {name: inputs[name].table for name in left if name in inputs}
        left = [name for name in left if tables.get(name) is None]
    return {
        name: SeenMessageColumns(bound.message_target.columns.names, tables.get(name), bound.format.asked)
        for name, bound in formats.items()
        if bound.format is not None
    }


def merge_summaries(input: str, one: MessageSummary | None, other: MessageSummary) -> MessageSummary:
    """Merge the summaries of two tasks. The result has the longer of the two table names, and all columns. O(columns).

    Raises `BadMessage` for messages of two tables.
    """
    if one is None:
        return other
    table = other.table if one.table is None else one.table
    if one.table is not None and other.table is not None:
        table = match_message_table(input, one.table, other.table)
    pairs = ((one.had, other.had), (one.names, other.names), (one.more, other.more))
    had, names, more = (tuple(dict.fromkeys((*a, *b))) for a, b in pairs)
    return MessageSummary(table, had, names, more, dict(Counter(one.tables) + Counter(other.tables)))


def merge_summaries_by_input(every: Iterable[Mapping[str, MessageSummary]]) -> dict[str, MessageSummary]:
    """Merge the summaries of many tasks by input. The function raises the errors of `merge_summaries`."""
    out = dict[str, MessageSummary]()
    for each in every:
        for name, said in each.items():
            out[name] = merge_summaries(name, out.get(name), said)
    return out


def match_message_table(input: str, own: str | None, table: str) -> str:
    """Check that two names, such as ``orders`` and ``shop.orders``, belong to the same table. Return the longer name.

    ``own``: the name known so far, None if unknown. Raises `BadMessage` if the names are of different tables.
    """
    if (both := match_table_names(own, table)) is not None:
        return both
    one, other = (shorten(each, 80) for each in sorted([str(own), table]))
    raise BadMessage(
        f"messages for {input!r}",
        f"some are of the table {one!r}, some of {other!r}",
        "pass messages of one table, or name the table: table= of its format; nothing was ingested",
    )
