"""Split the text of an inventory into files, so that a commit writes only the parts that changed.

A file of an inventory may have lines that name other files, its *sections*. A line that names a section stands for the
text of the section. A section may have sections too. An inventory of at most `INLINE` files is one file without
sections.

Guarantees: `read_inventory_text` returns the bytes that `InventorySectionWriter.write_inventory` wrote. The names of
files in a text are found without decoding the text. The record of a file has a fixed form (`Blob`), and texts of users
cannot contain this form, because quotes in texts are escaped.
Limits: this module does not know the meaning of the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import xxhash
from msgspec.json import Decoder

from ddflow.errors import CorruptState, shorten
from ddflow.storage.fields import REFUSALS, RESTORE_REMEDY, encode_record
from ddflow.storage.protocol import Blob, BlobStore, Store

PARQUET: Final = ".parquet"
_NAME: Final = re.compile(rb'"([0-9a-f]{16}-[0-9]{1,12}\.arrow)"')
_BLOB_TEXT: Final = re.compile(
    rb'\[\s*"([0-9a-f]{16}-[0-9]{1,12}\.arrow)"\s*,\s*[0-9]{1,18}\s*,\s*"[A-Za-z0-9+/]{22}=="\s*\]'
)


def find_file_names(inventory: Any) -> set[str]:
    """Return the names of all files that an inventory names. O(bytes)."""
    return set(map(bytes.decode, _NAME.findall(inventory)))


def find_files(inventory: Any) -> list[Blob]:
    """Return all files that an inventory names, in the order of the text. O(bytes)."""
    return [_BLOB.decode(found[0]) for found in _BLOB_TEXT.finditer(inventory)]


def rename_files(inventory: Any, files: Mapping[str, Blob]) -> bytes:
    """Replace the files that an inventory names by other files. ``files``: the new file for each old name. O(bytes)."""
    return _BLOB_TEXT.sub(lambda found: encode_record(files[found[1].decode()]), inventory)


def is_state_file(blob: Blob) -> bool:
    """Return whether a file belongs to the state, and not to a folder of outputs."""
    return not blob.name.endswith(PARQUET)


def list_state_file_names(blobs: Iterable[Blob]) -> set[str]:
    """Return the names of the files that belong to the state. O(blobs)."""
    return {blob.name for blob in blobs if not blob.name.endswith(PARQUET)}


INLINE: Final = 128
"""The maximum number of files or sections that one file of an inventory names directly."""
EDGE: Final = 32
"""The approximate number of files or sections in a section."""
FEWEST, MOST = 8, 128
"""The least and the greatest number of files or sections in a section."""
FRESH: Final = 4
"""The maximum number of new sections that a commit writes."""
DEEPEST: Final = 16
"""The maximum depth of sections within sections. Inventories that ddflow writes are never so deep."""

_FILE: Final = b'{"file":'
"""The first bytes of the record of a file. Texts of users cannot contain them, because quotes in texts are escaped."""
_NAMED: Final = 64
"""The number of bytes at the beginning of a line that contain the name of the file."""
_BLOB: Final = Decoder(Blob)


class InventoryText(NamedTuple):
    """A complete inventory text ``data``, and the ``sections`` that it was read from.

    The first file is not in ``sections``.
    """

    data: bytes
    sections: Sequence[Blob]

    @property
    def files(self) -> list[Blob]:
        """All files of the text: first its sections, then the files that the text names, in order. O(bytes)."""
        return [*self.sections, *find_files(self.data)]

    @property
    def file_names(self) -> set[str]:
        """The names of all files in `files`. O(bytes)."""
        return find_file_names(self.data).union(section.name for section in self.sections)


Fetch = Callable[[Blob], Any]
"""A function that returns the bytes of a section and verifies their digest. It raises `CorruptState`."""


def read_inventory_text(store: Store, blob: Blob) -> InventoryText:
    """Read the complete text of an inventory from its first file and the sections. O(bytes).

    Raises `CorruptState` with the name of the file.
    """

    def fetch(section: Blob) -> Any:
        store.pin_blobs([section.name])
        return store.map_blob(section)

    return load_inventory_sections(store.map_blob(blob), f"the file {blob.name} of {store.where}", fetch)


def load_inventory_sections(data: Any, what: str, fetch: Fetch) -> InventoryText:
    """Replace the section lines of ``data`` by the texts of their sections.

    ``what``: the place of the text, for messages. Raises the errors of `read_inventory_text`.
    """
    sections: dict[str, Blob] = {}

    def pieces(data: bytes, depth: int) -> Iterator[bytes]:
        for number, piece in enumerate(data.split(b"\n")):
            if number % 2 == 0:
                yield piece
                continue
            section = _decode_section_blob(piece, what)
            if section.name in sections:
                raise CorruptState(what, f"it names the section {section.name} twice", RESTORE_REMEDY)
            if depth == DEEPEST:
                raise CorruptState(what, f"its sections are nested deeper than {DEEPEST} levels", RESTORE_REMEDY)
            sections[section.name] = section
            yield from pieces(bytes(fetch(section)), depth + 1)

    return InventoryText(b"".join(pieces(bytes(data), 0)), tuple(sections.values()))


def _decode_section_blob(line: bytes, what: str) -> Blob:
    """Decode the section that a line names."""
    try:
        blob = _BLOB.decode(line)
    except REFUSALS as error:
        raise CorruptState(
            what, f"one of its lines does not name a section: {shorten(str(error))}", RESTORE_REMEDY
        ) from None
    if not blob.name.endswith(".json"):
        raise CorruptState(what, f"it names {blob.name} as a section, which is not a JSON file", RESTORE_REMEDY)
    return blob


class InventorySectionWriter:
    """A writer of the versions of one inventory. Sections that do not change are reused in the next version.

    ``blobs``: the sections of the last version. ``names``: all files that the text of the last version names.

    Hashes of the file names decide where the text is cut into pieces. Therefore a change of the text moves only the
    cuts next to the change. If an unchanged piece is a section already, the new version names this section. A piece
    becomes a section if two consecutive versions contain it. The lines that name sections are cut in the same way until
    few lines are left, which gives a tree of depth O(log files). A commit writes at most `FRESH` new sections.

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
        self._lines: dict[bytes, set[str]] = {}
        """The file names in each line of the last text, if the text has no sections."""
        self._seen: dict[bytes, set[str]] = {}
        """The file names in each piece of the last text, by the digest of the piece.

        A piece need not be a section.
        """

    def load_text(self, text: InventoryText) -> None:
        """Start from a stored version: the next version reuses the sections of this text. O(bytes)."""
        self.blobs = [*text.sections]
        self._replace_with_sections(text.data, 0)

    def write_inventory(self, data: bytes) -> Blob:
        """Write a text and its new sections, and return the first file of the text.

        Reads O(bytes) and writes O(changes + log files) bytes. Raises the errors of `BlobStore.put`. After an error, do
        not use the writer again.
        """
        return self._write_text(self._replace_with_sections(data, FRESH))

    def _write_text(self, text: bytes) -> Blob:
        return self.store.put("json", text)

    def _replace_with_sections(self, data: bytes, fresh: int) -> bytes:
        """Replace pieces of a text by lines that name sections. At most ``fresh`` sections are new."""
        if data.count(_FILE) < INLINE:
            lines_before, self._lines = self._lines, {}
            for line in data.split(_FILE):
                found = lines_before.get(line)
                self._lines[line] = set(map(bytes.decode, _NAME.findall(line))) if found is None else found
            self.blobs, self.names, self._seen = [], set().union(*self._lines.values()), {}
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
    """Cut lines into groups. A hash of the file name in a line decides whether the line is the last line of a group.

    O(lines). ``level``: the level of the tree. The level seeds the hash, so the groups of different levels end at
    different lines.
    """
    begin, hashed = 0, xxhash.xxh32_intdigest
    for end in [n for n, line in enumerate(lines, 1) if not hashed(line[:_NAMED], level) % EDGE] + [len(lines)]:
        for at in range(begin, end, MOST):
            yield lines[at : min(at + MOST, end)]
        begin = end
