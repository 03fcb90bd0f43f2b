r"""The normal form of an answer: LaTeX text becomes a short tuple of canonical tokens, in one pass with fixed bounds.

Answers with the same tokens are the same. The symbolic comparison gets tokens alone and refuses any unlisted one.
"""

import re
from itertools import groupby

MAX_CHARS = 2000  # longer answers are compared as raw text only
MAX_DEPTH = 40

Tokens = tuple[str, ...]


class TooComplex(Exception):
    """The answer exceeds a bound or holds control characters: it equals nothing but its own text."""


_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": r"\cdot ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/",
        "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "≈": r"\approx ",
        "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∖": r"\setminus ", "°": r"^{\circ}",
        "±": r"\pm ", "∓": r"\mp ", "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ",
        "φ": r"\phi ", "μ": r"\mu ", "ω": r"\omega ", "σ": r"\sigma ", "∠": r"\angle ", "ℝ": r"\mathbb{R}",
        **dict.fromkeys("€£¥₹₩₽₺₦₱₫₴₪฿", ""), "¢": r"\text{ cents}",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2061": "", "’": "'", "′": "'", "，": ",",
    }
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z{}])")
_SPACED_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[ ,;:!]|[ ~]|\{\\[ ,;:!]\})\d{3})+(?![\d])")
_COMMA_GROUPS = re.compile(r"(?<=\d)(?:\{,\}\s*|,\s*\\!\s*|\\!\s*,\s*(?:\\!)?\s*)(?=\d{3}(?!\d))")
_FIRST_GROUP = re.compile(r"[1-9]\d{0,2}", re.ASCII)
_TEXT = re.compile(
    r"\\(text(?:bf|it|rm|normal|sf|tt|up)?|mbox|hbox|math(?:rm|bf|it|sf|tt|normal|cal|bb)|operatorname\*?)\s*"
    r"\{([^{}]{0,400})\}"
)
_LEXEME = re.compile(
    r"\\(?:[A-Za-z]+|[\s\S])|\d+\.\d+|\.\d+|\d+|[A-Za-z]+|<=|>=|!=|\*\*|\s+|[\s\S]", re.ASCII
)  # ASCII: an Arabic digit is no digit


def words(text: str) -> frozenset[str]:
    """The set of a text's words: long lists of commands read better so."""
    return frozenset(text.split())


GREEK = words(
    r"""\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi
    \rho \sigma \tau \upsilon \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Sigma \Phi \Psi \Omega \ell"""
)
_DROPPED = words(
    r"""\left \right \middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \displaystyle \textstyle
    \limits \nolimits \! \, \; \: \> \quad \qquad \$ $ \( \) \[ \] ~ \mleft \mright \tiny \small \large \hspace
    \thinspace \rm \bf \it"""
) | {"\\ ", "\\\n", "\\"}
_SYNONYMS = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\le": r"\leq", "<=": r"\leq", r"\leqslant": r"\leq", r"\ge": r"\geq", ">=": r"\geq", r"\geqslant": r"\geq",
    r"\lt": "<", r"\gt": ">", r"\ne": r"\neq", "!=": r"\neq", r"\cdot": "*", r"\times": "*", r"\ast": "*", "**": "^",
    r"\div": "/", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\lparen": "(",
    r"\rparen": ")", r"\varnothing": r"\emptyset", r"\land": ",", r"\lor": ",", r"\wedge": ",", r"\vee": ",",
    "and": ",", "or": ",", ";": ",", r"\vert": "|", r"\lvert": "|", r"\rvert": "|", r"\mid": "|", r"\colon": ":",
    r"\degree": r"\circ", r"\%": "%", r"\&": "&", r"\_": "_", r"\infin": r"\infty", r"\simeq": r"\approx",
    r"\prime": "'", r"\bar": r"\overline", r"\widehat": r"\hat", r"\arsinh": r"\arcsinh",
    r"\arcosh": r"\arccosh", r"\artanh": r"\arctanh", r"\rightarrow": r"\to", r"\imath": "i", r"\dots": r"\ldots",
    r"\cdots": r"\ldots", r"\euro": "", r"\pounds": "", "infinity": r"\infty", "inf": r"\infty",
    "pi": r"\pi", "sqrt": r"\sqrt", "percent": "%", "pct": "%", "percentage": "%", r"\bigcup": r"\cup",
}  # fmt: skip
_FUNCTIONS = words("sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh ln log exp max min gcd lcm")
_ARGUMENTS = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1, r"\overline": 1, r"\hat": 1, r"\vec": 1, r"\tilde": 1,
              r"\end": 1, r"\mathbb": 1}  # fmt: skip
_MATRICES = frozenset(("matrix", "bmatrix", "Bmatrix", "smallmatrix", "array"))
_OPEN = frozenset(("(", "[", r"\{", r"\langle"))
_CLOSE = frozenset((")", "]", r"\}", r"\rangle"))
_QUANTITY = re.compile(r"(-?\d[\d.,/]*)\s+([A-Za-z][A-Za-z .]*)")  # \text{5 cm}
_REWRITTEN = (  # a root of the whole number, unlike \sqrt13; a matrix's \\[4pt]; $3\pi$ square units; 15 min, 4:30 p.m.
    (re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s*(\d+(?:\.\d+)?)", re.ASCII), r"\\sqrt{\1}"),
    (re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in)\s*\]"), r"\\\\"),
    (re.compile(r"\A\s*\$([^$]+)\$((?:\s+(?!or\b|and\b)[A-Za-z]+)+)\s*\Z"), r"\1\\text{\2}"),
    (re.compile(r"(?i)(?<=\d)(?:\s*(?=min|sec)|\s+|(?<=:\d\d))(min|sec|[ap]\.?m)\b\.?\s*\Z"), r"\\text{ \1}"),
)
_SHORT_UNIT = re.compile(r"[mgshLlNJWVCF]|[A-Za-z]{1,5}/[A-Za-z]{1,5}")  # \text{m} behind a value
_WORDY = re.compile(r"[A-Za-z](?:[A-Za-z]|\.)|:")  # \text{A, C} and \text{13} are mathematics, \text{4:30 p.m.} is not


def tokenize(text: str) -> Tokens:
    r"""Canonical tokens of an answer: spaces, sizes, delimiters and synonyms are gone, all arguments are in braces.

    A token is a number, a run of letters, a command, a sign, or a text that begins with `"`. Raises TooComplex.
    """
    if len(text) > MAX_CHARS or _CONTROL.search(text):
        raise TooComplex
    for pattern, form in _REWRITTEN:
        text = pattern.sub(form, text)
    text = text.translate(_UNICODE)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _COMMA_GROUPS.sub("", text)
    text = _SPACED_GROUPS.sub(lambda match: re.sub(r"\D", "", match.group()), text)
    before, *rest = _TEXT.split(text)
    tokens = _plain(before)
    for command, content, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        value = next((token for token in reversed(tokens) if token != " "), "")
        tokens += _text_tokens(command, content, value) + _plain(after)
    return tuple(_merge_letters(_Canonical(_join_thousands(tokens)).until(" ", 0)))


def number_like(token: str) -> bool:
    """Match a literal number (ASCII digits, at most one decimal point)."""
    return token[0] in "0123456789." and token != "."


def integer_like(token: str) -> bool:
    """Match a literal integer without sign; str.isdigit alone admits Arabic and superscript digits."""
    return token.isascii() and token.isdigit()


def _plain(text: str) -> list[str]:
    """Tokens with spaces and synonyms resolved; spaces stay as " " until thousands are joined."""
    out: list[str] = []
    for lexeme in _LEXEME.findall(text):
        token = " " if lexeme.isspace() or lexeme in _DROPPED else _SYNONYMS.get(lexeme, lexeme)
        if token:
            out.append("\\" + token if token in _FUNCTIONS else token)
    return out


def _text_tokens(command: str, content: str, value: str) -> list[str]:
    r"""\text{and} is a comma, \mathrm{e} a letter, \operatorname{f} the command \f, anything wordy one text token.

    value: the token before it, behind which \text{m} is a unit.
    """
    word = content.strip()
    if command == "mathbb":
        return [r"\mathbb", "{", *([word] if word else []), "}"]
    if command.startswith("operatorname") and word.isalpha() and word.isascii():
        return [_SYNONYMS.get("\\" + word, "\\" + word)]
    stripped = word.strip(" ,")
    if stripped in ("and", "or", "percent", "pct", "percentage"):
        return [_SYNONYMS[stripped]]
    after_value = bool(value) and (number_like(value) or value in ("}", r"\pi", r"\circ"))
    if after_value and command != "mathbb" and _SHORT_UNIT.fullmatch(word):
        return ['"' + word]
    listed = re.sub(r",?\s*\b(?:and|or)\b", ",", word)  # \text{A and D}
    if (command.startswith("math") and "\\" in word) or not _WORDY.search(listed):
        return [" ", *_plain(listed), " "]
    if quantity := _QUANTITY.fullmatch(word):
        return [*_plain(quantity.group(1)), '"' + quantity.group(2)]
    return ['"' + " ".join(word.split())]


def _join_thousands(tokens: list[str]) -> list[str]:
    """1 , 234 , 567 without spaces is one number, unless it stands inside brackets; then all spaces go."""
    out: list[str] = []
    depth = i = 0
    while i < len(tokens):
        token = tokens[i]
        depth += (token in _OPEN) - (token in _CLOSE)
        end = i + 1
        if depth <= 0 and _FIRST_GROUP.fullmatch(token) and not (out and out[-1][-1] == "."):
            while end + 1 < len(tokens) and tokens[end] == "," and re.fullmatch(r"\d{3}(\.\d+)?", tokens[end + 1]):
                end += 2
            if tokens[end : end + 1] == [","] and end + 1 < len(tokens) and number_like(tokens[end + 1]):
                end = i + 1  # 1,234,5 is a list
        out.append(token if end == i + 1 else "".join(part for part in tokens[i:end] if part != ","))
        i = end
    return [token for token in out if token != " "]


def _merge_letters(tokens: list[str]) -> list[str]:
    out: list[str] = []
    for are_letters, run in groupby(tokens, lambda token: token.isalpha() and token.isascii()):
        parts = list(run)
        out += ["".join(parts)] if are_letters else parts
    while out and out[-1] in (".", ",", ":"):
        out.pop()
    return out


class _Canonical:
    """Puts every argument into braces and drops those that group nothing: \\frac12, \\frac1{2}, x^2, {x}, sqrt(2)."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def _one(self, depth: int) -> list[str]:
        """The next token with its arguments."""
        if depth > MAX_DEPTH:
            raise TooComplex
        token = self.tokens[self.at]
        self.at += 1
        if token == "{":
            inner = self.until("}", depth + 1)
            return inner if len(inner) <= 1 else ["{", *inner, "}"]
        if token == r"\begin":
            name = self._argument(depth + 1, False)
            if name == ["array"] and self._peek() == "{":
                self._argument(depth + 1, False)  # the columns' alignment
            # All matrices are a pmatrix here: which brackets surround one is a matter of taste.
            return [token, "{", *(["pmatrix"] if name and name[0] in _MATRICES else name), "}"]
        if token in ("^", "_"):
            argument = self._argument(depth + 1, False)
            if token == "^" and (argument == [r"\circ"] or set(argument) == {"'"}):
                return argument
            return [token, "{", *argument, "}"]
        if token in _ARGUMENTS:
            out = [token]
            if token == r"\sqrt" and self._peek() == "[":
                self.at += 1
                out += ["[", *self.until("]", depth + 1), "]"]
            for _ in range(_ARGUMENTS[token]):
                out += ["{", *self._argument(depth + 1, True), "}"]
            return ["\\end", "{", "pmatrix", "}"] if token == r"\end" and out[2] in _MATRICES else out
        return [token]

    def _peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def until(self, closing: str, depth: int) -> list[str]:
        """The tokens up to a closing bracket (" " for none), or the end; parentheses come in pairs."""
        out: list[str] = []
        level = 1
        while self.at < len(self.tokens):
            level += (closing == ")" and self.tokens[self.at] == "(") - (self.tokens[self.at] == closing)
            if level == 0:
                break
            out += self._one(depth)
        self.at += 1
        return out

    def _argument(self, depth: int, one_digit: bool) -> list[str]:
        """One TeX argument; \\frac and \\sqrt take one digit of a longer number, a power takes all of it."""
        token = self._peek()
        if token is None:
            return []
        if token in ("{", "("):  # sqrt(x+1), x^(1/2)
            self.at += 1
            return self.until("}" if token == "{" else ")", depth)
        if one_digit and len(token) > 1 and token.isascii() and (token.isdigit() or token.isalpha()):
            self.tokens[self.at] = token[1:]
            return [token[0]]
        if token == "-" and not one_digit:  # x^-1
            self.at += 1
            return ["-", *self._argument(depth + 1, one_digit)]
        return self._one(depth)
