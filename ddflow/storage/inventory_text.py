"""Split the text of an inventory into files, so that a commit writes only the parts that changed.

A file of text may have lines that name other files, its *sections*. Each such line stands for the text of its section,
which may have sections too. An inventory of at most `INLINE` files is one file without sections.

Guarantees: `read_inventory_text` returns the bytes that `InventorySectionWriter.write_inventory` got. Every file of a
text is found: a file is a list of three values (`Blob`), and no text of a user has an unescaped quote.
Limits: this module does not know the meaning of the text.
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
    """Return all files in an inventory, in the order of the text.  O(bytes)."""
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
"""The number of files or sections that a text may name directly."""
EDGE: Final = 32
"""The approximate number of files or sections in a section."""
FEWEST, MOST = 8, 128
"""The least and the greatest number of files or sections in a section."""
FRESH: Final = 4
"""The maximum number of new sections that a commit writes."""
DEEPEST: Final = 16
"""The maximum depth of sections within sections; no text of ddflow reaches it."""

_FILE: Final = b'{"file":'
"""The beginning of a file's record; a user's text would have escaped quotes."""
_NAMED: Final = 64
"""The leading bytes of a line that contain the name of its file."""
_BLOB: Final = Decoder(Blob)


class InventoryText(NamedTuple):
    """A whole text, ``data``, and its ``sections``: all of its files but the first."""

    data: bytes
    sections: Sequence[Blob]

    @property
    def files(self) -> list[Blob]:
        """All files of the text: its sections, then the files that it names, in order.  O(bytes)."""
        return [*self.sections, *find_files(self.data)]

    @property
    def file_names(self) -> set[str]:
        """The names of these files.  O(bytes)."""
        return find_file_names(self.data).union(section.name for section in self.sections)


Fetch = Callable[[Blob], Any]
"""A function that returns the bytes of a section after a comparison with its digest; raises `CorruptState`."""


def read_inventory_text(store: Store, blob: Blob) -> InventoryText:
    """Read the text of a file and of its sections.  O(bytes).  Raises `CorruptState`, naming the file."""

    def fetch(section: Blob) -> Any:
        store.pin_blobs([section.name])
        return store.map_blob(section)

    return load_inventory_sections(store.map_blob(blob), f"the file {blob.name} of {store.where}", fetch)


def load_inventory_sections(data: Any, what: str, fetch: Fetch) -> InventoryText:
    """Replace the section lines of ``data`` by the texts of their sections.

    ``what``: the place of the text, for messages.  Raises as `read_inventory_text` does.
    """
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
    """A writer of one inventory, which reuses sections from one version to the next.

    ``blobs``: the sections of the last version.  ``names``: all files that its text names.

    The text is cut by a hash of its file names, and not by position. So a local change moves only the cuts beside it,
    and an unchanged piece that is already a section is named again. A piece becomes a section when two versions had it
    unchanged. The remaining lines are cut in the same way until few are left, which gives a tree of depth O(log files).
    A commit writes at most `FRESH` new sections.

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

    def __init__(self, store: BlobStore) -> None:
        self.store, self.blobs, self.names = store, list[Blob](), set[str]()
        self._seen: dict[bytes, set[str]] = {}
        """The file names in each piece of the last text, section or not, by the digest of the piece."""

    def load_text(self, text: InventoryText) -> None:
        """Continue from a version that was read.  O(bytes)."""
        self.blobs = [*text.sections]
        self._replace_with_sections(text.data, 0)

    def write_inventory(self, data: bytes) -> Blob:
        """Write a text and its new sections; return the file that it begins with.

        Reads O(bytes) and writes O(changes + log files) bytes.  Raises the errors of `BlobStore.put`; nothing more may
        be put then.
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

    ``level``: the level of the tree, which seeds the hash, so that a line does not end groups on two levels.
    """
    begin, hashed = 0, xxhash.xxh32_intdigest
    for end in [n for n, line in enumerate(lines, 1) if not hashed(line[:_NAMED], level) % EDGE] + [len(lines)]:
        for at in range(begin, end, MOST):
            yield lines[at : min(at + MOST, end)]
        begin = end
