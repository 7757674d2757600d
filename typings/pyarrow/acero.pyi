"""Execution plans."""

from collections.abc import Sequence

from pyarrow import Table
from pyarrow.compute import Expression

class TableSourceNodeOptions:
    def __init__(self, table: Table) -> None: ...

class ProjectNodeOptions:
    def __init__(self, expressions: Sequence[Expression], names: Sequence[str] | None = None) -> None: ...

class Declaration:
    def __init__(self, factory_name: str, options: TableSourceNodeOptions | ProjectNodeOptions) -> None: ...
    @staticmethod
    def from_sequence(decls: Sequence[Declaration]) -> Declaration: ...
    def to_table(self, use_threads: bool = True) -> Table: ...
