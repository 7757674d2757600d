"""The queries of Nexmark that can be said, in Spark's dialect.

What differs from how they are published: bids have an ``id`` of their own, because upserts have a key; a rank is a
``row_number``, whose order is completed by the id; and ``count_char`` of query 14 is a difference of lengths. Query 13
joins what a side table has at the time of a bid: the verb ``lookup`` does that (see ``test_nexmark``), and SQL has no
word for it. Query 10 is a sink. The time of processing of query 12 is the time of a step, which ``ingested=`` gives to
its rows.
"""

from __future__ import annotations

import pyarrow as pa

_AT = pa.timestamp("ms")
TYPES: dict[str, dict[str, pa.DataType]] = {
    "person": {
        **{"id": pa.int64(), "name": pa.string(), "email": pa.string(), "city": pa.string(), "state": pa.string()},
        **{"at": _AT, "extra": pa.string()},
    },
    "auction": {
        **{"id": pa.int64(), "item": pa.string(), "initial_bid": pa.int64(), "reserve": pa.int64(), "at": _AT},
        **{"expires": _AT, "seller": pa.int64(), "category": pa.int64(), "extra": pa.string()},
    },
    "bid": {
        **{"id": pa.int64(), "auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string()},
        **{"url": pa.string(), "at": _AT, "extra": pa.string()},
    },
}
KEYS = {name: ["id"] for name in TYPES}

_RANKS = {
    "": "",
    "rank1_": " filter (where price < 10000)",
    "rank2_": " filter (where price >= 10000 and price < 1000000)",
    "rank3_": " filter (where price >= 1000000)",
}
_BID_STATS = ", ".join(f"count(*){which} as {rank or 'total_'}bids" for rank, which in _RANKS.items())
_DISTINCT_STATS = ", ".join(
    f"count(distinct {of}){which} as {rank or 'total_'}{of}s"
    for of in ("bidder", "auction")
    for rank, which in _RANKS.items()
)

QUERIES: dict[int, str] = {
    0: "select auction, bidder, price, at, extra from bid",
    1: "select auction, bidder, 0.908 * price as price, at, extra from bid",
    2: "select auction, price from bid where auction % 123 = 0",
    3: """
select p.name, p.city, p.state, a.id
from auction as a inner join person as p on a.seller = p.id
where a.category = 10 and (p.state = 'OR' or p.state = 'ID' or p.state = 'CA')
""",
    4: """
select q.category, avg(q.final) as average
from (
  select max(b.price) as final, a.category
  from auction a, bid b
  where a.id = b.auction and b.at between a.at and a.expires
  group by a.id, a.category) q
group by q.category
""",
    5: """
with counted as (
  select auction, window.start as hop, count(*) as num from bid group by auction, window(at, '10 seconds', '2 seconds'))
select c.auction, c.num, c.hop
from counted c join (select hop, max(num) as most from counted group by hop) m on c.hop = m.hop and c.num >= m.most
""",
    6: """
select seller,
  avg(price) over (partition by seller order by at, id rows between 10 preceding and current row) as average
from (
  select a.id, a.seller, b.price, b.at,
    row_number() over (partition by a.id order by b.price desc, b.at asc, b.id asc) as rn
  from auction a, bid b
  where a.id = b.auction and b.at between a.at and a.expires) q
where rn <= 1
""",
    7: """
with slotted as (select auction, price, bidder, at, extra, window(at, '10 seconds').start as slot from bid)
select b.auction, b.price, b.bidder, b.at, b.extra
from slotted b join (select slot, max(price) as most from slotted group by slot) m
  on b.price = m.most and b.slot = m.slot
""",
    8: """
select p.id, p.name, p.slot
from (select distinct id, name, window(at, '10 seconds').start as slot from person) p
  join (select distinct seller, window(at, '10 seconds').start as slot from auction) a
    on p.id = a.seller and p.slot = a.slot
""",
    9: """
select id, item, initial_bid, reserve, at, expires, seller, category, extra, auction, bidder, price, bid_at, bid_extra
from (
  select a.*, b.auction, b.bidder, b.price, b.at as bid_at, b.extra as bid_extra,
    row_number() over (partition by a.id order by b.price desc, b.at asc, b.id asc) as rn
  from auction a, bid b
  where a.id = b.auction and b.at between a.at and a.expires) x
where rn <= 1
""",
    11: """
select bidder, count(*) as bid_count, session_window.start as start_time, session_window.end as end_time
from bid
group by bidder, session_window(at, '10 seconds')
""",
    14: """
select auction, bidder, 0.908 * price as price,
  case when hour(at) >= 8 and hour(at) <= 18 then 'day' when hour(at) <= 6 or hour(at) >= 20 then 'night'
    else 'other' end as bid_time,
  at, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
from bid
where 0.908 * price > 1000000 and 0.908 * price < 50000000
""",
    15: f"""
select date_format(at, 'yyyy-MM-dd') as day, {_BID_STATS}, {_DISTINCT_STATS}
from bid
group by date_format(at, 'yyyy-MM-dd')
""",
    16: f"""
select channel, date_format(at, 'yyyy-MM-dd') as day, max(date_format(at, 'HH:mm')) as minute, {_BID_STATS},
  {_DISTINCT_STATS}
from bid
group by channel, date_format(at, 'yyyy-MM-dd')
""",
    17: f"""
select auction, date_format(at, 'yyyy-MM-dd') as day, {_BID_STATS}, min(price) as min_price, max(price) as max_price,
  avg(price) as avg_price, sum(price) as sum_price
from bid
group by auction, date_format(at, 'yyyy-MM-dd')
""",
    18: """
select auction, bidder, price, channel, url, at, extra
from (select *, row_number() over (partition by bidder, auction order by at desc, id) as rank_number from bid) x
where rank_number <= 1
""",
    19: """
select * from (select *, row_number() over (partition by auction order by price desc, id) as rank_number from bid) x
where rank_number <= 10
""",
    20: """
select b.auction, b.bidder, b.price, b.channel, b.url, b.at as bid_at, b.extra as bid_extra, a.item, a.initial_bid,
  a.reserve, a.at as auction_at, a.expires, a.seller, a.category, a.extra as auction_extra
from bid as b inner join auction as a on b.auction = a.id
where a.category = 10
""",
    21: r"""
select auction, bidder, price, channel,
  case when lower(channel) = 'apple' then '0' when lower(channel) = 'google' then '1'
    when lower(channel) = 'facebook' then '2' when lower(channel) = 'baidu' then '3'
    else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
from bid
where regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) is not null
  or lower(channel) in ('apple', 'google', 'facebook', 'baidu')
""",
    22: """
select auction, bidder, price, channel, split(url, '/')[3] as dir1, split(url, '/')[4] as dir2,
  split(url, '/')[5] as dir3
from bid
""",
}

BIDS_BY_STEP_TIME = """
select bidder, count(*) as bid_count, cast(window.start as timestamp_ntz) as starttime,
  cast(window.end as timestamp_ntz) as endtime
from bid
group by bidder, window(cast(p_time as timestamp), '10 seconds')
"""
"""Query 12, over bids with ``ingested="p_time"``."""

IN_DUCKDB: dict[int, str] = {
    5: """
with counted as (
  select auction, time_bucket(interval 2 seconds, "at") - to_seconds(2 * back) as hop, count(*) as num
  from bid, range(5) as b(back) group by all)
select auction, num, hop from counted qualify num = max(num) over (partition by hop)
""",
    7: """
select auction, price, bidder, "at", extra from bid
qualify price = max(price) over (partition by time_bucket(interval 10 seconds, "at"))
""",
    8: """
select p.id, p.name, p.slot
from (select distinct id, name, time_bucket(interval 10 seconds, "at") as slot from person) p
  join (select distinct seller, time_bucket(interval 10 seconds, "at") as slot from auction) a
    on p.id = a.seller and p.slot = a.slot
""",
    11: """
with far as (
    select *, "at" - lag("at") over (partition by bidder order by "at") >= interval 10 seconds as far from bid
  ),
  numbered as (select *, count(*) filter (far) over (partition by bidder order by "at") as number from far)
select bidder, count(*) as bid_count, min("at") as start_time, max("at") + interval 10 seconds as end_time
from numbered
group by bidder, number
""",
}
"""The queries that DuckDB has no function for."""
