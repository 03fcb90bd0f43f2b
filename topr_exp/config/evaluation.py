"""Settings of evaluation (`evaluation`)."""

from __future__ import annotations

from dataclasses import dataclass

from topr_exp.config.section import OptionalCount, Section, Seed


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """Evaluation samples with the sampler's settings and this seed, the same for every run that is compared."""

    seed: Seed
    every: OptionalCount = None  # updates between two evaluations while training; None: only before and after
    problems: OptionalCount = None  # test problems (the first ones) that these use; None: all

    def check(self) -> None:
        if self.problems is not None and self.every is None:
            raise ValueError(f"problems={self.problems} is not read where every is null; set evaluation.every too")
