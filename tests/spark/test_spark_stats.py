"""Test what a query displays: consistent figures, a line for each batch, progress with ddflow's figures, pages."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chance import mid_on_spark
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import SparkSession
from test_spark_stream import FIRST, SECOND, THIRD, WatchedStream

import ddflow as dd
import spark_bridge
from ddflow.metrics import SinkLag
from spark_bridge import monitoring, streams
from spark_bridge.monitoring import EpochStats, QueryHistories, QueryHistory, QueryStats

pytestmark = pytest.mark.together("spark")


def flow_of(**spec: Any) -> dd.Flow:
    flow = dd.Flow()
    orders = flow.upserts("orders", FIRST.schema, dd.Upsert("id", **spec))
    flow.output("rows", orders)
    flow.output("by_city", orders.count("city"))
    return flow


@pytest.fixture
def fed(spark: SparkSession, tmp_path: Path) -> Iterator[WatchedStream]:
    yield WatchedStream(spark, tmp_path, flow_of(order_by="at"))
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Callable[[Any], Any]]:
    added = []

    def add(listener: Any) -> Any:
        spark.streams.addListener(listener)
        added.append(listener)
        return listener

    yield add
    for listener in added:
        spark.streams.removeListener(listener)


def until(holds: Callable[[], bool]) -> None:
    """Progress comes from a thread of Spark's, some time after the batch."""
    ends = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends, "that did not come"
        time.sleep(0.05)


def descriptions(spark: SparkSession) -> list[str]:
    """What Spark's pages say of all jobs so far; its store of them is there without the pages, too."""
    context: Any = spark.sparkContext
    jobs = context._jsc.sc().statusStore().jobsList(context._jvm.java.util.ArrayList())
    found = [jobs.apply(i).description() for i in range(jobs.size())]
    return [each.get() for each in found if each.isDefined()]


@mid_on_spark
def test_the_figures_of_batches_are_those_of_the_local_engine_and_add_up(
    fed: WatchedStream, caplog: pytest.LogCaptureFixture
) -> None:
    fed.give(FIRST, SECOND, THIRD)
    with caplog.at_level(logging.INFO, logger="ddflow.spark"):
        query = fed.run(name="the orders")
    told = query.ddflow.stats()
    with fed.flow.open() as engine:
        for batch, rows in zip(told, fed.given, strict=True):
            step = engine.step({"orders": rows}, time=batch.epoch)
            assert batch.rows == {"orders": rows.num_rows}
            assert batch.counts == {name: n for name, n in step.verdicts.counts.items() if n}
            assert batch.updates == {name: step[name].num_rows for name in fed.flow.outputs if step[name].num_rows}
    assert [each.batch for each in told] == [0, 1, 2] and query.ddflow.recent == tuple(told)
    for each in told:
        assert {"begin", "job", "commit", "take", "open", "step", "write"} == set(each.stages)
        assert 0 < each.stages["step"] + each.stages["write"] < 2 * each.stages["job"]  # two threads
        assert each.nbytes > 0 and each.cached[1] in range(1, 5)
    total = told.total
    assert told.epochs == 3 and total.rows == {"orders": 10} and sum(total.counts.values()) == 10
    assert total.updates == sum((Counter(each.updates) for each in told), Counter())
    assert total.nbytes == sum(each.nbytes for each in told)
    assert 0 <= total.cached[0] <= total.cached[1] == sum(each.cached[1] for each in told)
    text = str(told).splitlines()
    assert text[0].startswith("3 epochs, 10 rows in, ") and text[-2].startswith("total") and len(text) == 7
    assert query.lastProgress["numInputRows"] == told[-1].progress()["numInputRows"]

    lines = [record for record in caplog.records if record.name == "ddflow.spark"]
    assert [record.getMessage().split("; ")[:2] for record in lines] == [
        [f"the orders: batchId {i}: epoch {i + 1}", f"numInputRows {n} (orders {n})"] for i, n in enumerate((4, 3, 3))
    ]
    assert [json.loads(json.dumps(record.ddflow))["batchId"] for record in lines] == [0, 1, 2]
    names = {each for each in descriptions(fed.spark) if each.startswith("ddflow the orders")}
    assert names == {f"ddflow the orders: batch {i}, epoch {i + 1}, stages 0 to 1" for i in range(3)}


def test_a_state_tells_its_last_epochs_to_another_process(fed: WatchedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    fed.give(FIRST, SECOND)
    query = fed.run()
    told, read = query.ddflow.stats(), QueryStats.read(fed.state)
    for ours, theirs in zip(told, read, strict=True):
        assert theirs._replace(figures={}) == ours._replace(figures={})
        assert {name: ours.stages[name] for name in theirs.stages} == theirs.stages and theirs.cached == ours.cached
        assert set(theirs.stages) == {"take", "open", "step", "write"}
    assert read.total.rows == told.total.rows and read.epochs == 2
    assert "driver" not in str(read) and str(read).splitlines()[0] == str(told).splitlines()[0]
    monkeypatch.setattr(streams, "get_spark_context", lambda session: None)  # as on Spark Connect
    elsewhere = streams.Query(query._query, query._feeder, fed.spark, close=False)
    assert elsewhere.ddflow.stats() == read and monitoring.ACCOUNTS.get(query.id) is elsewhere.ddflow


@mid_on_spark
def test_a_query_gives_the_figures_of_each_epoch_to_metrics(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    calls: list[Any] = []
    fed.run(metrics=calls.append)
    assert len(calls) == 2 and calls[0].rows == {"orders": FIRST.num_rows}


@mid_on_spark
def test_what_is_given_again_is_marked_and_counts_once(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    fed.run()
    fed.forget_commit()
    fed.give(THIRD)
    told = fed.run().ddflow.stats()
    assert [each.replayed for each in told] == [True, False]
    assert told.epochs == 1 and told.total.rows == {"orders": 3} and told.total.epoch == 3
    assert str(told).splitlines()[2].startswith("2 again")
    assert fed.run().ddflow.stats() == []


@mid_on_spark
def test_a_listener_joins_each_query_with_its_own_figures(
    spark: SparkSession, tmp_path: Path, listening: Callable[[Any], Any]
) -> None:
    called: list[Any] = []
    listener, silent = listening(spark_bridge.Listener(called.append)), listening(spark_bridge.Listener())
    seen: list[Any] = []
    listening(spark_bridge.Listener(seen.append))
    feds = []
    for name, rows in {"one": [FIRST, SECOND], "two": [THIRD]}.items():
        (tmp_path / name).mkdir()
        feds.append(WatchedStream(spark, tmp_path / name, flow_of(order_by="at")))
        feds[-1].give(*rows)
    queries = [fed.stream(name=f"query {i}").start() for i, fed in enumerate(feds)]
    strange = feds[0].frame().writeStream.format("noop").trigger(availableNow=True).start()
    for query in [*queries, strange]:
        query.awaitTermination()
    until(lambda: len([each for each in called if each.ddflow]) == 3)
    joined = [each for each in called if each.ddflow]
    assert {str(each.id) for each in called} == {str(query.id) for query in queries}
    for each in joined:
        query = queries[int(each.name.removeprefix("query "))]
        assert each.ddflow == query.ddflow.recent[each.batchId]
        assert each.numInputRows == sum(each.ddflow.rows.values())
        assert each.durationMs["addBatch"] >= each.ddflow.stages["job"] / 1000
    assert list(listener.recent) == called
    until(lambda: len(silent.recent) == len(called) == len(seen))


@mid_on_spark
def test_times_that_are_closed_at_the_end_are_an_epoch_without_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    fed = WatchedStream(spark, tmp_path, flow_of(time="at", lateness=0))
    fed.give(FIRST)
    told = fed.run(close=True).ddflow.stats()
    assert [(each.batch, each.epoch, each.pending) for each in told] == [(0, 1, 4), (None, 2, 0)]
    assert told.total.frontier == dd.CLOSED and sum(told.total.counts.values()) == 4
    assert "frontier CLOSED" in str(told) and "pending" in str(told)
    assert "ddflow orders: epoch 2, stages 0 to 1" in descriptions(spark)


def test_a_batch_run_is_logged_too(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = spark.createDataFrame([(1, "Bern", 1)], "id long, city string, at long")
    with caplog.at_level(logging.INFO, logger="ddflow.spark"):
        spark_bridge.run(flow_of(), {"orders": frame}, state=str(tmp_path / "state"), partitions=1)
    assert caplog.messages[0].startswith("orders: epoch 1; numInputRows 1 (orders 1); ")


class Terminal(io.StringIO):
    """A terminal that keeps what it is shown."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_stages_and_rows_of_a_first_load(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "SILENT", 0)
    monkeypatch.setattr(monitoring, "LOOK", 0.01)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    spark.range(5000).selectExpr("id", "'Bern' city", "id at").write.parquet(str(tmp_path / "orders"))
    frame = spark.read.parquet(str(tmp_path / "orders"))
    spark_bridge.run(flow_of(), {"orders": frame}, state=str(tmp_path / "state"), partitions=3)
    shown = terminal.getvalue().replace("\x1b[K", "").split("\r")
    (last,) = re.findall(r"^ddflow orders: epoch 1; (\d+) of (\d+) stages, (\d+) of (\d+) tasks, (.*)", shown[-1])
    assert last[0] == last[1] and last[2] == last[3] and int(last[3]) >= 4
    assert re.fullmatch(r"5,000 rows read, \d+ s", last[4].strip()), last
    assert shown[-1].endswith("\n")


def test_a_short_job_and_what_is_no_terminal_stay_silent(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.createDataFrame([(1, "Bern", 1)], "id long, city string, at long")
    monkeypatch.setattr(monitoring, "SILENT", 3600)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    spark_bridge.run(flow_of(), {"orders": frame}, state=str(tmp_path / "state"), partitions=1)
    monkeypatch.setattr(monitoring, "SILENT", 0)
    monkeypatch.setattr(sys, "stderr", plain := io.StringIO())
    spark_bridge.run(flow_of(), {"orders": frame}, state=str(tmp_path / "state"))
    assert terminal.getvalue() == plain.getvalue() == ""


def batch(number: int, **figures: int) -> EpochStats:
    rows = {"a <b>": 2, "c\n": 1}
    return EpochStats(number, number + 1, number + 2, rows, {"applied": 3}, 0, {"o\t<i>": 1000}, 10, figures, False)


def test_a_table_breaks_neither_a_line_nor_a_page_and_shows_the_last_batches() -> None:
    account = QueryHistory()
    for number in range(monitoring.KEPT + 5):
        account.add_epoch(batch(number, driver_tasks=2000, memory=number))
    told = account.stats()
    assert len(told) == monitoring.KEPT and told.epochs == told.total.epoch == monitoring.KEPT + 5
    assert told.total.figures["memory"] == monitoring.KEPT + 4
    text = str(told).splitlines()
    assert len(text) == monitoring.LINES + 4 and {len(line) for line in text[1:-1]} == {len(text[1])}
    assert r"o\t<i>" in text[1] and "job by the driver's clock" in text[-1]
    html = told._repr_html_()
    assert r"o\t&lt;i&gt;" in html and html.count("<tr>") == monitoring.LINES + 2
    assert json.loads(json.dumps(told.to_dict()))["total"]["numInputRows"] == 3 * told.epochs
    assert told[:2] == (told[0], told[1]) and told != 1 and hash(told) == hash(account.stats())


def test_nothing_yet_is_shown_as_nothing() -> None:
    assert (
        str(QueryHistory().stats()).splitlines()[0]
        == "0 epochs, 0 rows in, 0 updates out, 0 B written; frontier the beginning"
    )
    assert "durationMs - (tasks: -)" in str(batch(1))


def test_accounts_are_kept_of_the_last_queries_only() -> None:
    accounts, one = QueryHistories(), QueryHistory()
    for query in ("", *map(str, range(monitoring.QUERIES)), "0", "new"):
        accounts.add_query(query, one)
    assert [accounts.get(query) for query in ("", "1", "0", "new")] == [None, None, one, one]


def test_progress_without_an_epoch_is_passed_on_as_that() -> None:
    monitoring.ACCOUNTS.add_query("a query", QueryHistory())
    listener = spark_bridge.Listener()
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id="a query", batchId=0)))
    assert [each.ddflow for each in listener.recent] == [None]


def test_one_line_a_batch_costs_nothing_where_nobody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ddflow.spark"):
        monitoring.report_epoch("orders", batch(1), None, {})
    assert caplog.messages == []


def test_exporters_take_the_figures_of_an_epoch_once() -> None:
    registry = CollectorRegistry()
    exporter, lags = dd.exporters.prometheus("orders", registry=registry), {"by_city": SinkLag(2, 500)}
    one = batch(1)._replace(rows={"orders": 3})
    for each in (one, one._replace(replayed=True)):
        monitoring.report_epoch("orders", each, exporter, lags)
    page = generate_latest(registry).decode()
    for input, rows in one.rows.items():
        assert f'ddflow_rows_total{{flow="orders",input="{input}"}} {float(rows)}' in page
    assert f'ddflow_epoch{{flow="orders"}} {float(one.epoch)}' in page
    assert 'ddflow_sink_lag_epochs{flow="orders",output="by_city"} 2.0' in page
    assert 'ddflow_call_seconds_count{flow="orders",kind="epoch"} 1.0' in page
