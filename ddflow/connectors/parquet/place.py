"""The folder of a Parquet sink: which state it belongs to, and what its outputs' folders are called.

Invariant: a folder belongs to one state, whoever else wants it at the same time, and each output has a folder of its
own, called by what is safe of its name and a digest of it, since nothing a user wrote becomes a path. ``outputs.json``
says which is whose, and which state the folder belongs to. Every call goes through the state's `Disk`.

>>> import os, tempfile
>>> from ddflow.storage.disk import Disk
>>> with tempfile.TemporaryDirectory() as folder:
...     place = OutputPlace(Site(Disk(), folder, "owner", "the outputs folder"), "00ff00ff00ff00ff")
...     place.claim("0" * 32, "state", ["by city"])
...     sorted(os.listdir(folder)), place.mark().state == "0" * 32
(['by_city-03b9d52a719159e2', 'outputs.json'], True)
"""

import itertools
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec
import xxhash
from msgspec.json import Decoder

from ddflow.errors import cut
from ddflow.storage.fields import Hex, Path, Strict, decoded, encoded
from ddflow.storage.protocol import lost
from ddflow.storage.site import Site

MARK: Final = "outputs.json"
MARK_BYTES: Final = 1 << 24
"""Bytes that it may have at most."""
READABLE: Final = 40
"""Characters of an output's name that its folder's has, at most."""
AGAIN: Final = (
    "restore it from a copy; or, if the folder is of this state and no other, delete that file, and open "
    "the state with outputs= again, which writes it anew"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


def of(name: str) -> str:
    """Return the folder name of an output: the safe part of its name, and 16 hex digits of its hash."""
    # One that begins with a dot or an underscore is passed over by those who read such folders.
    readable = _UNSAFE.sub("_", name)[:READABLE].strip("._")
    digest = xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass"))
    return f"{readable}-{digest}" if readable else digest


class Mark(Strict, frozen=True):
    """Content of ``outputs.json``: the id of the ``state`` that owns the folder, and the folders of its ``outputs``.

    ``at``: the address of the state at its last claim, since a copy of the state has the same id.
    """

    state: Hex
    at: Path
    outputs: dict[str, str]


_DECODER: Final = Decoder(Mark)


class OutputPlace:
    """``site``: the folder.  ``nonce``: of the writer.  ``numbers``: of the files that he makes.

    Every method raises `StorageFailed` when the disk fails.
    """

    def __init__(self, site: Site, nonce: str) -> None:
        self.site, self.nonce, self.numbers = site, nonce, itertools.count()

    def look(self, state: str | None) -> None:
        """Raise `StateRefused` unless a state's outputs may go here; nothing is made.  O(1).

        ``state``: its id, None for one that is yet to be made.  Raises `CorruptState` for a damaged ``outputs.json``.
        """
        with self.site.guarded("open it", opening=True):
            self.site.path = self.site.disk.real(self.site.path)
            if self.site.is_there(self.site.path):
                self.site.look(self.site.path)
                self._must_be_of(state, self.mark())

    def claim(self, state: str, at: str, names: Iterable[str]) -> None:
        """Claim the folder for a state, and create its missing parts, durably.  O(names).

        ``at``: the address of the state.  If several states claim it at once, one gets it.  Raises as `look` does, and
        `StateRefused` for a name that is no UTF-8, `StorageFull`.
        """
        wanted = {name: of(name) for name in sorted(names)}
        try:
            encoded([self.site.path, at, wanted])
        except UnicodeEncodeError as error:
            odd = f"the name of a folder or an output is no UTF-8 ({error.reason}): {error.object!r}"
            raise self.site.refused(cut(odd), "give it another name") from None
        self.look(state)
        with self.site.guarded("make it", opening=True):
            self.site.make()
            self.site.look(self.site.path)
            found = self.mark() or self._first(Mark(state, at, wanted))
            self._must_be_of(state, found)
            for name in wanted:
                with suppress(FileExistsError):
                    self.site.disk.mkdir(self.site.below(of(name)), self.site.folder_mode)
                self.site.look(self.site.below(of(name)))
            if found != (now := Mark(state, at, wanted | found.outputs)):
                self.site.disk.rename(self._write_part(now), self.site.below(MARK))
            self.site.sweep(self.site.path)
            # Whoever made any of it may have died before he did.
            self.site.disk.sync_dir(self.site.path)
            self.site.sync_above(self.site.path)

    def mark(self) -> Mark | None:
        """Read ``outputs.json``; None if it does not exist.  O(its bytes).  Raises `CorruptState` if it is invalid."""
        with self.site.reading(f"file {MARK}", lost(MARK, self.site.path), AGAIN):
            try:
                data = self.site.disk.read(self.site.below(MARK), MARK_BYTES)
            except FileNotFoundError:
                return None
        return decoded(_DECODER, data, f"the file {MARK} of {self.site.path}", AGAIN)

    def _must_be_of(self, state: str | None, found: Mark | None) -> None:
        if found is not None and found.state != state:
            this = "this one is new" if state is None else f"this one's is {state}"
            raise self.site.refused(
                f"it belongs to the state with the id {found.state}, at {found.at}, and {this}",
                "give every state a folder of its own",
            )

    def _first(self, mark: Mark) -> Mark:
        """Say whose the folder is, where nothing says it yet; what is said there then."""
        temporary = self._write_part(mark)
        try:
            self.site.disk.link(temporary, self.site.below(MARK))
        except FileExistsError:
            return self.mark() or mark
        finally:
            self.site.tidy(temporary)
        return mark

    def _write_part(self, mark: Mark) -> str:
        """Write the mark to a new file that is durable except for its name, and return the path."""
        data = msgspec.json.format(encoded(mark), indent=1)
        path = self.site.below(f".{self.nonce}-{next(self.numbers)}.part")
        self.site.written(path, f"write {MARK}", lambda sink: sink.write(data))
        return path
