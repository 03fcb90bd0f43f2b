"""Completions of the policy in training, held in memory: each shard is sampled, graded and scored in turn."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

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
from topr_exp.sampling.sampler import Sampler
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.trainer import Trainer

Indices = NDArray[np.int64]  # of problems to sample for
StageTimer = Callable[[str], contextlib.AbstractContextManager[None]]  # measures a block under the name of a stage


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
    stage_timer: StageTimer
    report_scored: Callable[[int], None] = lambda tokens: None  # called with the tokens of each scored batch

    @contextlib.contextmanager
    def counting_in(self, progress: Progress) -> Iterator[None]:
        """Count the tokens that the block samples and scores in `progress`."""
        self.report_scored = partial(progress.count, "scored")
        with self.sampler.reporting(partial(progress.count, "sampled")):
            yield

    def collect(self, indices: Indices, number: int, first_shard: int) -> pa.Table:
        """Completions of some problems of a round, in shards as large as the store's, shared among the processes.

        number: of the round; first_shard: the number of the first shard in the round. Both decide the seeds.
        """
        shard_size = self.sampler.config.prompts_per_shard
        shards = [indices[start : start + shard_size] for start in range(0, len(indices), shard_size)]
        tables = {}
        with self.present_policy() as policy:
            for shard in range(distributed.rank(), len(shards), distributed.world_size()):
                tables[shard] = self.collect_shard(policy, shards[shard], number, first_shard + shard)
        for tables_of_rank in distributed.all_gather(tables):
            tables |= tables_of_rank
        table = pa.concat_tables([tables[shard] for shard in range(len(shards))]).combine_chunks()
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

    def collect_shard(self, policy: Policy, indices: Indices, number: int, shard: int) -> pa.Table:
        """Sample, grade and score completions of a shard's problems."""
        prompts = [self.questions.prompts[index].tolist() for index in indices]
        seed: tuple[int, ...] = (self.sampler.config.seed, self.iteration, number)
        if shard:
            seed += (shard,)
        with self.stage_timer("sampling"):
            samples = self.sampler.sample(policy, prompts, self.n, seed, self.questions.stop)
            table = table_of_samples(policy, samples, self.questions.stop)
            self.sampler.sleep()
        return self.grade_and_score(table, policy, indices)

    def grade_and_score(self, table: pa.Table, policy: Policy, indices: Indices) -> pa.Table:
        """Add verdicts, log-probabilities under the policy and, where there is one, under the reference."""
        questions = self.questions.select(indices)
        completions = Completions(questions.problems, questions.prompts, table)
        rows = range(len(completions))
        with self.stage_timer("grading"):
            verdicts = grade(self.grader, completions.texts(rows), completions.problem_index, questions.problems)
        graded = with_verdicts(completions, verdicts)
        batch_size = self.trainer.config.score_batch_size
        with self.stage_timer("scoring"):
            columns = {"logp": log_probabilities(policy, graded, rows, batch_size, self.report_scored)["logp"]}
            if self.reference is not None:
                scores = log_probabilities(self.reference, graded, rows, batch_size, self.report_scored)
                columns["ref_logp"] = scores["logp"]
        columns["problem"] = pa.array(np.repeat(indices, self.n), pa.int32())
        return graded.with_columns(columns).table

    def completions(self, table: pa.Table) -> Completions:
        """A table of this collector with the problems that it refers to."""
        return Completions(self.questions.problems, self.questions.prompts, table)
