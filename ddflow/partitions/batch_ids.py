"""Feeds: whether a batch that a query gives to a state is new, was committed, or is not to be taken.

Invariant: a batch of the query that feeds the state is taken once, in its turn; a batch of any other, one that was left
out and one whose numbers began anew are refused by name, before a row is looked at. A query numbers its batches in its
checkpoint, and the checkpoint may be lost, copied, or belong to another state, so a number by itself says nothing; and
where the query's id cannot be had, numbers are all there is: then the same rows under the same number are the same
batch, and a numbering that began anew is told by its first batch that differs. Pure; what is to be compared of rows is
the driver's.

>>> kept = (Epoch(7, (), 4), Epoch(8, (), 5))
>>> told("shop", Feed("a", 5), Feed("a", 6), kept), told("shop", Feed("a", 5), Feed("a", 4), kept).epoch
(None, 7)
>>> told("shop", Feed("a", 5), Feed("b", 0), kept)
Traceback (most recent call last):
    ...
ddflow.errors.FeedChanged: give batch 0 of query 'b' to shop: the state is fed by query 'a', whose last batch is 5; ...
>>> told("shop", Feed("a", 5), Feed("b", 0), kept, adopt=True)
"""

from collections.abc import Iterable
from typing import Final

from ddflow.errors import EpochSkipped, FeedChanged, Option, Phrase, SpecError
from ddflow.storage.epochs import QUERY, Epoch, Feed
from ddflow.time import CLOSED

ADOPT: Final = Option("adopt", True)
AGAIN: Final = Phrase(
    "what the state has seen changes nothing where events have an order (order_by=, ",
    Option("seq"),
    ", or their format's), and bad messages come into <input>.bad a second time",
)
"""The warning about a source that is read again."""


def told(
    where: str,
    now: Feed | None,
    asked: Feed,
    kept: Iterable[Epoch],
    adopt: bool = False,
    checkpoint: str | None = None,
) -> Epoch | None:
    """Return the epoch that a batch was committed as; None if it is new.  Pure; O(epochs kept).

    ``now``: the feed of the state, None if it has none.  ``kept``: epochs that can be replayed.  ``adopt``: take the
    batches of another query from now on.  ``checkpoint``: the asking query's, for messages.  Raises `FeedChanged` for
    another query, one without an id that numbers anew, or one whose first batches went elsewhere; `EpochSkipped` for a
    batch that was left out, or that is not kept any more; `SpecError` for what is no batch.
    """
    if not isinstance(asked.query, str) or len(asked.query) > QUERY or not _is_batch(asked.batch):
        raise SpecError(
            f"give {asked!r} to {where}",
            "that is no batch of a query",
            f"give Feed(query, batch): a text of {QUERY} characters at most, a whole number from 0",
        )
    what, folder = f"give batch {asked.batch} of {_describe_query(asked.query)} to {where}", _folder(checkpoint)
    if now is None and asked.batch and not adopt:
        raise FeedChanged(
            what,
            f"no query has fed this state, so the {asked.batch} batches before it went elsewhere: "
            "the checkpoint belongs to another state, or this one was made anew",
            f"give checkpoint= another folder, or delete {folder}, to start from the "
            "beginning; or start with " + ADOPT + ", where the state has those rows",
        )
    if now is None or _is_adopted(now, asked, adopt):
        return None
    fed = f"the state is fed by {_describe_query(now.query)}, whose last batch is {now.batch}"
    if now.query and asked.query and now.query != asked.query:
        raise FeedChanged(
            what,
            fed,
            f"start this query, whose checkpoint is {folder}, with a state of its own; "
            "or, where that one's checkpoint is gone for good, with " + ADOPT + f": {AGAIN}",
        )
    if now.inputs and asked.inputs and now.inputs != asked.inputs:
        raise FeedChanged(
            what,
            f"it has rows for {list(asked.inputs)}, and had them for {list(now.inputs)}: its checkpoint says how far "
            "each was read by its place alone",
            f"give frames for {list(now.inputs)}; or give checkpoint= another folder and "
            "start with " + ADOPT + ", from rows that the state has not seen",
        )
    if asked.batch == now.batch + 1:
        return None
    if asked.batch > now.batch + 1:
        raise EpochSkipped(
            what,
            f"{fed}: {asked.batch - now.batch - 1} batches were left out",
            f"restore state and checkpoint as of the same time; or delete {folder} and "
            "start with " + ADOPT + f", which reads the source from its beginning: {AGAIN}",
        )
    found = next((each for each in kept if each.batch == asked.batch), None)
    if found is None and not asked.query and asked.batch == 0:
        raise restarted(where, now, asked, checkpoint)
    if found is None:
        raise EpochSkipped(
            what,
            f"{fed}, and batches that were given before {_describe_oldest(kept)} are not kept",
            "the checkpoint is older than the state: restore both as of the same time; or "
            f"delete {folder} and start with " + ADOPT + f", which reads the source from its beginning: {AGAIN}",
        )
    return found


def restarted(where: str, now: Feed, asked: Feed, checkpoint: str | None = None) -> FeedChanged:
    """Build the error for a query without an id whose batches are numbered again from 0."""
    return FeedChanged(
        f"give batch {asked.batch} of {_describe_query(asked.query)} to {where}",
        f"batch {asked.batch} was given before with other rows, and the last one was {now.batch}: this "
        "is another query, or its checkpoint was deleted",
        Phrase(f"restore {_folder(checkpoint)}; or start with ", Option("adopt", True), f": {AGAIN}"),
    )


def bound(now: Feed | None, asked: Feed | None) -> Feed | None:
    """Return the feed of a state after a batch, or after an epoch without one.  Pure."""
    if asked is None or now is None:
        return asked or now
    if begins_anew(now, asked):
        return asked
    return Feed(asked.query or now.query, asked.batch, asked.inputs or now.inputs)


def begins_anew(now: Feed | None, asked: Feed | None) -> bool:
    """Return whether earlier batches belong to another query, so that their numbers mean nothing."""
    if now is None or asked is None:
        return False
    return asked.batch != now.batch + 1 or bool(now.query and asked.query and now.query != asked.query)


def began_anew(now: Feed, asked: Feed, epoch: Epoch) -> bool:
    """Return whether other rows under the number of a kept epoch mean that a query without an id restarts its
    numbers."""
    return not (now.query and asked.query) and epoch.batch is not None and epoch.batch < now.batch


def _is_adopted(now: Feed, asked: Feed, adopt: bool) -> bool:
    """Return whether this is the first batch of a query that is taken over."""
    if now.query and asked.query:
        return adopt and now.query != asked.query
    return adopt and asked.batch == 0 < now.batch


def _is_batch(batch: object) -> bool:
    return isinstance(batch, int) and not isinstance(batch, bool) and 0 <= batch < CLOSED


def _folder(checkpoint: str | None) -> str:
    return "its checkpoint's folder" if checkpoint is None else f"the folder {checkpoint}"


def _describe_query(query: str) -> str:
    return f"query {query!r}" if query else "a query without an id"


def _describe_oldest(kept: Iterable[Epoch]) -> str:
    batches = [each.batch for each in kept if each.batch is not None]
    return f"batch {min(batches)}" if batches else "now"
