"""Test that no verb, error, warning, log, declaration or state byte shows a password."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chance import sample
from programs import run_ddflow
from test_run_cli import FLOW
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import VERBS, app
from ddflow.connectors.kafka import sink, source
from ddflow.errors import DdflowError, mask_secrets

HEAD, TAIL = "Geheim", "Qxz"
SIGNS = ("", "@", ":", "/", "#", "?", " ", "%40", "=", "&", "'", '"', "7:7@", "1/")
"""Signs within a password; with each of them neither of its ends is shown."""
HERE = "127.0.0.1:1"
"""Nobody listens there."""
BEFORE_A_HOST = (
    f"postgres://me:{{}}@{HERE}/shop#orders",
    f"postgresql://me:{{}}@{HERE}/shop?slot=s&sslmode=disable#orders",
    f"postgres:me:{{}}@{HERE}/shop",
    f"kafka://me:{{}}@{HERE}/orders",
    f"kafka:me:{{}}@{HERE}/orders?others=ignore#a,b",
    "s3://KEY:{}@bucket/orders",
    "delta:s3://KEY:{}@bucket/orders",
    "files:s3://KEY:{}@bucket/*.csv",
    "files:https://me:{}@host/*.csv",
    "duckdb:s3://me:{}@bucket/shop.duckdb#orders",
    "sqlite:s3://me:{}@bucket/shop.db#orders",
    "iceberg:https://me:{}@host/shop.orders",
    "parquet:s3://me:{}@bucket/shop",
    "oracle://me:{}@host/shop",
    "me:{}@host/shop",
)
AS_A_SETTING = (
    f"postgres://{HERE}/shop?password={{}}#orders",
    f"postgres://{HERE}/shop?slot=s&sslpassword={{}}",
    "postgres:host=127.0.0.1 port=1 password={}",
    f"kafka://{HERE}/orders?sasl.password={{}}",
    "delta:https://host/orders?sig={}",
    "files:https://host/orders.csv?X-Amz-Signature={}",
    "duckdb:md:shop?motherduck_token={}",
    "s3://bucket/orders?secret={}",
    "oracle:shop?access_key={}",
)
FEW = ("", "@", ":", "/", "%40", "=")
"""Signs that a parameter may have as they are."""


def addresses() -> Iterator[str]:
    """Each form of an address with each sign in its password."""
    for forms, signs in ((BEFORE_A_HOST, SIGNS), (AS_A_SETTING, FEW)):
        for form in forms:
            for sign in signs:
                yield form.format(f"{HEAD}{sign}{TAIL}")


def leaks(*shown: Any) -> list[str]:
    """What shows an end of a password."""
    return [str(each) for each in shown if HEAD in str(each) or TAIL in str(each)]


def texts(error: BaseException | None) -> Iterator[str]:
    """What an error says, and what is chained to it."""
    while error is not None:
        yield from (str(error), repr(error), str(error.args), *getattr(error, "__notes__", ()))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    for each in (source, sink):
        monkeypatch.setattr(each, "WAIT", 0.2)
    Path("flow.py").write_text(FLOW)
    Path("in").mkdir()
    Path("in/1.csv").write_text("id,city\n1,Bern\n")


def lines(verb: str) -> list[Callable[[str], list[str]]]:
    """The places of a command line that an address may be in, right or wrong."""
    given = [lambda at: [verb, at], lambda at: [verb, "in/1.csv", at], lambda at: [verb, "--state", at]]
    if verb in ("run", "sync"):
        of = [verb, "flow.py", "--state", "state"]
        more = ["--give-up-after", "0s", "--interval", "1ms"] if verb == "run" else []
        given += [
            lambda at: [*of, "--to", at],
            lambda at: [*of, "--to", f"orders={at}", *more],
            lambda at: [*of, "--debug", "--to", f"by_city={at}", "--mode", at],
        ]
    if verb == "run":
        given += [
            lambda at: [*of, "--from", at],
            lambda at: [*of, "--debug", "--from", f"orders={at}", *more],
            lambda at: [*of, "--from", f"orders={at}", "--from", f"orders={at}"],
        ]
    return given


@pytest.mark.sampled
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_shows_a_password(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    many = list(addresses())
    for place, line in enumerate(lines(verb)):
        # In a soak a third of them in each place, and all in those of sources and sinks; else some.
        for at in sample(many if place > 2 else many[place::3], 16 if place > 2 else 8, verb, place):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                done = CliRunner().invoke(app, words := line(at))
            assert done.exit_code, words
            shown = [done.output, *texts(done.exception), caplog.text, *(each.message for each in warned)]
            assert not leaks(*shown), (words, leaks(*shown))
            assert done.exit_code != 70, (words, done.output)
    for path in Path().rglob("*"):
        assert path.is_dir() or path.name == "flow.py" or not leaks(path.read_bytes().decode("latin-1")), path


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("orders", made.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id")))
    feed = made.upserts("feed", {"id": int}, dd.Upsert(key="id"), format=dd.formats.wal2json())
    made.output("feed_rows", feed)
    return made


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
QUICK = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0", "retry_timeout": "0s"}
SOURCES: dict[str, Callable[[str], Any]] = {
    "postgres": lambda secret: dd.sources.postgres(f"postgresql://me:{secret}@{HERE}/shop", "t"),
    "postgres parameter": lambda secret: dd.sources.postgres(f"postgresql://{HERE}/shop?password={secret}", "t"),
    "postgres keywords": lambda secret: dd.sources.postgres(f"host=127.0.0.1 port=1 password='{secret}'", "t"),
    "postgres mistake": lambda secret: dd.sources.postgres(f"host=127.0.0.1 port=1 passwrd='{secret}' x", "t"),
    "kafka servers": lambda secret: dd.sources.kafka(f"me:{secret}@{HERE}", "t"),
    "kafka config": lambda secret: dd.sources.kafka(HERE, "t", config={**SASL, "sasl.password": secret}),
    "kafka mistake": lambda secret: dd.sources.kafka(HERE, "t", config={"sasl.mechanism": secret, "acks": secret}),
    "files": lambda secret: dd.sources.files(f"s3://KEY:{secret}@bucket/*.csv"),
    "delta": lambda secret: dd.sources.delta(f"s3://KEY:{secret}@bucket/t"),
    "delta options": lambda secret: dd.sources.delta(
        "s3://bucket/t", storage_options={**QUICK, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ACCESS_KEY_ID": secret}
    ),
    "duckdb": lambda secret: dd.sources.duckdb(f"md:shop?motherduck_token={secret}", "t"),
}
SINKS: dict[str, Callable[[str], Any]] = {
    "postgres": lambda secret: dd.sinks.postgres(f"postgresql://me:{secret}@{HERE}/shop", "t"),
    "postgres parameter": lambda secret: dd.sinks.postgres(f"postgresql://{HERE}/shop?password={secret}", "t"),
    "postgres keywords": lambda secret: dd.sinks.postgres(f"host=127.0.0.1 port=1 password='{secret}'", "t"),
    "kafka servers": lambda secret: dd.sinks.kafka(f"me:{secret}@{HERE}", "t"),
    "kafka mistake": lambda secret: dd.sinks.kafka(HERE, "t", config={"sasl.mechanism": secret, "acks": secret}),
    "delta": lambda secret: dd.sinks.delta(f"s3://KEY:{secret}@bucket/t"),
    "delta options": lambda secret: dd.sinks.delta(
        "s3://bucket/t", storage_options={**QUICK, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ACCESS_KEY_ID": secret}
    ),
    "iceberg": lambda secret: dd.sinks.iceberg("n.t", catalog={"type": "rest", "uri": f"http://me:{secret}@{HERE}"}),
    "iceberg token": lambda secret: dd.sinks.iceberg(
        "n.t", catalog={"type": "rest", "uri": f"http://{HERE}", "token": secret}
    ),
    "iceberg sql": lambda secret: dd.sinks.iceberg(
        "n.t", catalog={"type": "sql", "uri": f"postgresql+psycopg://me:{secret}@{HERE}/c"}
    ),
    "duckdb": lambda secret: dd.sinks.duckdb(f"md:shop?motherduck_token={secret}", "t"),
    "parquet": lambda secret: dd.sinks.parquet(f"s3://KEY:{secret}@bucket/t"),
}


@pytest.mark.drawn(40)
@pytest.mark.parametrize("sign", ("", "@", ":", "/", "#", "?", " ", "%40"))
@pytest.mark.parametrize("name", [*(f"source {each}" for each in SOURCES), *(f"sink {each}" for each in SINKS)])
def test_no_source_or_sink_shows_a_password(name: str, sign: str, caplog: pytest.LogCaptureFixture) -> None:
    what, _, which = name.partition(" ")
    shown = list[Any]()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            made = (SOURCES if what == "source" else SINKS)[which](f"{HEAD}{sign}{TAIL}")
            shown += [repr(made), str(made), made.target]
            given: dict[str, Any] = {"interval": "1ms", "give_up_after": "0s"}
            files = dd.sources.files("in/*.csv")
            with flow().open("state") as engine:
                if what == "source":
                    engine.run({"orders": files, "feed": made}, **given)
                else:
                    engine.run({"orders": files}, {"orders": made}, **given)
        except DdflowError as error:
            shown += [*texts(error)]
        else:
            pytest.fail("nobody is there")
    shown += [caplog.text, *(each.message for each in warned)]
    shown += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    assert not leaks(*shown)
    for path in Path().rglob("*"):
        assert path.is_dir() or not leaks(path.read_bytes().decode("latin-1")), path


def test_a_place_of_a_state_shows_no_password() -> None:
    for sign in SIGNS:
        for form in ("s3://KEY:{}@bucket/state", "gs://KEY:{}@bucket/state", "s3://bucket/state?secret={}"):
            with pytest.raises(DdflowError) as refused, flow().open(form.format(f"{HEAD}{sign}{TAIL}")):
                pass
            assert not leaks(*texts(refused.value)), (form, sign)


def test_what_is_no_secret_stays() -> None:
    for text in (
        "connect to postgresql://db:5432/shop#orders: the server is away",
        "key=['id', 'token'], null_key='drop', a 'password' that is a column",
        "kafka://b1:9092,b2:9092/orders?others=ignore#a=b",
        "abfss://box@account.dfs.core.windows.net/orders",
        "read s3://bucket/a: at 12:30 me@example.org wrote it",
    ):
        assert mask_secrets(text) == text
    assert mask_secrets(shown := mask_secrets("a password='x' of s3://k:s@b/t?sig=1 {'token': 'y', 'z': 1}")) == shown


def test_an_address_may_come_from_a_file() -> None:
    """So that no list of processes has it."""
    Path("from").write_text("\norders=files:in/*.csv\n")
    Path("to").write_text("orders=sqlite:a.db\nby_city=sqlite:b.db\n")
    words = ["--state", "state", "--to", "@to"]
    done = CliRunner().invoke(app, ["run", "flow.py", *words, "--from", "@from"])
    assert (done.exit_code, "by_city has 1" in done.output, "orders has 1" in done.output) == (0, True, True), done
    done = CliRunner().invoke(app, ["sync", "flow.py", *words])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["run", "flow.py", *words, "--from", "@none"])
    assert done.exit_code == 2 and "No such file" in done.output and "NAME=KIND:WHERE" in " ".join(done.output.split())


def test_what_other_libraries_log_or_warn_of_is_masked(tmp_path: Path) -> None:
    text = "retry http://me:Geheim@host/x"
    Path("flow.py").write_text(f"import logging, warnings\nlogging.getLogger('x').error('{text}')\n" + FLOW)
    words = ("run", "flow.py", "--state", "state", "--from", "orders=files:in/*.csv")
    for more in ((), ("--verbose",)):
        done = run_ddflow(*words, *more)
        assert done.returncode == 0 and "retry http://...@host/x" in done.stderr, done.stderr
        assert not leaks(done.stdout, done.stderr)
