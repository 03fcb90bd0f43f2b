"""Completions of the policy in training, held in memory: each shard is sampled, graded and scored in turn."""

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
from topr_exp.sampling.generation import table_of_samples, token_count
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample, Sampler, Seed, TimeStage, split_every
from topr_exp.store import Ragged
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.trainer import Trainer

Indices = NDArray[np.int64]  # of problems to sample for
TokenCounts = NDArray[np.int64]  # by completion


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
        self.report_scored = partial(progress.count, "scored")
        with self.sampler.reporting(partial(progress.count, "sampled")):
            yield

    def collect(self, indices: Indices, round_number: int, first_shard: int) -> pa.Table:
        """Sample for some problems of a round, in shards as large as the store's, shared among the processes.

        first_shard: number of the first shard in the round. It and the round decide the seeds.
        """
        shards = split_every(indices, self.sampler.config.prompts_per_shard)
        tables = {}
        with self.present_policy() as policy:
            shards_of_rank = range(distributed.rank(), len(shards), distributed.world_size())
            for shard in shards_of_rank:
                tables[shard] = self.collect_shard(policy, shards[shard], round_number, first_shard + shard)
        for tables_of_rank in distributed.all_gather(tables):
            tables |= tables_of_rank
        ordered_tables = [tables[shard] for shard in range(len(shards))]
        table = pa.concat_tables(ordered_tables).combine_chunks()
        self.trainer.count_sampled(token_count(table))
        return table

    @contextlib.contextmanager
    def present_policy(self) -> Iterator[Policy]:
        """Open the policy in training to the sampler: its weights gathered, its gradients freed."""
        self.trainer.zero_grad()
        with self.trainer.layout.gathered_weights():
            name = f"iteration {self.iteration}, update {self.trainer.step}"
            policy = replace(self.trainer.policy, fingerprint=name, folder=None)
            longest_prompt = max(map(len, self.questions.prompts))
            self.sampler.prepare(policy, longest_prompt + self.sampler.config.max_new_tokens)
            yield policy

    def collect_shard(self, policy: Policy, indices: Indices, round_number: int, shard: int) -> pa.Table:
        """Sample, grade and score completions of a shard's problems."""
        sampler = self.sampler
        stop = self.questions.stop
        prompts = [self.questions.prompts[index].tolist() for index in indices]
        seed: Seed = (sampler.config.seed, self.iteration, round_number)
        if shard:
            seed += (shard,)
        with self.stage_timer("sampling"):
            samples = sampler.sample(policy, prompts, self.n, seed, stop)
            table = table_of_samples(policy, samples, stop)
            sampler.sleep()
        return self.grade_and_score(table, policy, indices)

    def redraw(self, table: pa.Table, kept_tokens: TokenCounts, seed: Seed) -> pa.Table:
        """Draw the rest of completions again; log μ of a token is by the weights that drew it.

        kept_tokens: first tokens of each completion that stay; a shorter one stays as it is.
        """
        assert isinstance(self.sampler, HFSampler)
        problem_index = table["problem"].to_numpy()
        is_unfinished = Ragged(table["tokens"]).lengths() > kept_tokens
        samples = first_tokens(table, kept_tokens)
        unfinished = list(compress(samples, is_unfinished))
        prompts = [self.questions.prompts[problem].tolist() for problem in problem_index[is_unfinished]]
        stop = self.questions.stop
        sampler_seed = (self.sampler.config.seed, *seed)
        with self.present_policy() as policy:
            with self.stage_timer("sampling"):
                self.sampler.sample(policy, prompts, 1, sampler_seed, stop, unfinished)  # extends them in place
            redrawn = table_of_samples(policy, split_every(samples, self.n), stop)
            redrawn = self.grade_and_score(redrawn, policy, problem_index[:: self.n])
        self.trainer.count_sampled(token_count(redrawn) - token_count(table))
        return with_old_logp(redrawn, table, kept_tokens)

    def grade_and_score(self, table: pa.Table, policy: Policy, indices: Indices) -> pa.Table:
        """Add verdicts, log-probabilities under the policy and, where there is one, under the reference."""
        questions = self.questions.select(indices)
        completions = Completions(questions.problems, questions.prompts, table)
        rows = range(len(completions))
        with self.stage_timer("grading"):
            verdicts = grade(self.grader, completions.texts(rows), completions.problem_index, questions.problems)
        graded = with_verdicts(completions, verdicts)
        batch_size = self.trainer.config.score_batch_size
        policies = {"logp": policy}
        if self.reference is not None:
            policies["ref_logp"] = self.reference
        columns = {}
        with self.stage_timer("scoring"):
            for name, scoring_policy in policies.items():
                columns[name] = log_probabilities(scoring_policy, graded, rows, batch_size, self.report_scored)
        problem_index = indices.repeat(self.n)
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
        sample = Sample(row["tokens"][:count], row["sampler_logp"][:count])
        if len(row["tokens"]) <= count:
            sample.stop(row["finish"])
        samples.append(sample)
    return samples


def with_old_logp(redrawn: pa.Table, table: pa.Table, kept_tokens: TokenCounts) -> pa.Table:
    """Replace log π of the tokens that stayed by that of the weights which drew them, in `table`."""
    logprobs = []
    old_logprobs = Ragged(table["logp"])
    for old_logp, logp, kept_count in zip(old_logprobs, Ragged(redrawn["logp"]), kept_tokens, strict=True):
        logprobs.append(np.concatenate([old_logp[:kept_count], logp[kept_count:]]))
    column = pa.array(logprobs, pa.list_(pa.float32()))
    position = redrawn.column_names.index("logp")
    return redrawn.set_column(position, "logp", column)
