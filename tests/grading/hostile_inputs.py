"""Completions that break graders: each has to be answered in time, harmlessly, and never as correct."""

DEEP = 100_000
DETERMINANT = r"\\".join("&".join(f"x_{i}y_{j}" for j in range(9)) for i in range(9))

IN_A_BOX = {
    "power tower": r"9^{9^{9^{9^{9}}}}",
    "factorial tower": r"((((9!)!)!)!)!",
    "big power": r"(x+y+z+w)^{5000}",
    "big binomial": r"\binom{10^{9}}{10^{8}}",
    "long digits": "7" * 1_000_000,
    "long decimal": "0." + "3" * 1_000_000,
    "1900 digits to the 1900 digits": "7" * 900 + "^{" + "7" * 900 + "}",
    "exponent of many digits": "1e999999999",
    "negative exponent": "1E-999999999",
    "nested braces": "{" * DEEP + "1" + "}" * DEEP,
    "nested parentheses": "(" * DEEP + "1" + ")" * DEEP,
    "nested fractions": r"\frac{1}{" * 200 + "x" + "}" * 200,
    "nested roots": r"\sqrt{2+" * 30 + "x" + "}" * 30,
    "nested boxes": r"\boxed{" * 300 + "1" + "}" * 300,
    "continued scripts": "x" + "^x" * 500,
    "signs": "-" * 1_900 + "1",
    "plus minus": r"\pm 1" * 100,
    "sum of many terms": "+".join(f"x_{{{i}}}" for i in range(150)),
    "product of sums": "".join(f"(x+{i})" for i in range(60)),
    "endless integral": r"\int_0^1 x^{x^{x^x}} dx",
    "nested integrals": r"\int_0^1 \int_0^1 \int_0^1 \frac{e^{xyz}}{1+x^2+y^2} dx dy dz",
    "endless sum": r"\sum_{k=1}^{\infty} \frac{k!}{k^k+\sqrt{k}}",
    "long product": r"\prod_{k=1}^{1000000} (k^2+1)",
    "tower of e": r"e^{e^{e^{e^{10}}}}",
    "root of a tower": r"\sqrt{2}^{\sqrt{2}^{1000000000}}",
    "greatest common divisor": r"\gcd(10^{10^8}, 6^{10^8})",
    "matrix power": r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{1000000000}",
    "determinant": r"\begin{vmatrix}" + DETERMINANT + r"\end{vmatrix}",
    "polynomial equation": "x^{97}+3x^{55}-17x^3+x=12",
    "import": "__import__('os').system('touch hostile')",
    "import in letters": r"\text{__import__('os').system('touch hostile')}",
    "lambda": "(lambda: [c for c in ().__class__.__base__.__subclasses__()])()",
    "open": "open('hostile','w').write('x')",
    "variable": r"\variable{__import__('os').system('touch hostile')}",
    "operator name": r"\operatorname{eval}(x)",
    "symbol with code in a sum": r"\sum_{k=1}^{\infty} \mathrm{__import__("+"'os').system('touch hostile')"+r"}^k",
    "write18": r"\immediate\write18{touch hostile}",
    "NUL": "1\x00",
    "control characters": "".join(chr(i) for i in range(32)) + "1",
    "Arabic digits": "١٢٣",
    "superscript digits": "¹",
    "Roman numeral": "Ⅰ",
    "zero-width space": "1\u200b1",
    "lone surrogate": "\ud800",
    "regular expression trap": r"\text{" * 300,
    "spaces": "1" + " " * 1_000_000 + "2",
    "spaced groups": "1" + " 000" * 480,
    "backslashes": "\\" * 1_999,
    "megabyte": "a+b " * 250_000,
    "not a number": r"\frac{0}{0}",
    "zero to a negative": "0^{-1}",
}  # fmt: skip

WHOLE = {
    "unclosed boxes": r"\boxed{" * DEEP,
    "unclosed boxes with text": r"\boxed{1 " * DEEP,
    "closed boxes": r"\boxed{2} " * DEEP,
    "bare boxes": r"\boxed 2 " * DEEP,
    "braces": "{" * 500_000 + "}" * 500_000,
    "megabyte of text": "so it goes on and on. " * 50_000,
    "megabyte of lines": "\n" * 1_000_000,
    "megabyte of NUL": "\x00" * 1_000_000,
    "phrases": "The answer is " * 70_000,
    "phrases with numbers": "The answer is 2. " * 60_000,
}

GOLD = r"\pi+1"
GOLD_NUMBER = "1"


def completions() -> list[tuple[str, str]]:
    """(name, completion) of all."""
    boxed = [(name, rf"The answer is \boxed{{{answer}}}") for name, answer in IN_A_BOX.items()]
    return boxed + list(WHOLE.items())
