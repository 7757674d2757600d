"""Which columns come and go among the files of a run.

>>> Changes(missing={"city": ["b.csv", "c.csv"]}).text
"missing 'city' (b.csv and 1 more)"
"""

from dataclasses import dataclass, field


@dataclass
class Changes:
    """Files with new columns, and files that lack columns of earlier ones."""

    new: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.missing or self.unused)

    @property
    def text(self) -> str:
        """A line for people."""
        new = ", ".join(f"{name!r} ({file})" for name, file in self.new.items())
        missing = ", ".join(
            f"{name!r} ({files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''})"
            for name, files in self.missing.items()
        )
        parts = [f"{what} {which}" for what, which in (("new", new), ("missing", missing)) if which]
        return "; ".join([*parts, *self.unused])
