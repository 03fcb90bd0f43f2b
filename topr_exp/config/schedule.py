"""Settings of how often new completions are sampled (the `schedule` group)."""

from __future__ import annotations

from dataclasses import dataclass

from topr_exp.config.section import Section


@dataclass(frozen=True)
class ScheduleConfig(Section):
    """How often new completions are sampled from the policy in training."""

    prompts: int | None = None  # problems that are sampled at a time; None: all at once, then one pass over the set
    updates: int | None = None  # optimizer steps before sampling again
    rounds: int | None = None  # how many times that is done
    replay: float = 0.0  # probability that a problem's completions come from an earlier round instead

    def check(self) -> None:
        if self.prompts is None:
            if (self.updates, self.rounds, self.replay) != (None, None, 0.0):
                raise ValueError(
                    "prompts must be set where updates, rounds or replay are (schedule=on_policy); got null"
                )
            return
        for field in ("prompts", "updates", "rounds"):
            value = getattr(self, field)
            if value is None or value < 1:
                raise ValueError(
                    f"{field} must be 1 or more for an on-policy schedule; got {str(value).replace('None', 'null')}"
                )
        if not 0 <= self.replay < 1:
            raise ValueError(f"replay must be in [0, 1); got {self.replay:g}")
