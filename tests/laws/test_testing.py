"""Test ``ddflow.testing``: code that obeys the laws passes, and a violation is reported with the fewest events."""

from __future__ import annotations

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import NotInvariant, SpecError
from ddflow.testing import invariance

EVENTS = pa.table(
    {
        "id": [1, 2, 1, 1, 3, 2, 1, 3],
        "at": [5, 1, 3, 5, 2, 2, 4, 1],
        "n": [1, 2, 3, 4, None, 6, 7, 8],
        "name": ["a", None, "b", "c", "d", None, None, "e"],
        "gone": [False] * 5 + [True] + [False] * 2,
    }
)


@pytest.mark.parametrize(
    "spec",
    [
        dd.Upsert("id", order_by="at"),
        dd.Upsert("id", time="at", lateness=2),
        dd.Upsert("id", order_by="at", merge=dd.Merge({"n": dd.sum()}), delete=dd.tombstone("gone")),
        dd.Upsert("id", order_by="at", versions="cell", tie="greatest", delete=dd.tombstone("gone")),
    ],
    ids=["full rows", "by time", "merged", "cells"],
)
def test_what_keeps_the_law_passes(spec: dd.Upsert) -> None:
    tried = invariance(spec, EVENTS)
    assert tried.events == 8 and tried.splits == 25 and tried.shuffles == 25 * spec.order_free


def test_an_order_of_arrival_that_matters_is_shown_with_two_events() -> None:
    spec = dd.Upsert("id", order_by="at")
    assert not spec.order_free
    with raises(NotInvariant) as caught:
        invariance(spec, EVENTS, shuffled=True)
    # Two events of one key tie at 5; nothing else is needed to show it.
    assert caught.value.found.count("'id': 1") == 2 and caught.value.found.count("'id'") == 2


def test_a_late_partial_row_depends_on_arrival_and_versions_of_cells_do_not() -> None:
    events = pa.table({"id": [1, 1], "at": [2, 1], "a": [None, "x"], "b": ["y", None]})
    row = dd.Upsert("id", order_by="at", merge=dd.Merge())
    with pytest.raises(NotInvariant):
        invariance(row, events, shuffled=True)
    assert invariance(dd.Upsert("id", order_by="at", versions="cell"), events, shuffled=True).shuffles == 25


def test_another_collection_than_the_input_can_be_compared() -> None:
    spec = dd.Upsert("id", order_by="at")

    def counted(flow: dd.Flow) -> dd.Collection:
        return flow.upserts("events", EVENTS.schema, spec).project(["name"]).count()

    assert invariance(spec, EVENTS, collection=counted).splits == 25


def test_what_expires_is_refused() -> None:
    with raises(SpecError):
        invariance(dd.Upsert("id", order_by="at", expiry=dd.Expiry(ttl=3)), EVENTS)


def test_in_hold_back_mode_a_merge_goes_by_time_order_and_sequence_whatever_arrives_first() -> None:
    events = EVENTS.append_column("seq", pa.array(range(8)))
    spec = dd.Upsert(
        "id", time="at", seq="seq", merge=dd.Merge({"n": dd.sum(), "name": dd.join_text()}), delete=dd.tombstone("gone")
    )
    assert spec.order_free and invariance(spec, events).shuffles == 25
