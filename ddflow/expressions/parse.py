"""Parse SQL text to a syntax tree with sqlglot's Spark dialect.

sqlglot's Spark dialect differs from Spark in three ways, which this module corrects. sqlglot renames functions, so
`ExpressionDialect` knows no functions and keeps their names. sqlglot reads ``it''s`` as two texts, so quotes are
redefined. sqlglot binds a few operators in another order, so ambiguous text raises a Refusal that asks for parentheses.

Guarantees: the tree has Spark's meaning, or an error names the place. The parser uses many stack frames for each
bracket. So text that is nested too deeply for Python's stack is refused before the parser runs.
Limits: this module knows no columns and no types.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from ddflow.errors import shorten
from ddflow.expressions.node import Refusal

MOST_TEXT: Final = 4_000_000
"""Maximum number of characters of an expression."""
MOST_TOKENS: Final = 500_000
"""Maximum number of words, signs and literals of an expression."""
MOST_WORDS: Final = 100_000
"""Maximum number of tokens, without the literals in lists."""
MOST_NESTED: Final = 32
"""Maximum depth of brackets, CASEs and NOTs. For each level, the parser uses 24 of a thread's 1,000 stack frames.
"""

_KEPT = ("CAST", "TRY_CAST", "EXTRACT", "SUBSTRING", "SUBSTR", "TRIM")  # calls with special syntax
_SPARK: Any = Spark

Tree: TypeAlias = Any  # a sqlglot expression; its classes differ between versions
CALL_SUFFIXES: Final = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)
"""Syntax that can follow the call of an aggregate."""


class ExpressionDialect(_SPARK):  # type: ignore[misc]
    """Spark's dialect, except that a doubled quote in a text means one quote, and that no function is known."""

    class Tokenizer(_SPARK.Tokenizer):  # type: ignore[misc]
        """A tokenizer that reads a doubled quote in a text as one quote.

        The tokenizer does not know the suffix BD, because versions of sqlglot treat BD differently.
        """

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']
        NUMERIC_LITERALS: ClassVar[dict[str, str]] = {
            suffix: kind for suffix, kind in _SPARK.Tokenizer.NUMERIC_LITERALS.items() if suffix != "BD"
        }

    class Parser(_SPARK.Parser):  # type: ignore[misc]
        """A parser that keeps function names as written. Only calls with special syntax are parsed specially."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser for name, parser in _SPARK.Parser.FUNCTION_PARSERS.items() if name in _KEPT
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": _SPARK.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}


class QueryDialect(ExpressionDialect):
    """The dialect of queries. Double quotes enclose names, as in the SQL standard. In Spark, this needs a setting."""

    class Tokenizer(ExpressionDialect.Tokenizer):
        """A tokenizer that accepts only single quotes around text."""

        QUOTES: ClassVar[list[str]] = ["'"]
        IDENTIFIERS: ClassVar[list[str]] = ["`", '"']
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'"]


_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
_PREDICATES = (exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)


_OPEN = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
_CLOSE = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
_SIGNS = (TokenType.DASH, TokenType.PLUS, TokenType.TILDE)
_BEFORE_ASOF = (TokenType.INNER, TokenType.LEFT, TokenType.OUTER)
_LITERAL = (TokenType.NUMBER, TokenType.STRING, TokenType.DASH)
_AROUND = 60  # characters to show on both sides of a mistake


class ParsedText(NamedTuple):
    """A parsed text. ``nested``: the number of nested levels. ``quoted``: the texts that were in double quotes."""

    tree: Tree
    nested: int
    quoted: frozenset[str]

    def check_quoted_texts(self, names: Iterable[str]) -> None:
        """Raise Refusal if a text in double quotes equals the name of a column.

        In the SQL standard double quotes enclose names, but in Spark they enclose text. So either reading could give a
        wrong answer.
        """
        folded = {each.casefold() for each in self.quoted}
        for name in names:
            if name.casefold() in folded:
                raise Refusal(
                    f'"{name}" is a text, but a column has that name',
                    f"write `{name}` in backquotes for the column, or '{name}' in single quotes for the text",
                )


def parse_expression(text: str) -> ParsedText:
    """Parse one expression. O(text).

    Raises Refusal for a text that exceeds a limit. Raises Refusal for a text that does not parse. The error message
    shows the line, the column and a caret.

    >>> parsed = parse_expression("upper(city) = 'Bern'")
    >>> type(parsed.tree).__name__, parsed.nested
    ('EQ', 1)
    >>> try:
    ...     parse_expression("city = ")
    ... except Refusal as refusal:
    ...     print(refusal.found)
    it does not parse at line 1, column 6: Required keyword: 'expression' missing
        city =
             ^
    """
    remedy = "write an expression as in WHERE or SELECT, without AS; put names that are SQL words in backquotes"
    return _parse_text(
        text,
        ExpressionDialect(),
        "expressions",
        remedy,
        lambda parser, tokens: parser.parse_into(exp.Condition, tokens, text),
    )


def parse_query(text: str) -> Tree:
    """Parse one query, with the limits and errors of `parse_expression`."""
    remedy = "write SELECT, VALUES or WITH, in Spark's dialect; put names that are SQL words in backquotes"
    return _parse_text(text, QueryDialect(), "queries", remedy, lambda parser, tokens: parser.parse(tokens, text)).tree


def _parse_text(text: str, dialect: Tree, several: str, remedy: str, trees: Callable[[Any, Any], Any]) -> ParsedText:
    _check_limit(len(text), MOST_TEXT, "characters")
    try:
        text.encode()
        tokens = dialect.tokenize(text)
        _check_limit(len(tokens), MOST_TOKENS, "words, signs and literals")
        nested = _count_nesting_levels(tokens)
        _read_window_as_name(tokens)
        tokens = _read_asof_joins(tokens)
        tree, *others = trees(dialect.parser(), tokens) or [None]
        if any(each is not None for each in others):
            raise Refusal(f"it has several {several}, separated by ;", "write one")
        if tree is None:
            raise ParseError("it is empty")
        for node in tree.walk():
            _refuse_ambiguous_syntax(node)
    except ParseError as error:
        raise _build_parse_refusal(text, error, remedy) from error
    except SqlglotError as error:
        raise Refusal("it does not parse", "close every quote, backquote and comment") from error
    except UnicodeEncodeError as error:
        found = f"its character {error.start:,} is a lone surrogate"
        raise Refusal(found, "use text that UTF-8 can encode") from error
    except RecursionError as error:
        raise build_nesting_refusal() from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # sqlglot's parser fails in many ways
        raise Refusal("it does not parse", remedy) from error
    quoted = (each for each in tokens if each.token_type == TokenType.STRING and text[each.start] == '"')
    return ParsedText(tree, nested, frozenset(each.text for each in quoted))


def strip_call_suffixes(tree: Tree) -> Tree:
    """Return the call that comes before FILTER, IGNORE NULLS or RESPECT NULLS.

    If there is no FILTER or NULLS after the call, return the tree itself.
    """
    while isinstance(tree, CALL_SUFFIXES):
        tree = tree.this
    return tree


def build_nesting_refusal() -> Refusal:
    """Describe an expression that is nested deeper than `MOST_NESTED`."""
    found = f"it is nested too deeply: an expression may have {MOST_NESTED} levels of brackets, calls, CASE and NOT"
    return Refusal(found, "split it over several projections; chains of AND, OR, + or || add no levels")


def _check_limit(found: int, most: int, what: str) -> None:
    if found > most:
        remedy = "split it over several filters or projections, or write a Python function"
        raise Refusal(f"it has {found:,} {what}, but an expression may have {most:,}", remedy)


def _count_nesting_levels(tokens: Sequence[Any]) -> int:
    """Count the nested levels. Raises Refusal for too many levels or words."""
    outside, deepest, open_, run, words, before, listed = list[int](), 0, 0, 0, 0, None, False
    for token in tokens:
        kind = token.token_type
        begins = before in (TokenType.COMMA, TokenType.L_PAREN) or (before == TokenType.DASH and listed)
        listed = kind == TokenType.COMMA or (kind in _LITERAL and begins)
        words += not listed
        if kind in _OPEN:
            outside.append(run)
            open_, run = open_ + run + 1, 0
        elif kind in _CLOSE and outside:
            open_, run = open_ - outside.pop() - 1, 0
        elif kind == TokenType.NOT or (kind in _SIGNS and before in _SIGNS):
            run += 1
        else:
            run = 0
        deepest, before = max(deepest, open_ + run), kind
    if deepest > MOST_NESTED:
        raise build_nesting_refusal()
    _check_limit(words, MOST_WORDS, "names, operators and calls")
    return deepest


def _read_window_as_name(tokens: Sequence[Any]) -> None:
    """Let the word WINDOW be a name, unless it begins the clause, as in ``WINDOW w AS (...)``. O(tokens)."""
    for place, token in enumerate(tokens):
        if token.token_type == TokenType.WINDOW:
            name, *rest = [each.token_type for each in tokens[place + 1 : place + 4]] or [None]
            if name not in (TokenType.VAR, TokenType.IDENTIFIER) or rest != [TokenType.ALIAS, TokenType.L_PAREN]:
                token.token_type = TokenType.VAR


def _read_asof_joins(tokens: Sequence[Any]) -> list[Any]:
    """Read the words of ASOF joins as the parser does.  O(tokens).

    The parser expects ASOF before LEFT, and knows MATCH_CONDITION only in another dialect.
    """
    out = list[Any]()
    for token, following in zip_longest(tokens, tokens[1:]):
        kind = following.token_type if following is not None else None
        if token.token_type == TokenType.VAR and token.text.upper() == "MATCH_CONDITION" and kind == TokenType.L_PAREN:
            token.token_type = TokenType.MATCH_CONDITION
        at = len(out)
        if token.token_type == TokenType.ASOF and kind == TokenType.JOIN:
            while at and out[at - 1].token_type in _BEFORE_ASOF:
                at -= 1
        out.insert(at, token)
    return out


def _build_parse_refusal(text: str, error: ParseError, remedy: str) -> Refusal:
    if not error.errors:
        return Refusal("it does not parse" if text.strip() else "it is empty", remedy)
    first = error.errors[0]
    line, column = int(first["line"]), int(first["col"]) - len(first["highlight"]) + 1
    what = shorten(str(first["description"]).partition(" for <class")[0].partition(" but got <")[0])
    lines = text.splitlines()
    shown, begin = lines[line - 1] if line <= len(lines) else text, max(0, column - 1 - _AROUND)
    caret = " " * (column - 1 - begin) + "^"
    shown = shown[begin : column + _AROUND]
    return Refusal(f"it does not parse at line {line}, column {column}: {what}\n    {shown}\n    {caret}\n", remedy)


def _refuse_ambiguous_syntax(node: Tree) -> None:
    """Raise Refusal if Spark might bind operators that have no parentheses in another order."""
    parts = list(node.iter_expressions())
    if isinstance(node, _COMPARISONS):
        bad = any(isinstance(part, (*_PREDICATES, exp.Not)) for part in parts)
    elif isinstance(node, _PREDICATES):
        bad = any(isinstance(part, (*_COMPARISONS, *_PREDICATES, exp.Not)) for part in parts)
    elif isinstance(node, exp.DPipe):
        bad = any(isinstance(part, (exp.Add, exp.Sub, *_BITS)) for part in parts)
    elif isinstance(node, _BITS):
        bad = any(isinstance(part, (*_BITS, exp.DPipe)) and type(part) is not type(node) for part in parts)
    else:
        return
    if bad:
        raise Refusal(
            f"{format_tree(node)} can be read in two ways", "put parentheses around the parts that belong together"
        )


def format_tree(tree: Tree) -> str:
    """Format a part of an expression as SQL, shortened if it is long."""
    try:
        return shorten(str(tree.sql("spark")))
    except RecursionError:  # a chain without brackets may exceed the stack
        return type(tree).__name__
