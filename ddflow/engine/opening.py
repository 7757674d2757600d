"""Opening an engine: the plan that it will run, and the dataflow that runs it, with nothing in it yet.

Invariant: a plan that an engine was made of does not change, whatever is added to its flow later.
"""

from time import perf_counter

from ddflow.columns.hashing import Secret
from ddflow.columns.threads import Threads
from ddflow.dataflow.budget import Budget, parse_size
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.dataflow.side_outputs import check_listed
from ddflow.engine.commits import Commits
from ddflow.errors import SpecError
from ddflow.metrics import LOG
from ddflow.plan.options import EngineOptions
from ddflow.plan.plan import Plan
from ddflow.time import CLOSED


def runnable(flow: Plan, options: EngineOptions) -> Plan:
    """Freeze the plan. Raises `SpecError` if it has no input or no output, or cannot list its verdicts."""
    if not flow.inputs or not flow.outputs:
        raise SpecError(
            "open a flow",
            f"it has {len(flow.inputs)} inputs and {len(flow.outputs)} outputs",
            "give it at least one of each: flow.upserts(...), flow.output(...)",
        )
    if options.verdicts == "rows":
        for input in flow.inputs.values():
            check_listed(input.bound)
    return flow.frozen()


def new_dataflow(flow: Plan, options: EngineOptions, durable: Commits | None) -> Dataflow:
    """Make an empty dataflow. ``durable``: the commits of its state; None for state in memory."""
    lists, threads, memory = options.verdicts == "rows", Threads.of(options.threads), parse_size(options.memory)
    secret = (options.secret or Secret.fresh()) if durable is None else durable.secret
    budget = Budget(memory, options.spill, None if durable is None else durable.log.manifest_log.store)
    if durable is not None and budget.spills:
        budget.home = durable.batch_store
    retain = 0 if durable is None else durable.log.manifest_log.manifest.retain
    retain = retain if options.retain is None else min(options.retain, CLOSED)
    return Dataflow(flow, Graph(flow, secret, lists, threads), budget, lists, retain, threads)


def recover(durable: Commits, dataflow: Dataflow) -> None:
    """Fill a dataflow with a state.  O(bytes of the state).  Raises `CorruptState`, naming the file."""
    began = perf_counter()
    dataflow.owed = durable.recover(dataflow)
    where, took = durable.log.manifest_log.store.where, (perf_counter() - began) * 1e3
    LOG.info("opened %s at epoch %d in %.1f ms", where, durable.epoch, took)
