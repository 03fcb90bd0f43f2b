"""Asynchronous training by a virtual clock: how long a group waits follows from its completions' lengths.

`schedule.concurrency` groups are under way at once, each completion grows by `schedule.tokens_per_update` tokens a unit
of time, and a group is complete when its longest completion is. A policy (`schedule.when_stale`) chooses which group
comes next, and may wait for it. With `schedule.in_flight` each token is drawn by the weights of its moment: when they
change, the rest of each completion under way is drawn again.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from topr_exp.composition.selection import NothingKeptError
from topr_exp.config.staleness import StalenessPolicy, WaitingGroup
from topr_exp.sampling.sampler import Seed
from topr_exp.training.asynchronous import AsyncRounds, Group, longest_length, tables_of
from topr_exp.training.dropped_shares import DroppedShares
from topr_exp.training.rounds import RoundGroups
from topr_exp.types import TOPRError

IN_FLIGHT = 1  # in the seeds of continued completions
MAX_DROPS = 1000  # batches that a policy may drop before one that it trains on


class ClockedRounds(AsyncRounds):
    """Groups are trained on once they are complete; updates and sampling run side by side on one clock."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.schedule.concurrency is not None
        assert self.schedule.tokens_per_update is not None
        self.concurrency = self.schedule.concurrency
        self.tokens_per_update = self.schedule.tokens_per_update
        self.staleness_policy = self.schedule.staleness_policy
        self.may_drop = type(self.staleness_policy).drops is not StalenessPolicy.drops
        self.dropped_shares = DroppedShares(self.collector.questions.problems)
        self.groups_begun = 0  # number of groups begun so far
        self.now = 0.0  # on the virtual clock: the time of one update is 1
        self.trainer_idle = 0.0  # units of time since the last update
        self.sampler_idle = 0.0

    def draw_groups(self, update_index: int) -> RoundGroups:
        round_groups = super().draw_groups(update_index)
        metrics = round_groups.metrics | {
            "virtual_time": self.now,
            "trainer_idle": self.trainer_idle,
            "sampler_idle": self.sampler_idle,
        }
        if self.may_drop:
            self.dropped_shares.add(round_groups.groups, is_dropped=False)
            metrics |= self.dropped_shares.metrics()
        return replace(round_groups, metrics=metrics)

    def take_batch(self, update_index: int) -> list[Group]:
        """Let time pass until a batch is complete and while its update is computed."""
        self.trainer_idle = 0.0
        self.sampler_idle = 0.0
        if self.schedule.in_flight:
            self.continue_with_current_weights(update_index)
        capacity = self.staleness_policy.room(self.groups_per_round, self.concurrency)
        batch = self.wait_for_batch(update_index, capacity)
        if self.staleness_policy.waits:
            capacity -= self.groups_per_round  # the batch keeps its places until the update is computed
        self.pass_update(update_index, capacity)
        if self.schedule.in_flight:
            # Only the batch is summarized as sampled: the rest of every other group may be drawn again.
            self.drawn_tables = tables_of(batch)
        return batch

    # ---- the queue

    def wait_for_batch(self, update_index: int, capacity: int) -> list[Group]:
        """Let time pass until the staleness policy has a complete batch, and remove that from the queue.

        capacity: as in `begin_groups`.
        """
        dropped_count = 0
        while True:
            dropped_count += len(self.drop_stale(update_index))
            if dropped_count > MAX_DROPS * self.groups_per_round:
                raise TOPRError(
                    f"schedule.when_stale drops all: {dropped_count} groups before update {update_index + 1}"
                )
            self.begin_groups(update_index, capacity)
            batch = self.next_batch(update_index)
            if batch:
                self.remove_groups(batch)
                return batch
            wait_start = self.now
            self.pass_time(self.next_completion())
            self.trainer_idle += self.now - wait_start

    def next_batch(self, update_index: int) -> list[Group]:
        """List the groups that the staleness policy trains on next; none while too few of them are complete."""
        ranked_positions = []
        for position, group in enumerate(self.queue):
            if self.staleness_policy.waits or self.is_complete(group):
                waiting = waiting_group(group, position, update_index)
                rank = self.staleness_policy.rank(waiting)
                ranked_positions.append((rank, position))
        ranked_positions.sort()
        lowest_ranks = ranked_positions[: self.groups_per_round]
        batch = [self.queue[position] for _, position in lowest_ranks]
        if len(batch) < self.groups_per_round or not all(map(self.is_complete, batch)):
            return []
        return batch

    def drop_stale(self, update_index: int) -> list[Group]:
        """Remove and return the complete groups that the staleness policy drops; their shares go into the metrics."""
        dropped = []
        for position, group in enumerate(self.queue):
            waiting = waiting_group(group, position, update_index)
            if self.is_complete(group) and self.staleness_policy.drops(waiting):
                dropped.append(group)
        self.remove_groups(dropped)
        self.dropped_shares.add(tables_of(dropped), is_dropped=True)
        return dropped

    def is_complete(self, group: Group) -> bool:
        return group.due <= self.now

    def under_way(self) -> list[Group]:
        return [group for group in self.queue if not self.is_complete(group)]

    # ---- the clock

    def next_completion(self) -> float:
        """Return the time at which the next group is complete; infinite when none is under way."""
        return min((group.due for group in self.under_way()), default=math.inf)

    def time_after(self, tokens: int) -> float:
        """Return the time at which a completion has grown by this many tokens.

        It is the quotient of two whole numbers, so that what ends with the same token ends at the same time.
        """
        tokens_so_far = round(self.now * self.tokens_per_update)
        return (tokens_so_far + tokens) / self.tokens_per_update

    def pass_time(self, end: float) -> None:
        """Move the clock to `end`, with the groups that are under way now."""
        idle_share = 1 - len(self.under_way()) / self.concurrency
        self.sampler_idle += idle_share * (end - self.now)
        self.now = end

    def pass_update(self, update_index: int, capacity: int) -> None:
        """Move the clock by the unit of time in which an update is computed; after the last one nothing is drawn."""
        end = self.time_after(self.tokens_per_update)
        is_last_update = update_index + 1 >= self.round_count
        if is_last_update:
            self.now = end
            return
        self.begin_groups(update_index, capacity)
        while self.next_completion() <= end:
            self.pass_time(self.next_completion())
            self.begin_groups(update_index, capacity)
        self.pass_time(end)

    def begin_groups(self, update_index: int, capacity: int) -> None:
        """Draw groups with the current weights, until enough are under way or the queue holds `capacity` groups."""
        while len(self.under_way()) < self.concurrency and len(self.queue) < capacity:
            table = self.next_group()
            due = self.time_after(longest_length(table))
            self.queue.append(Group(table, update_index, due))

    def next_group(self) -> pa.Table:
        """Draw the completions of the next problem; with `compose.pass_rate`, of the next that it keeps."""
        for _ in range(self.problem_count):
            epoch, position = divmod(self.groups_begun, self.problem_count)
            problem_order = self.order_problems(epoch)
            next_problem = problem_order[position : position + 1]
            groups = self.sample_groups(next_problem, self.groups_begun, max_draws=1)
            self.groups_begun += 1
            if groups:
                return groups[0]
        raise NothingKeptError(
            f"compose.pass_rate={self.selection.pass_rate}: none of {self.problem_count} problems is solved so often"
        )

    # ---- completions under way when the weights change

    def continue_with_current_weights(self, update_index: int) -> None:
        """Draw the rest of all completions under way again, in shards, with the current weights."""
        length_by_position = self.lengths_so_far()
        positions_under_way = list(length_by_position)
        shard_size = self.collector.sampler.config.prompts_per_shard
        for start in range(0, len(positions_under_way), shard_size):
            positions = positions_under_way[start : start + shard_size]
            groups = [self.queue[position] for position in positions]
            lengths = [length_by_position[position] for position in positions]
            seed = (self.iteration, update_index, start, IN_FLIGHT)
            redrawn_tables = self.redraw_groups(groups, lengths, seed)
            for position, group, length, table in zip(positions, groups, lengths, redrawn_tables, strict=True):
                born = group.born
                if length == 0:  # no token is by older weights
                    born = update_index
                remaining_tokens = longest_length(table) - length
                due = self.time_after(remaining_tokens)
                self.queue[position] = Group(table, born, due)

    def redraw_groups(self, groups: list[Group], lengths: list[int], seed: Seed) -> list[pa.Table]:
        """Draw the completions of groups again from a length on, one for each group; returns their tables."""
        table = pa.concat_tables(tables_of(groups))
        kept_tokens = np.repeat(lengths, self.n)  # by completion
        redrawn = self.collector.redraw(table, kept_tokens, seed)
        return self.split_groups(redrawn)

    def lengths_so_far(self) -> dict[int, int]:
        """Count the tokens so far of the longest completion of each group under way, by position in the queue."""
        length_by_position = {}
        for position, group in enumerate(self.queue):
            remaining_time = group.due - self.now
            remaining_tokens = round(remaining_time * self.tokens_per_update)
            if remaining_tokens > 0:
                length_by_position[position] = longest_length(group.table) - remaining_tokens
        return length_by_position

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        return {
            "begun": self.groups_begun,
            "now": self.now,
            "usage": self.dropped_shares.counts,
            **super().state(),
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self.groups_begun = state["begun"]
        self.now = state["now"]
        self.dropped_shares.counts.update(state["usage"])


def waiting_group(group: Group, position: int, update_index: int) -> WaitingGroup:
    """Describe a group to a policy; position: in the queue."""
    return WaitingGroup(position=position, age=update_index - group.born, complete_at=group.due, table=group.table)
