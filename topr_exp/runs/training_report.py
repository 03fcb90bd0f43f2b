"""Lines for the user on composed training sets."""

from dataclasses import dataclass

from topr_exp.algorithms.base import Loss
from topr_exp.composition.training_set import TrainingSet
from topr_exp.runs.reward_signs import report_reward_signs
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.cut_off import warn_of_sampled


@dataclass(kw_only=True)
class TrainingReport:
    """Reports the rewards of each training set (in rounds: of the first), and warns once of cut-off completions."""

    loss: Loss  # of the run
    in_rounds: bool
    weight_key: str  # the setting that decides the weight of positives
    token_limit: int | None  # sampler.max_new_tokens; None where nothing is sampled: a log is reported when it is read
    drops_truncated: bool  # compose.drop_truncated
    has_reported_signs: bool = False
    has_warned_of_cut_off: bool = False

    def describe(self, training_set: TrainingSet) -> None:
        """Print the lines on a training set that are due."""
        if not (self.in_rounds and self.has_reported_signs):
            report_reward_signs(training_set, self.loss, self.weight_key)
            self.has_reported_signs = True
        if self.token_limit is not None and not self.has_warned_of_cut_off:
            self.has_warned_of_cut_off = self.warn_of_cut_off(training_set, self.token_limit)
        note = training_set.description["note"]
        if note and not self.in_rounds:
            warn(note)

    def warn_of_cut_off(self, training_set: TrainingSet, token_limit: int) -> bool:
        """Warn where many sampled completions were cut off; returns whether it did."""
        completions = training_set.completions
        is_truncated = completions.is_truncated
        if completions.is_imported is not None:
            is_truncated = is_truncated[~completions.is_imported]
        dropped = None if self.in_rounds else self.drops_truncated  # rounds can't leave them out
        return warn_of_sampled(is_truncated, token_limit, dropped=dropped)
