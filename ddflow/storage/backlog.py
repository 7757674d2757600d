"""Keep the receipts of epochs that slow sinks still need in separate files, so that a manifest stays short.

A file of level 1 holds `FAN` receipts, and a file of a higher level names `FAN` files of the level below. The backlog
files form trees, and a manifest names the roots. So a commit writes only new receipts, and a manifest names O(log
receipts) files. When all sinks have acknowledged some receipts of a tree, the children of the root replace the root. A
child file that no sink needs is removed, so receipts are removed in groups of `FAN`.

Guarantees: the backlog of a version has the older receipts, and the manifest has the newer receipts. Backlog and
manifest together have one receipt per epoch, in ascending order. A backlog file never changes.
`Backlog.find_different_files` reads only files that differ between versions.
Limits: a backlog reads only the epoch number and the file names of a receipt.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.json import Decoder

from ddflow.errors import CorruptState
from ddflow.storage.epochs import Epoch, refuse_duplicate_files
from ddflow.storage.fields import RESTORE_REMEDY, Positive, StrictRecord, decode_record, encode_record
from ddflow.storage.inventory_text import list_state_file_names
from ddflow.storage.protocol import Blob, BlobStore

FAN: Final = 16
"""The number of receipts or files that one backlog file names.

A manifest has fewer than `FAN` receipts that could move to the backlog.
"""
HELD: Final = 64
"""The number of backlog files whose contents are cached in memory."""


class BacklogFile(StrictRecord, frozen=True):
    """A reference to a ``file`` of the backlog, with all receipts from epoch ``first`` to epoch ``last``.

    ``level``: 1 if the file holds receipts, otherwise one more than the level of the files that it names.
    """

    file: Blob
    first: Positive
    last: Positive
    level: Annotated[int, Meta(ge=1, le=16)]


_RECEIPTS: Final = Decoder(tuple[Epoch, ...])
_PARTS: Final = Decoder(tuple[BacklogFile, ...])
Fetch = Callable[[Blob], Any]
"""A function that returns the bytes of a file and verifies their digest. It raises `CorruptState`."""


class Backlog:
    """A reader and writer of a state's backlog. ``fetch``: a function to read a file, by default ``store.map_blob``.

    >>> from ddflow.storage.memory import MemoryStore
    >>> backlog, parts = Backlog(MemoryStore()), ()
    >>> receipts = tuple(Epoch(number, (), None) for number in range(1, 1001))
    >>> parts, receipts = backlog.move_receipts((), receipts, keep=8, taken=0)
    >>> [(part.first, part.last, part.level) for part in parts[:4]], len(parts), receipts[0].epoch
    ([(1, 256, 2), (257, 512, 2), (513, 768, 2), (769, 784, 1)], 17, 993)
    >>> [each.epoch for each in backlog.list_receipts(parts, after=990)]
    [991, 992]
    >>> parts, receipts = backlog.move_receipts(parts, receipts, keep=8, taken=300)
    >>> [(part.first, part.last, part.level) for part in parts[:2]], parts[0].last
    ([(289, 304, 1), (305, 320, 1)], 304)
    """

    def __init__(self, store: BlobStore, fetch: Fetch | None = None) -> None:
        self.store, self.fetch = store, fetch or store.map_blob
        self._held: dict[str, Any] = {}

    def move_receipts(
        self, parts: tuple[BacklogFile, ...], receipts: tuple[Epoch, ...], keep: int, taken: int
    ) -> tuple[tuple[BacklogFile, ...], tuple[Epoch, ...]]:
        """Move receipts to the backlog, and return the parts and receipts of the next version.

        ``receipts``: the receipts of the manifest, where the last ``keep`` stay. ``taken``: the last epoch that every
        sink has. Writes O(new receipts) and reads O(log receipts). Raises the errors of `BlobStore.put`, and
        `CorruptState`.
        """
        kept = self._find_parts_after(parts, taken) if parts and receipts else []
        over = max(0, len(receipts) - keep)
        if over and not kept:
            receipts = (*(each for each in receipts[:over] if each.epoch > taken), *receipts[over:])
        while len(receipts) >= keep + FAN:
            kept.append(self._write_part(receipts[:FAN], receipts[0].epoch, receipts[FAN - 1].epoch, 1))
            receipts = receipts[FAN:]
            while len(kept) >= FAN and len({each.level for each in kept[-FAN:]}) == 1:
                below = tuple(kept[-FAN:])
                kept[-FAN:] = [self._write_part(below, below[0].first, below[-1].last, below[0].level + 1)]
        return tuple(kept), receipts

    def _find_parts_after(self, parts: Sequence[BacklogFile], taken: int) -> list[BacklogFile]:
        """Return the parts with receipts after epoch ``taken``.

        If the first part has receipts before and after the epoch, and names other parts, the named parts replace the
        first part.
        """
        kept = [part for part in parts if part.last > taken]
        while kept and kept[0].level > 1 and kept[0].first <= taken:
            kept[:1] = [part for part in self.read_parts(kept[0]) if part.last > taken]
        return kept

    def _write_part(self, content: tuple[Any, ...], first: int, last: int, level: int) -> BacklogFile:
        file = self.store.put("json", encode_record(content))
        self._cache_content(file.name, content)
        return BacklogFile(file, first, last, level)

    def _cache_content(self, name: str, content: Any) -> None:
        self._held[name] = content
        while len(self._held) > HELD:
            del self._held[next(iter(self._held))]

    def read_parts(self, part: BacklogFile) -> tuple[BacklogFile, ...]:
        """Read the contents of a part of level 2 or higher: the parts that it names. O(parts read).

        Raises `CorruptState`.
        """
        found: tuple[BacklogFile, ...] = self._read_content(part, _PARTS)
        try:
            check_epoch_sequence(found)
        except ValueError as error:
            raise CorruptState(self._describe_part(part), str(error), RESTORE_REMEDY) from None
        if any(each.level != part.level - 1 for each in found):
            raise CorruptState(
                self._describe_part(part),
                f"it has level {part.level}, but names files that are not one level below",
                RESTORE_REMEDY,
            )
        self._check_epochs(part, [each.first for each in found[:1]] + [each.last for each in found[-1:]])
        return found

    def read_receipts(self, part: BacklogFile) -> tuple[Epoch, ...]:
        """Read the contents of a part of level 1: its receipts. O(receipts). Raises `CorruptState`."""
        found: tuple[Epoch, ...] = self._read_content(part, _RECEIPTS)
        epochs = [each.epoch for each in found]
        self._check_epochs(part, epochs if epochs == list(range(part.first, part.last + 1)) else [])
        return found

    def _read_content(self, part: BacklogFile, decoder: Decoder[Any]) -> Any:
        known = self._held.get(part.file.name)
        if known is None:
            known = decode_record(decoder, bytes(self.fetch(part.file)), self._describe_part(part))
            if decoder is _RECEIPTS:
                refuse_duplicate_files([call.outputs for each in known for call in each.calls])
            self._cache_content(part.file.name, known)
        return known

    def _check_epochs(self, part: BacklogFile, epochs: Sequence[int]) -> None:
        if [*epochs[:1], *epochs[-1:]] != [part.first, part.last]:
            raise CorruptState(
                self._describe_part(part), f"it does not hold the epochs {part.first} to {part.last}", RESTORE_REMEDY
            )

    def _describe_part(self, part: BacklogFile) -> str:
        return f"the file {part.file.name} of {self.store.where}"

    def list_receipts(self, parts: Sequence[BacklogFile], after: int = 0) -> Iterator[Epoch]:
        """Yield the receipts after an epoch, in ascending order. O(receipts + parts). Raises `CorruptState`."""
        for part in parts:
            if part.last > after and part.level > 1:
                yield from self.list_receipts(self.read_parts(part), after)
            elif part.last > after:
                yield from (each for each in self.read_receipts(part) if each.epoch > after)

    def rewrite_epochs(
        self, parts: Sequence[BacklogFile], change: Callable[[Epoch], Epoch], written: list[Blob]
    ) -> tuple[BacklogFile, ...]:
        """Apply ``change`` to each receipt, and write the changed parts as new files. O(receipts).

        ``change`` must keep the epoch. ``written``: a list that receives the new files. Raises the errors of
        `BlobStore.put`, and `CorruptState`.
        """
        out = list[BacklogFile]()
        for part in parts:
            old: tuple[Any, ...] = self.read_receipts(part) if part.level == 1 else self.read_parts(part)
            new = tuple(map(change, old)) if part.level == 1 else self.rewrite_epochs(old, change, written)
            if new != old:
                part = self._write_part(new, part.first, part.last, part.level)
                written.append(part.file)
            out.append(part)
        return tuple(out)

    def list_files(self, parts: Sequence[BacklogFile]) -> Iterator[Blob]:
        """Yield the backlog files of the given parts, and all files that the receipts in them name. O(files).

        Raises `CorruptState`.
        """
        for part in parts:
            yield part.file
            if part.level > 1:
                yield from self.list_files(self.read_parts(part))
            else:
                yield from (blob for each in self.read_receipts(part) for blob in each.list_files())

    def find_different_files(
        self, parts: Sequence[BacklogFile], others: Sequence[BacklogFile]
    ) -> tuple[set[str], set[str]]:
        """Return two sets of file names: those that only ``parts`` has, and those that only ``others`` has.

        The second set has every name that only ``others`` has, and perhaps some names that ``parts`` has too.
        ``others``: the parts of any versions. O(differences). Raises `CorruptState`.
        """
        mine, theirs = {*parts} - {*others}, {*others} - {*parts}
        ours, names = set[str](), set[str]()
        for level in range(max((each.level for each in mine | theirs), default=0), 0, -1):
            for some, found in ((mine, ours), (theirs, names)):
                for part in [each for each in some if each.level == level]:
                    some.remove(part)
                    found.add(part.file.name)
                    if level > 1:
                        some.update(self.read_parts(part))
                    else:
                        found |= list_state_file_names(
                            blob for each in self.read_receipts(part) for blob in each.list_files()
                        )
            mine, theirs = mine - theirs, theirs - mine
        return ours - names, names - ours


def check_epoch_sequence(parts: Sequence[BacklogFile]) -> None:
    """Check that the epochs of the parts are ascending and have no gap. Raises `ValueError`. O(parts)."""
    for number, part in enumerate(parts):
        if part.last < part.first or (number and part.first != parts[number - 1].last + 1):
            raise ValueError(
                f"the epochs {part.first} to {part.last} of its backlog do not follow the epochs before them"
            )
