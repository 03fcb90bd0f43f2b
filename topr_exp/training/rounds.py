"""Training in rounds: sample from the current weights, take a few optimizer steps, sample again.

A round is a function of the weights, the seeds and its number, so that a killed run resumes from a checkpoint at the
end of a round without having stored its samples; a checkpoint within a round holds these too. With replay, a problem's
completions come from an earlier round with probability q (AGRO, Figure 4); checkpoints hold the buffer.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.composition.draws import random_generator
from topr_exp.composition.problem_groups import is_solved_between
from topr_exp.composition.selection import NothingKeptError
from topr_exp.composition.training_set import Examples, TrainingSet
from topr_exp.config.groups import MAX_DRAWS, ComposeConfig, ScheduleConfig
from topr_exp.grading.verdicts import grader_timeouts
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.terminal import say, warn
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.generation import token_count
from topr_exp.sampling.mismatch import measure_mismatch
from topr_exp.sampling.sampler import split_every
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.collection import Collector, Indices
from topr_exp.training.loop import choose_examples
from topr_exp.types import TOPRError

BUFFER = "buffer.arrow"
ROUND = "round.arrow"
Compose = Callable[..., TrainingSet]  # of completions, in rounds with `round_number`
EPOCHS_PER_ROUND = 1_000_000  # more than a round has: its epochs have numbers of their own, which draw their orders


@dataclass(frozen=True)
class RoundGroups:
    """Groups of completions, one for each problem, that a round trains on."""

    groups: list[pa.Table]
    is_stale: bool  # some are of older weights
    ages: NDArray[np.int64] | None = None  # by group: updates since its completions were drawn
    metrics: dict[str, float] = field(default_factory=dict)  # for the records of the round


class Rounds:
    """The global batches of an iteration in rounds.

    compose: builds the training set of a round from its completions and its number. mu_is_samplers: log μ is the
    sampler's and π_old is by the forward pass; else μ is by the forward pass.
    """

    def __init__(
        self,
        collector: Collector,
        compose: Compose,
        schedule: ScheduleConfig,
        selection: ComposeConfig,
        *,
        seed: int,
        mu_is_samplers: bool,
    ) -> None:
        assert schedule.prompts is not None
        assert schedule.updates is not None
        assert schedule.rounds is not None
        self.groups_per_round = schedule.prompts
        self.updates_per_round = schedule.updates
        self.round_count = schedule.rounds
        self.update_count = self.round_count * self.updates_per_round
        self.collector = collector
        if self.groups_per_round > self.problem_count:
            raise TOPRError(
                f"schedule.prompts={self.groups_per_round}: there are {self.problem_count} problems to sample"
            )
        self.compose = compose
        self.schedule = schedule
        self.selection = selection
        self.trainer = collector.trainer
        self.n = collector.n
        self.iteration = collector.iteration
        self.seed = seed
        self.mu_is_samplers = mu_is_samplers
        self.gap_reported = False
        self.early_end: str | None = None  # says where training ended before its last round
        # The round under way.
        self.table: pa.Table = None
        self.training_set: TrainingSet | None = None  # composed of the table
        self.summary: dict[str, float] = {}
        self.drawn_tables: list[pa.Table] = []  # sampled for it so far
        self.kept_count = 0  # of these problems, those that `compose.pass_rate` keeps
        self.buffer: list[pa.Table] = []  # of all rounds, for replay: one table a group

    @property
    def problem_count(self) -> int:
        """Number of problems that rounds sample from."""
        return len(self.collector.questions.prompts)

    def global_batch(self, step: int, progress: Progress) -> GlobalBatch | None:
        """Draw and compose a round before its first update; each update takes a part of it.

        None where `compose.pass_rate` keeps no problem of a later round: the problems that it drew are learnt, or lost.
        NothingKeptError where it keeps none of the run's first.
        """
        round_number, position = divmod(step, self.updates_per_round)
        mu_is_policy = False
        if position == 0:
            with self.collector.counting_in(progress):
                round_groups = self.draw_or_end(round_number)
            if round_groups is None:
                return None
            self.start_round(round_groups, round_number)
            mu_is_policy = not (round_groups.is_stale or self.mu_is_samplers)
        assert self.training_set is not None
        training_set = self.training_set
        config = self.trainer.config

        def order_of_pass(epoch: int) -> Examples:
            epoch_of_iteration = EPOCHS_PER_ROUND * (round_number + 1) + epoch
            return training_set.order(self.seed, self.iteration, epoch_of_iteration, whole_groups=config.whole_groups)

        examples = choose_examples(training_set, config, position, order_of_pass)
        round_metrics = {"round": round_number, **self.summary}
        return GlobalBatch(training_set, examples, mu_is_policy, round_metrics)

    # ---- a round's completions

    def draw_or_end(self, round_number: int) -> RoundGroups | None:
        """Draw a round's groups; None, with a warning, where no problem is kept of any but the run's first."""
        try:
            return self.draw_round(round_number)
        except NothingKeptError as error:
            if round_number == 0 and self.iteration == 1:
                raise
            updates_done = round_number * self.updates_per_round
            self.early_end = f"{updates_done} of {self.update_count} updates; {error}"
        warn(f"training ends after {self.early_end}")
        return None

    def draw_round(self, round_number: int) -> RoundGroups:
        """Draw a round's groups; NothingKeptError where there are none."""
        round_groups = self.draw_groups(round_number)
        if not round_groups.groups:
            raise NothingKeptError(self.describe_empty_round(round_number))
        return round_groups

    def draw_groups(self, round_number: int) -> RoundGroups:
        """Sample a round's groups from the current weights, or take earlier ones from the buffer."""
        replayed = self.draw_replayed(round_number)
        new_count = self.groups_per_round - len(replayed)
        indices = self.problems_of(round_number)[:new_count]
        sampled = self.sample_groups(indices, round_number)
        if self.schedule.replay > 0:
            self.buffer += sampled
        return RoundGroups(replayed + sampled, is_stale=bool(replayed))

    def start_round(self, round_groups: RoundGroups, round_number: int) -> None:
        """Summarize and compose what was drawn for a round."""
        self.summary = self.summarize_drawn()
        if self.drawn_tables and self.mu_is_samplers:
            self.report_gap(self.summary["sampler_gap"])
        self.summary |= round_groups.metrics
        self.table = pa.concat_tables(round_groups.groups).combine_chunks()
        self.drawn_tables = []
        self.kept_count = 0
        training_set = self.compose_round(round_number)
        self.training_set = replace(training_set, ages=round_groups.ages)

    def describe_empty_round(self, round_number: int) -> str:
        """Say that `compose.pass_rate` keeps no problem of a round."""
        source = f"{self.drawn_count()} problems that round {round_number} drew"
        if self.schedule.asynchronous:  # what was drawn now is for later rounds, too
            source = f"what was drawn for round {round_number}"
        return f"compose.pass_rate={self.selection.pass_rate}: of {source} ({MAX_DRAWS} times) none is solved so often"

    def compose_round(self, round_number: int) -> TrainingSet:
        """Compose a round's training set from its completions."""
        problem_of_row = self.table["problem"].to_numpy()
        problem_of_group = problem_of_row[:: self.n]
        questions = self.collector.questions.select(problem_of_group)
        # A problem may come twice, new and replayed, so a group is identified by its place, not by its problem.
        group_count = len(problem_of_group)
        group_index = np.arange(group_count).repeat(self.n)
        columns = {"problem": pa.array(group_index, pa.int32())}
        if self.mu_is_samplers:
            columns["mu_logp"] = self.table["sampler_logp"]
            columns["old_logp"] = self.table["logp"]
        else:
            columns["mu_logp"] = self.table["logp"]
        completions = Completions(questions.problems, questions.prompts, self.table).with_columns(columns)
        return self.compose(completions, round_number=round_number)

    def sample_groups(
        self,
        indices: Indices,
        round_number: int,
        first_shard: int = 0,
        *,
        max_draws: int = MAX_DRAWS,
        spare_indices: Indices | None = None,
    ) -> list[pa.Table]:
        """Sample for some problems, one table each; first_shard: shards of the round that were sampled before.

        With `compose.pass_rate`, further draws take spare problems (default: all) until enough are kept, `max_draws`
        draws at most, the first included.
        """
        group_count = len(indices)
        if spare_indices is None:
            spare_indices = np.arange(self.problem_count)
        shard_size = self.collector.sampler.config.prompts_per_shard
        groups: list[pa.Table] = []
        for draw in range(max_draws):
            if draw > 0:
                rng = random_generator(self.seed, self.iteration, f"round {round_number}, draw {draw}")
                indices = rng.permutation(spare_indices)[: self.groups_per_round]
            has_enough = len(groups) >= group_count
            if has_enough or not len(indices):
                break
            table = self.collector.collect(indices, round_number, first_shard)
            shard_count = math.ceil(len(indices) / shard_size)
            first_shard += shard_count
            self.drawn_tables.append(table)
            groups += self.solved_often_enough(table)
            spare_indices = np.setdiff1d(spare_indices, indices)
        self.kept_count += len(groups)
        return groups[:group_count]

    def split_groups(self, table: pa.Table) -> list[pa.Table]:
        """Split a table, whose chunks hold whole problems, into one for each problem."""
        groups = []
        for chunk in table.to_batches():  # a slice of the table would look through all chunks before it
            assert len(chunk) % self.n == 0, "a problem in two chunks"
            groups += split_every(pa.Table.from_batches([chunk]), self.n)
        return groups

    def solved_often_enough(self, table: pa.Table) -> list[pa.Table]:
        """List the groups of a table that `compose.pass_rate` keeps."""
        groups = self.split_groups(table)
        if self.selection.pass_rate is None:
            return groups
        low, high = self.selection.pass_rate
        completions = self.collector.completions(table)
        is_kept = is_solved_between(completions, low, high)  # by completion
        is_kept_group = is_kept[:: self.n]
        return list(compress(groups, is_kept_group))

    def draw_replayed(self, round_number: int) -> list[pa.Table]:
        """Draw earlier groups from the buffer: one in place of each new group with probability `schedule.replay`."""
        if not self.buffer:
            return []
        rng = random_generator(self.seed, self.iteration, f"round {round_number}")
        is_replayed = rng.random(self.groups_per_round) < self.schedule.replay
        count = int(is_replayed.sum())
        has_too_few = count > len(self.buffer)  # then some come twice
        buffer_indices = rng.choice(len(self.buffer), size=count, replace=has_too_few)
        return [self.buffer[index] for index in buffer_indices]

    def problems_of(self, round_number: int) -> Indices:
        """List the problems that a round samples, if it samples all of its groups; [prompts]."""
        groups_before = round_number * self.groups_per_round
        epoch, start = divmod(groups_before, self.problem_count)
        two_epochs = np.concatenate([self.order_problems(epoch), self.order_problems(epoch + 1)])
        return two_epochs[start : start + self.groups_per_round]

    def order_problems(self, epoch: int) -> Indices:
        """Draw the order in which a pass over all problems samples them."""
        rng = random_generator(self.seed, self.iteration, f"prompts {epoch}")
        return rng.permutation(self.problem_count)

    # ---- records

    def drawn_count(self) -> int:
        """Count the problems that were sampled for the round so far."""
        completion_count = sum(map(len, self.drawn_tables))
        return completion_count // self.n

    def summarize_drawn(self) -> dict[str, float]:
        """Summarize all that was sampled for a round, kept or not; if nothing was, NaN under the last round's names."""
        if not self.drawn_tables:
            return dict.fromkeys(self.summary, math.nan)
        table = pa.concat_tables(self.drawn_tables).combine_chunks()
        completions = self.collector.completions(table)
        config = self.collector.sampler.config
        mismatch = measure_mismatch(completions.lists("logp"), completions.lists("sampler_logp"), config)
        summary = {
            "sampled_correct": float(completions.is_correct.mean()),
            "sampled_length": token_count(table) / len(table),
            "sampler_gap": mismatch["per_token_mean_absolute"],
        }
        if config.has_mismatch:
            summary["sampler_kl_token"] = mismatch["kl_token"]
            summary["sampler_kl_answer"] = mismatch["kl_answer"]
        summary["sampled_truncated"] = float(np.mean(completions.is_truncated))
        timeouts = grader_timeouts(completions)
        if timeouts:
            summary["grader_timeouts"] = timeouts
        if completions.reward is not None:
            summary["sampled_reward"] = float(completions.reward.mean())
        is_selected = self.selection.pass_rate is not None
        count_varies = is_selected or self.schedule.asynchronous or self.schedule.replay > 0
        if count_varies:  # else each round draws as many
            summary["problems_drawn"] = self.drawn_count()
        if is_selected:
            summary["problems_kept"] = self.kept_count
        return summary

    def report_gap(self, gap: float) -> None:
        """Print the distance of the sampler's log μ from log π, of the first round alone."""
        if not self.gap_reported:
            say(f"{'log μ':<11} |log π − log μ| is {gap:.2g} a token before the first update on these completions")
            self.gap_reported = True

    # ---- checkpoints

    def is_within_round(self) -> bool:
        return self.trainer.step % self.updates_per_round != 0

    def checkpoint_files(self) -> dict[str, bytes]:
        """Write the round under way and the buffer as Arrow files."""
        state = {"summary": self.summary}
        files = {}
        if self.schedule.replay > 0:
            files[BUFFER] = arrow_bytes(pa.concat_tables(self.buffer), state)
        if self.is_within_round():
            files[ROUND] = arrow_bytes(self.table, state)
        return files

    def restore(self, checkpoint: Path) -> None:
        if self.schedule.replay > 0:
            buffer_table, state = read_table(checkpoint / BUFFER)
            self.buffer = self.split_groups(buffer_table)
            self.summary = state["summary"]
        if self.is_within_round():
            self.table, state = read_table(checkpoint / ROUND)
            self.summary = state["summary"]
            round_number = self.trainer.step // self.updates_per_round
            self.training_set = self.compose_round(round_number)


def arrow_bytes(table: pa.Table, state: dict[str, Any]) -> bytes:
    """Write a table, and a JSON object as its metadata, to the bytes of an Arrow file."""
    metadata = {"state": json.dumps(state)}
    table = table.replace_schema_metadata(metadata)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
    buffer = stream.getvalue()
    return buffer.to_pybytes()


def read_table(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Read the table and the object that `arrow_bytes` wrote."""
    file = pa.OSFile(str(path))
    table = pa.ipc.open_file(file).read_all()
    state = json.loads(table.schema.metadata[b"state"])
    return table.replace_schema_metadata(None), state
