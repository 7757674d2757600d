"""The slot of a state on its server, under whichever name it has.

Invariant: while a first copy lasts the slot is called ``<slot>_copying``, so one of a dead copy is known, and none is
taken for another's. It gets its name when the copy is committed, which takes a second slot for a moment; while none is
free it is read under that name. It is moved on to what is committed, and never further.

>>> OwnSlot(None, "shop", "read the slot 'shop'").copying
'shop_copying'
"""

import logging
from typing import Any, Final

from ddflow.connectors.postgres import driver
from ddflow.connectors.postgres_position import ANEW
from ddflow.connectors.postgres_stream import place, text_of
from ddflow.errors import SourceChanged, UnreadableInput

_LOG: Final = logging.getLogger("ddflow")
COPYING: Final = "_copying"
LONGEST: Final = 63 - len(COPYING)
"""Characters that a name may have."""
_SLOTS: Final = """
    select slot_name, active, confirmed_flush_lsn::text, coalesce(to_jsonb(s) ->> 'wal_status', '') = 'lost'
    from pg_replication_slots s where slot_name = any(%s)"""
LOST: Final = "the server removed the log that the slot had unread"
RAISE: Final = "raise max_slot_wal_keep_size on the server, or -1 for no limit"


class OwnSlot:
    """The slot that is to be called ``name``.  ``called``: its name now.  ``asked``: for messages."""

    def __init__(self, connection: Any, name: str, asked: str) -> None:
        self.connection, self.name, self.asked, self.called = connection, name, asked, name

    @property
    def copying(self) -> str:
        """Its name while rows are copied."""
        return self.name + COPYING

    def there(self) -> dict[str, tuple[bool, int, bool]]:
        """Return, by name, the existing slots: whether it is in use, its position, and whether its log is lost."""
        found = self.connection.execute(_SLOTS, [[self.name, self.copying]]).fetchall()
        return {name: (used, place(at), lost) for name, used, at, lost in found}

    def make_way(self) -> None:
        """Drop the slot of a dead copy.  Raises `UnreadableInput` if a slot has the name."""
        slots = self.there()
        if self.name in slots:
            drop = f"select pg_drop_replication_slot('{self.name}')"
            remedy = f"name another with slot=; or, where nobody needs what it has unread, drop it: {drop}"
            raise UnreadableInput(self.asked, "it is there, and this state has no position of it", remedy)
        if self.copying in slots:
            self.connection.execute("select pg_drop_replication_slot(%s)", [self.copying])

    def resume(self, at: int) -> None:
        """Continue after a place.  Raises `SourceChanged` if the slot is missing, lost its log, or was moved."""
        slots = self.there()
        found = slots.get(self.name) or slots.get(self.copying)
        remedy = f"what changed since then is lost here: {ANEW}"
        if found is None:
            raise SourceChanged(self.asked, "there is no such slot any more", remedy)
        if found[2]:
            drop = f"select pg_drop_replication_slot('{self.name}')"
            raise SourceChanged(self.asked, LOST, f"{remedy}, and drop this slot: {drop}; {RAISE}")
        if found[1] > at:
            said = f"it was moved on to {text_of(found[1])}, and the state has what came before {text_of(at)}"
            raise SourceChanged(self.asked, said, remedy)
        self.moved(at)

    def moved(self, to: int) -> None:
        """Give the slot its name, if it lacks it and there is room for a copy, and move it on."""
        slots, run = self.there(), self.connection.execute
        try:
            if self.name not in slots:
                run("select pg_copy_logical_replication_slot(%s, %s)", [self.copying, self.name])
            if self.copying in slots:
                run("select pg_drop_replication_slot(%s)", [self.copying])
            self.called = self.name
        except driver().errors.ConfigurationLimitExceeded:
            if self.called != self.copying:
                remedy = "raise max_replication_slots, or drop a slot; it goes on under that name until then"
                _LOG.warning("%s: no slot is free to rename %s: %s", self.asked, self.copying, remedy)
            self.called = self.copying
        if self.called not in slots or slots[self.called][1] < to:
            run("select pg_replication_slot_advance(%s, %s)", [self.called, text_of(to)])
