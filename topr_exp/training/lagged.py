"""Asynchronous training by a given lag: `schedule.lag`, the same for all groups or drawn for each."""

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.draws import random_generator
from topr_exp.config.groups import MAX_DRAWS
from topr_exp.training.asynchronous import AsyncRounds, Group


class LaggedRounds(AsyncRounds):
    """Groups start as many updates before they are trained on as their lag says; lag 0: the same bits as on-policy."""

    @property
    def lag_count(self) -> int:
        """Number of lags a group may have: 0 to the largest."""
        return len(self.schedule.lags)

    def take_batch(self, update_index: int) -> list[Group]:
        """Draw all groups that start with the current weights, for this update and later ones; returns the due ones."""
        last_due = min(update_index + self.lag_count, self.round_count) - 1
        for due in range(update_index, last_due + 1):
            self.start_groups(update_index, due)
        batch = [group for group in self.queue if group.due == update_index]
        self.remove_groups(batch)
        return batch

    def start_groups(self, update_index: int, due: int) -> None:
        """Draw those groups of update `due` that start just before update `update_index`."""
        starts_now = self.start_times(due) == update_index
        if not starts_now.any():
            return
        indices = self.problems_of(due)
        first_shard = 0  # as on-policy, where all start at once
        spare_indices = None
        if not starts_now.all():  # groups that start at another time take other seeds and other spare problems
            lag = due - update_index
            shards_per_lag = self.groups_per_round * MAX_DRAWS  # the most that one call samples
            first_shard = lag * shards_per_lag
            all_indices = np.arange(self.problem_count)
            spare_indices_of_all_lags = np.setdiff1d(all_indices, indices)
            spare_indices = spare_indices_of_all_lags[lag :: self.lag_count]
        tables = self.sample_groups(indices[starts_now], due, first_shard, spare_indices=spare_indices)
        self.queue += [Group(table, update_index, due) for table in tables]

    def start_times(self, due: int) -> NDArray[np.int64]:
        """Draw the update before which each group of update `due` starts, [prompts]; none starts before the first."""
        rng = random_generator(self.seed, self.iteration, f"lags {due}")
        lags = rng.choice(self.lag_count, size=self.groups_per_round, p=self.schedule.lags)
        return np.maximum(due - lags, 0)
