-- Queries over the three small tables of queries.py, a line each, by what they need; DuckDB's text behind ||.

-- rowwise
select id, amount * 2 as twice from o where status = 'paid' and n > 1
select * from o where d >= date '2024-01-02' and d < date '2024-01-01' + interval 3 days
select o.*, upper(o.status) up from o where not (o.n > 1 or o.status is null)
select case when n > 1 then 'many' when n is null then 'none' else 'few' end as how, id from o
select extract(year from d) y, month(d) m, substring(status, 1, 2) s, coalesce(n, 0) n from o
select n + 1 as m, m * 2 as twice from o
with p as (select id, n from o where status = 'paid'), q(i, j) as (select * from p) select i, j + 1 as j from q
select x.id as a from (select id, n from o where n between 1 and 2) as x where x.id in (1, 2, 3)
select p.i from (select id, n from o) as p(i, j) where j is null
select id, d - date '2024-01-02' days, extract(epoch from timestamp '2024-01-04' - d) s from o where d - date '2024-01-01' > 1
select id, n * interval '90' minute as w, d from o where timestamp '2024-01-04 12:00:00' - d > n * interval '12' hour

-- distinct
select distinct status from o
select distinct upper(status) s, n from o where n > 0
select status from o group by status
select n % 2 as odd from o group by n % 2
select n % 2 as odd from o group by odd
select n % 2 as odd, status from o group by 1, 2
select distinct x.s from (select distinct status s, n from o) x where n > 1

-- groups
select 3 c from o having true
select 3 c from o having count(*) > 4
select count(*) k, sum(x) s from (values (1), (2 - 1), (1.0)) v(x), o
select x, count(*) k from (values (interval '1 day'), (interval '24 hours'), (interval '2 days')) v(x), o group by x
select status, count(*) n, sum(amount) total from o group by status
select status, count(*) k, count(n) m, count(distinct n) d, min(n) lo, max(amount) hi from o group by status
select status, sum(n) filter (where n > 1) s from o group by status having count(*) > 1
select status s, sum(n) as total from o group by status having total > 2 and s is not null
select year(d) y, sum(n) + 1 as s from o where n > 0 group by year(d)
select y, max(k) m from (select year(d) y, status, count(*) k from o group by 1, 2) x group by y
select sum(n) s, count(*) k from o where n > 1000
select count(*) as k from o
select count(*) k, max(amount) m from o having count(*) > 3
select status, avg(n) a from o group by status having min(n) is not null
select status from o group by status having count(*) > 1
select count(distinct status) as s, count(distinct n) + 1 as m from o where id > 1
select n, status, count(*) k from o group by all
select bool_and(n > 1) a, bool_or(n > 1) b from o where n is not null
select status, max(timestamp '2024-01-09' - d) longest, sum(date '2024-01-09' - d) days, max(d) - min(d) span from o group by status
select status, count(*) as self from o group by status

-- joins
select * from (select id from o), (select id k from c)
select o.id, c.name from o join c on o.c = c.id
select o.id, c.name from o, c where o.c = c.id and o.n = c.n
select o.id as oid, c.id as cid from o left join c on o.c = c.id
select o.id as oid, c.id as cid, o.n as n, c.n as m from o left join c on o.c = c.id and c.city = 'Bern'
select o.id as oid, c.id as cid from o left join c on o.c = c.id and o.n > 1
select o.id as oid, c.id as cid from o left join c on o.c = c.id where c.id is null
select o.id as oid, c.id as cid from o left join c on o.c = c.id where o.n > 1 and (c.city = 'Bern' or o.status = 'paid')
select o.id as oid, c.id as cid, c.name from o right join c on o.c = c.id and o.n > 1 where c.n > 0
select o.id as oid, c.id as cid from o full join c on o.c = c.id and o.n >= c.n
select o.id as oid, c.id as cid from o full join c on o.c = c.id where coalesce(o.n, c.n) > 1
select id, o.status, c.name from o join c using (id)
select * from (select id, status from o) x full join (select id, name from c) y using (id)
select id, x.s, y.name from (select id, status s from o) x left join c y using (id)
select * from (select id, status from o) x natural join (select id, city from c) y
select o.id from o left semi join c on o.c = c.id and c.n > o.n || select o.id from o semi join c on o.c = c.id and c.n > o.n
select o.id from o left anti join c on o.c = c.id || select o.id from o anti join c on o.c = c.id
select o.id as i, c.id as j from o cross join c where o.n > c.n
select a.id as x, b.id as y from o a join o b on a.n = b.n and a.id < b.id
select a.id as x, b.id as y, c.id as z from o a, c, o b where a.c = c.id and b.c = c.id and a.id < b.id
select o.id, t.k from o join t on o.n + 1 = t.a
select o.id, t.k from o join t on o.status = t.b and o.n = t.f
select o.id, t.k, c.name from t, o, c where (t.a = o.n and o.c = c.id and c.n = 1) or (t.a = o.n and o.c = c.id and t.k < 2)
select c.city, count(*) n, sum(o.amount) revenue from o join c on o.c = c.id where o.status = 'paid' group by c.city having count(*) > 1
select c.city, count(o.id) n from c left join o on o.c = c.id group by c.city
select x.id, y.name, z.k from o x left join (c y join t z on y.n = z.a) on x.c = y.id
with p as (select * from o where n > 1) select a.id i, b.id j from p a join p b on a.c = b.c
select x.id from (select o.id, c.city from o join c on o.c = c.id) x where x.city = 'Bern'
select o.id, c.name from o join c on o.c = c.id and o.id = c.id
select o.id, v.word from o join (values (1, 'one'), (2, 'two'), (2, 'zwei')) as v(n, word) on o.n = v.n

-- subqueries
select id, 0 as e, not n in (select n from c) as f from o
select 1 as x, y.* from (select id as `1`, n as `2` from o) y where `2` > 1
select id, (select coalesce(sum(c.n), -amount) from c where c.n = o.n) k from o
select id, (select count(*) + o.n from c where c.id = o.c) k from o
select id from o where exists (select 1 from c where c.id = o.c having count(*) + o.n > 1)
select id from o where id in (select coalesce(max(c.id), o.id) from c where c.id = o.c)
select id, (select case when count(*) = 0 then o.status else max(name) end from c where c.id = o.c and c.n > o.n) k from o
select id from o where 2 in (select n from c where c.id = o.c)
select id, 2 in (select n from c where c.id = o.c) e from o
select id from o where 2 not in (select n from c where c.id = o.c)
select id from o where 2 not in (select n from c)
select id from o where (c, 2) in (select id, n from c)
select id from o where 2 in (select max(n) from c)
select id, (select count(*) from c where c.id = o.c limit 1) k from o
select id, (select count(*) from c where c.id = o.c limit 1 offset 1) k from o
select id from o where exists (values (1))
select id, (select 3 from c having true) m from o
select id, (select 3 from c having count(*) > 2) m from o
select id from o where exists (select 1 from c where c.id = o.c having true)
select id from o where c in (select id from c where city = 'Bern')
select id from o where c not in (select id from c where city = 'Bern')
select id from o where n in (select n from c)
select id from o where n not in (select n from c)
select id from o where n not in (select n from c where n is not null)
select id from o where n not in (select n from c where n > 100)
select id from o where n not in (select c.n from c where c.id = o.c)
select id from o where n in (select c.n from c where c.id = o.c)
select id from o where (c, n) in (select id, n from c)
select id from o where exists (select * from c where c.id = o.c and c.n > 1)
select id from o where not exists (select 1 from c where c.id = o.c and c.n > o.n)
select id from o where exists (select 1 from c where c.n > o.n)
select id from o where exists (select 1 from c)
select id from o where not exists (select 1 from c where n > 100)
select id from o where exists (select city from c where c.id = o.c group by city having count(*) > 0)
select id, exists (select 1 from c where c.id = o.c) as e from o
select id, c in (select id from c where n > 1) as e, n not in (select n from c) as f from o
select id from o where status = 'paid' or c in (select id from c where n > 1)
select id from o where not (n not in (select n from c) and status = 'paid')
select id, (select name from c where c.id = o.c) as name from o
select id, (select count(*) from c where c.n = o.n) as k from o
select id, (select count(*) + 1 from c where c.n = o.n and c.city = 'Bern') as k from o
select id, (select coalesce(sum(c.n), -1) from c where c.n = o.n) as k from o
select id, (select max(n) from c) as m from o where n < (select max(n) from c)
select id from o where n > (select avg(n) from c where c.n = o.n or c.n is null)
select id, (select count(*) from c where c.n < o.n) as k from o
select id, (select count(*) from c where c.n < o.n or o.n is null) as k from o
select id from o where 0 = (select count(*) from c where c.id = o.c)
select id from o where amount = (select max(p.amount) from o p where p.c = o.c)
select c.city, count(*) k from c group by c.city having count(*) > (select count(*) from o where status = 'paid')
select c.city, (select count(*) from o where o.status = c.city) as k from c group by c.city
select c.id from c where (select sum(n) from o where o.c = c.id having count(*) > 1) > 2
select id from o where n in (select max(n) from c where c.id = o.c)
select id from o where n not in (select max(n) from c where c.id = o.c)
select id from o where exists (select max(n) from c where c.id = o.c)
select id from c where exists (select 1 from o where o.c = c.id and exists (select 1 from t where t.a = o.n and t.k > c.n))
select id from c where id in (select o.c from o where o.n = (select max(t.a) from t where t.a <= o.n))
select id from c where n in (select o.n from o where o.c = c.id union select t.a from t where t.a = c.n)
select id, (select max(x.n) from (select n from c) x where x.n < o.n) as m from o
select max((select count(*) from c where c.id = o.c)) m from o
select id from o where n = (select o.n) and c is not null
select id from o where (select count(*) from c) > 2 and n > 0
select id from o where n in (select distinct n from c where c.city is not null)
select id, case when exists (select 1 from t where t.a = o.n) then (select min(t.k) from t where t.a = o.n) else -1 end m from o
select id from c where n in (select o.n from o where o.c = c.id union values (2))
select id from c where n in (select o.n from o where o.c = c.id union all select max(t.a) from t where t.a < c.n)
select id, (select x.n from (select n, id from o) x where x.id = c.id) as m from c
select id from o where not exists (select 1 from c where c.id = o.c and not exists (select 1 from t where t.a = c.n))
select id from o where n is null or n not in (select t.a from t where t.b = o.status)
select c.id, (select count(distinct o.n) from o where o.c = c.id and o.n > (select min(t.a) from t)) as k from c
select id from o where (select max(c.n) from c where c.id = o.c) + (select min(t.a) from t) > n
select id from o where n between (select min(n) from c) and (select max(a) from t)
select c, sum(n) s from o where c in (select id from c) group by c having sum(n) >= (select min(n) from c where c.id = o.c)
select o.id from o join c on o.c = c.id where exists (select 1 from t where t.a = o.n and t.k >= c.n)
select o.id as i, c.id as j from o left join c on o.c = c.id where not exists (select 1 from t where t.a = c.n)
select id from o where n not in (select x.n from c x where x.n = o.n and o.id > 1)
select k from t where 0 > (select coalesce(max(c.n), -1) from c where c.n = t.a)
select k from t where a in (select x.a from t x where coalesce(x.a, 0) = t.a group by x.a having count(*) > 0)

-- sets
select n from o union select n from c
select n, status from o union all select n, city from c
select n from o except select n from c
select n from o except all select n from c
select n from o intersect select n from c
select n from o intersect all select n from c
select n from o where n > 1 union select id from c except select 2
select c, amount from o union select id, n from c
select status s, count(*) k from o group by status union all select 'all', count(*) from o
select 1 as x, 'a' as y
values (1, 'a'), (2, null)
select col1 + 1 as x from values (1), (2) || select col0 + 1 as x from (values (1), (2))
select * from (select n from o union all select n from c) x where n > 1
select k, count(*) as m from (select status k from o union all select city from c) x group by k

-- tops
select id, n from o order by n, id fetch first 2 rows only
select id from o order by id offset 1 rows fetch next row only
select id, n from o order by n desc, id limit 2
select id, n from o order by n desc nulls last, id limit 2 offset 1
select id from o order by n, id limit 3
select id + 1 as i from o where n is not null order by n + c nulls first, id limit 2
select distinct status from o order by status limit 2
select id, n from (select id, n, status, row_number() over (partition by status order by n desc nulls last, id) rn from o) x where rn <= 2
select * from (select id, n, row_number() over (partition by status order by n desc nulls last, id) rn from o) x where rn < 3
select id, rn from (select id, row_number() over (order by n desc nulls last, id) rn from o) x where rn = 2
select id from (select id, row_number() over (order by n desc nulls last, id) rn from o) x where x.rn = 1
select id, rn from (select id, row_number() over (order by n nulls first, id) as rn from o) x where rn between 2 and 3
select id, n from o qualify row_number() over (partition by status order by n desc nulls last, id) = 1
select id, row_number() over (partition by status order by n desc nulls last, id) as r from o qualify r <= 2
with r as (select id, n, row_number() over (order by n desc nulls last, id) rn from o), s as (select id, rn from r) select id from s where rn <= 2
select n from o union all select n from c order by 1 limit 3
select n from o qualify row_number() over (partition by status order by n desc nulls last, id) <= 2
select c, n from o qualify row_number() over (partition by c order by n nulls first, id desc) <= 2
select status, n from (select status, n, row_number() over (partition by status order by n desc nulls last, id) rn from o) x where rn = 1
select c, status, row_number() over (partition by c order by n desc nulls last, id) as place from o qualify place <= 3
select x.status, c.name from (select c, status, row_number() over (partition by c order by amount desc nulls last, id) rn from o) x join c on x.c = c.id where x.rn <= 2

-- tops of groups and joins
select status, count(*) k from o group by status order by count(*) desc, status limit 1
select status, count(*) k from o group by status order by k desc, 1 limit 2
select status, count(*) k, row_number() over (order by count(*) desc, status) r from o group by status qualify r <= 2
select * from (select *, row_number() over (partition by c order by s desc nulls last, st nulls first) rn from (select c, status st, sum(n) s from o group by c, status) y) z where rn <= 1
select c.name, x.id from c join (select id, c cc, row_number() over (partition by c order by amount desc nulls last, id) rn from o) x on x.cc = c.id where x.rn <= 1
select id, (select p.id from o p where p.c = o.c order by p.amount desc nulls last, p.id limit 1) as best from o
select id from o where n in (select p.n from o p where p.c = o.c order by p.id limit 1)

-- windows
select id, row_number() over (order by n, id) r from o
select id, rank() over (partition by c order by n) r, dense_rank() over (partition by c order by n) d, sum(n) over (partition by c order by n) s from o
select id, sum(n) over (partition by status) s, count(*) over () k, max(n + id) over (partition by c order by n desc) m from o
select id, lag(n) over (order by id) a, lead(n, 2) over (order by id) b, lag(n, 1, -5) over (order by id) e, lead(n, 2, id) over (order by id) f from o
select id, lag(n) ignore nulls over (order by id) a, lead(n, 1, 77) ignore nulls over (order by id) b from o || select id, lag(n ignore nulls) over (order by id) a, coalesce(lead(n ignore nulls) over (order by id), 77) b from o
select id, percent_rank() over (order by n) p, cume_dist() over (order by n) q, ntile(3) over (order by id) t from o
select id, first_value(n) over (partition by c order by id) f, last_value(n) over (partition by c order by id rows between unbounded preceding and unbounded following) l, nth_value(n, 2) over (partition by c order by id) m from o
select id, avg(n) over (order by id rows between 2 preceding and 1 following) a, sum(n) over (order by n range between 1 preceding and current row) b, min(n) over (order by id rows 1 preceding) m from o
select id, count(*) over (order by d range between interval 1 day preceding and interval 1 day following) k from o
select id, count(*) over (order by n nulls last, id) k, count(*) over (order by n desc nulls first, id desc) l from o
select id, 1 + sum(n + 1) filter (where n > 0) over (partition by upper(status), c order by d, id) / 2 q from o
select n, row_number() over (order by n) r from o
select c, sum(n) over (order by n, c rows 1 preceding) s from o
select distinct c, count(*) over (partition by c) k from o
select id, count(distinct c) over (partition by status) k, bool_or(n > 1) over (partition by status) b from o
select id, row_number() over (partition by c order by id) r, row_number() over (order by id desc) q from o
select id, row_number() over (order by id) r, r + 1 as s, case when rank() over (order by n) > 2 then 'x' else status end u from o
select id, sum(n) over w a, max(n) over (w order by id) b, min(n) over v e from o window w as (partition by c), v as (w order by id rows 1 preceding)
select id, rank() over (w) r, lag(id) over W p from o window w as (order by n, id)
select id from o qualify rank() over (partition by c order by n desc) <= 2
select id, n from o qualify sum(n) over (partition by c) > 2 and row_number() over (order by id) < 5
select id, row_number() over (order by id) r from o qualify r > 2 and count(*) over () > 3
select id from o order by rank() over (order by n desc nulls last, id) limit 3
select status, sum(n) s, rank() over (order by sum(n) desc) r, sum(sum(n)) over () t from o group by status
select status, c, n, sum(n) s, sum(n) over (partition by c) x from o group by status, c, n
select status, count(*) k, rank() over (order by count(*) desc) r from o where n > 0 group by status having count(*) > 1
select status, count(*) k from o group by status qualify rank() over (order by count(*) desc, status) <= 2
select upper(status) u, avg(n) a, lag(avg(n)) over (order by upper(status)) p from o group by upper(status)
select status, c, sum(n) s, count(*) over (partition by c) x from o group by all || select status, c, sum(n) s, count(*) over (partition by c) x from o group by status, c
select o.id, count(*) over (partition by o.id) k, (select count(*) from t where t.a = o.n) m from o join t on t.a = o.n
select id, n from o qualify exists (select 1 from t where t.a = o.n) and rank() over (order by id) > 1
select a, sum(b) over (partition by a order by b) s from (values (1, 2), (1, 3), (1, 3)) v(a, b)
select upper(status) u, sum(n) s, rank() over (order by u, sum(n)) r from o group by u
select id, n as z, rank() over (order by z desc) r from o
select id, (select rank() over (order by c.n)) r from c
select n, sum(n) over (partition by n order by n rows 1 preceding) s, dense_rank() over (partition by c order by c) d from o
select sum(count(*)) over () k, max(sum(n)) over () m from o
select * from (select id, n, row_number() over (order by id) rn, lag(n) over (order by id) p from o) x where rn <= 3
select * from (select id, rank() over (order by n) rn from o) x where rn <= 3
select * from (select id, n, row_number() over (order by id) rn from o) x where rn > 2
select rn, k from (select rn, count(*) over () k from (select id, row_number() over (order by id) rn from o) y) z where rn <= 2
select * from (select id, n, row_number() over (order by id) rn from o order by n nulls first, id limit 4) x where rn <= 3
select a.id, b.p from (select id, lag(n) over (order by id) p from o) a join (select id, lag(n) over (order by id) p from o) b on a.id = b.p
with w as (select id, n, lag(n) over (order by id) p from o) select a.id, b.p from w a left join w b on a.id = b.p
select n, row_number() over (partition by c order by id) r from o union all select n, count(*) over (order by n) from c
select n from o except select first_value(n) over (order by id) from c
select o.id, c.name, count(*) over (partition by c.city) k from o left join c on o.c = c.id
select id, (select max(n) from o) - sum(n) over (order by id) z, sum((select max(a) from t where t.k = o.n)) over (order by id) y from o
select id, rank() over (order by (select max(a) from t where t.k = o.n)) z from o
select c.id, (select max(x) from (select sum(o.n) over (order by o.id) x, o.c k from o) q where q.k = c.id) m from c
select id from c where exists (select rank() over (order by n) r from o where o.c = c.id qualify r = 2)
select id, (select sum(n) over (order by id desc) s from o where o.c = c.id qualify row_number() over (order by id) = 1) m from c
select id, (select sum(count(*)) over () from o where o.c = c.id) s from c
select id, (select max(k) from (select o.c k, rank() over (order by n) r from o) q where q.r > c.n) m from c
select id from c where id in (select first_value(c) over (partition by status order by id) from o)
select id from c where n not in (select count(*) over (partition by n) from o where n > 1)
select b, f, lag(f) over (partition by b order by k) p, sum(f) over (partition by b order by k rows between 1 preceding and 1 following) s from t

-- odd
select id from o limit 1, 2
select id from o limit all
select id from o limit null
select id from o limit 1 + 1
select id from o sort by id
select id from o order siblings by id limit 1
select top 1 id from o
select all id from o
select id from o offset 1 rows fetch next 1 rows only
(select id from o) fetch first row only
select id into p from o
select id from o for update
select id from o prewhere id > 1
select id from o option (maxrecursion 1)
table o
select id from o connect by prior id = n
select as struct id from o
select * exclude (id) from o
select from o
select * ilike 'x' from o
from o
from o select id where id > 1
select id from only o
select id from (o) q
values ()
select id from o version as of 1
select id from o for system_time as of '2020-01-01'
select id from o at (offset => 1)
select id from o partition (p = 1)
select id from o with ordinality
select id from o use index (i)
select x.o.id from o
select * from o unpivot (v for m in (id, n))
select * from o, unnest(array(1)) q
select * from explode(array(1))
select * from o positional join c
select * from o array join c
select * from o cross apply (select 1 q) z
select * from o join c join t on t.k = c.n on o.c = c.id
select id from o union all by name select n id from c
with q as (delete from o) select 1 x
with 1 as q select q
with q as (select 1) values (1)
select exists (table c) from o
select exists (l, q -> q > 1) e from o
select id from o where n in unnest(array(1))
select id from o where n in ()
select count(*) in (select n from c) e from o
select id from o where n in (1, (select max(n) from c))
select (id, n) from o
select id, (select count(*) from c where c.id = o.c limit 1) m from o
select id, (table c) m from o
select {'a': 1} m from o
select array(select n from c) m from o
select id is json m from o
select status collate 'en' m from o
select @n m from o
select :n m from o
select ? m from o
select id overlaps n m from o
select transform(array(n), q -> q + 1) m from o
select overlay(status placing 'a' from 1) m from o
select x'1F' m from o
select 0x1F m from o
select explode(array(n)) m from o
select count(distinct *) m from o
select sum(n order by id) m from o
select array_agg(n order by id limit 1) m from o
select max(n having max id) m from o
select max(n) within group (order by n) m from o
select grouping(n) m from o group by n
select max(n) keep (dense_rank first order by id) m from o
select row_number() r from o
select id from o qualify n > 1
select id from o qualify row_number() filter (where n > 1) over (order by id) = 1
select next value for q m from o
select id from o |> where id > 1
select * from o |> limit 1
from o |> aggregate sum(n) as q group by c
pivot o on n using sum(n)
explain select id from o
merge into o using c on o.c = c.id when matched then delete
call p()
1
id + 1
*
exists (select 1)
select id from identifier('o')
select columns('n') from o
select id from 'o.parquet'
select id from table(o)
declare x int
select max(struct(id, n)) m from o
select null m union select 1
select * from (select null m) p join (select null m) q using (m)
select array_agg(null) m from o
select count(distinct null) m from o
select id from o order by null limit 1
select id from o where null
