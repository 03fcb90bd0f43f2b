"""Worked examples for few-shot prompts, written for this project in the form of the two benchmarks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exemplar:
    """A question with its worked steps; the answer's wording is added for the answer format."""

    question: str
    steps: str
    answer: str


GSM8K = (
    Exemplar(
        "A ferry carries 14 cars on its first trip and 9 more cars than that on its second trip. "
        "How many cars does it carry on both trips?",
        "On the second trip the ferry carries 14 + 9 = 23 cars. On both trips it carries 14 + 23 = 37 cars.",
        "37",
    ),
    Exemplar(
        "Rosa reads 12 pages a day for 5 days. Her book has 90 pages. How many pages are left?",
        "In 5 days Rosa reads 12 * 5 = 60 pages. There are 90 - 60 = 30 pages left.",
        "30",
    ),
    Exemplar(
        "A baker makes 48 rolls and packs them in bags of 6. Each bag sells for $4. How much does he earn if he sells "
        "every bag?",
        "The baker fills 48 / 6 = 8 bags. He earns 8 * 4 = 32 dollars.",
        "32",
    ),
    Exemplar(
        "Half of the 36 children in a choir sing alto. A third of the altos are absent. How many altos are present?",
        "There are 36 / 2 = 18 altos. Of them 18 / 3 = 6 are absent. So 18 - 6 = 12 altos are present.",
        "12",
    ),
    Exemplar(
        "Ivan has 25 marbles. He wins 8 marbles in the morning and loses 5 marbles twice in the afternoon. "
        "How many marbles does he have in the evening?",
        "After the morning Ivan has 25 + 8 = 33 marbles. In the afternoon he loses 5 * 2 = 10. "
        "In the evening he has 33 - 10 = 23.",
        "23",
    ),
    Exemplar(
        "A shirt costs $30. It is sold at 20% off, and a buyer pays with a $50 note. How much change is given?",
        "The discount is 30 * 20 / 100 = 6 dollars. The shirt then costs 30 - 6 = 24 dollars. "
        "The change is 50 - 24 = 26 dollars.",
        "26",
    ),
    Exemplar(
        "A garden is 15 meters long and 4 meters wide. How many meters of fence go around it twice?",
        "Once around is 2 * (15 + 4) = 38 meters. Twice around is 2 * 38 = 76 meters.",
        "76",
    ),
    Exemplar(
        "Lena is 7 years old. Her uncle is four times as old as she is. How old will he be in 3 years?",
        "The uncle is now 4 * 7 = 28 years old. In 3 years he will be 28 + 3 = 31.",
        "31",
    ),
)

MATH = (
    Exemplar(
        r"What is the sum of all integers $n$ with $-3 < n \le 5$?",
        "The integers are $-2, -1, 0, 1, 2, 3, 4, 5$. Those from $-2$ to $2$ cancel and leave $3 + 4 + 5 = 12$.",
        "12",
    ),
    Exemplar(
        r"Write $\frac{5}{6} - \frac{3}{8}$ as a fraction in lowest terms.",
        r"The least common denominator is $24$, so the difference is $\frac{20}{24} - \frac{9}{24} = \frac{11}{24}$, "
        "which is in lowest terms.",
        r"\frac{11}{24}",
    ),
    Exemplar(
        r"Find all $x$ with $|2x - 1| < 7$. Give the answer in interval notation.",
        r"The inequality says $-7 < 2x - 1 < 7$, so $-6 < 2x < 8$ and $-3 < x < 4$.",
        "(-3,4)",
    ),
    Exemplar(
        r"A right triangle has a hypotenuse of length $6$ and a leg of length $2$. How long is the other leg?",
        r"By the Pythagorean theorem the other leg has length $\sqrt{6^2 - 2^2} = \sqrt{32} = 4\sqrt{2}$.",
        r"4\sqrt{2}",
    ),
)
