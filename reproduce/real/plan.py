"""The study's plan: its runs, the steps that they are done in, and the minutes of each on one H200."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from topr_exp import Config

MODEL = "smollm2_135m"
LOSSES = ("topr", "naive", "sft", "tis", "ppo")  # TOPR first: the hypothesis is about it
SHARES = (None, 0.1, 0.2, 0.5)  # effective proportions of positives; None: the completions' own, c = 0
SEEDS = (0, 1, 2)
RUNS_PER_STEP = 4  # what ten minutes hold
IMITATION_EPOCHS = 2

# Measured with this model on an H200 (docs/performance.md)
UPDATED_PER_SECOND = 44_200  # completion tokens of an update
SAMPLED_PER_SECOND = 7_200  # tokens of sampler=hf, 512 completions at once: the slowest that was measured
# Assumed
START_SECONDS = 30  # of a run that neither samples nor updates
SOLUTIONS = 7_473  # GSM8K's, to imitate
ASSUMPTIONS = (
    f"at {UPDATED_PER_SECOND:,} completion tokens/s of an update and {SAMPLED_PER_SECOND:,} tokens/s of sampling, both "
    f"measured, if every completion had its limit of tokens, with {START_SECONDS} s for a run's start, assumed"
)


class Cell(NamedTuple):
    """A run on the completions that all runs share."""

    loss: str
    share: float | None
    seed: int


def cell_of(settings: Mapping[str, Any]) -> Cell:
    """The cell of a run by its settings by dotted key, or those of its record."""
    return Cell(settings["algo.name"], settings.get("effective_positive"), settings["seed"])


@dataclass(frozen=True)
class Step:
    """Runs that are done together."""

    name: str
    cells: tuple[Cell, ...]  # none: the imitation, which makes the model that they begin from

    @property
    def words(self) -> list[str]:
        """The sweep that holds its runs."""
        losses, shares, seeds = dict[str, None](), dict[str, None](), dict[str, None]()
        for cell in self.cells:
            losses[cell.loss] = None
            shares["null" if cell.share is None else f"{cell.share:g}"] = None
            seeds[str(cell.seed)] = None
        return [f"algo={','.join(losses)}", f"effective_positive={','.join(shares)}", f"seed={','.join(seeds)}"]


IMITATION = Step("imitation of GSM8K's solutions", ())
SAMPLING = Step("sampling, and the first run", (Cell("topr", None, SEEDS[0]),))


def plan_steps(seeds: Sequence[int] = SEEDS) -> list[Step]:
    """All steps in order, each run in one of them."""
    steps = [IMITATION, SAMPLING]
    for loss in LOSSES:
        cells = cells_of_loss(loss, seeds)
        for start in range(0, len(cells), RUNS_PER_STEP):
            cells_of_step = cells[start : start + RUNS_PER_STEP]
            step_seeds = dict.fromkeys(str(cell.seed) for cell in cells_of_step)
            new_cells = [cell for cell in cells_of_step if cell not in SAMPLING.cells]
            steps.append(Step(f"{loss}, seed {' '.join(step_seeds)}", tuple(new_cells)))
    return steps


def cells_of_loss(loss: str, seeds: Sequence[int]) -> tuple[Cell, ...]:
    """A loss's runs; SFT is one a seed, since a baseline only scales it."""
    shares = (None,) if loss == "sft" else SHARES
    cells = []
    for seed in seeds:
        cells += [Cell(loss, share, seed) for share in shares]
    return tuple(cells)


# ---- minutes


def minutes_of(step: Step, config: Config, recorded: Collection[Cell]) -> float:
    """The minutes that what a step lacks takes on one H200 at most; config: of any of the runs."""
    limit = config.sampler.max_new_tokens
    test_seconds = completions_tested(config) * limit / SAMPLED_PER_SECOND
    if step is IMITATION:
        seconds = START_SECONDS + 2 * test_seconds + IMITATION_EPOCHS * SOLUTIONS * limit / UPDATED_PER_SECOND
        return seconds / 60
    tokens = completions_sampled(config) * limit
    missing_count = len([cell for cell in step.cells if cell not in recorded])
    seconds = missing_count * (START_SECONDS + tokens / UPDATED_PER_SECOND + test_seconds)
    if step is SAMPLING:  # then their log μ, and the test of the model that all begin from
        seconds += tokens / SAMPLED_PER_SECOND + tokens / UPDATED_PER_SECOND + test_seconds
    return seconds / 60


def completions_sampled(config: Config) -> int:
    assert config.data.train_problems is not None
    return config.data.train_problems * config.data.n


def completions_tested(config: Config) -> int:
    assert config.data.test_problems is not None
    return config.data.test_problems * config.data.eval_n
