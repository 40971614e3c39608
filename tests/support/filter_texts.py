"""Random SQL92 filters, valid and invalid, and random properties, from a seed."""

from __future__ import annotations

from random import Random

from tests.support.sql_filters import LITERALS, NAMES, VALUES, WORDS, quoted

OPERATORS = ("=", "<>", "<", "<=", ">", ">=")
SEARCHES = ("CONTAINS", "startswith", "EndsWith")
MORE_LITERALS = (
    "00",
    "007",
    "0L",
    "9223372036854775808",
    "99999999999999999999",
    "1e400",
    "0.0",
    ".0",
    "1e-400",
    "4.9E-324",
    "1.7976931348623157e308",
    "5e",
    "5.e1",
    "1e+3",
    "2147483648L",
)
STRANGE = (
    ";",
    "!=",
    "==",
    "'",
    "LIKE",
    "--",
    "/*",
    "*/",
    "/**/",
    "-- x\n",
    ",",
    ")",
    "(",
    "NOT",
    "AND",
    "IS",
    "NULL",
    "IN",
    "BETWEEN",
    "+",
    "-",
    ".",
    "ü",
    "ſ",
    "\x00",
    "\t",
    "\r\n",
    '"',
)
VALUES_OF_ALL_KINDS = (
    *VALUES,
    "-0",
    "0x1.8p1",
    "1e",
    "5f",
    "1e23",
    "0.1",
    "19.99",
    "\u0661",
    "𝟓",
    "- 5",
    "+5",
    "Infinity",
    "2.2250738585072014e-308",
    "1" * 30,
    "0" * 30 + "5",
    "9007199254740993",
    "\x0b5\x1f",
    "TrUe",
)


def random_filter(random: Random) -> str:
    """Return a random filter; Apache accepts more than half of them."""
    tokens = disjunction(random, 3)
    if random.random() < 0.2:
        damage(random, tokens)
    return random.choice(("", " ")).join(spaced(random, tokens))


def spaced(random: Random, tokens: list[str]) -> list[str]:
    """Return the tokens with blanks that separate words."""
    blanks = (" ", " ", " ", "  ", "\n", "\t", " /* x */ ")
    return [token + random.choice(blanks) for token in tokens]


def damage(random: Random, tokens: list[str]) -> None:
    """Insert, remove, repeat or replace a token, or append some."""
    index = random.randrange(len(tokens) + 1)
    match random.randrange(4):
        case 0:
            tokens.insert(index, random.choice(STRANGE))
        case 1:
            del tokens[index : index + 1]
        case 2:
            tokens[index : index + 1] = [random.choice(STRANGE)]
        case _:
            tokens += random.choices((*STRANGE, *NAMES, *LITERALS), k=2)


def disjunction(random: Random, depth: int) -> list[str]:
    tokens = equality(random, depth)
    while random.random() < 0.3:
        tokens += [random.choice(("AND", "OR", "and", "Or")), *equality(random, depth)]
    return tokens


def equality(random: Random, depth: int) -> list[str]:
    tokens = comparison(random, depth)
    while random.random() < 0.15:
        if random.random() < 0.5:
            tokens += ["IS", *random.choice(([], ["NOT"])), "NULL"]
        else:
            tokens += [random.choice(("=", "<>")), *comparison(random, depth)]
    return tokens


def comparison(random: Random, depth: int) -> list[str]:
    if random.random() < 0.4:
        left, right = measure(random), measure(random)
        return [*left, random.choice(OPERATORS), *right]
    tokens = unary(random, depth)
    negation = random.choice(([], [], ["NOT"]))
    match random.randrange(8):
        case 0 | 1:
            tokens += [random.choice(("=", "<>", *OPERATORS)), *unary(random, depth)]
        case 2 | 3:
            tokens += [*negation, random.choice(SEARCHES), quoted(random.choice(WORDS))]
        case 4:
            tokens = random.choices((tokens, [random.choice(NAMES)]), (1, 4))[0]
            texts = ", ".join(quoted(random.choice(WORDS)) for _ in range(random.randint(1, 7)))
            tokens += [*negation, "IN", f"({texts})"]
        case 5:
            tokens = random.choices((tokens, measure(random)), (1, 4))[0]
            low, high = measure(random), measure(random)
            tokens += [*negation, "BETWEEN", *low, "AND", *high]
        case 6:
            tokens += ["IS", *random.choice(([], ["NOT"])), "NULL"]
    return tokens


def measure(random: Random) -> list[str]:
    """Return an operand that, in nearly all cases, can be compared by order."""
    if random.random() < 0.05:
        return unary(random, 0)
    sign = random.choices(([], ["-"], ["-", "-"], ["+"]), (12, 2, 1, 1))[0]
    return [*sign, random.choice((*LITERALS, *NAMES, *NAMES))]


def unary(random: Random, depth: int) -> list[str]:
    tokens = []
    while random.random() < 0.1:
        tokens.append(random.choice(("-", "+", "NOT")))
    if depth and random.random() < 0.25:
        return [*tokens, "(", *disjunction(random, depth - 1), ")"]
    match random.randrange(16):
        case 0:
            tokens.append(random.choice(LITERALS))
        case 1:
            tokens.append(random.choice(MORE_LITERALS))
        case 2:
            tokens.append(quoted(random.choice(WORDS)))
        case 3:
            tokens.append(random.choice(("TRUE", "False", "NULL")))
        case _:
            tokens.append(random.choice(NAMES))
    return tokens


def random_property_text(random: Random) -> str:
    """Return the encoded properties of a message."""
    names = random.sample(NAMES, random.randint(0, len(NAMES)))
    return "".join(f"{name}\x01{random.choice(VALUES_OF_ALL_KINDS)}\x02" for name in names)
