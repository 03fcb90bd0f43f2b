"""Text around an answer that does not change it: following turns, end markers, markup, quotes, emoji, words, units.

Every function takes time linear in the text.
"""

import re
from fractions import Fraction

from topr_exp.grading.east_asian import NUMERAL, UNIT_AT_START
from topr_exp.grading.expression import rational_value
from topr_exp.grading.latex import SCALES, TooComplexError, tokenize

# A line with which a model goes on to another question, or to another speaker of a conversation.
_FURTHER_TURN = (
    r"\n[ \t*#_>]*(?:Q|Question|Problem|(?i:user|human|assistant|system|instruction|bot))[ \t]*\d*[*_]*:"
    r"|\n[ \t]*(?i:user|human|assistant|system)[ \t]*(?=\n|\Z)"
)
# Tokens that end a completion and were decoded as text: </s>, <|im_end|>, <end_of_turn>, [/INST].
_END_MARKER = (
    r"</s>|<\|[A-Za-z][A-Za-z0-9_]{2,}\|>|<｜[^<>｜]{3,40}｜>|<(?:eos|bos|pad|end_of_turn|start_of_turn|end_of_text)>"
    r"|\[/?INST\]|\[(?:EOS|PAD|SEP|END)\]"
)
END_OF_ANSWER = re.compile(f"{_FURTHER_TURN}|{_END_MARKER}")

# Zero-width characters, direction marks, soft hyphens, variants of emoji.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
_EMOJI = re.compile("[\u2600-\u27bf\u2b00-\u2bff\u20e3\U0001f000-\U0001faff]+")
_CALCULATION = re.compile(r"<<[^<>\n]{0,200}>>")  # GSM8K's <<6*7=42>>42
_LINE_BREAK = re.compile(r"<(?:br|hr|/p|/div|/li)\s*/?>", re.IGNORECASE)
_TAG = re.compile(r"</?([A-Za-z]\w{0,20})(?:\s[^<>]{0,200})?>")
_CLOSING_TAG = re.compile(r"</([A-Za-z]\w{0,20})>")
_MARKED = re.compile(r"(?<![\w)])(\*\*|__|\*)(?=\S)([^*_\n]+)(?<=\S)\1(?![\w(])")  # Markdown's **18**
_HIGHLIGHTED = re.compile(r"==([^=\n]+)==")
_CURRENCY = re.compile(r"\A(?:(?:US|CA|AU|NZ|HK|[ACS])\$|USD|EUR|GBP|INR|Rs\.?)\s*(?=[\d.]*\d)")

_SINGLE_QUOTED = re.compile(r"\A['‘’]([^'‘’\n]{1,200})['‘’]")
_QUOTES = '"“”„«»‹›「」『』【】`'
_BEFORE_ANSWER = " \t\r\n:*_~=#→•" + _QUOTES
_AFTER_ANSWER = " \t\r\n*_~,;:" + _QUOTES


def without_markup(text: str) -> str:
    """The text without tags, Markdown, emoji and invisible characters, and with nothing before its first word."""
    text = _INVISIBLE.sub("", text)
    text = _EMOJI.sub(" ", text)
    text = _CALCULATION.sub("", text)
    text = _LINE_BREAK.sub("\n", text)
    text = _without_tags(text)
    text = _MARKED.sub(r"\2", text)
    text = _HIGHLIGHTED.sub(r"\1", text)
    text = text.lstrip(_BEFORE_ANSWER)
    text = _SINGLE_QUOTED.sub(r"\1", text)
    return _CURRENCY.sub("", text)


def _without_tags(text: str) -> str:
    """Drop tags that are closed somewhere; a tag without its closing one may be mathematics: a<b>c."""
    closed_names = set(_CLOSING_TAG.findall(text))
    return _TAG.sub(lambda tag: "" if tag[1] in closed_names else tag[0], text)


def without_punctuation(answer: str) -> str:
    """The answer without the separators, quotes and marks around it."""
    return answer.lstrip(_BEFORE_ANSWER).rstrip(_AFTER_ANSWER)


# ---- a number, and the words around it

_SCALE = rf"\s*(?:{'|'.join(SCALES)})s?\b"  # 5 million
_NUMBER = re.compile(r"[-+]?\$?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)%?", re.ASCII)
_LEADING_NUMBER = re.compile(
    rf"[-+−]?\s*(?:\\?[$€£¥￥₹]\s*)?(?:\d+(?:,\d{{3}})*(?:\.\d+)?|\.\d+)(?:{_SCALE})*(?:\s*\\?[%％$¢€£])?",
    re.ASCII | re.IGNORECASE,
)
NUMBER_IN_TEXT = re.compile(
    rf"(?:(?<![\w.)])-)?\$?(?:(?:\d+(?:,\d{{3}})+|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:{_SCALE})*(?:{NUMERAL})*",
    re.ASCII | re.IGNORECASE,
)
# Greek and mathematical letters, which are variables and constants; not μ and Ω of units.
_SYMBOLS = "\u0370-\u03a8\u03aa-\u03bb\u03bd-\u03ff\u2100-\u2125\u2127-\u214f\U0001d400-\U0001d7ff"
# \w has ², ½, ₁ and ① too, and the numerals of Chinese, such as 万, ten thousand.
_DIGITS = r"\d\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209c\u2460-\u24ff零一二三四五六七八九十百千万萬亿億兆半"
_LETTER = rf"[^\W_{_DIGITS}{_SYMBOLS}]"
_WORDS = re.compile(
    rf"(?:{_LETTER}|[\s,;:()\[\]'’.!?°%&$€£–—-]|/(?=\s?{_LETTER})|(?<=[A-Za-z])(?:[²³]|\^[23]|\^\{{[23]\}}))*"
)
# Units that the comparison would read as variables; the golds here are numbers alone.
_SHORT_UNIT = re.compile(r"\s*(?:[mgshlLCF]|[kKMGT]B|kW|sq|yr|wk|qt|pt)\s*")
_MONEY = re.compile("[$£€¥₹]")  # $5m is five millions
_WORD_MARK = re.compile(r"['.]\s*[A-Za-z]|\A\s*percent\b")  # Mary's, sq. ft.; 18 sin a is a product
_SPACED_WORDS = re.compile(r"\s(?:[^A-Za-z]*[A-Za-z]){3}")  # more letters than a product of variables has
_SEPARATOR = re.compile(r"[,;:()\[\]/²³°^–—-]|\band\b", re.IGNORECASE)
_PARENTHESIS = re.compile(r"(?<=\s)\(((?:[^()]|\([^()]{0,100}\)){0,200})\)")
_MAX_CALCULATIONS = 3  # evaluated in one answer
_SIGN_OF_CALCULATION = re.compile(r"=|[\d)]\s*(?:[-+−–*/×÷·⋅^]|\\(?:times|cdot|div)\b)", re.ASCII)
# Words that take something back or make another number, and letters that may be variables.
_DECISIVE = re.compile(
    r"\b(?:or|nor|not|no|never|but|wrong|incorrect|false|minus|plus|times|less|more|fewer|except|unless|if|instead"
    r"|rather|about|between|half|halves|thirds?|quarters?|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven"
    r"|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousands?|[mbtr]+illions?|dozens?|pi"
    r"|squared|cubed)\b|n['’]t\b|(?<![A-Za-z])[bejknopqrt-z](?![A-Za-z])",
    re.IGNORECASE,
)


def is_number(gold: str) -> bool:
    """Check for a single number, as GSM8K's golds are."""
    return _NUMBER.fullmatch(gold.strip()) is not None


def begins_with_number(text: str) -> bool:
    return _LEADING_NUMBER.match(text) is not None


def without_words(answer: str) -> str:
    """The number before words that only describe it: 60 of "60 clips in April and May", 42 of "42 km/h (6 × 7)".

    The answer stays as it is where the words hold another number, a letter, "or", "not" or the like.
    """
    leading = _LEADING_NUMBER.match(answer)
    if leading is None:
        return answer
    number = leading.group().strip()
    words = answer[leading.end() :]
    if re.match(NUMERAL, words):  # 5万
        return answer
    words_behind_unit = UNIT_AT_START.sub("", words)
    has_east_asian_unit = words_behind_unit != words
    if has_east_asian_unit and not words_behind_unit.strip(" .!"):
        return number
    is_money = _MONEY.search(number) is not None
    if _SHORT_UNIT.fullmatch(words) and not is_money:
        return number
    has_mark_of_words = number.endswith("%") or _WORD_MARK.search(words) is not None
    are_words = has_mark_of_words and words.isascii() and _SPACED_WORDS.match(words) is not None
    has_separator = _SEPARATOR.search(words_behind_unit) is not None
    if not (are_words or has_separator):  # a unit or a product: the comparison of the answers tells
        return answer
    if _only_describe(_without_calculations(words_behind_unit, number)):
        return number
    return answer


def _without_calculations(words: str, number: str) -> str:
    """Drop parentheses that calculate the number before the words."""
    return _PARENTHESIS.sub(
        lambda match: "" if _calculates(match[1], number) else match[0], words, count=_MAX_CALCULATIONS
    )


def _only_describe(words: str) -> bool:
    """Check for words that neither change the number before them nor take it back."""
    return _WORDS.fullmatch(words) is not None and _DECISIVE.search(words) is None


def _calculates(parenthesis: str, number: str) -> bool:
    """Check for a calculation of the number, such as "6 × 7" or "total = 6 × 7 = 42", without another value."""
    if _SIGN_OF_CALCULATION.search(parenthesis) is None:
        return False
    side_values = set()
    for side in parenthesis.split("="):
        side_value = _value(side)
        if side_value is not None:
            side_values.add(side_value)
        elif not _only_describe(side):
            return False
    return side_values == {_value(number)}


def _value(text: str) -> Fraction | None:
    try:
        return rational_value(tokenize(text))
    except TooComplexError:
        return None


def last_number(text: str) -> str | None:
    """The last number of a text; a minus sign belongs to it unless it subtracts. None without one."""
    numbers = NUMBER_IN_TEXT.findall(text)
    if not numbers:
        return None
    return numbers[-1]
