"""Runs that nobody ran, with figures that are all different, for what the report makes of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topr_exp.report.reader import Run


def evaluation(
    correct: float, maj: float, invalid: float, *, se: float | None = None, ends: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Shares in percent; ends: the interval over problems of pass@1, and of maj@8 three points higher."""
    results: dict[str, Any] = {
        "pass@1": correct / 100, "maj@8": maj / 100, "correct": correct / 100, "invalid": invalid / 100,
        "incorrect": 1 - (correct + invalid) / 100, "problems": 50,
    }  # fmt: skip
    if se is not None:
        results |= {"pass@1_se": se / 100}
    if ends is not None:
        low, high = (end / 100 for end in ends)
        results["pass@k"] = {"1": {"value": correct / 100, "low": low, "high": high},
                           "8": {"value": correct / 100 + 0.2, "low": low + 0.2, "high": high + 0.2}}  # fmt: skip
        results["maj@k"] = {"8": {"value": maj / 100, "low": low + 0.03, "high": high + 0.03}}
    return results


def made_run(
    name: str,
    base: Mapping[str, Any],
    final: Mapping[str, Any],
    curve: Mapping[int, tuple[float, float]] | None = None,
    updates: Sequence[Mapping[str, float]] = (),
    **settings: Any,
) -> Run:
    """curve: step -> pass@1 and invalid in percent; settings: dots as two underscores."""
    seed = settings.get("seed", 0)  # decides completions and problems too
    config: dict[str, Any] = {"algo": {"name": "topr"}, "seed": seed, "sampler": {"seed": seed}, "data": {"seed": seed}}
    for key, value in settings.items():
        place = config
        *groups, last = key.split("__")
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    points = [{"optimizer_step": step, "samples_seen": 32 * step, "iteration": 1, "pass@1": correct / 100,
               "invalid": invalid / 100} for step, (correct, invalid) in (curve or {}).items()]  # fmt: skip
    logged = [{"optimizer_step": i, "samples": 32 * i, "iteration": 1, "step": i, **update}
              for i, update in enumerate(updates, 1)]  # fmt: skip
    summary = {"base": dict(base), "final": dict(final), "effective_positive": settings.get("effective_positive")}
    return Run(Path(name), name, config, summary, logged, points, status="done")
