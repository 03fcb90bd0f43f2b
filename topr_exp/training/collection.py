"""Completions of the policy in training, held in memory: all shards are sampled, then graded and scored."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import compress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.data.prompts import TokenizedProblems
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import grade, with_verdicts
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.generation import draw_samples, table_of_samples, token_count, warn_of_idle_processes
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample, Sampler, Seed, TimeStage, split_every
from topr_exp.store import Ragged
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.trainer import Trainer

Indices = NDArray[np.int64]  # of problems to sample for
TokenCounts = NDArray[np.int64]  # [M] by completion


@dataclass
class Collector:
    """Collects n completions of problems from the policy in training.

    Its tables have the columns of `Completions`, `problem` as an index into all problems, `logp` by a forward pass of
    the policy that sampled, and `ref_logp` where there is a reference.
    """

    trainer: Trainer
    questions: TokenizedProblems
    sampler: Sampler
    grader: Grader
    reference: Policy | None
    _: KW_ONLY
    n: int
    iteration: int
    stage_timer: TimeStage
    report_scored: Callable[[int], None] = lambda tokens: None  # called with the tokens of each scored batch

    @contextlib.contextmanager
    def counting_in(self, progress: Progress) -> Iterator[None]:
        """Count the tokens that the block samples and scores in `progress`."""
        self.report_scored = partial(progress.count_tokens, "scored")
        with self.sampler.reporting(partial(progress.count_tokens, "sampled")):
            yield

    def collect(self, indices: Indices, round_number: int, first_shard: int) -> pa.Table:
        """Sample for some problems of a round, in shards as large as the store's, shared among the processes.

        first_shard: number of the first shard in the round. It and the round decide the seeds.
        """
        indices_by_shard = split_every(indices, self.sampler.config.prompts_per_shard)
        shard_count = len(indices_by_shard)
        is_first_call = round_number == 0 and first_shard == 0
        if is_first_call and distributed.is_main_process():
            warn_of_idle_processes(shard_count, self.sampler.config.prompts_per_shard)
        own_shards = range(distributed.rank(), shard_count, distributed.world_size())
        sampled_tables = {}  # by shard, as `graded_tables`
        graded_tables = {}
        with self.policy_for_sampling() as policy:
            with self.stage_timer("sampling"):
                for shard in own_shards:
                    shard_of_round = first_shard + shard
                    sampled_tables[shard] = self.sample_shard(
                        policy, indices_by_shard[shard], round_number, shard_of_round
                    )
                self.sampler.sleep()  # after all shards: an engine that slept takes all weights again
            for shard, table in sampled_tables.items():
                graded_tables[shard] = self.grade_and_score(table, policy, indices_by_shard[shard])
        for tables_of_rank in distributed.all_gather(graded_tables):
            graded_tables |= tables_of_rank
        ordered_tables = [graded_tables[shard] for shard in range(shard_count)]
        table = pa.concat_tables(ordered_tables).combine_chunks()
        self.trainer.count_sampled(token_count(table))
        return table

    @contextlib.contextmanager
    def policy_for_sampling(self) -> Iterator[Policy]:
        """Give the sampler the policy in training while the block runs: weights gathered, gradients freed."""
        self.trainer.zero_grad()
        with self.trainer.layout.gathered_weights():
            name = f"iteration {self.iteration}, update {self.trainer.step}"
            policy = replace(self.trainer.policy, fingerprint=name, folder=None)
            longest_prompt = max(map(len, self.questions.prompts))
            longest_sequence = longest_prompt + self.sampler.config.max_new_tokens
            self.sampler.prepare(policy, longest_sequence)
            yield policy

    def sample_shard(self, policy: Policy, indices: Indices, round_number: int, shard: int) -> pa.Table:
        """Sample n completions of some problems, which the column `problem` counts from 0.

        shard: its number in the round; the two decide the seed.
        """
        sampler = self.sampler
        stop = self.questions.stop
        prompts = [self.questions.prompts[index].tolist() for index in indices]
        seed: Seed = (sampler.config.seed, self.iteration, round_number)
        if shard > 0:  # the first takes the round's own seed
            seed = (*seed, shard)
        samples = draw_samples(sampler, policy, prompts, self.n, seed, stop)
        return table_of_samples(policy, samples, stop)

    def redraw(self, table: pa.Table, kept_tokens: TokenCounts, seed: Seed) -> pa.Table:
        """Draw the rest of completions again; log μ of a token is by the weights that drew it.

        kept_tokens: first tokens of each completion that stay; a shorter one stays as it is.
        """
        assert isinstance(self.sampler, HFSampler)
        problem_index = table["problem"].to_numpy()  # [M]
        is_unfinished = Ragged(table["tokens"]).lengths() > kept_tokens
        samples = first_tokens(table, kept_tokens)
        unfinished_samples = list(compress(samples, is_unfinished))
        unfinished_problems = problem_index[is_unfinished]
        prompts = [self.questions.prompts[problem].tolist() for problem in unfinished_problems]
        stop = self.questions.stop
        sampler_seed = (self.sampler.config.seed, *seed)
        with self.policy_for_sampling() as policy:
            with self.stage_timer("sampling"):
                # In place, so that `samples` has all completions afterwards.
                self.sampler.sample(policy, prompts, 1, sampler_seed, stop, unfinished_samples)
            samples_by_group = split_every(samples, self.n)
            problem_of_group = problem_index[:: self.n]
            sampled = table_of_samples(policy, samples_by_group, stop)
            redrawn = self.grade_and_score(sampled, policy, problem_of_group)
        extra_tokens = token_count(redrawn) - token_count(table)
        self.trainer.count_sampled(extra_tokens)
        return with_logp_of_kept_tokens(redrawn, table, kept_tokens)

    def grade_and_score(self, table: pa.Table, policy: Policy, indices: Indices) -> pa.Table:
        """Add verdicts, log-probabilities under the policy and, where there is one, under the reference.

        table: sampled columns of n completions of each problem of `indices`, in their order.
        """
        questions = self.questions.select(indices)
        completions = Completions(questions.problems, questions.prompts, table)
        rows = range(len(completions))
        with self.stage_timer("grading"):
            texts = completions.texts(rows)
            verdicts = grade(self.grader, texts, completions.problem_index, questions.problems)
        graded = with_verdicts(completions, verdicts)
        batch_size = self.trainer.config.score_batch_size
        policy_by_column = {"logp": policy}
        if self.reference is not None:
            policy_by_column["ref_logp"] = self.reference
        columns = {}
        with self.stage_timer("scoring"):
            for name, scoring_policy in policy_by_column.items():
                columns[name] = log_probabilities(scoring_policy, graded, rows, batch_size, self.report_scored)
        problem_index = indices.repeat(self.n)  # among all problems: so far `problem` counts those of this table
        columns["problem"] = pa.array(problem_index, pa.int32())
        return graded.with_columns(columns).table

    def completions(self, table: pa.Table) -> Completions:
        """Join a table of this collector with the problems that it refers to."""
        return Completions(self.questions.problems, self.questions.prompts, table)


def first_tokens(table: pa.Table, counts: TokenCounts) -> list[Sample]:
    """Take the first tokens of completions as samples to continue; one that has no more is finished as it was."""
    samples = []
    rows = table.select(["tokens", "sampler_logp", "finish"]).to_pylist()
    for row, count in zip(rows, counts, strict=True):
        tokens = row["tokens"]
        sample = Sample(tokens[:count], row["sampler_logp"][:count])
        if len(tokens) <= count:
            sample.stop(row["finish"])
        samples.append(sample)
    return samples


def with_logp_of_kept_tokens(redrawn: pa.Table, original: pa.Table, kept_tokens: TokenCounts) -> pa.Table:
    """Take log π of the tokens that stayed from `original`, where the weights that drew them scored them."""
    original_column = Ragged(original["logp"])
    redrawn_column = Ragged(redrawn["logp"])
    logprobs = []
    for original_logp, redrawn_logp, count in zip(original_column, redrawn_column, kept_tokens, strict=True):
        logp = np.concatenate([original_logp[:count], redrawn_logp[count:]])
        logprobs.append(logp)
    column = pa.array(logprobs, pa.list_(pa.float32()))
    position = redrawn.column_names.index("logp")
    return redrawn.set_column(position, "logp", column)
