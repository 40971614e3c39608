"""Parser of filter expressions, from text to nodes.

Like Apache's, the parser stops at the first token that does not continue the expression and
ignores the rest: `a = 1 LIKE 'x'` is `a = 1`.
Source: SelectorParser
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken
from lark.lexer import BasicLexer, LexerState

from duemq.filters import nodes
from duemq.filters.nodes import FilterError, Kind, Node

CHARS_MAX: Final = 65_536
TOKENS_MAX: Final = 4_096
END: Final = "$END"
TAB_COLUMNS: Final = 8
_BLANKS: Final = re.compile(r"[ \t\n\r\f]*")

GRAMMAR: Final = r"""
?start: disjunction

?disjunction: conjunction (_OR conjunction)*    -> disjunction
?conjunction: equality (_AND equality)*         -> conjunction

?equality: comparison
    | equality "=" comparison                   -> equal
    | equality _UNEQUAL comparison              -> not_equal
    | equality _IS _NULL                        -> is_null
    | equality _IS _NOT _NULL                   -> is_not_null

?comparison: unary
    | comparison ORDER unary                    -> order
    | comparison SEARCH STRING                  -> search
    | comparison _NOT SEARCH STRING             -> not_search
    | comparison _BETWEEN unary _AND unary      -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN texts                      -> member
    | comparison _NOT _IN texts                 -> not_member

texts: "(" STRING ("," STRING)* ")"

?unary: "+" unary
    | "-" unary                                 -> negative
    | _NOT unary                                -> negation
    | primary

?primary: STRING                                -> text
    | WHOLE                                     -> whole
    | FLOAT                                     -> float
    | _TRUE                                     -> true
    | _FALSE                                    -> false
    | _NULL                                     -> null
    | NAME                                      -> property
    | "(" disjunction ")"

ORDER: "<=" | ">=" | "<" | ">"
_UNEQUAL.2: "<>"
_NOT: "NOT"i
_AND: "AND"i
_OR: "OR"i
_BETWEEN: "BETWEEN"i
_IN: "IN"i
_TRUE: "TRUE"i
_FALSE: "FALSE"i
_NULL: "NULL"i
_IS: "IS"i
SEARCH.2: /(CONTAINS|STARTSWITH|ENDSWITH)(?![a-z0-9_$])/i
NAME: /[a-z_$][a-z0-9_$]*/i
FLOAT.2: /[0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
WHOLE: /0|[1-9][0-9]*l?/i
STRING: /'(''|[^'])*'/
LINE_COMMENT.2: /--[^\n\r]*(\r\n|\n|\r)/
BLOCK_COMMENT.2: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""


def text_of(token: Token) -> str:
    """Return the value of a string literal."""
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Builder of a node for each reduced rule."""

    def disjunction(self, *operands: Node) -> Node:
        return operands[0] if len(operands) == 1 else nodes.junction(operands, is_or=True)

    def conjunction(self, *operands: Node) -> Node:
        return operands[0] if len(operands) == 1 else nodes.junction(operands, is_or=False)

    equal = staticmethod(nodes.equality)
    not_equal = staticmethod(nodes.inequality)
    is_null = staticmethod(nodes.is_null)

    def is_not_null(self, operand: Node) -> Node:
        return nodes.negation(nodes.is_null(operand))

    def order(self, left: Node, operator: Token, right: Node) -> Node:
        return nodes.order(str(operator), left, right)

    def search(self, operand: Node, operator: Token, text: Token) -> Node:
        return nodes.search(operator.upper(), operand, text_of(text), negated=False)

    def not_search(self, operand: Node, operator: Token, text: Token) -> Node:
        return nodes.search(operator.upper(), operand, text_of(text), negated=True)

    between = staticmethod(nodes.between)
    not_between = staticmethod(nodes.not_between)

    def texts(self, *tokens: Token) -> list[str]:
        return list(map(text_of, tokens))

    def member(self, operand: Node, texts: list[str]) -> Node:
        return nodes.membership(operand, texts, negated=False)

    def not_member(self, operand: Node, texts: list[str]) -> Node:
        return nodes.membership(operand, texts, negated=True)

    negative = staticmethod(nodes.negative)
    negation = staticmethod(nodes.negation)

    def text(self, token: Token) -> Node:
        return nodes.Constant(Kind.TEXT, text_of(token))

    whole = staticmethod(nodes.whole_constant)
    float = staticmethod(nodes.float_constant)

    def true(self) -> Node:
        return nodes.Constant(Kind.BOOLEAN, True)

    def false(self) -> Node:
        return nodes.Constant(Kind.BOOLEAN, False)

    def null(self) -> Node:
        return nodes.NULL

    def property(self, token: Token) -> Node:
        return nodes.Property(str(token))


class _LinearLexer(BasicLexer):
    """Lexer that reads each character a bounded number of times.

    Without it, each `--` after the last line would search the rest of the text for its line end.
    """

    __future_interface__ = 2  # lark passes its lexer state
    _lines: tuple[str, int] = ("", -1)  # a text and the position of its last line end

    def next_token(self, lex_state: LexerState, parser_state: Any = None) -> Token:
        """Return the next token with its start; `_position` derives lines for error texts only."""
        counter, text = lex_state.line_ctr, lex_state.text
        while counter.char_pos < text.end:
            start = _BLANKS.match(text.text, counter.char_pos).end()  # type: ignore[union-attr]
            matched = self.match(text, start)
            counter.char_pos = start
            if matched is None:
                break
            value, kind = matched
            counter.char_pos += len(value)
            if kind not in self.ignore_types:
                token = Token(kind, value, start)
                if kind in self.callback:  # a name may be a keyword
                    token = self.callback[kind](token)
                lex_state.last_token = token
                return token
        # The end of the text or an error: lark raises both.
        return super().next_token(lex_state, parser_state)

    def match(self, text: Any, pos: int) -> tuple[str, str] | None:
        """Return the token at a position and its type; None: there is none."""
        whole: str = text.text
        if whole.startswith("--", pos):
            lines = self._lines  # one read: expressions may be parsed in several threads
            if lines[0] is not whole:
                lines = self._lines = whole, max(whole.rfind("\n"), whole.rfind("\r"))
            if pos > lines[1]:
                return "-", "MINUS"
        token: tuple[str, str] | None = super().match(text, pos)  # type: ignore[no-untyped-call]
        return token


@cache
def parser() -> Lark:
    """Return the parser of GRAMMAR, built at first use."""
    return Lark(
        GRAMMAR, parser="lalr", lexer=_LinearLexer, transformer=_Builder(), g_regex_flags=re.ASCII
    )


def parse(text: str) -> Node:
    """Return the node of an expression.

    Raises:
        FilterError: The expression is invalid in Apache, or exceeds CHARS_MAX, TOKENS_MAX or
            nodes.DEPTH_MAX.
    """
    if len(text) > CHARS_MAX:
        raise FilterError(f"the expression has {len(text)} characters; the limit is {CHARS_MAX}")
    try:
        return nodes.as_boolean(_leading_expression(text))
    except UnexpectedCharacters as fault:
        raise FilterError(_lexical_error(text, fault.pos_in_stream or 0)) from fault
    except UnexpectedToken as fault:
        raise FilterError(_syntax_error(text, fault)) from fault
    except ValueError as fault:
        raise fault if isinstance(fault, FilterError) else FilterError(str(fault)) from fault


def _leading_expression(text: str) -> Node:
    """Return the node of the longest prefix that is an expression."""
    state = parser().parse_interactive(text)
    try:
        for count, _ in enumerate(state.iter_parse()):
            if count >= TOKENS_MAX:
                raise FilterError(f"the expression has more than {TOKENS_MAX} tokens")
    except UnexpectedToken:
        if END not in state.choices():  # type: ignore[no-untyped-call]
            raise
    node: Node = state.feed_eof()  # type: ignore[no-untyped-call]
    return node


def _position(text: str, position: int) -> tuple[int, int]:
    """Return (line, column) of a position, from 1; tab stops are at multiples of 8."""
    before = text[:position].replace("\r\n", "\n").replace("\r", "\n")
    column = 0
    for char in before[before.rfind("\n") + 1 :]:
        column = column + TAB_COLUMNS - column % TAB_COLUMNS if char == "\t" else column + 1
    return before.count("\n") + 1, column + 1


def _lexical_error(text: str, position: int) -> str:
    line, column = _position(text, position)
    character = f'"{text[position]}" ({ord(text[position])})'
    return f"Lexical error at line {line}, column {column}.  Encountered: {character}"


def _syntax_error(text: str, fault: UnexpectedToken) -> str:
    token = fault.token
    if token.type == END:
        line, column = _position(text, len(text) - 1) if text else (0, 0)  # its last character
        return f"Encountered <EOF> at line {line}, column {column}"
    line, column = _position(text, token.start_pos or 0)
    return f'Encountered "{token}" at line {line}, column {column}'
