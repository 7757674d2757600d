"""The text of an inventory: the files that it names, and its sections, so that a commit writes only what changed.

Invariant: every file that a text names is found, since a file is three values in a list (`Blob`) and no text of a user
can hold an unescaped quote. The text that `read_inventory_text` gives is the one that
`InventorySectionWriter.write_inventory` was given, byte for byte. A file of text may have lines that name other files,
its *sections*; each stands for the text of that section, which may have such lines itself. An inventory of `INLINE`
files or fewer is one file without such a line. The meaning of the text is not known here.

>>> from ddflow.storage.memory import MemoryStore
>>> store = MemoryStore()
>>> files = [b'{"file":["00ff00ff00ff00ff-%d.arrow"]},' % n for n in range(1000)]
>>> sections = InventorySectionWriter(store)
>>> lengths = [sections.write_inventory(b"[" + b"".join(files) + b"%d]" % n).length for n in range(20)]
>>> last = sections.write_inventory(b"[" + b"".join(files) + b"]")
>>> lengths[0], last.length < 4000, 20 < len(sections.blobs) < 60
(39893, True, True)
>>> read_inventory_text(store, last).data == b"[" + b"".join(files) + b"]"
True
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import xxhash
from msgspec.json import Decoder

from ddflow.errors import CorruptState, shorten
from ddflow.storage.fields import MEND, REFUSALS, encode_record
from ddflow.storage.protocol import Blob, BlobStore, Store

PARQUET: Final = ".parquet"
_NAME: Final = re.compile(rb'"([0-9a-f]{16}-[0-9]{1,12}\.arrow)"')
_BLOB_TEXT: Final = re.compile(
    rb'\[\s*"([0-9a-f]{16}-[0-9]{1,12}\.arrow)"\s*,\s*[0-9]{1,18}\s*,\s*"[A-Za-z0-9+/]{22}=="\s*\]'
)


def find_file_names(inventory: Any) -> set[str]:
    """Return the names of all files in an inventory, and no other text.  O(bytes)."""
    return {name.decode() for name in _NAME.findall(inventory)}


def find_files(inventory: Any) -> list[Blob]:
    """Return all files in an inventory, in their order.  O(bytes)."""
    return [_BLOB.decode(found[0]) for found in _BLOB_TEXT.finditer(inventory)]


def rename_files(inventory: Any, files: Mapping[str, Blob]) -> bytes:
    """Replace the files that an inventory names.  ``files``: new files, by the names of the old ones.  O(bytes)."""
    return _BLOB_TEXT.sub(lambda found: encode_record(files[found[1].decode()]), inventory)


def is_state_file(blob: Blob) -> bool:
    """Return whether a file belongs to the state, and not to a folder of outputs."""
    return not blob.name.endswith(PARQUET)


def list_state_file_names(blobs: Iterable[Blob]) -> set[str]:
    """Return the names of the files that belong to the state.  O(blobs)."""
    return {blob.name for blob in blobs if not blob.name.endswith(PARQUET)}


INLINE: Final = 128
"""Files, or sections, that a text names in itself."""
EDGE: Final = 32
"""Number of files or sections in a section, about."""
FEWEST, MOST = 8, 128
"""The least and the greatest number of them."""
FRESH: Final = 4
"""Sections that a commit writes at most."""
DEEPEST: Final = 16
"""Sections within each other: more than any text of ours has."""

_FILE: Final = b'{"file":'
"""The beginning of the record of a file; a text of a user would have escaped quotes."""
_NAMED: Final = 64
"""Bytes of a line that hold the name of its file."""
_BLOB: Final = Decoder(Blob)


class InventoryText(NamedTuple):
    """``data``: the text as a whole.  ``sections``: the files that it was in, but for the first."""

    data: bytes
    sections: Sequence[Blob]

    @property
    def files(self) -> list[Blob]:
        """All files that it names: its sections, then the others in their order.  O(bytes)."""
        return [*self.sections, *find_files(self.data)]

    @property
    def file_names(self) -> set[str]:
        """The names of those.  O(bytes)."""
        return find_file_names(self.data).union(section.name for section in self.sections)


Fetch = Callable[[Blob], Any]
"""The bytes of a section, compared with its digest; raises `CorruptState`."""


def read_inventory_text(store: Store, blob: Blob) -> InventoryText:
    """Read the text of a file and of its sections.  O(bytes).  Raises `CorruptState`, naming the file."""

    def fetch(section: Blob) -> Any:
        store.pin_blobs([section.name])
        return store.map_blob(section)

    return load_inventory_sections(store.map_blob(blob), f"the file {blob.name} of {store.where}", fetch)


def load_inventory_sections(data: Any, what: str, fetch: Fetch) -> InventoryText:
    """Put the text together that begins with ``data``.  ``what``: its place.  Raises as `read_inventory_text` does."""
    sections: dict[str, Blob] = {}

    def pieces(data: bytes, depth: int) -> Iterator[bytes]:
        for number, piece in enumerate(data.split(b"\n")):
            if number % 2 == 0:
                yield piece
                continue
            section = _decode_section_blob(piece, what)
            if section.name in sections:
                raise CorruptState(what, f"it names the section {section.name} twice", MEND)
            if depth == DEEPEST:
                raise CorruptState(what, f"it has more than {DEEPEST} sections within each other", MEND)
            sections[section.name] = section
            yield from pieces(bytes(fetch(section)), depth + 1)

    return InventoryText(b"".join(pieces(bytes(data), 0)), tuple(sections.values()))


def _decode_section_blob(line: bytes, what: str) -> Blob:
    """Decode the section that a line names."""
    try:
        blob = _BLOB.decode(line)
    except REFUSALS as error:
        raise CorruptState(what, f"a line of it names no section: {shorten(str(error))}", MEND) from None
    if not blob.name.endswith(".json"):
        raise CorruptState(what, f"it names {blob.name} as a section", MEND)
    return blob


class InventorySectionWriter:
    """The sections of one inventory, from one version to the next.  ``blobs``: those of the last one.  ``names``: of
    all files that its text names.

    The names of the files decide where a text is cut, not their places, so most of a text that has changed here and
    there is cut as before, and a piece that is a section already is named again. Only a piece that was the same twice
    becomes a section. The lines that are left are cut in the same way until they are few: a tree whose depth is the
    logarithm of the files. A commit writes `FRESH` new sections at most.
    """

    def __init__(self, store: BlobStore) -> None:
        self.store, self.blobs, self.names = store, list[Blob](), set[str]()
        self._seen: dict[bytes, set[str]] = {}
        """Names of files by the digest of their piece, for all pieces of the last text, sections or not."""

    def load_text(self, text: InventoryText) -> None:
        """Go on from a version that was read.  O(bytes)."""
        self.blobs = [*text.sections]
        self._replace_with_sections(text.data, 0)

    def write_inventory(self, data: bytes) -> Blob:
        """Write a text and its new sections; return the file that it begins with.  Looks at O(bytes).

        Writes O(changes + log files) bytes.  Raises what `BlobStore.put` does: no more may be put then.
        """
        return self._write_text(self._replace_with_sections(data, FRESH))

    def _write_text(self, text: bytes) -> Blob:
        return self.store.put("json", lambda sink: sink.write(text))

    def _replace_with_sections(self, data: bytes, fresh: int) -> bytes:
        """Replace pieces of a text by the names of sections; ``fresh`` of the sections may be new."""
        if data.count(_FILE) < INLINE:
            self.blobs, self.names, self._seen = [], find_file_names(data), {}
            return data
        known, kept, seen = {each.digest: each for each in self.blobs}, list[Blob](), dict[bytes, set[str]]()
        first, *rest = data.split(_FILE)
        lines, level = [first, *[_FILE + each for each in rest]], 0
        while len(lines) > INLINE:
            out = list[bytes]()
            for piece in _group_lines(lines, level):
                text = b"".join(piece)
                digest = xxhash.xxh3_128_digest(text)
                before, section = self._seen.get(digest), known.get(digest)
                seen[digest] = find_file_names(text) if before is None else before
                if section is None and fresh and before is not None and len(piece) >= FEWEST:
                    section, fresh = self._write_text(text), fresh - 1
                if section is None:
                    out += piece
                else:
                    kept.append(section)
                    out.append(b"\n%b\n" % encode_record(section))
            if len(out) == len(lines):
                break
            lines, level = out, level + 1
        self.names = {section.name for section in kept}.union(*seen.values())
        self.blobs, self._seen = kept, seen
        return b"".join(lines)


def _group_lines(lines: list[bytes], level: int) -> Iterator[list[bytes]]:
    """Yield lines in groups; the hash of a line's name ends a group.  O(lines).

    ``level``: of the tree, so that what ended a group does not end one above it."""
    begin, hashed = 0, xxhash.xxh32_intdigest
    for end in [n for n, line in enumerate(lines, 1) if not hashed(line[:_NAMED], level) % EDGE] + [len(lines)]:
        for at in range(begin, end, MOST):
            yield lines[at : min(at + MOST, end)]
        begin = end
