-- Expressions, separated by semicolons and line ends, that give the same in PySpark and in ddflow.
-- comparisons
i = j ; i <> j ; i != j ; i == j ; i < l ; i <= si ; ti >= si ; d > 1 ; d < 3 ; d <= 2.5D ; d >= e ; d > e ; d < e
d = e ; d <> e ; d <= e ; 2.5D < d ; 2.5D >= d ; d = 0 ; f > 1.5 ; f = 0.1 ; f = 0.1F ; f = d ; n = 3.25 ; n > i ; n > d
n > m ; n = m ; n < 7.7700 ; n <= 100 ; l > 1.5 ; l = 9007199254740993D ; i = 1.0 ; num > 5 ; num = i ; num > 6.5 ; num = '7'
s < t ; s = 'abc' ; s > '' ; b = c ; b < c ; b > false ; b = 'true' ; b <> c ; dt = '2024-02-29' ; dt > '2000' ; dt < ts
dt >= tn ; ts = tn ; ts > '2024-01-01 12:00' ; tn <= '1999-12-31 23:59:59.999999' ; ts < timestamp'2024-01-01' ; st.x = 1
dt = date'2024-02-29' ; tn = timestamp_ntz'2024-02-29 12:34:56.789' ; bin = cast('abc' as binary) ; i = null ; null = null
i <=> j ; i <=> null ; null <=> null ; d <=> e ; s <=> t ; st.x <=> i ; i is distinct from j ; i is not distinct from null
-- nulls and logic
i is null ; d is not null ; st is null ; st.x is null ; st.Y is not null ; b is true ; b is not true ; b is false ; b is unknown
b is not unknown ; isnull(s) ; isnotnull(b) ; not b ; !b ; not (i > 1) ; not null ; b and c ; b or c ; b and null ; b or null
not b and c ; b or c and not b ; b and 'true' ; i > 1 and s <> '' or d is null ; (i > 1 or b) and (c or j > 2)
-- membership and ranges
i in (1, 7) ; i in (1, null) ; i not in (1, 7) ; i not in (1, null) ; i in (1, 2.5, 15.0) ; s in ('abc', '') ; d in (2.5, 0.0)
d in (double('NaN')) ; e not in (double('NaN'), null) ; i in (j, 1) ; n in (3.25, 7.77) ; num in (7, 9) ; b in (true) ; null in (1)
dt in ('2024-02-29', '1970-01-01') ; ts in (timestamp'1970-01-01') ; i in (null) ; st.x in (1, 2) ; i between 1 and 10
i not between 1 and 10 ; i between j and 10 ; i between null and 0 ; d between 0 and 3 ; s between 'a' and 'b' ; dt between '1970-01-01' and '2023-12-31' ; n between 2 and 3.5 ; num between '1' and 8
-- patterns
s like 'a%' ; s like '%c' ; s like '%b%' ; s like 'a_c' ; s like 'a\_c' ; s like '%!%%' escape '!' ; s not like 'a%' ; s like ''
s like '%' ; s like null ; s ilike 'A%' ; s ilike 'a_C' ; s not ilike '%B%' ; s like 'h%d' ; s rlike '^a.c$' ; s regexp 'b|l+'
s not rlike 'a' ; s rlike 'o.w' ; i like '1%' ; regexp_like(s, '[A-Z]') ; s like 'Stra_e' ; s like '%a%c%'
-- choice
case when i > 1 then 'big' when i is null then 'none' else 'small' end ; case i when 1 then 'one' when 15 then 'x' end
case when b then i when c then l else d end ; case when b then 1 end ; case d when double('NaN') then 1 else 0 end
case when b then n else m end ; case when b then dt else ts end ; case s when null then 1 else 2 end
case when i <> 0 then 10 / i else 0 end ; if(b, i, l) ; if(b, s, t) ; if(i = 0, null, 100 / i) ; if(null, 1, 2) ; if(b, st.x, 0)
i <> 0 and 10 / i > 1 ; i = 0 or 10 % i = 1 ; coalesce(i, j, 0) ; coalesce(s, 'none') ; coalesce(n, 0) ; coalesce(d, i)
coalesce(null, s) ; coalesce(b, c, false) ; coalesce(0, cast(s as int)) ; nvl(i, l) ; ifnull(s, t) ; nvl2(i, 'y', 'n')
-- arithmetic
nullif(i, 7) ; nullif(d, e) ; nullif(s, 'abc') ; nullifzero(j) ; zeroifnull(i) ; coalesce(st, st) is null
i - j ; i + si ; si * ti ; ti + 0Y ; l - i ; i + 1.5 ; j * j ; f + f ; f * d ; d + e ; d - i ; i / j ; i / nullif(j, 10) ; l / 2
d / 3 ; f / 2 ; n / 3 ; n / m ; m / 7L ; 1.0 / 3 ; 2 / m ; i % j ; -i % 3 ; l % 7 ; d % 2 ; f % 2 ; n % 0.7 ; n % 3 ; m % n ; i div j
l div 3 ; n div 2 ; n div m ; n + m ; n - m ; n * m ; n * 2 ; n * 1.15 ; n + i ; n * l ; n + 2L ; n + d ; -n ; -d ; -si ; +j ; num + 1
num * 1.5 ; num / 2 ; num % 4 ; i + null ; null / 2 ; dt + 1 ; dt - j ; 1 + dt ; -num ; (i + j) * 2 - si ; cast(n as decimal(30,10)) * m
cast(n as decimal(38,20)) + cast(m as decimal(38,2)) ; cast(n as decimal(30,5)) / cast(m as decimal(20,4)) ; n > 0.1 * i
i & 6 ; i | 8 ; i ^ j ; ~i ; (i & 1) = 1 ; l & 255 ; s || t ; s || '-' || i ; i || 'x' ; s || null
upper(s) ; lower(s) ; ucase(t) ; lcase(t) ; upper(i) ; length(s) ; char_length(t) ; len(s) ; length(bin) ; length(i) ; reverse(s)
-- text
substring(s, 2) ; substring(s, 2, 2) ; substr(s, 0, 2) ; substr(s, -2, 1) ; substr(s, -5, 3) ; substring(s from 2 for 3)
substring(s, 2, -1) ; left(s, 2) ; right(s, 3) ; left(s, -1) ; right(s, 0) ; repeat(s, 2) ; repeat(s, 0) ; lpad(s, 5, '*')
rpad(s, 5, 'é') ; lpad(s, 2) ; rpad(s, 0, 'x') ; lpad(s, 9, '') ; trim(s) ; ltrim(s) ; rtrim(s) ; btrim(s) ; trim(both 'a' from s)
trim(leading 'ac' from s) ; trim(trailing 'c' from s) ; ltrim('a', s) ; btrim(s, ' c') ; concat(s, t) ; concat(s, i, dt)
concat(s, b, n) ; concat_ws(',', s, t) ; concat_ws('-', s, null, i) ; concat_ws(t, s, num) ; concat_ws(',', s) ; concat_ws(null, s)
startswith(s, 'a') ; endswith(s, 'c') ; contains(s, '%') ; contains(s, '') ; startswith(s, null) ; replace(s, 'a', 'XY')
replace(s, 'l') ; replace(s, '', 'x') ; regexp_replace(s, '([a-c])', '<$1>') ; regexp_replace(s, 'x*', '-')
regexp_replace(s, 'l+', '\\$') ; regexp_extract(s, '(a)(.)', 2) ; regexp_extract(s, '[a-z]+', 0) ; regexp_extract(s, '(é)?l', 1)
regexp_extract(s, '([A-Z])')
abs(si) ; abs(d) ; abs(n) ; abs(num) ; sign(i) ; sign(d) ; signum(n) ; round(d) ; round(d, 2) ; round(e, 2) ; round(f, 2) ; round(n)
round(n, 1) ; round(m, 2) ; round(n, -1) ; round(i - 8, -1) ; round(l div 10, -2) ; round(d, -2) ; round(num) ; floor(n) ; ceil(n)
floor(i) ; floor(m) ; ceiling(m) ; floor(f) ; ceil(f) ; sqrt(d) ; sqrt(j) ; power(j, 2) ; pow(d, 2) ; ln(j) is null ; log10(i) is null
log2(8) ; log(2, 8) ; exp(0) ; greatest(i, j) ; greatest(i, l, 3) ; greatest(d, e) ; least(d, e) ; least(n, m, 1) ; greatest(s, t)
least(dt, date'2000-01-01') ; greatest(b, c) ; least(b, c) ; greatest(f, e) ; least(i, null) ; mod(i, 4) ; pmod(i, 4) ; pmod(-7, j)
pmod(d, 3) ; pmod(n, 1.3) ; pmod(m, n) ; pmod(l, 10) ; isnan(d) ; isnan(i) ; nanvl(d, e) ; nanvl(d, 0)
-- numbers
cast(i as bigint) ; cast(ti as smallint) ; cast(i as double) ; cast(l as double) ; cast(l as float)
cast(i as string) ; cast(b as string) ; cast(n as string) ; cast(dt as string) ; cast(ts as string) ; cast(tn as string)
cast(bin as binary) ; cast(num as int) ; cast(num as bigint) ; cast(num as double) ; cast(real as double) ; cast(real as float)
cast(num as decimal(8,3)) ; try_cast(odd as int) ; try_cast(odd as bigint) ; try_cast(odd as double) ; try_cast(odd as decimal(5,1))
try_cast(odd as boolean) ; try_cast(odd as date) ; try_cast(odd as timestamp) ; try_cast(real as decimal(6,2)) ; try_cast(d as int)
try_cast(d as bigint) ; try_cast(l as int) ; try_cast(si as tinyint) ; try_cast(d as decimal(10,2)) ; try_cast(n as decimal(4,1))
try_cast(l as decimal(10,2)) ; try_cast(e as decimal(20,15)) ; cast(e > 0 as int) ; cast(b as int) ; cast(b as double) ; cast(i as boolean)
cast(d as decimal(38,6)) ; cast(f as decimal(20,3)) ; cast(e as decimal(5,2)) ; cast(-d as decimal(38,0)) ; try_cast(f as decimal(5,2))
cast(cast('NaN' as double) as decimal(5,2)) ; try_cast(d as timestamp)
array(i, j) ; array(s, 'x') ; array(i, d) ; element_at(array(n, m), 2) ; coalesce(array(), array(l)) ; array(null, ti)
cast(d as boolean) ; cast(n as boolean) ; cast(n as int) ; cast(m as bigint) ; cast(n as double) ; cast(m as float) ; cast(n as decimal(12,4))
-- casts
cast(m as decimal(10,1)) ; cast(i as decimal(12,2)) ; cast(b as decimal(3,1)) ; cast(day as date) ; cast(day as timestamp) ; cast(s as binary)
cast(ts as date) ; cast(tn as date) ; cast(dt as timestamp) ; cast(dt as timestamp_ntz) ; cast(ts as timestamp_ntz) ; cast(tn as timestamp)
cast(ts as bigint) ; cast(i as timestamp) ; cast(null as int) ; i::bigint ; int(num) ; string(i) ; date(ts) ; double(n) ; cast(f as double)
cast(e as float) ; cast('2024-01-05 10:00:00.1234567+02:00' as timestamp) ; cast('2024-01-05 1:2:3' as timestamp_ntz)
year(dt) ; month(ts) ; quarter(dt) ; day(tn) ; dayofmonth(dt) ; dayofweek(dt) ; weekday(dt) ; dayofyear(dt) ; weekofyear(dt)
year(day) ; hour(ts) ; minute(tn) ; second(ts) ; hour(dt) ; extract(year from dt) ; extract(dow from dt) ; extract(hour from ts)
extract(week from dt) ; extract(doy from ts) ; date_trunc('year', ts) ; date_trunc('quarter', dt) ; date_trunc('MON', ts)
date_trunc('week', ts) ; date_trunc('day', tn) ; date_trunc('hour', ts) ; date_trunc('minute', ts) ; date_trunc('second', ts)
date_trunc('millisecond', ts) ; trunc(dt, 'month') ; trunc(dt, 'week') ; trunc(ts, 'year') ; trunc(dt, 'quarter') ; to_date(day)
to_date(ts) ; to_timestamp(day) ; datediff(dt, '2000-01-01') ; datediff(ts, dt) ; date_diff(tn, dt) ; date_add(dt, 1)
date_add(dt, j) ; date_sub(dt, si) ; date_add(day, '2') ; date_add(ts, 0) ; date_add(dt, null)
st.x + 1 ; ST.y ; upper(st.Y) ; `i` + 1 ; I + J ; `st`.`x` ; "abc" = s ; 'it''s' ; 'a' 'b' = 'ab' ; r'\d' ; 1 ; 'x' ; null ; true
1.50 ; 1e3 ; -2147483648 ; 3000000000 ; 99999999999999999999 ; 10L ; 5S ; 3Y ; 2.5F ; date'2024-02-29'
-- intervals
dt + interval 3 days ; dt - interval 3 days ; dt + interval '3' day ; dt + interval '3 days' ; dt + interval 1 month ; dt - interval 13 months
dt + interval 1 year ; dt + interval '1-2' year to month ; dt - interval '1-2' year to month ; dt + interval 2 hours ; dt + interval '2 hours 30 minutes'
dt + interval 24 hours ; dt + interval 2 weeks ; dt + interval -1 day ; dt + interval '-1' month ; dt + interval '-1 day 2 hours' ; dt + interval 0 days
ts + interval 3 days ; ts - interval '2 hours' ; ts + interval 1 month ; ts - interval 1 year 2 months ; ts + interval 1 day 2 hours ; ts + interval 1.5 seconds
ts + interval '1 02:03:04.5' day to second ; ts - interval '12:30' hour to minute ; ts + interval 5 microseconds ; ts + interval 1 millisecond ; ts + interval 1 week
tn + interval 3 days ; tn - interval 1 month ; tn + interval '1.5' second ; tn + interval '90:15' minute to second ; interval 1 month + dt ; interval 2 hours + ts
dt + interval 1 month + interval 1 month ; dt + (interval 1 day) ; dt + interval 1 month > ts ; year(dt + interval 1 year) ; cast(null as date) + interval 1 month
case when dt > date'2000-01-01' then dt + interval 1 month else dt end ; dt + interval 100 years ; dt - interval 900 months
-- zones
from_utc_timestamp(ts, 'Europe/Zurich') ; from_utc_timestamp(tn, 'America/New_York') ; from_utc_timestamp(dt, '+05:30') ; from_utc_timestamp('2024-07-31 23:00:00', 'Asia/Kathmandu')
to_utc_timestamp(ts, 'Europe/Zurich') ; to_utc_timestamp(tn, 'America/New_York') ; to_utc_timestamp(dt, '-03:30') ; to_date(from_utc_timestamp(ts, 'Asia/Tokyo'))
to_utc_timestamp('2024-03-31 02:30:00', 'Europe/Zurich') ; to_utc_timestamp('2024-10-27 02:30:00', 'Europe/Zurich') ; to_utc_timestamp('2024-04-07 01:45:00', 'Australia/Lord_Howe')
from_utc_timestamp('2024-10-27 00:30:00', 'Europe/Zurich') ; from_utc_timestamp('2024-10-27 01:30:00', 'Europe/Zurich') ; from_utc_timestamp('1900-01-01 00:00:00', 'America/New_York')
to_utc_timestamp('2011-12-30 12:00:00', 'Pacific/Apia') ; to_utc_timestamp('2040-07-01 12:00:00', 'Europe/Berlin') ; from_utc_timestamp(ts, null) ; to_utc_timestamp(null, 'UTC') ; to_utc_timestamp(ts, 'UTC') ; from_utc_timestamp(ts, 'Z')
-- date_format
date_format(ts, 'yyyy-MM-dd') ; date_format(ts, 'yyyy-MM-dd\'T\'HH:mm:ss.SSSXXX') ; date_format(tn, 'EEE, d MMM yyyy h:mm a') ; date_format(dt, 'EEEE d MMMM yy')
date_format(ts, 'H HH h hh K KK k kk m mm s ss') ; date_format(ts, 'S SS SSS SSSS SSSSS SSSSSS SSSSSSSSS') ; date_format(dt, 'D DDD Q QQ M MM L LL LLL LLLL d dd')
date_format(day, 'yyyy/MM/dd') ; date_format(ts, '') ; date_format(ts, '\'quarter\' Q') ; date_format(ts, 'y E EE X XX XXX') ; date_format(ts, null) ; date_format(null, 'yyyy')
date_format(dt, 'yyyy年') ; date_format(ts, 'a') ; date_format(ts + interval 1 hour, 'HH:mm')
-- lists
split(csv, ',') ; split(csv, ',', 2) ; split(csv, ',', 1) ; split(csv, ',', 0) ; split(csv, '[0-9]+') ; split(s, 'b') ; split(csv, '\\|') ; split(i, '0') ; split(csv, null)
split(csv, ',')[0] ; get(split(csv, ','), 1) ; get(split(csv, ','), 9) ; get(split(csv, ','), -1) ; element_at(split(csv, ','), 1) ; element_at(split(csv, ','), -1)
get(li, 0) ; get(li, j) ; get(li, 1L) + 1 ; li[0] is null ; if(i > 1000, li[2], 0) ; element_at(li, -1) ; upper(split(csv, ',')[0]) ; split(split(csv, ',')[0], ';')[0]
get(get(lists, 0), 1) ; lists[0][0] ; get(sl, 0).x ; sl[0].y
-- JSON
get_json_object(js, '$') ; get_json_object(js, '$.a') ; get_json_object(js, '$.a.b') ; get_json_object(js, '$[\'a\']') ; get_json_object(js, '$.a[1]') ; get_json_object(js, '$.a[1].b')
get_json_object(js, '$[0]') ; get_json_object(js, '$.a[9]') ; get_json_object(js, '$.c d') ; get_json_object(js, '$.é') ; get_json_object(js, '$.a[1].b.c') ; get_json_object(js, null)
get_json_object(jt, '$.a') ; get_json_object(jt, '$') ; get_json_object(s, '$.a') ; try_cast(get_json_object(jt, '$.n') as int) ; get_json_object('{"a":[1,[2]]}', '$.a[1][0]')
from_json(js, 'a INT') ; from_json(jt, 'a INT, n INT') ; from_json(jt, 'a STRING, n BIGINT, x DOUBLE') ; from_json(jt, 'n DECIMAL(5,2), t BOOLEAN') ; from_json(jt, 'd DATE, w TIMESTAMP, z TIMESTAMP_NTZ')
from_json(jt, 'l ARRAY<INT>, m ARRAY<STRING>') ; from_json(jt, 'o STRUCT<p: INT, q: STRING>') ; from_json(jt, 'struct<n:int>') ; from_json(js, 'a STRING') ; from_json(s, 'a INT') is null
from_json(jt, 'n INT').n ; from_json(jt, 'o STRUCT<p: INT, q: STRING>').o.q ; get(from_json(jt, 'l ARRAY<INT>').l, 0) ; from_json(jt, 'n INT').n + 1 ; from_json(jt, '`n` INT, `d` DATE').d + interval 1 day
