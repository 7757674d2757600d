"""Test sections of an inventory: any cut restores the text, only changes are written, false sections are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from chance import effort
from hypothesis import event, given, strategies as st
from messages import raises

from ddflow.errors import CorruptState
from ddflow.storage import inventory_text as module
from ddflow.storage.fields import encode_record
from ddflow.storage.inventory_text import (
    InventorySectionWriter,
    find_files,
    load_inventory_sections,
    read_inventory_text,
)
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob


class Counting(MemoryStore):
    """How many blobs were put, and of how many bytes."""

    puts = written = 0

    def put(self, ending: str, write: Any) -> Blob:
        blob = super().put(ending, write)
        self.puts, self.written = self.puts + 1, self.written + blob.length
        return blob


@contextmanager
def tiny() -> Iterator[None]:
    """Sections of two files or so."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("INLINE", 2), ("EDGE", 2), ("FEWEST", 2), ("MOST", 5)):
            patch.setattr(module, name, size)
        yield


def named(numbers: list[int]) -> list[bytes]:
    """Records of files."""
    return [b'{"file":%b,"rows":3},' % encode_record(Blob(f"{n:016x}-{n}.arrow", n, bytes(16))) for n in numbers]


def text(numbers: list[int], more: str = "") -> bytes:
    """An inventory, as far as it matters here: something that changes, and files."""
    return encode_record(more) + b"[" + b"".join(named(numbers)) + b"]"


@effort(300)
@given(data=st.data())
def test_any_text_comes_back_and_every_section_and_file_is_known(data: st.DataObject) -> None:
    with tiny():
        changed_and_read(data)


def changed_and_read(data: st.DataObject) -> None:
    """A text that changes, put and read, by one engine or several."""
    store, numbers, following = Counting(), list(range(data.draw(st.integers(0, 60)))), 1000
    sections, blob = InventorySectionWriter(store), None
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["add", "take", "replace", "none", "reopen"])):
            case "add":
                more = data.draw(st.integers(1, 9))
                numbers, following = [*numbers, *range(following, following + more)], following + more
            case "take" if numbers:
                at = data.draw(st.integers(0, len(numbers) - 1))
                del numbers[at : at + data.draw(st.integers(1, 9))]
            case "replace" if numbers:
                numbers[data.draw(st.integers(0, len(numbers) - 1))], following = following, following + 1
            case "reopen":
                sections = InventorySectionWriter(store)
                if blob is not None:
                    sections.load_text(read_inventory_text(store, blob))
        written = text(numbers, data.draw(st.text(max_size=5)))
        blob = sections.write_inventory(written)
        again = read_inventory_text(store, blob)
        assert again.data == written
        assert sorted(again.sections) == sorted(sections.blobs)
        assert again.file_names == sections.names == {each.name for each in again.files}
        assert [each.length for each in find_files(again.data)] == numbers
    event("in sections" if sections.blobs else "in one file")
    event(
        "a section of sections"
        if any(b"\n" in store.map_blob(each).to_pybytes() for each in sections.blobs)
        else "flat"
    )


def test_a_text_of_few_files_is_one_file_as_it_is() -> None:
    store = Counting()
    sections = InventorySectionWriter(store)
    few = text(list(range(module.INLINE - 1)))
    for _ in range(5):
        blob = sections.write_inventory(few)
        assert store.map_blob(blob).to_pybytes() == few and not sections.blobs
    assert store.puts == 5


@pytest.mark.parametrize("files", [500, 2_000, *(pytest.param(n, marks=pytest.mark.soak) for n in (8_000, 32_000))])
def test_a_change_costs_its_logarithm(files: int) -> None:
    store, numbers = Counting(), list(range(files))
    sections = InventorySectionWriter(store)
    while True:
        before = len(sections.blobs)
        sections.write_inventory(text(numbers))
        if len(sections.blobs) == before > 0:
            break
    assert len(sections.blobs) < files / 12
    store.puts = store.written = 0
    for round_ in range(40):
        numbers.append(10**6 + round_)  # at the end, at the front, and in the middle
        del numbers[0]
        numbers[len(numbers) // 2] = 10**7 + round_
        sections.write_inventory(text(numbers, str(round_)))
    line = len(named([1])[0])
    assert store.written / 40 < line * (module.INLINE + 3 * module.MOST)
    assert store.puts < 40 * 2  # a section stays inline for as long as it changes
    assert read_inventory_text(store, sections.write_inventory(text(numbers))).data == text(numbers)


def test_a_text_that_is_new_is_cut_over_several_commits() -> None:
    store = Counting()
    sections, new = InventorySectionWriter(store), text(list(range(3_000)))
    counts = []
    for _ in range(60):
        before = store.puts
        sections.write_inventory(new)
        counts.append(store.puts - before - 1)
    assert counts[0] == 0 and max(counts) == module.FRESH and counts[-1] == 0


def test_a_section_that_is_named_no_more_is_written_again_under_another_name() -> None:
    """Its file may be gone by then."""
    sections, one, other = InventorySectionWriter(Counting()), text(list(range(20))), text(list(range(100, 120)))
    with tiny():
        for _ in range(8):
            sections.write_inventory(one)
        first = set(sections.blobs)
        for _ in range(8):
            sections.write_inventory(other)
        for _ in range(8):
            sections.write_inventory(one)
    assert first and sections.blobs and not first & set(sections.blobs)


def line(blob: Blob) -> bytes:
    return b"\n%b\n" % encode_record(blob)


def put(store: MemoryStore, data: bytes, ending: str = "json") -> Blob:
    return store.put(ending, lambda sink: sink.write(data))


def test_what_is_no_text_in_sections_is_refused_by_name() -> None:
    store = MemoryStore()
    section = put(store, b"[1]")
    assert read_inventory_text(store, put(store, line(section))).data == b"[1]"
    bad = {
        "twice": line(section) * 2,
        "one of its lines does not name a section": b"a\nb",
        "which": b"\n[1]\n",
        "Expected": b"\n" + encode_record([section.name, -1, section.digest]) + b"\n",
        "as a section": line(put(store, b"[1]", "arrow")),
    }
    for number, (found, data) in enumerate(bad.items()):
        blob = put(store, data)
        with pytest.raises(CorruptState) as caught:
            read_inventory_text(store, blob)
        assert blob.name in caught.value.asked, number
        assert found in caught.value.found or found == "which", caught.value
    lost = Blob("00ff00ff00ff00ff-1.json", 3, section.digest)
    with raises(CorruptState):
        read_inventory_text(store, put(store, line(lost)))
    with raises(CorruptState):
        read_inventory_text(store, put(store, line(section._replace(digest=bytes(16)))))


def test_sections_in_a_circle_and_too_deep_are_refused() -> None:
    """No digest is known that makes either by itself; a store that lies could."""
    one, other = (Blob(f"00ff00ff00ff00ff-{n}.json", 3, bytes(16)) for n in (1, 2))
    with raises(CorruptState):
        load_inventory_sections(line(one), "an example", lambda section: line(other if section == one else one))

    def deeper(section: Blob) -> bytes:
        return line(Blob(f"00ff00ff00ff00ff-{int(section.name[17:-5]) + 1}.json", 3, bytes(16)))

    with raises(CorruptState):
        load_inventory_sections(line(one), "an example", deeper)
