"""`explain`: what a flow, an engine and a snapshot say of their plan.

Invariant: all of them are asked in the same way and refuse the same; they differ in the figures that they have.  What a
plan looks like is known to ``explain`` and ``picture``.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> flow.explain(format="svg")[:4]
'<svg'
>>> flow.explain(format="png")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: explain with format='png': that is no choice; use 'text' or 'svg'
"""

from abc import ABC, abstractmethod
from typing import Literal, overload

from ddflow.plan.text.explain import Explained
from ddflow.plan.text.picture import Picture


class Explaining(ABC):
    """The base of classes that can explain their plan."""

    @overload
    def explain(self, name: str | None = None, *, format: Literal["text"] = "text") -> Explained: ...
    @overload
    def explain(self, name: str | None = None, *, format: Literal["svg"]) -> Picture: ...
    def explain(self, name: str | None = None, *, format: Literal["text", "svg"] = "text") -> Explained | Picture:
        """Show the plan as text or as a picture: operators of each output, kept state, and columns by which rows meet.

        An engine or a snapshot adds figures.  A collection that keeps rows shows their number, their bytes in memory
        and on disk (index included), the number of operators that look rows up in it, and the outputs that share it.
        Each computed collection shows the time that steps took for it since the engine was opened.

        Parameters
        ----------
        name : str, optional
            An output or an input, where all outputs are not wanted.
        format : {"text", "svg"}
            A tree in several lines, or a picture, which needs no server and no program.

        Returns
        -------
        Explained or Picture
            A str that a prompt and a notebook show as it is.

        Raises
        ------
        SpecError
            For an unknown name or format.

        Notes
        -----
        It runs nothing.  Times exclude reading your rows, writing state, and commits.  O(nodes of the plan, and runs).
        """
        return self._render_plan(name, format)

    @abstractmethod
    def _render_plan(self, name: str | None, format: str) -> Explained | Picture:
        """Build the text or the picture of the plan."""
