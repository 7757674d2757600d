"""Change tables of Postgres in many transactions, and store the server's answer to `QUERY` with each transaction.

    python examples/cdc/shop.py ADDRESS

Guarantees: a transaction first increments the amount of order 0, so it waits until the previous transaction has ended.
At its end, the transaction stores the answer of `QUERY` under the transaction's number in the table ``answers``. The
new amount and the answer are committed together with all other changes of the transaction. A view whose order 0 has the
amount n must therefore equal answer n. So the shop need not stop while the demo compares.
"""

from __future__ import annotations

import random
import signal
import sys
from decimal import Decimal
from threading import Event
from typing import Any, Final

import psycopg

CITIES: Final = ("Basel", "Bern", "Chur", "Genf", "Lugano", "Zug", "Zürich", None)
MARK: Final = "(transactions)"
"""The city of customer 0. Order 0 is the only order of this customer."""
TABLES: Final = f"""
create table customers (id bigint primary key, city text);
create table orders (id bigint primary key, customer bigint, amount numeric(9, 2), note text);
create table answers (transaction bigint primary key, at timestamptz not null, answer jsonb not null);
insert into customers values (0, '{MARK}');
insert into orders values (0, 0, 0, 'its amount counts the transactions');
insert into customers select n, 'Bern' from generate_series(1, 300) n;
insert into orders select n, 1 + n % 300, n % 100, repeat('note ', n % 9) from generate_series(1, 3000) n;
"""
QUERY: Final = """
    select city, count(*) as orders, sum(amount) as total
    from orders join customers on orders.customer = customers.id group by city"""
ROWS: Final = "(select jsonb_agg(jsonb_build_array(city, orders, total) order by city) from ({}) each)"
ANSWER: Final = f"""
    insert into answers select amount, clock_timestamp(), {ROWS.format(QUERY)} from orders where id = 0
    returning transaction"""


class Shop:
    """A connection that makes random changes, which depend only on ``seed``."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self.connection, self.draw = connection, random.Random(seed)
        self.next = 10_000
        self.done: dict[str, int] = {}

    def transaction(self) -> None:
        """Make one or several changes in a transaction. A tenth of the transactions roll back."""
        draw, run = self.draw, self.connection.execute
        with self.connection.transaction(force_rollback=draw.random() < 0.1) as work:
            run("update orders set amount = amount + 1 where id = 0")
            for _ in range(draw.choice((1, 1, 1, 5, 40))):
                change = draw.choice((self.ordered, self.ordered, self.changed, self.cancelled, self.moved, self.keyed))
                change()
                self.done[change.__name__] = self.done.get(change.__name__, 0) + (not work.force_rollback)
            run(ANSWER)

    def some(self, table: str) -> int:
        """Return the key of an existing row, but never 0."""
        query = f"select id from {table} where id >= %s order by id limit 1"
        (found,) = self.connection.execute(query, [self.draw.randrange(1, self.next)]).fetchone() or (1,)
        return int(found)

    def ordered(self) -> None:
        """Insert an order, sometimes of a new customer."""
        customer, self.next = self.some("customers"), self.next + 1
        if self.draw.random() < 0.2:
            customer = self.next
            self.connection.execute("insert into customers values (%s, %s)", [customer, self.draw.choice(CITIES)])
        amount = None if self.draw.random() < 0.05 else Decimal(self.draw.randrange(-999, 99_999)) / 100
        self.connection.execute("insert into orders values (%s, %s, %s, 'new')", [self.next, customer, amount])

    def changed(self) -> None:
        """Change the amount of an order, or only its note."""
        amount = Decimal(self.draw.randrange(99_999)) / 100
        what = ("amount = %s", amount) if self.draw.random() < 0.8 else ("note = %s", "changed")
        query = f"update orders set {what[0]} where id = %s"
        self.connection.execute(query, [what[1], self.some("orders")])

    def cancelled(self) -> None:
        """Delete an order. In rare cases, delete a customer. The customer's orders then have no customer."""
        table = "customers" if self.draw.random() < 0.1 else "orders"
        self.connection.execute(f"delete from {table} where id = %s", [self.some(table)])

    def moved(self) -> None:
        """Move a customer to another city, so that all orders of the customer count for the new city."""
        values = [self.draw.choice(CITIES), self.some("customers")]
        self.connection.execute("update customers set city = %s where id = %s", values)

    def keyed(self) -> None:
        """Give an order or a customer another key."""
        self.next += 1
        table = "customers" if self.draw.random() < 0.2 else "orders"
        query = f"update {table} set id = %s where id = %s"
        self.connection.execute(query, [self.next, self.some(table)])


def main(url: str) -> None:
    """Work until SIGTERM, then print the number of changes."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with psycopg.connect(url, autocommit=True) as connection:
        shop = Shop(connection, seed=1)
        while not stop.is_set():
            shop.transaction()
    print(", ".join(f"{n:,} {what}" for what, n in sorted(shop.done.items())))


if __name__ == "__main__":
    main(*sys.argv[1:])
