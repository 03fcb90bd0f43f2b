"""Training in rounds: sample from the current weights, take a few optimizer steps, sample again.

A round is a function of the weights, the seeds and its number, so that a killed run goes on from a checkpoint at the
end of a round without having stored what it sampled; a checkpoint within a round holds that too. With replay, a
problem's completions come from an earlier round with probability q (AGRO, Figure 4); checkpoints hold the buffer.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np
import pyarrow as pa

from topr_exp.composition.draws import random_generator
from topr_exp.composition.problem_groups import is_solved_between
from topr_exp.composition.training_set import TrainingSet
from topr_exp.config.groups import ComposeConfig, ScheduleConfig
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import grade, grader_timeouts, with_verdicts
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.terminal import say
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.generation import table_of_samples, token_count
from topr_exp.sampling.mismatch import measure_mismatch
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Ragged
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.trainer import Journal, Trainer
from topr_exp.types import TOPRError

BUFFER, ROUND = "buffer.arrow", "round.arrow"


@dataclass
class Rounds:
    """Shared parts of an iteration's rounds."""

    trainer: Trainer
    train: TokenizedProblems
    sampler: Sampler
    grader: Grader
    reference: Policy | None  # π_ref, where the loss needs its log-probabilities
    build_training_set: Callable[..., TrainingSet]  # of a round's completions, with its number
    schedule: ScheduleConfig
    compose: ComposeConfig
    n: int  # completions a problem
    seed: int
    iteration: int
    timed: Callable[[str], contextlib.AbstractContextManager[None]]  # under the name of a stage
    from_sampler: bool  # log μ is what the sampler drew with, and π_old is by the forward pass; else both are
    # Of the newest completions: share correct, mean length, mean |log μ − log q| a token (q the sampler's), reward.
    seen: dict[str, float] = field(default_factory=dict)
    columns: pa.Table = None  # of the round under way: what was sampled or replayed
    drawn: list[pa.Table] = field(default_factory=list)  # what the round sampled so far
    told_gap: bool = False  # how far μ, the sampler's, is from the policy
    kept: int = 0  # problems of it that `compose.pass_rate` keeps
    ages: np.ndarray | None = None  # updates since they were drawn, where they may be old
    buffer: list[pa.Table] = field(default_factory=list)  # one table for each group that was sampled
    report_scored: Callable[[int], None] = lambda tokens: None  # that more completion tokens are scored

    def run(self, journal: Journal, save_every: float) -> None:
        """Every remaining round, with a checkpoint every `save_every` seconds and on a signal."""
        assert self.schedule.updates is not None
        assert self.schedule.rounds is not None
        assert self.schedule.prompts is not None
        if self.schedule.prompts > (there := len(self.train.prompts)):
            raise TOPRError(f"schedule.prompts={self.schedule.prompts}: there are {there} problems to sample")
        if self.trainer.restored is not None:
            self.restore(self.trainer.restored)
        steps = self.schedule.rounds * self.schedule.updates
        done = self.trainer.step
        with (
            Progress("training", steps, "updates", "training", done=done, rate_unit="tokens") as progress,
            self.sampler.reporting(partial(progress.count, "sampled")),
        ):
            self.trainer.report, self.report_scored = progress.advance, partial(progress.count, "scored")
            while self.trainer.step < steps:
                number, begun = divmod(self.trainer.step, self.schedule.updates)
                # Within a round of the checkpoint, no update that is left is the first.
                replayed = not begun and self.sample_round(number)
                examples = self.examples_of_round(number)
                for position in range(begun, self.schedule.updates):
                    chosen = self.choose_examples(examples, number, position)
                    ours = position == 0 and not replayed and not self.from_sampler
                    record = self.trainer.update(examples, chosen, steps, expect_unit_ratio=ours)
                    journal.log({"iteration": self.iteration, "round": number, **self.seen, **record})
                    share = self.seen["sampled_correct"]  # not a number where nothing was sampled
                    note = "" if math.isnan(share) else f"{100 * share:.0f} % of the samples correct"
                    completions, prompts = record["tokens"], record["prompt_tokens"]
                    progress.update(1, completions + prompts, note, of_completions=completions)
                    self.trainer.checkpoint(journal, steps, save_every, self.serialized)

    def choose_examples(self, examples: TrainingSet, number: int, position: int) -> np.ndarray:
        """The examples of an update: consecutive parts of an order drawn for each pass over the round's set."""
        size, whole = self.trainer.config.batch_size, self.trainer.config.whole_groups
        epoch, part = divmod(position, math.ceil(len(examples) / size))
        order = examples.order(self.seed, self.iteration, 1_000_000 * (number + 1) + epoch, whole_groups=whole)
        return order[part * size : (part + 1) * size]

    def sample_round(self, number: int) -> bool:
        """Sample what a round trains on; True where a part of it is replayed."""
        indices, replay = self.choose_prompts(number)
        old, new = [self.buffer[slot] for slot in replay], self.sample_groups(indices, number)
        if self.schedule.replay > 0:
            self.buffer += new
        self.fill_round(old + new, number)
        return bool(replay)

    def fill_round(self, groups: list[pa.Table], number: int) -> None:
        """Have a round train on some groups, and summarize what it sampled."""
        problems = sum(map(len, self.drawn)) // self.n
        self.seen = dict.fromkeys(self.seen or ("sampled_correct", "sampled_length", "sampler_gap"), math.nan)
        if self.drawn:
            self.seen = self.describe_sampled(pa.concat_tables(self.drawn).combine_chunks())
            if self.from_sampler and not self.told_gap:
                gap = self.seen["sampler_gap"]
                say(f"{'log μ':<11} |log π − log μ| is {gap:.2g} a token before the first update on these completions")
                self.told_gap = True
        if self.compose.pass_rate is not None and self.drawn:
            self.seen |= {"problems_drawn": problems, "problems_kept": self.kept}
        if not groups:
            drew = f"{problems} problems that round {number} drew" if problems else f"what was drawn for round {number}"
            raise TOPRError(
                f"compose.pass_rate={self.compose.pass_rate}: of {drew} "
                f"(compose.max_draws={self.compose.max_draws}) none is solved so often"
            )
        self.drawn, self.kept = [], 0
        self.columns = pa.concat_tables(groups).combine_chunks()

    def examples_of_round(self, number: int) -> TrainingSet:
        """Compose a round's training set out of what it sampled or replayed."""
        columns, problems = self.columns, self.columns["question"].to_numpy()[:: self.n].tolist()
        # A problem may come twice, new and replayed, so a group is identified by its place, not by its problem.
        slots = pa.array(np.repeat(np.arange(len(problems)), self.n), pa.int32())
        columns = columns.append_column("problem", slots)
        if self.from_sampler:
            columns = columns.append_column("old_logp", columns["logp"])
        columns = columns.append_column("mu_logp", columns["sampler_logp" if self.from_sampler else "logp"])
        prompts = [self.train.prompts[index] for index in problems]
        completions = Completions([self.train.problems[index] for index in problems], prompts, columns)
        return replace(self.build_training_set(completions, round_number=number), ages=self.ages)

    def sample_groups(
        self,
        indices: np.ndarray,
        number: int,
        shards: int = 0,
        draws: int | None = None,
        further: np.ndarray | None = None,
    ) -> list[pa.Table]:
        """Completions of some problems, one table each; `shards` of the round were sampled before.

        `compose.pass_rate`: draws more (`further`, default: all) till enough pass, `draws` (`compose.max_draws`) times.
        """
        wanted, drawn = len(indices), indices[:0]
        kept: list[pa.Table] = []
        for draw in range(draws or self.compose.max_draws):
            if draw > 0:
                rng = random_generator(self.seed, self.iteration, f"round {number}, draw {draw}")
                others = np.setdiff1d(np.arange(len(self.train.prompts)) if further is None else further, drawn)
                indices = rng.permutation(others)[: self.schedule.prompts]
            if len(kept) >= wanted or not len(indices):
                break
            self.drawn.append(self.sample_prompts(indices, number, shards))
            shards += -(-len(indices) // self.sampler.config.prompts_per_shard)
            kept += self.solved_often_enough(self.drawn[-1])
            drawn = np.concatenate([drawn, indices])
        self.kept += len(kept)
        return kept[:wanted]

    def groups(self, columns: pa.Table) -> list[pa.Table]:
        """One table for each problem."""
        return [columns.slice(start, self.n) for start in range(0, len(columns), self.n)]

    def solved_often_enough(self, columns: pa.Table) -> list[pa.Table]:
        """The completions of each problem that `compose.pass_rate` keeps."""
        groups = self.groups(columns)
        if self.compose.pass_rate is None:
            return groups
        completions = self.of_questions(columns)
        return list(compress(groups, is_solved_between(completions, *self.compose.pass_rate)[:: self.n]))

    def of_questions(self, columns: pa.Table) -> Completions:
        """Completions by the problems of the data."""
        columns = columns.append_column("problem", columns["question"])
        return Completions(self.train.problems, self.train.prompts, columns)

    def describe_sampled(self, columns: pa.Table) -> dict[str, float]:
        """Summarize the completions that a round sampled, kept or not."""
        gap = measure_mismatch(Ragged(columns["logp"]), Ragged(columns["sampler_logp"]), self.sampler.config)
        completions = self.of_questions(columns)
        found = {"sampled_correct": float(completions.is_correct.mean())}
        found["sampled_length"] = token_count(columns) / len(columns)
        found["sampler_gap"] = gap["per_token_mean_absolute"]
        if not self.sampler.config.unchanged:
            found |= {"sampler_kl_token": gap["kl_token"], "sampler_kl_answer": gap["kl_answer"]}
        found["sampled_truncated"] = float(np.mean(completions.is_truncated))
        if timeouts := grader_timeouts(completions):
            found["grader_timeouts"] = timeouts
        if completions.reward is not None:
            found["sampled_reward"] = float(completions.reward.mean())
        return found

    def choose_prompts(self, number: int) -> tuple[np.ndarray, list[int]]:
        """The problems that a round samples, and the buffer's groups that take the place of the others."""
        assert self.schedule.prompts is not None
        count, total = self.schedule.prompts, len(self.train.prompts)
        rng = random_generator(self.seed, self.iteration, f"round {number}")
        replayed = int((rng.random(count) < self.schedule.replay).sum()) if self.buffer else 0
        slots = rng.choice(len(self.buffer), size=replayed, replace=replayed > len(self.buffer)).tolist()
        epoch, first = divmod(number * count, total)
        order = np.concatenate(
            [random_generator(self.seed, self.iteration, f"prompts {epoch + i}").permutation(total) for i in (0, 1)]
        )
        return order[first : first + count - replayed], slots

    def sample_prompts(self, indices: np.ndarray, number: int, first: int) -> pa.Table:
        """Completions of some problems, in shards as large as the store's, which the processes share among them.

        first: the number of the first shard in the round, since that decides the seeds.
        """
        size = self.sampler.config.prompts_per_shard
        shards = [indices[start : start + size] for start in range(0, len(indices), size)]
        with self.present_policy() as now:
            mine = range(distributed.rank(), len(shards), distributed.world_size())
            made = {shard: self.sample_shard(now, shards[shard], number, first + shard) for shard in mine}
        by_shard = {shard: table for part in distributed.all_gather(made) for shard, table in part.items()}
        columns = pa.concat_tables([by_shard[shard] for shard in range(len(shards))]).combine_chunks()
        self.trainer.sampled += token_count(columns)
        return columns

    @contextlib.contextmanager
    def present_policy(self) -> Iterator[Policy]:
        """Open the policy in training to the sampler: its weights whole, its gradients freed."""
        self.trainer.zero_grad()
        with self.trainer.layout.gathered_weights():
            name = f"iteration {self.iteration}, update {self.trainer.step}"
            now = replace(self.trainer.policy, fingerprint=name, folder=None)
            self.sampler.prepare(now, max(map(len, self.train.prompts)) + self.sampler.config.max_new_tokens)
            yield now

    def sample_shard(self, policy: Policy, indices: np.ndarray, number: int, shard: int) -> pa.Table:
        """Completions of some problems, graded and scored."""
        prompts = [self.train.prompts[i].tolist() for i in indices]
        seed = (self.sampler.config.seed, self.iteration, number, *([shard] if shard else []))
        with self.timed("sampling"):
            groups = self.sampler.sample(policy, prompts, self.n, seed, self.train.stop)
            columns = table_of_samples(policy, groups, self.train.stop)
            self.sampler.sleep()
        return self.judged(columns, policy, indices)

    def judged(self, columns: pa.Table, policy: Policy, indices: np.ndarray) -> pa.Table:
        """Completions of some problems with verdicts, log μ and, where it is needed, log π_ref."""
        size = self.trainer.config.score_batch_size
        prompts, problems = [self.train.prompts[i] for i in indices], [self.train.problems[i] for i in indices]
        completions = Completions(problems, prompts, columns)
        with self.timed("grading"):
            texts = completions.texts(range(len(completions)))
            verdicts = grade(self.grader, texts, completions.problem_index, problems)
            completions = with_verdicts(completions, verdicts)
        policies = {"logp": policy, "ref_logp": self.reference}
        questions = pa.array(np.repeat(indices, self.n), pa.int32())
        columns = completions.table.drop_columns(["problem"]).append_column("question", questions)
        with self.timed("scoring"):
            for name, one in policies.items():
                if one is not None:
                    scored = log_probabilities(one, completions, range(len(completions)), size, self.report_scored)
                    columns = columns.append_column(name, scored["logp"])
        return columns

    def serialized(self) -> dict[str, bytes]:
        """The round under way and the buffer as Arrow files, to go with a checkpoint."""
        tables = {BUFFER: pa.concat_tables(self.buffer)} if self.schedule.replay > 0 else {}
        if self.trainer.step % (self.schedule.updates or 1):
            tables[ROUND] = self.columns
        seen = {"seen": json.dumps(self.seen)}
        return {name: as_file(table.replace_schema_metadata(seen)) for name, table in tables.items()}

    def restore(self, checkpoint: Path) -> None:
        """Take up what `serialized` gave a checkpoint."""
        if self.schedule.replay > 0:
            table = read_table(checkpoint / BUFFER)
            self.seen = json.loads(table.schema.metadata[b"seen"])  # its names, where a round samples nothing
            self.buffer = self.groups(table.replace_schema_metadata(None))
        if self.trainer.step % (self.schedule.updates or 1):
            self.columns = read_table(checkpoint / ROUND)
            self.seen = json.loads(self.columns.schema.metadata[b"seen"])


def as_file(table: pa.Table) -> bytes:
    """A table as an Arrow file."""
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue().to_pybytes()


def read_table(path: Path) -> pa.Table:
    """The table that `as_file` made into a file."""
    return pa.ipc.open_file(pa.OSFile(str(path))).read_all()
