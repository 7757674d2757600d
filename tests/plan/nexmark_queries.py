"""Queries of Nexmark in Spark's dialect: those that need no windows of time.

Bids have an ``id`` of their own here, because upserts have a key. A ``rank`` of the originals is a ``row_number``,
which is what they mean; functions of their own are those of Spark.
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

_BID_STATS = """count(*) as total_bids,
  count(*) filter (where price < 10000) as rank1_bids,
  count(*) filter (where price >= 10000 and price < 1000000) as rank2_bids,
  count(*) filter (where price >= 1000000) as rank3_bids"""

QUERIES = {
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
    9: """
select id, item, seller, category, auction, bidder, price, bid_at
from (
  select a.id, a.item, a.seller, a.category, b.auction, b.bidder, b.price, b.at as bid_at,
    row_number() over (partition by a.id order by b.price desc, b.at asc) as rn
  from auction a, bid b
  where a.id = b.auction and b.at between a.at and a.expires) x
where rn <= 1
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
select date_format(at, 'yyyy-MM-dd') as day, {_BID_STATS}, count(distinct bidder) as total_bidders,
  count(distinct bidder) filter (where price < 10000) as rank1_bidders, count(distinct auction) as total_auctions
from bid
group by date_format(at, 'yyyy-MM-dd')
""",
    16: f"""
select channel, date_format(at, 'yyyy-MM-dd') as day, max(date_format(at, 'HH:mm')) as minute, {_BID_STATS},
  count(distinct bidder) as total_bidders
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
from (select *, row_number() over (partition by bidder, auction order by at desc) as rank_number from bid) x
where rank_number <= 1
""",
    19: """
select * from (select *, row_number() over (partition by auction order by price desc) as rank_number from bid) x
where rank_number <= 10
""",
    20: """
select b.auction, b.bidder, b.price, b.channel, b.url, b.at as bid_at, a.item, a.initial_bid, a.reserve,
  a.at as auction_at
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
