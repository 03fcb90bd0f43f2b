"""How many completions a second the grader does, against math-verify alone on the same completions in the same run.

    python benchmarks/grading.py [--data ../shared/data] [--rollouts FILE] [--problems 250]

The mix: solutions of MATH and GSM8K problems as completions, several for each problem as in training, their final
answers being the gold, the gold written otherwise, another problem's answer, or none. `--rollouts` adds completions of
a model (JSON lines with completion, gold and format); the shipped tiny model adds some of its own.
math-verify gets what it asks for: whole completions, and once more only the answers that were extracted for it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from topr_exp.grading import Grader, extract, last_boxed
from topr_exp.grading.equivalence import compare_quickly

T = TypeVar("T")
Item = tuple[str, str, str]  # format, completion, gold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--rollouts", type=Path)
    parser.add_argument("--problems", type=int, default=250)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tiny", type=int, default=50, help="problems of each kind that the tiny model answers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    items: list[Item] = []
    if options.data.is_dir():
        items += math_items(options.data, options.problems, options.samples, draw)
        items += gsm8k_items(options.data, options.problems, options.samples, draw)
    items += tiny_items(options.tiny)
    if options.rollouts:
        rows = [json.loads(line) for line in options.rollouts.read_text().splitlines()]
        items += [(row["format"], row["completion"], row["gold"]) for row in rows]
    if not items:
        sys.exit(f"{options.data} is absent, --tiny is 0 and no --rollouts are given")
    draw.shuffle(items)
    mixed(items)
    symbolic_only(items)


def math_items(data: Path, problems: int, samples: int, draw: random.Random) -> list[Item]:
    rows = [json.loads(line) for line in (data / "math" / "train4500.jsonl").read_text().splitlines()]
    golds = [last_boxed(row["solution"]) for row in rows]
    items: list[Item] = []
    for index in draw.sample(range(len(rows)), min(problems, len(rows))):
        text, gold = rows[index]["solution"], golds[index]
        assert gold is not None
        for _ in range(samples):
            kind = draw.choices(["gold", "rewritten", "other", "none"], [0.4, 0.15, 0.35, 0.1])[0]
            other = draw.choice(golds)
            answer = {"gold": gold, "rewritten": rewritten(gold), "other": other, "none": ""}[kind]
            items.append(("math", text.replace(rf"\boxed{{{gold}}}", rf"\boxed{{{answer}}}" if answer else ""), gold))
    return items


def rewritten(gold: str) -> str:
    """The same value in another form, or nearly."""
    if "+" in gold and gold.count("+") == 1 and not set(gold) & set("(){},="):
        left, right = gold.split("+")
        return f"{right}+{left}"
    if r"\frac" in gold:
        return gold.replace(r"\frac", r"\dfrac ")
    if r"\sqrt" in gold:
        return gold.replace(r"\sqrt", r"1\sqrt")
    return f"{gold}.0" if gold.isdigit() else f"{gold} "


def gsm8k_items(data: Path, problems: int, samples: int, draw: random.Random) -> list[Item]:
    rows = [json.loads(line) for line in (data / "gsm8k" / "train.jsonl").read_text().splitlines()]
    items: list[Item] = []
    for row in draw.sample(rows, min(problems, len(rows))):
        reasoning, _, gold = row["answer"].partition("####")
        gold = gold.strip()
        for _ in range(samples):
            answer = draw.choice([gold, gold, f"${gold}", str(draw.randint(1, 200)), f"{gold} dollars"])
            items.append(("gsm8k", f"{reasoning}The answer is {answer}.", gold))
    return items


def tiny_items(problems: int) -> list[Item]:
    """Eight sampled completions of the shipped model to each of some generated problems."""
    if not problems:
        return []
    import torch

    from topr_exp.data import embedded_gsm8k, embedded_math
    from topr_exp.models.loading import load_model

    torch.manual_seed(0)
    model, tokenizer = load_model("tiny")
    items: list[Item] = []
    for format, source, template in (
        ("gsm8k", embedded_gsm8k, "Question: {}\nAnswer:"),
        ("math", embedded_math, "Problem: {}\nSolution:"),
    ):
        for problem in source.generate("test", problems, 0):
            prompt = tokenizer(template.format(problem.question), return_tensors="pt")["input_ids"]
            rows = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                max_new_tokens=128,
                num_return_sequences=8,
            )
            texts = tokenizer.batch_decode(rows[:, prompt.shape[1] :], skip_special_tokens=True)
            items += [(format, text, problem.answer) for text in texts]
    return items


def mixed(items: list[Item]) -> None:
    print(f"{len(items)} completions")
    verdicts: dict[int, list[str]] = {}
    for workers in (1, 2):
        verdicts[workers], seconds = timed(lambda workers=workers: ours(items, workers))
        report(f"this grader, {workers} worker(s), start included", len(items), seconds)
    graders = {format: warm(format, 2) for format in ("math", "gsm8k", "final")}
    _, own = timed(lambda: grade_with(graders, items))
    report("this grader, 2 workers, warm", len(items), own)
    for grader in graders.values():
        print(f"    {grader.name}: {dict(sorted(grader.counters.items()))}")
        grader.close()
    theirs, alone = timed(lambda: [verify_whole(item) for item in items])
    report("math-verify alone, 1 process, whole completions", len(items), alone, own)
    with ProcessPoolExecutor(2) as pool:
        _, both = timed(lambda: list(pool.map(verify_whole, items, chunksize=50)))
    report("math-verify alone, 2 processes, whole completions", len(items), both, own)
    boxed = [item for item in items if extract(item[1], item[0]) is not None]
    _, extracted = timed(lambda: [verify_extracted(item) for item in boxed])
    report("math-verify alone, 1 process, extracted answers", len(boxed), extracted, own * len(boxed) / len(items))
    agreement = sum((mine == "correct") == paid for mine, paid in zip(verdicts[2], theirs, strict=True)) / len(items)
    print(f"    both agree on {agreement:.1%} (math-verify also pays completions without a stated answer)")


def symbolic_only(items: list[Item]) -> None:
    """The distinct pairs that neither strings nor exact rationals decide, and as many equal ones in another form."""
    pairs = sorted({(gold, extract(text, format) or "") for format, text, gold in items})
    hard = [(gold, answer) for gold, answer in pairs if answer and undecided(gold, answer)]
    equal = [(gold, form) for gold in sorted({gold for gold, _ in pairs}) for form in equal_forms(gold)]
    for name, chosen in (("as they come in the mix, nearly all wrong", hard), ("equal in another form", equal)):
        print(f"{len(chosen)} distinct symbolic comparisons, {name}")
        compare_symbolic([("math", rf"\boxed{{{answer}}}", gold) for gold, answer in chosen])


def undecided(gold: str, answer: str) -> bool:
    verdict, path = compare_quickly(gold, answer)
    return verdict is None or path == "numeric"


def equal_forms(gold: str) -> list[str]:
    """A few ways to write the same expression that no string comparison sees through."""
    if not (r"\sqrt" in gold or r"\pi" in gold) or set(gold) & set(",=<>[]:%") or r"\text" in gold:
        return []
    forms = [
        rf"\frac{{2({gold})}}{{2}}",
        rf"({gold})+\sqrt{{3}}-\sqrt{{3}}",
        rf"\sqrt{{2}}\cdot\frac{{{gold}}}{{\sqrt{{2}}}}",
    ]
    return [form for form in forms if undecided(gold, form)]


def compare_symbolic(symbolic: list[Item]) -> None:
    if not symbolic:
        return
    best: dict[int, float] = {}
    for workers in (1, 2):
        grader = warm("math", workers)
        verdicts, best[workers] = timed(lambda grader=grader: grade_with({"math": grader}, symbolic))
        grader.close()
        report(f"this grader, {workers} worker(s), warm", len(symbolic), best[workers])
    for item in symbolic:  # math-verify warm, too
        verify_extracted(item)
    theirs, seconds = timed(lambda: [verify_extracted(item) for item in symbolic])
    report("math-verify alone, 1 process, warm", len(symbolic), seconds, best[1])
    print(f"    accepted: {verdicts.count('correct')} by this grader, {sum(theirs)} by math-verify")


def ours(items: list[Item], workers: int) -> list[str]:
    graders = {format: Grader(format, workers) for format in {format for format, _, _ in items}}
    try:
        return grade_with(graders, items)
    finally:
        for grader in graders.values():
            grader.close()


def grade_with(graders: dict[str, Grader], items: list[Item]) -> list[str]:
    verdicts = [""] * len(items)
    for format in {format for format, _, _ in items}:
        places = [i for i, item in enumerate(items) if item[0] == format]
        outcomes = graders[format].grade((items[i][1], items[i][2]) for i in places)
        for i, outcome in zip(places, outcomes, strict=True):
            verdicts[i] = outcome.verdict
    return verdicts


def warm(format: str, workers: int) -> Grader:
    grader = Grader(format, workers)
    if format == "math":
        list(grader.grade([(rf"\boxed{{{i}+\sqrt{{2}}}}", rf"\sqrt{{2}}+{i}") for i in range(2 * workers)]))
        grader.counters.clear()
    return grader


def verify_whole(item: Item) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(rf"\boxed{{{item[2]}}}"), parse(item[1])))


def verify_extracted(item: Item) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(rf"\boxed{{{item[2]}}}"), parse(rf"\boxed{{{extract(item[1], item[0])}}}")))


def timed(run: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def report(name: str, count: int, seconds: float, ours: float | None = None) -> None:
    ratio = f"   this grader: {seconds / ours:.1f} times as fast" if ours else ""
    print(f"  {name:<52} {count / seconds:>9,.0f} a second{ratio}", flush=True)


if __name__ == "__main__":
    main()
