"""A backslash and an n where a line break was meant: a shell's plain quotes and YAML's single ones keep the two."""

from __future__ import annotations

import re

# LaTeX has commands that begin so; in any other text a line break was meant.
LATEX = (
    "abla|atural|cong|e|earrow|eg|eq|ewline|exists|geq|gtr|i|leq|less|mid|obreak|oindent|ot|otin|parallel|prec|sim|"
    "subseteq|succ|supseteq|u|warrow"
)
MEANT = re.compile(rf"\\n(?!(?:{LATEX})(?![a-zA-Z]))")


def check_line_breaks(field: str, example: str, *texts: str | None) -> None:
    """Raise ValueError where a text holds what stands for a line break in other languages.

    field: what the message begins with. example: how bash is given one.
    """
    for text in texts:
        if text is not None and MEANT.search(text):
            raise ValueError(
                f"{field} holds a backslash and an n, which make no line break; in bash write one as in "
                f"$'{example}', in a YAML file in double quotes; got {text}"
            )
