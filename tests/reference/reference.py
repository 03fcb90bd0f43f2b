"""A run computed a second time, the plain way, so that what its parts hand to one another is compared with the truth.

Taken from the run: its settings (config.json), the sampled tokens, their verdicts, which of them an offline run
selected (tests/composition has the rules), and the weights that it began from. Computed here: prompts, rewards, group
statistics, the order of training, rounds, the baseline, log μ, log π_ref, and every update with all that is logged of
it. Each sequence is computed alone and unpadded, and an update is one sum over its batch.

Of the package only `random_generator` is used. Which numbers are drawn from it, and in which order, is a convention
that has to be the same here; the rest is mathematics.
"""

import json
import math
import re
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer
from transformers.optimization import Adafactor

from tests.conftest import column, values_of
from tests.plain_scoring import cut_to_top_k, logp_at
from tests.reference.formulas import PENALIZED, Completion, losses_of, rate
from tests.reference.model import completion_logits, load, table_of, token_logp, weights_of
from topr_exp.composition.draws import random_generator

TEMPLATE = "Question: {question}\nAnswer:"  # of data.grader=gsm8k without worked examples
REGULARIZED = ("agro", "agro_on_policy", "rloo", "kl_pg")  # have a π_ref (RLOO's β may be 0)
ZERO_ONE = (*REGULARIZED, "oapl")  # have rewards 1 and 0 unless told otherwise
MOST_DRAWS = 10  # of a round, where a pass rate leaves out too many problems


@dataclass
class TrainingSet:
    examples: list[tuple[Completion, ...]]  # single completions, or pairs of a correct and an incorrect one
    positive_share: float  # p
    baseline: float  # c


@dataclass
class Replay:
    """What the run should have recorded, and ended with."""

    records: list[dict[str, Any]] = field(default_factory=list)
    sets: dict[int, TrainingSet] = field(default_factory=dict)  # by iteration, where sampling comes first
    initial_weights: dict[str, Any] = field(default_factory=dict)
    final_weights: dict[str, Any] = field(default_factory=dict)


@dataclass
class Round:
    """The new groups of a round."""

    lines: list[int]  # of the problems that were drawn
    groups: list[list[Completion]]
    solved: list[list[Completion]]  # groups that the pass rate keeps


class Reference:
    """A finished run, to be computed again; draws: (prompt, completions) sampled in rounds, which keep none of it."""

    def __init__(self, folder, draws=()):
        self.folder = folder
        text = (folder / "config.json").read_text().replace('".inf"', "Infinity")
        self.settings = json.loads(text)["resolved"]
        self.seed = self.settings["seed"]
        self.algo = self.settings["algo"]
        self.optim = self.settings["optim"]
        self.schedule = self.settings["schedule"]
        self.data = self.settings["data"]
        self.selection = self.settings["compose"]
        self.name = self.algo["name"]
        self.is_graded = self.data["reward"] == "graded"
        assert self.data.items() >= {"shots": 0, "template": None, "chat": False}.items()

        model = self.settings["model"]
        self.policy = load(model["path"])
        self.tokenizer = AutoTokenizer.from_pretrained(model["path"])
        self.reference = None
        is_regularized = self.name in REGULARIZED and self.algo["beta"] > 0
        is_penalized = self.name in PENALIZED and self.algo.get("kl_coef", 0) > 0
        if is_regularized or is_penalized or self.algo.get("anchor") == "ref":
            self.reference = load(model["reference"] or model["path"])
        self.takes_groups = self.name == "red_drop" or (is_regularized and self.name != "kl_pg")

        self.prompts, self.golds = self.read_problems()
        self.draws = iter([draw for draw in draws if draw[0] in self.prompts])  # without what evaluation samples

    def read_problems(self):
        """The prompts of the training problems, and their answers."""
        prompts, golds = [], []
        for text in (Path(self.data["source"]) / "train.jsonl").read_text().splitlines():
            line = json.loads(text)
            prompt = TEMPLATE.format(question=line["question"])
            ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
            prompts.append([self.tokenizer.bos_token_id, *ids])
            golds.append(int(line["answer"].rpartition("#### ")[2]))
        return prompts, golds

    def replay(self):
        replay = Replay(initial_weights=weights_of(self.policy))
        for iteration in range(1, self.settings["iterations"] + 1):
            if iteration > 1:
                self.policy = load(str(self.folder / f"iteration-{iteration - 1}/model"))
            self.optimizer = self.make_optimizer()
            samples = 0
            for step, (batch, baseline, facts) in enumerate(self.batches(iteration, replay.sets), 1):
                samples += len(batch)
                record = {"iteration": iteration, "step": step, "samples": samples, **facts}
                lr = rate(self.optim["lr"], step, self.updates(replay.sets.get(iteration)), self.optim)
                replay.records.append(record | self.update(batch, baseline, lr))
        replay.final_weights = weights_of(self.policy)
        return replay

    def make_optimizer(self):
        """AdamW as torch has it, Adafactor as transformers has it, with a fixed step size."""
        weights = list(self.policy.parameters())
        if self.optim["name"] == "adamw":
            return torch.optim.AdamW(weights, betas=(0.9, 0.999), weight_decay=0)
        fixed_size = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
        return Adafactor(weights, lr=self.optim["lr"], **fixed_size)

    def updates(self, training_set):
        """Count the updates of an iteration, which trains on a set or in rounds."""
        if training_set is None:
            return self.schedule["rounds"] * self.schedule["updates"]
        return math.ceil(len(training_set.examples) / self.optim["batch_size"]) * self.optim["epochs"]

    # ---- what is trained on

    def batches(self, iteration, sets):
        """Iterate over the batches of an iteration, with c and what is logged of a round."""
        if self.schedule["prompts"] is not None:
            yield from self.rounds(iteration)
            return
        rows = np.load(self.folder / f"iteration-{iteration}/examples.npy")
        sets[iteration] = training_set = self.training_set(self.stored(iteration), rows)
        for epoch in range(self.optim["epochs"]):
            for batch in self.passes(training_set, iteration, epoch):
                yield batch, training_set.baseline, {}

    def passes(self, training_set, iteration, epoch):
        """Iterate over a set in an order of the epoch's own; the last batch holds what is left."""
        rng = random_generator(self.seed, iteration, f"order of epoch {epoch}")
        examples = training_set.examples
        if self.takes_groups:
            problems = sorted({completion.problem for (completion,) in examples})
            rank_of_problem = dict(zip(problems, rng.permutation(len(problems)).tolist(), strict=True))
            examples = sorted(examples, key=lambda example: rank_of_problem[example[0].problem])
        else:
            examples = [examples[row] for row in rng.permutation(len(examples))]
        batch_size = self.optim["batch_size"]
        for start in range(0, len(examples), batch_size):
            yield examples[start : start + batch_size]

    def stored(self, iteration):
        """The completions of an iteration with their verdicts, as the store has them; problems count as they come."""
        rollouts, verdicts = (table_of(self.folder, kind, iteration) for kind in ("rollouts", "verdicts"))
        sampled = len(rollouts)
        if self.selection["mix"] is not None:  # imported ones come after the sampled ones
            rollouts += table_of(self.folder, "imported_rollouts", iteration)
            verdicts += table_of(self.folder, "imported_verdicts", iteration)
        elif self.data["completions"] is not None:
            sampled = 0
        candidates, problems = [], {}
        for row, verdict in zip(rollouts, verdicts, strict=True):
            line = int(row["problem_id"].rpartition("/")[2])
            problem = problems.setdefault(line, len(problems))
            position = values_of(candidates, "problem").count(problem)
            completion = Completion(problem, position, self.prompts[line], row["tokens"], False)
            completion.is_correct = verdict["verdict"] == "correct"
            completion.is_truncated = row["finish"] == "length"
            completion.is_imported = len(candidates) >= sampled
            if completion.is_imported and "sampler_logp" in row:
                completion.mu = torch.tensor(row["sampler_logp"])
            candidates.append(completion)
        self.prepare(candidates)
        for completion, row in zip(candidates[:sampled], rollouts, strict=False):
            distance = (self.sampler_logp(completion) - torch.tensor(row["sampler_logp"])).abs().max()
            assert distance < 1e-4, f"drawn from another distribution: {row['text']}"
        return candidates

    def rounds(self, iteration):
        """Sample some problems, take a few updates, sample again; groups of earlier rounds may come back."""
        prompts = self.schedule["prompts"]
        updates = self.schedule["updates"]
        buffer = []
        for number in range(self.schedule["rounds"]):
            rng = random_generator(self.seed, iteration, f"round {number}")
            replays = 0
            if buffer:
                replays = int((rng.random(prompts) < self.schedule["replay"]).sum())
            places = rng.choice(len(buffer), size=replays, replace=replays > len(buffer))
            new = self.draw_round(iteration, number, prompts - replays)
            facts = {"round": number, **self.facts(new)}
            fresh_groups = new.solved[: prompts - replays]
            groups = [buffer[place] for place in places] + fresh_groups
            buffer += fresh_groups

            candidates = []
            for slot, group in enumerate(groups):
                candidates += [replace(completion, problem=slot) for completion in group]
            training_set = self.training_set(candidates, [(row,) for row in range(len(candidates))])
            passes = math.ceil(len(training_set.examples) / self.optim["batch_size"])
            batches = []
            while len(batches) < updates:  # a pass over the round's set, and another one
                epoch = 1_000_000 * (number + 1) + len(batches) // passes
                batches += self.passes(training_set, iteration, epoch)
            for batch in batches[:updates]:
                yield batch, training_set.baseline, facts

    def draw_round(self, iteration, number, count):
        """Sample problems; with a pass rate anew, of those that the round has not had, until there are enough."""
        total = len(self.prompts)
        prompts = self.schedule["prompts"]
        new = Round([], [], [])
        for position in range(number * prompts, number * prompts + count):  # in an endless list, each once a pass
            epoch, place = divmod(position, total)
            order = random_generator(self.seed, iteration, f"prompts {epoch}").permutation(total)
            new.lines.append(int(order[place]))
        for draw in range(1, MOST_DRAWS + 1):
            for line in new.lines[len(new.groups) :]:
                group = self.sampled_group(line)
                new.groups.append(group)
                if self.is_kept(group):
                    new.solved.append(group)
            if len(new.solved) >= count or len(set(new.lines)) == total:
                break
            if draw < MOST_DRAWS:
                remaining = np.array([line for line in range(total) if line not in new.lines])
                rng = random_generator(self.seed, iteration, f"round {number}, draw {draw}")
                new.lines += rng.permutation(remaining)[:prompts].tolist()
        return new

    def facts(self, new):
        """What is logged of a round's new completions; NaN where it has none."""
        completions = list(chain.from_iterable(new.groups))
        gaps = [(completion.old - self.sampler_logp(completion)).abs() for completion in completions]
        columns = {
            "sampled_correct": values_of(completions, "is_correct"),
            "sampled_length": list(map(len, values_of(completions, "tokens"))),
            "sampled_truncated": values_of(completions, "is_truncated"),
            "sampler_gap": torch.cat([torch.zeros(0), *gaps]).tolist(),
        }
        if self.is_graded:
            columns["sampled_reward"] = values_of(completions, "reward")
        facts = {}
        for name, values in columns.items():
            facts[name] = float(np.mean(values)) if values else math.nan
        is_selected = self.selection["pass_rate"] is not None
        if is_selected or self.schedule["replay"]:
            facts["problems_drawn"] = len(new.lines) or math.nan
        if is_selected:
            facts["problems_kept"] = len(new.solved)
        return facts

    def is_kept(self, group):
        low, high = self.selection["pass_rate"] or (0, 1)
        return low <= np.mean(values_of(group, "is_correct")) <= high

    def sampled_group(self, line):
        """The completions that were drawn for a problem, graded by the last number after `The answer is`."""
        prompt, draws = next(self.draws)
        assert prompt == self.prompts[line]
        assert len(draws) == self.data["n"]
        limit = self.settings["sampler"]["max_new_tokens"]
        end = self.tokenizer.eos_token_id
        group = []
        for position, tokens in enumerate(draws):
            completion = Completion(0, position, prompt, tokens, False)
            completion.is_truncated = len(tokens) == limit and tokens[-1] != end
            completion.is_correct = self.distance_to_gold(completion) == 0
            if self.is_graded:
                completion.is_correct = self.is_near(completion)
            group.append(completion)
        self.prepare(group)
        return group

    @torch.no_grad()
    def prepare(self, candidates):
        """Set rewards (by closeness or two values), those of the group, log μ and log π_ref."""
        kind = self.data["reward"] or ("zero_one" if self.name in ZERO_ONE else "pm1")
        for completion in candidates:
            if kind == "graded":
                assert completion.is_correct == self.is_near(completion)
                completion.reward = self.closeness(completion)
            elif completion.is_correct:
                completion.reward = 1.0
            else:
                completion.reward = {"zero_one": 0.0, "pm1": -1.0}[kind]
            completion.old = token_logp(self.policy, completion).float()  # as the store keeps it
            if completion.mu is None and self.settings["mu"] == "sampler":
                completion.mu = self.sampler_logp(completion)
            elif completion.mu is None:
                completion.mu = completion.old
            if self.reference is not None:
                completion.ref = token_logp(self.reference, completion).float()
        for completion in candidates:
            group = [member for member in candidates if member.problem == completion.problem]
            completion.group_rewards = values_of(group, "reward")

    def distance_to_gold(self, completion):
        text = self.tokenizer.decode(completion.tokens, skip_special_tokens=True)
        answers = re.findall(r"The answer is (-?\d+)", text)
        if not answers:
            return math.inf
        return abs(int(answers[-1]) - self.golds[self.prompts.index(completion.prompt)])

    def closeness(self, completion):
        """What `closeness.py` says of a completion."""
        distance = self.distance_to_gold(completion)
        if distance == math.inf:
            return -0.5
        return 3 - distance / 2 if distance < 8 else -1.0

    def is_near(self, completion):
        return self.closeness(completion) >= self.data["threshold"]

    @torch.no_grad()
    def sampler_logp(self, completion):
        """[T] log-probabilities after temperature and top-k, as the sampler draws."""
        sampler = self.settings["sampler"]
        if (sampler["temperature"], sampler["top_k"]) == (1, 0) and completion.mu is not None:
            return completion.mu
        logits = completion_logits(self.policy, completion) / sampler["temperature"]
        if sampler["top_k"]:
            logits = cut_to_top_k(logits, sampler["top_k"])
        return logp_at(logits, completion.tokens)

    def training_set(self, candidates, rows):
        """The candidates in these rows, and the c that the set's own p asks for."""
        examples = []
        for example in rows:
            examples.append(tuple(candidates[row] for row in example))
        share = float(np.mean(values_of(chain.from_iterable(examples), "is_correct")))
        effective = self.settings["effective_positive"]
        baseline = self.settings["baseline"] or 0.0
        if effective is not None:  # Eq. 12 solved for c
            baseline = (share - effective) / (share + effective - 2 * share * effective)
        return TrainingSet(examples, share, baseline)

    # ---- an update

    def update(self, batch, baseline, lr):
        """Loss and gradient, a step of the optimizer, and everything that is logged of it."""
        completions = list(chain.from_iterable(zip(*batch, strict=True)))  # of pairs the correct ones first
        scores = list(map(self.score, completions))
        outcomes = losses_of(self.algo, completions, scores, baseline)
        losses, reports = zip(*outcomes, strict=True)
        tokens = sum(map(len, values_of(completions, "tokens")))
        divisor = tokens if self.optim["reduction"] == "tokens" else len(losses)
        loss = sum(losses) / divisor
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.optim["grad_clip"])
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()
        record = {"loss": loss.item(), "grad_norm": norm.item(), "lr": lr, "tokens": tokens}
        return record | self.statistics(completions, scores) | self.means_of_reports(completions, reports)

    def statistics(self, completions, scores):
        """The metrics that every loss has, by the policy before the step."""
        is_correct = np.array(values_of(completions, "is_correct"))
        logps = column(scores, "logp")
        delta = log_ratios(logps, values_of(completions, "mu"))
        record = {
            "positive_share": float(is_correct.mean()),
            "prompt_tokens": sum(map(len, values_of(completions, "prompt"))),
            "entropy": torch.cat(column(scores, "entropy")).mean().item(),
            "ess": effective_share(delta),
            "kl_mu": float(np.mean(np.exp(delta) - 1 - delta)),
        }
        if self.is_graded:
            record["mean_reward"] = float(np.mean(values_of(completions, "reward")))
        if not is_correct.all():
            record["spent_share_neg"] = float(np.mean(np.exp(delta[~is_correct]) < 0.01))
        if self.reference is not None:
            record["kl_ref"] = float(log_ratios(logps, values_of(completions, "ref")).mean())
        for sign, values in by_sign(completions, delta):
            record |= {f"log_ratio_{sign}": float(values.mean()), f"ess_{sign}": effective_share(values)}
            for percent in (5, 50, 95):
                record[f"log_ratio_q{percent:02d}_{sign}"] = float(np.percentile(values, percent))
        return record

    def means_of_reports(self, completions, reports):
        """What the loss reports, as means by verdict; of pairs over all."""
        means = {}
        for name in reports[0]:
            reported = np.array(column(reports, name))
            if self.name == "dpo":
                means[name] = float(reported.mean())
                continue
            for sign, values in by_sign(completions, reported):
                means[f"{name}_{sign}"] = float(values.mean())
        return means

    def score(self, completion):
        """Of every sampled token: log π, the distribution's entropy and, where it is needed, its KL to π_ref's."""
        logits = completion_logits(self.policy, completion)
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1).detach()
        score = {"logp": logp_at(logits, completion.tokens), "entropy": entropy}
        if self.name == "kl_pg":
            with torch.no_grad():
                reference = completion_logits(self.reference, completion).log_softmax(-1)
            score["kl"] = (logp.exp() * (logp - reference)).sum(-1)
        return score


def by_sign(completions, values):
    """The values of the correct completions and of the others, where there are any."""
    is_correct = np.array(values_of(completions, "is_correct"))
    for sign, is_of_sign in (("pos", is_correct), ("neg", ~is_correct)):
        if is_of_sign.any():
            yield sign, values[is_of_sign]


def log_ratios(logps, denominators):
    return np.array([float((p.detach() - q).sum()) for p, q in zip(logps, denominators, strict=True)])


def effective_share(delta):
    return float(np.exp(delta).sum() ** 2 / (len(delta) * np.exp(2 * delta).sum()))
