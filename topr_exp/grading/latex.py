r"""The normal form of an answer: LaTeX text becomes a short tuple of canonical tokens, in one pass with fixed bounds.

Answers with the same tokens are the same. The symbolic comparison gets tokens alone and refuses any unlisted one.
"""

import re
from dataclasses import dataclass

MAX_CHARS = 2000  # longer answers are compared as raw text only
MAX_DEPTH = 40

Tokens = tuple[str, ...]


class TooComplexError(Exception):
    """The answer exceeds a bound or holds control characters: it equals nothing but its own text."""


_UNICODE = str.maketrans(
    {
        **dict.fromkeys("−–—", "-"), **dict.fromkeys("×·⋅", r"\cdot "), **dict.fromkeys("÷∕", "/"),
        "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "≈": r"\approx ",
        "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∖": r"\setminus ", "°": r"^{\circ}",
        "±": r"\pm ", "∓": r"\mp ", "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ",
        "φ": r"\phi ", "μ": r"\mu ", "ω": r"\omega ", "σ": r"\sigma ", "∠": r"\angle ", "ℝ": r"\mathbb{R}",
        **dict.fromkeys("€£¥￥₹₩₽₺₦₱₫₴₪฿", ""), "¢": r"\text{ cents}", "％": r"\%",
        **dict.fromkeys("\u00a0\u2009\u202f", " "), "\u2061": "", "’": "'", "′": "'", "，": ",",
    }
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z{}])")  # \\frac, as in JSON
# Numbers in groups of three digits: 12 345, 12\,345, 12{,}345, 12,\!345, 12,345.
_SPACED_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[ ,;:!]|[ ~]|\{\\[ ,;:!]\})\d{3})+(?![\d])")
_COMMA_GROUPS = re.compile(r"(?<=\d)(?:\{,\}\s*|,\s*\\!\s*|\\!\s*,\s*(?:\\!)?\s*)(?=\d{3}(?!\d))")
_FIRST_GROUP = re.compile(r"[1-9]\d{0,2}", re.ASCII)
_FURTHER_GROUP = re.compile(r"\d{3}(\.\d+)?")
_TEXT = re.compile(
    r"\\(text(?:bf|it|rm|normal|sf|tt|up)?|mbox|hbox|math(?:rm|bf|it|sf|tt|normal|cal|bb)|operatorname\*?)\s*"
    r"\{((?:\^\{\d\}|[^{}]){0,400})\}"
)
_LEXEME = re.compile(
    r"\\(?:[A-Za-z]+|[\s\S])|\d+\.\d+|\.\d+|\d+|[A-Za-z]+|<=|>=|!=|\*\*|\s+|[\s\S]", re.ASCII
)  # ASCII: an Arabic digit is no digit


def words(text: str) -> frozenset[str]:
    """The set of a text's words: long lists of commands read better so."""
    return frozenset(text.split())


def canonical_spellings(table: str) -> dict[str, str]:
    """Map each word of a table to the first one of its line."""
    first_of_line: dict[str, str] = {}
    for line in table.strip().splitlines():
        spellings = line.split()
        first_of_line |= dict.fromkeys(spellings, spellings[0])
    return first_of_line


GREEK = words(
    r"""\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi
    \rho \sigma \tau \upsilon \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Sigma \Phi \Psi \Omega \ell"""
)
_DROPPED = words(
    r"""\left \right \middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \displaystyle \textstyle
    \limits \nolimits \! \, \; \: \> \quad \qquad \$ $ \( \) \[ \] ~ \mleft \mright \tiny \small \large \hspace
    \thinspace \rm \bf \it \mathbf \mathrm \mathit \boldsymbol \underline"""
) | {"\\ ", "\\\n", "\\"}
_SYNONYMS = {r"\euro": "", r"\pounds": ""} | canonical_spellings(
    r"""
    \frac \dfrac \tfrac \cfrac
    \binom \dbinom \tbinom
    \sqrt sqrt
    \leq \le <= \leqslant
    \geq \ge >= \geqslant
    < \lt
    > \gt
    \neq \ne !=
    \approx \simeq
    * \cdot \times \ast
    / \div
    ^ **
    % \% percent pct percentage
    & \&
    _ \_
    | \vert \lvert \rvert \mid
    : \colon
    ' \prime
    , ; and or \land \lor \wedge \vee
    ( \lparen
    ) \rparen
    [ \lbrack
    ] \rbrack
    \{ \lbrace
    \} \rbrace
    \emptyset \varnothing
    \cup \bigcup
    \infty \infin infinity inf
    \pi pi
    \circ \degree
    \overline \bar
    \hat \widehat
    \arcsinh \arsinh
    \arccosh \arcosh
    \arctanh \artanh
    \to \rightarrow
    \ldots \dots \cdots
    i \imath
    """
)
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_VALUE_ENDS = words(r"} ) \pi")  # what a value may end with beside a number
_FUNCTIONS = words("sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh ln log exp max min gcd lcm")
_ARGUMENTS = {r"\frac": 2, r"\binom": 2} | dict.fromkeys(words(r"\sqrt \overline \hat \vec \tilde \end \mathbb"), 1)
_MATRICES = words("matrix bmatrix Bmatrix smallmatrix array")
_OPEN = words(r"( [ \{ \langle")
_CLOSE = words(r") ] \} \rangle")
_QUANTITY = re.compile(r"(-?\d[\d.,/]*)\s+([A-Za-z][A-Za-z ./]*(?:\^\{?\d\}?)?)")  # \text{5 cm^2}
_REWRITTEN = (
    # √13 and sqrt13 are roots of the whole number, unlike \sqrt13.
    (re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s*(\d+(?:\.\d+)?)", re.ASCII), r"\\sqrt{\1}"),
    # A matrix's \\[4pt].
    (re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in)\s*\]"), r"\\\\"),
    # $3\pi$ square units.
    (re.compile(r"\A\s*\$([^$]+)\$((?:\s+(?!or\b|and\b)[A-Za-z]+)+)\s*\Z"), r"\1\\text{\2}"),
    # 15 min, 4:30 p.m.
    (re.compile(r"(?i)(?<=\d)(?:\s*(?=min|sec)|\s+|(?<=:\d\d))(min|sec|[ap]\.?m)\b\.?\s*\Z"), r"\\text{ \1}"),
    # (204)_5 is 204_5.
    (re.compile(r"(?:\\left|(?<![\w}]))\((\d[\dA-Z]*)(?:\\right)?\)(?=\s*_)", re.ASCII), r"\1"),
    # 42_{10} is 42.
    (re.compile(r"(?<=\d)\s*_\s*\{\s*10\s*\}", re.ASCII), ""),
    # 5 x 4.
    (re.compile(r"(?<=\d)\s*x\s*(?=\\?\$?\d)", re.ASCII), "*"),
)
_SHORT_UNIT = re.compile(r"(?:[mgshLlNJWVCF]|[A-Za-z]{1,5}/[A-Za-z]{1,5})(?:\^\{?\d\}?)?")  # \text{m} behind a value
_WORDY = re.compile(r"[A-Za-z](?:[A-Za-z]|\.)|:")  # \text{A, C} and \text{13} are mathematics, \text{4:30 p.m.} is not


def tokenize(text: str) -> Tokens:
    r"""Canonical tokens of an answer: spaces, sizes, delimiters and synonyms are gone, all arguments are in braces.

    A token is a number, a run of letters, a command, a sign, or a text that begins with `"`. Raises TooComplexError.
    """
    if len(text) > MAX_CHARS or _CONTROL.search(text):
        raise TooComplexError
    for pattern, form in _REWRITTEN:
        text = pattern.sub(form, text)
    text = text.translate(_UNICODE)
    if r"\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _COMMA_GROUPS.sub("", text)
    text = _SPACED_GROUPS.sub(lambda match: re.sub(r"\D", "", match.group()), text)
    tokens: list[str] = []
    end = 0
    for match in _TEXT.finditer(text):
        tokens += _tokenize_math(text[end : match.start()])
        command, content = match.groups()
        tokens += _text_tokens(command, content, _last_token(tokens))
        end = match.end()
    tokens += _tokenize_math(text[end:])
    joined = _join_thousands(tokens)
    braced = _Canonical(joined).until(None, 0)
    return tuple(_merge_letters(braced))


def number_like(token: str) -> bool:
    """Match a literal number (ASCII digits, at most one decimal point)."""
    return token not in ("", ".") and token[0] in "0123456789."


def integer_like(token: str) -> bool:
    """Match a literal integer without sign; str.isdigit alone admits Arabic and superscript digits."""
    return token.isascii() and token.isdigit()


def _tokenize_math(text: str) -> list[str]:
    r"""Tokens of a text without \text; synonyms are resolved, spaces stay as " " until thousands are joined."""
    tokens: list[str] = []
    for lexeme in _LEXEME.findall(text):
        if lexeme.isspace() or lexeme in _DROPPED:
            tokens.append(" ")
            continue
        token = _SYNONYMS.get(lexeme, lexeme)
        scale = _scale(lexeme)
        if scale and _ends_value(_last_token(tokens)):
            tokens += ["*", scale]
        elif token in _FUNCTIONS:
            tokens.append("\\" + token)
        elif token:  # "" for a currency
            tokens.append(token)
    return tokens


def _last_token(tokens: list[str]) -> str:
    """The last one that is no space; "" for none."""
    return next((token for token in reversed(tokens) if token != " "), "")


def _ends_value(token: str) -> bool:
    return number_like(token) or token in _VALUE_ENDS


def _scale(word: str) -> str:
    """The number that a word such as "million" or "Millions" multiplies by; "" for another word."""
    return str(SCALES.get(word.lower().removesuffix("s"), ""))


def _words_behind_value(text: str) -> list[str]:
    """Scales as factors, the other words as one text token."""
    tokens: list[str] = []
    unread_words = text.split()
    while unread_words and (scale := _scale(unread_words[0])):
        tokens += ["*", scale]
        unread_words.pop(0)
    if unread_words:
        tokens.append('"' + " ".join(unread_words))
    return tokens


def _text_tokens(command: str, content: str, token_before: str) -> list[str]:
    r"""\text{and} is a comma, \mathrm{e} a letter, \operatorname{f} the command \f, anything wordy one text token.

    token_before: "" for none; behind a value \text{m} is a unit.
    """
    word = content.strip()
    if command == "mathbb":
        letters = [word] if word else []
        return [r"\mathbb", "{", *letters, "}"]
    if command.startswith("operatorname") and word.isalpha() and word.isascii():
        name = "\\" + word
        return [_SYNONYMS.get(name, name)]
    stripped = word.strip(" ,")
    if stripped in ("and", "or", "percent", "pct", "percentage"):
        return [_SYNONYMS[stripped]]
    follows_number = number_like(token_before)
    may_have_unit = follows_number or token_before in ("}", r"\pi", r"\circ", "/")  # a slash: \text{km}/\text{h}
    if may_have_unit and _SHORT_UNIT.fullmatch(word):
        return ['"' + word]
    listed = re.sub(r",?\s*\b(?:and|or)\b", ",", word)  # \text{A and D}
    holds_commands = command.startswith("math") and "\\" in word  # \mathbf{\frac12}
    if holds_commands or not _WORDY.search(listed):
        return [" ", *_tokenize_math(listed), " "]
    if quantity := _QUANTITY.fullmatch(word):
        return [*_tokenize_math(quantity.group(1)), *_words_behind_value(quantity.group(2))]
    if _ends_value(token_before):
        return _words_behind_value(word)
    return ['"' + " ".join(word.split())]


def _join_thousands(tokens: list[str]) -> list[str]:
    """Join 1 , 234 , 567 without spaces to one number, except inside brackets; drop all spaces."""
    joined: list[str] = []
    depth = start = 0
    while start < len(tokens):
        token = tokens[start]
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        follows_point = bool(joined) and joined[-1].endswith(".")
        end = start + 1
        if depth <= 0 and not follows_point:
            end = _end_of_groups(tokens, start)
        groups = tokens[start:end:2]  # without the commas
        joined.append("".join(groups))
        start = end
    return [token for token in joined if token != " "]


def _end_of_groups(tokens: list[str], start: int) -> int:
    """The end of a number that is written in groups of three digits, else of its first token alone."""
    if not _FIRST_GROUP.fullmatch(tokens[start]):
        return start + 1
    end = start + 1
    while _comma_before(tokens, end) and _FURTHER_GROUP.fullmatch(tokens[end + 1]):
        end += 2
    is_list = _comma_before(tokens, end) and number_like(tokens[end + 1])  # 1,234,5
    if is_list:
        return start + 1
    return end


def _comma_before(tokens: list[str], index: int) -> bool:
    """Check for a comma at an index and a token behind it."""
    return index + 1 < len(tokens) and tokens[index] == ","


def _merge_letters(tokens: list[str]) -> list[str]:
    """Letters side by side as one token; separators at the end are dropped."""
    merged: list[str] = []
    follows_letters = False
    for token in tokens:
        is_letters = token.isalpha() and token.isascii()
        if is_letters and follows_letters:
            merged[-1] += token
        else:
            merged.append(token)
        follows_letters = is_letters
    while merged and merged[-1] in (".", ",", ":"):
        merged.pop()
    return merged


@dataclass
class _Canonical:
    """Puts every argument into braces and drops braces without effect: \\frac12, \\frac1{2}, x^2, {x}, sqrt(2)."""

    tokens: list[str]
    position: int = 0

    def _item(self, depth: int) -> list[str]:
        """The next token with its arguments."""
        if depth > MAX_DEPTH:
            raise TooComplexError
        token = self.tokens[self.position]
        self.position += 1
        if token == "{":
            inner = self.until("}", depth + 1)
            if len(inner) <= 1:
                return inner
            return ["{", *inner, "}"]
        if token == r"\begin":
            return self._begin(depth + 1)
        if token in ("^", "_"):
            argument = self._argument(depth + 1)
            if token == "^" and (argument == [r"\circ"] or set(argument) == {"'"}):
                return argument  # degrees and primes stand without ^
            return [token, "{", *argument, "}"]
        if token in _ARGUMENTS:
            return self._command(token, depth + 1)
        return [token]

    def _begin(self, depth: int) -> list[str]:
        """The beginning of an environment; a matrix's brackets are a matter of taste."""
        environment = self._argument(depth)
        if environment == ["array"] and self._peek() == "{":
            self._argument(depth)  # the columns' alignment
        if environment and environment[0] in _MATRICES:
            environment = ["pmatrix"]
        return [r"\begin", "{", *environment, "}"]

    def _command(self, name: str, depth: int) -> list[str]:
        """A command with its arguments, each in braces."""
        command = [name]
        if name == r"\sqrt" and self._peek() == "[":
            self.position += 1
            command += ["[", *self.until("]", depth), "]"]
        for _ in range(_ARGUMENTS[name]):
            command += ["{", *self._argument(depth, one_digit=True), "}"]
        if name == r"\end" and command[2] in _MATRICES:
            return [r"\end", "{", "pmatrix", "}"]
        return command

    def _peek(self) -> str | None:
        if self.position < len(self.tokens):
            return self.tokens[self.position]
        return None

    def until(self, closing: str | None, depth: int) -> list[str]:
        """The tokens up to a closing bracket, or to the end."""
        content: list[str] = []
        open_brackets = 1
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            if closing == ")" and token == "(":  # `_item` reads to the end of a brace, not of a parenthesis
                open_brackets += 1
            elif token == closing:
                open_brackets -= 1
            if open_brackets == 0:
                break
            content += self._item(depth)
        self.position += 1
        return content

    def _argument(self, depth: int, *, one_digit: bool = False) -> list[str]:
        """One TeX argument; \\frac and \\sqrt take one digit of a longer number, a power takes all of it."""
        token = self._peek()
        if token is None:
            return []
        if token in ("{", "("):  # sqrt(x+1), x^(1/2)
            self.position += 1
            closing = "}" if token == "{" else ")"
            return self.until(closing, depth)
        if one_digit and len(token) > 1 and token.isascii() and (token.isdigit() or token.isalpha()):
            self.tokens[self.position] = token[1:]
            return [token[0]]
        if token == "-" and not one_digit:  # x^-1
            self.position += 1
            return ["-", *self._argument(depth + 1)]
        return self._item(depth)
