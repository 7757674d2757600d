"""Which partitions have keys in common with which, when their number changes.

Invariant: an identity of partition q of Q is of one of the partitions `overlapping` names, of those there were.
Partitions are equal ranges of a word of 32 bits, rounded down, so neighbours may share a value.

>>> list(overlapping(0, 2, 3)), list(overlapping(2, 3, 2))
([0, 1], [1])
"""


def bounds(number: int, partitions: int) -> tuple[int, int]:
    """Return the least and the greatest mixed word (`ddflow.columns.hashing.mixed`) of the identities of a partition.
    Pure.

    >>> bounds(1, 4) == (2**30, 2**31 - 1)
    True
    """
    first, after = (-((-at << 32) // partitions) for at in (number, number + 1))
    return first, after - 1


def overlapping(number: int, partitions: int, before: int) -> range:
    """Return the old partitions, of ``before``, that share identities with a new one, of ``partitions``.  Pure."""
    first, last = bounds(number, partitions)
    return range(first * before >> 32, (last * before >> 32) + 1)
