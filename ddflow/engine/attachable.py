"""What may be attached to a plan: which inputs sources feed, which table a sink makes of an output, what is missing.

Invariant: it asks the plan and the declarations alone. No state is opened, nothing is connected and nothing is made, so
a wrong name, or a library that is not installed, is an error before there is anything to take back.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> check(flow, {"people": dd.sources.files("people/*.csv")}, {"people": dd.sinks.sqlite("a.db", "t")}, RunOptions())
>>> check(flow, {}, {"peple": dd.sinks.sqlite("a.db", "t")}, RunOptions())
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: the sink of 'peple': there is no such output; did you mean 'people'? there are ['people']
"""

from collections.abc import Mapping

from ddflow.columns.names import DIFF, did_you_mean
from ddflow.connectors.attached import Source, TableShape, TableSink, check_declared
from ddflow.connectors.modes import shaped
from ddflow.engine.run_options import RunOptions
from ddflow.errors import Option, Phrase, SpecError
from ddflow.plan.plan import Plan


def check(plan: Plan, sources: Mapping[str, Source], sinks: Mapping[str, TableSink], how: RunOptions) -> None:
    """Raise what is wrong with a run.  O(inputs and outputs).  Raises as `fed_by`, `shape_of` and `lateness`."""
    fed_by(plan, sources)
    for name, sink in sinks.items():
        shape_of(plan, name, sink)
    lateness(plan, how)


def fed_by(plan: Plan, sources: Mapping[str, Source]) -> dict[str, str]:
    """By input, the name of its source.  O(inputs).

    Raises `SpecError`; `MissingExtra` for a library that a source, or the format of an input, needs.
    """
    fed = dict[str, str]()
    for name, source in sources.items():
        check_declared(f"the source {name!r}", source, Source)
        for each in source.inputs(name):
            if each not in plan.inputs:
                remedy = f"{did_you_mean(each, plan.inputs)}; a source of one table or topic has the name of its input"
                raise SpecError(f"the source {name!r}", f"there is no input {each!r}", remedy, input=each)
            if fed.setdefault(each, name) != name:
                raise SpecError(
                    f"the source {name!r}", f"{fed[each]!r} feeds the input {each!r}", "give one", input=each
                )
            if (format := plan.inputs[each].bound.format) is not None:
                format.needs()
        source.needs()
    return fed


def shape_of(plan: Plan, name: str, sink: TableSink) -> tuple[tuple[str, ...] | None, TableShape]:
    """Return the key that the plan proves for an output, and the table that its sink makes. O(columns).

    Raises `SpecError`, and `MissingExtra` for a library that the sink needs.
    """
    asked, updates = f"the sink of {name!r}", plan.updates_schema(name)
    check_declared(asked, sink, TableSink)
    mode = sink.mode
    outputs = {**plan.outputs, **plan.side_outputs()}
    if name not in outputs or updates is None:
        raise SpecError(asked, "there is no such output", did_you_mean(name, outputs))
    if mode not in sink.modes:
        raise SpecError(asked, f"{sink.kind} has no mode {mode!r}", f"use one of {list(sink.modes)}")
    key = plan.outputs[name].identified_by() if name in plan.outputs else None
    if mode == "upsert" and key is None:
        remedy = (
            "show an input's key, all groups of an aggregate, the key and order of versions, or of a top its groups "
        )
        remedy += "and its places (rank_name=, in SQL row_number()); or end it with to_upserts(key), or write it with "
        remedy += Option("mode", "changelog")
        raise SpecError(asked, "the plan proves no key of its rows, which mode 'upsert' needs", remedy)
    if DIFF not in updates.names and name in plan.outputs and mode not in ("upsert", "updates"):
        raise SpecError(asked, "it has upserts already", Phrase("write it with ", Option("mode", "upsert")))
    sink.needs()
    by = key if mode == "upsert" else None
    return key, TableShape(
        name, shaped(mode, updates), by, by is not None and plan.outputs[name].solid().issuperset(by)
    )


def lateness(plan: Plan, how: RunOptions) -> dict[str, int]:
    """By input, how far behind the greatest time seen times close; none in epoch mode.  O(inputs).

    Raises `SpecError`.
    """
    if not plan.holds_back:
        return {}
    given, late = how.behind(plan.time_type), dict[str, int]()
    for name, input in plan.inputs.items():
        mine = input.bound.spec.lateness if given is None else given
        if mine is None:
            remedy = Phrase("give ", Option("lateness"), ", how far behind the greatest time seen events may come")
            raise SpecError("run a flow in hold-back mode", f"nothing closes times of {name!r}", remedy)
        late[name] = mine
    return late
