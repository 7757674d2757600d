"""Parse sources and sinks on a command line, each in the form ``KIND:WHERE``.

Examples are ``files:landing/*.csv``, ``duckdb:shop.db#t`` and ``postgres://me@db/shop#t``. `SOURCES` and `SINKS` map
each kind to a function that parses the address.

>>> parse_source("files:landing/*.csv", "orders", follow=True, lines=False).kind
'files'
>>> parse_sink("duckdb:shop.duckdb", "by_city", None).target.rpartition("#")[2]
'by_city'
>>> parse_sink("oracle:shop", "by_city", None)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: oracle:shop: there is no such kind; write KIND:WHERE with one of sqlite, ...
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ddflow.columns.names import split_qualified_name
from ddflow.connectors import sinks, sources
from ddflow.connectors.api import Mode, Source, TableSink
from ddflow.connectors.files.file_path import FULL, WRITING, FilePath, collect_text_options, split_address_options
from ddflow.connectors.kafka.source import CONFIG
from ddflow.connectors.landing.source import LandingSource
from ddflow.errors import SpecError
from ddflow.storage.address import check_percent_encoding, mask_address, refuse_embedded_secret

SOURCES: Final[dict[str, Callable[[str, str, bool, bool], Source]]] = {
    "files": lambda where, name, follow, lines: sources.files(**_parse_files_source(where), follow=follow, lines=lines),
    "sqlite": lambda where, name, follow, lines: sources.sqlite(*_split_table(where, name), follow=follow),
    "duckdb": lambda where, name, follow, lines: sources.duckdb(*_split_table(where, name), follow=follow),
    "delta": lambda where, name, follow, lines: sources.delta(where, follow=follow),
    "kafka": lambda where, name, follow, lines: sources.kafka(**_parse_kafka_source(where, name), follow=follow),
    "postgres": lambda where, name, follow, lines: sources.postgres(
        **_parse_postgres_source(where, name), follow=follow
    ),
}
SINKS: Final[dict[str, Callable[..., TableSink]]] = {
    "sqlite": lambda where, name, **mode: sinks.sqlite(*_split_table(where, name), **mode),
    "delta": lambda where, name, **mode: sinks.delta(where, **mode),
    "iceberg": lambda where, name, **mode: sinks.iceberg(where, **mode),
    "duckdb": lambda where, name, **mode: sinks.duckdb(*_split_table(where, name), **mode),
    "postgres": lambda where, name, **mode: sinks.postgres(**_parse_postgres_sink(where, name), **mode),
    "kafka": lambda where, name, **mode: sinks.kafka(*_split_topic(where, name), **mode),
    "parquet": lambda where, name, **mode: sinks.parquet(where, **mode),
}


def parse_source(text: str, name: str, *more: str, follow: bool, lines: bool) -> Source:
    """Build a source for the input ``name``.

    ``more``: further patterns of files for the same input.  Raises `SpecError`.
    """
    kind, where = _split_address(text, SOURCES)
    made = SOURCES[kind](where, name, follow, lines)
    for each in more:
        other = parse_source(each, name, follow=follow, lines=lines)
        if not isinstance(made, LandingSource) or not isinstance(other, LandingSource) or made.full != other.full:
            found = "only patterns of files may be repeated, with :full in all or none"
            raise SpecError(f"{name}={mask_address(each)}", f"{name!r} is given twice, but {found}", "use one source")
        made = replace(made, patterns=(*made.patterns, *other.patterns))
    return made


def parse_sink(text: str, name: str, mode: Mode | None) -> TableSink:
    """Build a sink for the output ``name``.

    If ``mode`` is None, the sink has the default mode of its kind.  Raises `SpecError`.
    """
    kind, where = _split_address(text, SINKS)
    return SINKS[kind](where, name, **({} if mode is None else {"mode": mode}))


def _split_address(text: str, known: dict[str, Any]) -> tuple[str, str]:
    kind, colon, where = text.partition(":")
    kind = "postgres" if kind == "postgresql" else kind  # libpq accepts both names
    if kind not in known or not colon or not where or where.startswith(":"):
        raise SpecError(mask_address(text), "there is no such kind", f"write KIND:WHERE with one of {', '.join(known)}")
    return kind, where


def _parse_files_source(where: str) -> dict[str, Any]:
    """Parse the arguments of `sources.files`: a pattern, ``:full`` for full contents, and text options.

    >>> _parse_files_source("landing/*.csv:full")
    {'pattern': 'landing/*.csv', 'full': True}
    >>> _parse_files_source("beds.csv:delimiter=;:dates=%d.%m.%Y:dates=%d.%m.%Y %H:%M")["pattern"].dates
    ('%d.%m.%Y', '%d.%m.%Y %H:%M')
    """
    pattern, options = split_address_options(where, WRITING, "files:")
    given = collect_text_options(options)
    return {"pattern": FilePath(pattern, **given) if given else pattern, "full": FULL in options}


def _parse_kafka_source(where: str, name: str) -> dict[str, Any]:
    """Parse the arguments of `sources.kafka`: brokers, a topic, ``others=ignore``, and a list of tables.

    >>> _parse_kafka_source("//b:1/t?others=ignore#orders,crm.people=customers", "shop")["tables"]
    {'orders': 'orders', 'crm.people': 'customers'}
    >>> _parse_kafka_source("//b:1/t", "orders")
    {'servers': 'b:1', 'topic': 't'}
    """
    refuse_embedded_secret(f"kafka:{where}", CONFIG)
    place, _, tables = where.partition("#")
    place, _, others = place.partition("?others=")
    servers, topic = _split_topic(place, name)
    given: dict[str, Any] = {"servers": servers, "topic": topic}
    given |= {"tables": _parse_table_inputs(tables, name)} if tables else {}
    return given | ({"others": others} if others else {})


def _parse_table_inputs(text: str, only: str) -> dict[str, str]:
    """Map each table of a comma-separated list to its input.

    ``TABLE=INPUT`` names the input. Without ``=INPUT``, a list of one table feeds the input whose name is ``only``. In
    a list of several tables, each table feeds the input that has the table's name.

    >>> _parse_table_inputs('"a.b"."t,1",c=d', "")
    {'"a.b"."t,1"': 't,1', 'c': 'd'}
    """
    several = re.findall(r'((?:"[^"]*"|[^,=])+)(?:=([^,]*))?', text)
    if len(several) == 1:
        return {table: input or only for table, input in several}
    return {table: input or split_qualified_name(table)[1] for table, input in several}


def _split_topic(where: str, name: str) -> tuple[str, str]:
    """Split an address at ``/`` into the brokers and the topic.  The topic defaults to ``name``."""
    refuse_embedded_secret(f"kafka:{where}", CONFIG)
    servers, _, topic = where.removeprefix("//").partition("/")
    return servers, topic or name


def _split_table(where: str, name: str) -> tuple[str, str]:
    """Split an address at ``#`` into a file and a table.  The table defaults to ``name``."""
    check_percent_encoding(where, f"attach {name!r}")
    path, _, table = where.partition("#")
    return path, table or name


def _parse_postgres_source(where: str, name: str) -> dict[str, Any]:
    """Parse the arguments of `sources.postgres`: an address with ``slot=``, and a comma-separated list of tables.

    A single table feeds the input ``name``. If there are several tables, each table feeds the input with the table's
    name, unless ``TABLE=INPUT`` names another input. The address may also contain ``recopy=false``.

    >>> _parse_postgres_source("//me@db/shop?slot=s&sslmode=require#orders,crm.people=customers", "shop")["tables"]
    {'orders': 'orders', 'crm.people': 'customers'}
    >>> _parse_postgres_source("//me@db/shop?slot=s&sslmode=require#orders", "orders")
    {'url': 'postgresql://me@db/shop?sslmode=require', 'tables': {'orders': ''}, 'slot': 's'}
    """
    check_percent_encoding(f"postgres:{where}", f"read {name!r} from Postgres")
    path, tables = _split_table(where, name)
    address, _, query = path.partition("?")
    given = [each for each in query.split("&") if each]
    own: dict[str, Any] = dict(each.split("=", 1) for each in given if each.startswith(("slot=", "recopy=")))
    rest = "&".join(each for each in given if not each.startswith(("slot=", "recopy=")))
    url = f"postgresql:{address}?{rest}" if rest else f"postgresql:{address}"
    if "recopy" in own:
        if own["recopy"] not in ("true", "false"):
            raise SpecError(f"the source {name!r}", f"recopy={own['recopy']}", "write recopy=true or recopy=false")
        own |= {"recopy": own["recopy"] == "true"}
    return {"url": url, "tables": _parse_table_inputs(tables, ""), **own}


def _parse_postgres_sink(where: str, name: str) -> dict[str, Any]:
    """Parse the arguments of `sinks.postgres`: an address, and a table with an optional schema before it.

    >>> _parse_postgres_sink("//me@db/shop#reports.by_city", "by_city")
    {'url': 'postgresql://me@db/shop', 'table': 'by_city', 'schema': 'reports'}
    """
    check_percent_encoding(f"postgres:{where}", f"write {name!r} to Postgres")
    path, table = _split_table(where, name)
    schema, table = split_qualified_name(table)
    return {"url": f"postgresql:{path}", "table": table, "schema": schema}
