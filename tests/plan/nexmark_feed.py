"""Persons, auctions and bids of Nexmark as steps of upserts and deletes, drawn by a seed.

Of fifty events one is a person, three are auctions and the others bids, a hundred a second. Half of the bids go to the
newest hundred auctions, and half come from the newest hundred persons. Besides what is new, a step changes and deletes
some rows of the steps before, because the queries are kept under retractions, too.

>>> first, later = Feed(500).steps(2)
>>> [table.num_rows for table in first.values()], later["bid"].num_rows > 460
([10, 30, 460], True)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from nexmark_queries import KEYS, TYPES

import ddflow as dd

Step = dict[str, pa.Table]
START = np.datetime64("2024-02-28T23:59:00", "ms")
STATES, CITIES = ["AZ", "CA", "ID", "OR", "WA", "WY"], ["Phoenix", "Los Angeles", "Boise", "Portland", "Bend"]
CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
PER_SECOND, NEW = 100, 100


def flow_of(**options: Any) -> dd.Flow:
    """The tables as upserts, of which ``gone`` deletes. ``options``: more options of the specs."""
    flow = dd.Flow()
    for name, columns in TYPES.items():
        schema = pa.schema([*columns.items(), ("gone", pa.bool_())])
        flow.upserts(name, schema, dd.Upsert(key=KEYS[name], delete=dd.tombstone("gone", True), **options))
    return flow


class Feed:
    """``events`` new ones a step, and a tenth as many that change or go."""

    def __init__(self, events: int) -> None:
        self.events, self.chance = events, np.random.default_rng(13)
        self.made = dict.fromkeys(TYPES, 0)
        self.now = 0

    def steps(self, number: int) -> Iterator[Step]:
        """The steps, whose later ones change what came before."""
        for at in range(number):
            counts = {"person": self.events // 50, "auction": self.events * 3 // 50}
            counts["bid"] = self.events - sum(counts.values())
            before, out = dict(self.made), Step()
            for name, count in counts.items():
                self.made[name] += count
                ids = np.arange(before[name], self.made[name])
                gone = np.zeros(count, bool)
                if at:
                    old = self.chance.choice(before[name], min(before[name], -(-count // 10)), replace=False)
                    ids, gone = np.concatenate([ids, old]), np.concatenate([gone, self.chance.random(len(old)) < 0.5])
                rows: dict[str, Any] = getattr(self, f"_{name}")(ids)
                out[name] = pa.table(rows, schema=pa.schema(list(TYPES[name].items()))).append_column("gone", [gone])
            self.now += self.events
            yield out

    def _person(self, ids: Any) -> dict[str, Any]:
        names = [f"person {each}" for each in ids]
        mails = [f"{each % 97}@{each % 7}.com" for each in ids]
        places = {"city": self._of(CITIES, ids), "state": self._of(STATES, ids)}
        return {"id": ids, "name": names, "email": mails, **places, "at": self._times(ids), "extra": self._extra(ids)}

    def _auction(self, ids: Any) -> dict[str, Any]:
        draw, at = self.chance.integers, self._times(ids)
        prices = {"initial_bid": draw(1, 1000, len(ids)), "reserve": draw(1, 5000, len(ids))}
        ends = at + draw(100, 20_000, len(ids)).astype("timedelta64[ms]")
        whose = {"seller": self._near("person", ids), "category": draw(10, 15, len(ids)), "extra": self._extra(ids)}
        return {"id": ids, "item": [f"item {each}" for each in ids], **prices, "at": at, "expires": ends, **whose}

    def _bid(self, ids: Any) -> dict[str, Any]:
        hot = self.chance.random(len(ids)) < 0.5
        channels = np.where(hot, self._of(CHANNELS, ids), [f"channel-{each % 50}" for each in ids])
        urls = [f"https://www.nexmark.com/{i % 9}/{i % 5}/{i % 3}/item.htm?query=1" for i in ids]
        urls = [url if few else f"{url}&channel_id={i % 50}" for url, few, i in zip(urls, hot, ids, strict=True)]
        price = (10 ** self.chance.uniform(2, 8, len(ids))).astype(np.int64)
        whose = {"auction": self._near("auction", ids), "bidder": self._near("person", ids), "price": price}
        return {"id": ids, **whose, "channel": channels, "url": urls, "at": self._times(ids), "extra": self._extra(ids)}

    def _times(self, ids: Any) -> Any:
        """Within the seconds of the step."""
        millis = (self.now + self.chance.integers(0, self.events, len(ids))) * 1000 // PER_SECOND
        return START + millis.astype("timedelta64[ms]")

    def _near(self, name: str, ids: Any) -> Any:
        """Rows of a table, half of them of the newest."""
        made, draw = self.made[name], self.chance.integers
        return np.where(draw(0, 2, len(ids)) > 0, draw(max(made - NEW, 0), made, len(ids)), draw(0, made, len(ids)))

    def _of(self, values: list[str], ids: Any) -> Any:
        return np.array(values)[self.chance.integers(0, len(values), len(ids))]

    def _extra(self, ids: Any) -> list[str]:
        return ["abc" * (each % 4) for each in self.chance.integers(0, 12, len(ids))]
