"""A report on a state's files: what is wrong, in which file, and what lies beside them.

Invariant: a report without problems is of a state whose every byte was read and found to be what was written. What is
wrong is told apart from what is only there (garbage, files that are not ours) and from what could not be looked at
(notes). It is made by ``fsck``.

>>> report = Report("state/orders", epoch=3)
>>> report.problem("blobs/x.arrow", "it is missing")
>>> report.ok, str(report).splitlines()[1]
(False, '  blobs/x.arrow: it is missing')
"""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ddflow.dataflow.budget import shown_size
from ddflow.errors import Command, Phrase


class Problem(NamedTuple):
    """A problem of a file.

    ``file``: its name in the state, or its path. ``found``: the fault. ``manifest``: the newest that names the file,
    None for a problem of the whole state.
    """

    file: str
    found: str
    manifest: int | None = None


@dataclass
class Report:
    """The result of `fsck`. It prints as text.

    Attributes
    ----------
    where : str
        The state.
    epoch : int
        Of the newest manifest that can be read; -1 for none.
    manifests : int
        How many are kept.
    files, bytes : int
        How many files they name, and their bytes, each read and compared.
    problems : list of Problem
        All that is wrong.
    garbage, garbage_bytes : int or None
        Files that no kept manifest names, and their bytes; None where that cannot be told.
    ignored : list of str
        Files that are not ddflow's.
    notes : list of str
        What was not looked at, and why.
    """

    where: str
    epoch: int = -1
    manifests: int = 0
    files: int = 0
    bytes: int = 0
    garbage: int | None = 0
    garbage_bytes: int | None = 0
    problems: list[Problem] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def problem(self, file: str, found: str, manifest: int | None = None) -> None:
        """Note that something is wrong with a file; the same is noted once."""
        if not any(each.file == file and each.found == found for each in self.problems):
            self.problems.append(Problem(file, found, manifest))

    def note(self, text: str) -> None:
        """Note what was not looked at; the same once."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain values."""
        return {"ok": self.ok} | asdict(self) | {"problems": [each._asdict() for each in self.problems]}

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> Phrase:
        """The report as one reads it."""
        size = f"{self.files:,} files of {shown_size(self.bytes)} that {self.manifests:,} manifests name"
        if self.ok:
            lines: list[str] = [f"{self.where}, epoch {self.epoch}: whole; {size}, each read and compared"]
        else:
            lines = [f"{self.where}: {len(self.problems):,} PROBLEMS in {size}"]
        lines += [f"  {each.file}: {each.found}" for each in self.problems]
        lines += [f"  note: {each}" for each in self.notes]
        if self.garbage is None:
            lines.append("  garbage: not known, as not all manifests and inventories can be read")
        elif self.garbage:
            files = f"{self.garbage:,} files of {shown_size(self.garbage_bytes or 0)}"
            lines.append(Phrase(f"  garbage: {files} that no manifest names; ", Command("gc"), " removes them"))
        lines += [f"  ignored, since it is not ours: {each}" for each in self.ignored]
        return Phrase.joined("\n", lines)
