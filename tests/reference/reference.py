"""A run computed a second time, the plain way, so that what its parts hand to one another is compared with the truth.

Taken from the run: its settings (config.json), the sampled tokens, their verdicts, and the weights that it began from.
Computed here: prompts, rewards, group statistics, which completions (or pairs, or groups) are trained on and in which
order, the baseline, log μ, log π_ref, and every update with all that is logged of it. Each sequence is computed alone
and unpadded, and an update is one sum over its batch.

Of the package only `generator` is used. Which numbers are drawn from it, and in which order, is a convention that has
to be the same here; the rest is mathematics.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer
from transformers.optimization import Adafactor

from tests.reference.choices import grouped, in_proportion, pairs, share_solved, some
from tests.reference.formulas import Completion, Record, losses_of, rate
from tests.reference.model import at, completion_logits, load, table_of, token_logp, weights_of
from topr_exp.composition.draws import random_generator

TEMPLATE = "Question: {question}\nAnswer:"  # of data.grader=gsm8k without worked examples
REGULARIZED = ("agro", "agro_on_policy", "rloo", "kl_pg")  # have a π_ref (RLOO's β may be 0)
ZERO_ONE = (*REGULARIZED, "oapl")  # have rewards 1 and 0 unless told otherwise

Draw = tuple[list[int], list[list[int]], Any]  # a prompt, the tokens of its completions, what names their randomness
Example = tuple[Completion, ...]  # one completion, or a correct and an incorrect one


@dataclass
class TrainingSet:
    examples: list[Example]
    rows: np.ndarray  # [N, 1] or [N, 2], their places among the candidates
    positive_share: float  # p
    baseline: float  # c


@dataclass
class Replay:
    """What the run should have recorded, and ended with."""

    records: list[Record] = field(default_factory=list)
    sets: dict[int, TrainingSet] = field(default_factory=dict)  # by iteration, where sampling comes first
    before: dict[str, Tensor] = field(default_factory=dict)  # weights
    after: dict[str, Tensor] = field(default_factory=dict)


class Reference:
    """A finished run, to be computed again. `draws`: what it sampled in rounds, which keep none of it."""

    def __init__(self, folder: Path, draws: Sequence[Draw] = ()) -> None:
        self.folder = folder
        self.settings = json.loads((folder / "config.json").read_text().replace('".inf"', "Infinity"))["resolved"]
        self.algo, self.optim, self.name = self.settings["algo"], self.settings["optim"], self.settings["algo"]["name"]
        self.peak = self.optim["lr"]
        model, data = self.settings["model"], self.settings["data"]
        assert (data["shots"], data["template"], data["chat"]) == (0, None, False)
        self.policy, self.tokenizer = load(model["path"]), AutoTokenizer.from_pretrained(model["path"])
        referred = (self.name in REGULARIZED and self.algo["beta"] > 0) or self.algo.get("anchor") == "ref"
        self.reference = load(model["reference"] or model["path"]) if referred else None
        self.whole_groups = (referred and self.name not in ("kl_pg", "oapl")) or self.algo.get("drop", False)
        lines = [json.loads(line) for line in (Path(data["source"]) / "train.jsonl").read_text().splitlines()]
        texts = [TEMPLATE.format(question=line["question"]) for line in lines]
        start = [self.tokenizer.bos_token_id]
        self.prompts = [start + self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        self.golds = [int(line["answer"].rpartition("#### ")[2]) for line in lines]
        self.draws = iter([draw for draw in draws if draw[0] in self.prompts])  # without what evaluation samples

    def replay(self, updates: int = 20) -> Replay:
        """The first updates of each iteration."""
        out = Replay(before=weights_of(self.policy))
        for iteration in range(1, self.settings["iterations"] + 1):
            if iteration > 1:
                self.policy = load(str(self.folder / f"iteration-{iteration - 1}" / "model"))
            self.optimizer = self.make_optimizer(list(self.policy.parameters()))
            step = samples = 0
            for batch, baseline, seen in self.batches(iteration, out.sets):
                step, samples = step + 1, samples + len(batch)
                self.optim["lr"] = rate(self.peak, step, self.updates(out.sets.get(iteration)), self.optim)
                place = {"iteration": iteration, "step": step, "samples": samples, **seen}
                out.records.append({**place, **self.update(batch, baseline)})
                if step == updates:
                    break
        out.after = weights_of(self.policy)
        return out

    def make_optimizer(self, weights: list[Tensor]) -> torch.optim.Optimizer:
        """AdamW as torch has it, Adafactor as transformers has it, with a fixed step size."""
        decay = self.optim["weight_decay"]
        if self.optim["name"] == "adamw":
            return torch.optim.AdamW(weights, betas=(0.9, 0.999), weight_decay=decay)
        fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
        return Adafactor(weights, lr=self.peak, weight_decay=decay, **fixed)

    def updates(self, chosen: TrainingSet | None) -> int:
        """Of an iteration, which trains on a set or in rounds."""
        if chosen is None:
            return self.settings["schedule"]["rounds"] * self.settings["schedule"]["updates"]
        return math.ceil(len(chosen.examples) / self.optim["batch_size"]) * self.optim["epochs"]

    # ---- what is trained on

    def batches(self, iteration: int, sets: dict[int, TrainingSet]) -> Iterator[tuple[list[Example], float, Record]]:
        """The batches of an iteration in their order, with c and what is logged of a round."""
        if self.settings["schedule"]["prompts"] is not None:
            yield from self.rounds(iteration)
            return
        chosen = sets[iteration] = self.compose(self.stored(iteration), iteration)
        for epoch in range(self.optim["epochs"]):
            for batch in self.passes(chosen, iteration, epoch):
                yield batch, chosen.baseline, {}

    def passes(self, chosen: TrainingSet, iteration: int, epoch: int) -> Iterator[list[Example]]:
        """One pass over a set in an order of its own; the last batch holds what is left."""
        rng = random_generator(self.settings["seed"], iteration, f"order of epoch {epoch}")
        order = chosen.examples
        if self.whole_groups:
            problems = sorted({one.problem for (one,) in order})
            place = dict(zip(problems, rng.permutation(len(problems)).tolist(), strict=True))
            order = sorted(order, key=lambda example: place[example[0].problem])
        else:
            order = [order[i] for i in rng.permutation(len(order))]
        size = self.optim["batch_size"]
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def stored(self, iteration: int) -> list[Completion]:
        """The completions of an iteration with their verdicts, as the store has them; problems count as they come."""
        table, verdicts = (table_of(self.folder, kind, iteration) for kind in ("rollouts", "verdicts"))
        sampled = len(table) if self.settings["data"]["completions"] is None else 0
        if self.settings["compose"]["mix"] is not None:  # those made elsewhere come after the sampled ones
            sampled = len(table)
            table += table_of(self.folder, "imported_rollouts", iteration)
            verdicts += table_of(self.folder, "imported_verdicts", iteration)
        candidates: list[Completion] = []
        problems: dict[int, int] = {}
        for row, verdict in zip(table, verdicts, strict=True):
            line = int(row["problem_id"].rpartition("/")[2])
            problem = problems.setdefault(line, len(problems))
            sample = sum(one.problem == problem for one in candidates)
            correct, cut_off = verdict["verdict"] == "correct", row["finish"] == "length"
            candidates.append(Completion(problem, sample, self.prompts[line], row["tokens"], correct, cut_off))
            if len(candidates) > sampled:
                candidates[-1].elsewhere = True
                if "sampler_logp" in row:
                    candidates[-1].mu = torch.tensor(row["sampler_logp"])
        self.prepared(candidates)
        if sampled:
            for one, row in zip(candidates[:sampled], table, strict=False):
                apart = (self.sampled_from(one) - torch.tensor(row["sampler_logp"])).abs().max()
                assert apart < 1e-4, f"drawn from another distribution: {row['text']}"
        return candidates

    def rounds(self, iteration: int) -> Iterator[tuple[list[Example], float, Record]]:
        """Sample some problems, take a few updates, sample again; groups of earlier rounds may come back."""
        schedule, seed, total = self.settings["schedule"], self.settings["seed"], len(self.prompts)
        n = self.settings["data"]["n"]
        count, buffer, gap = schedule["prompts"], list[list[Completion]](), math.nan
        for number in range(schedule["rounds"]):
            rng = random_generator(seed, iteration, f"round {number}")
            replayed = int((rng.random(count) < schedule["replay"]).sum()) if buffer else 0
            old = rng.choice(len(buffer), size=replayed, replace=replayed > len(buffer))
            new, share, length, truncated_share = [], math.nan, math.nan, math.nan
            lines = []
            for i in range(count - replayed):  # problems in an endless list, each once a pass
                epoch, place = divmod(number * count + i, total)
                lines.append(int(random_generator(seed, iteration, f"prompts {epoch}").permutation(total)[place]))
            fresh, solved, draw = list[Completion](), list[list[Completion]](), 0
            while True:  # with a pass rate once more, of those that the round has not had, until there are enough
                some_new = [self.drawn(line, i) for i, line in enumerate(lines[len(fresh) // n :])]
                fresh += (new_ones := self.prepared([one for group in some_new for one in group]))
                solved += [group for group in grouped(new_ones, n) if self.often_enough(group)]
                draw += 1
                if len(solved) >= count - replayed or len(set(lines)) == total or draw == self.most_draws:
                    break
                others = np.array([line for line in range(total) if line not in lines])
                again = random_generator(seed, iteration, f"round {number}, draw {draw}")
                lines += again.permutation(others)[:count].tolist()
            new = solved[: count - replayed]
            if fresh:
                share = float(np.mean([one.correct for one in fresh]))
                length = float(np.mean([len(one.tokens) for one in fresh]))
                truncated_share = float(np.mean([one.truncated for one in fresh]))
                more = {"sampled_reward": float(np.mean([one.reward for one in fresh]))}
                gap = float(torch.cat([(one.old - self.sampled_from(one)).abs() for one in fresh]).mean())
            groups = [*(buffer[i] for i in old), *new]
            buffer += new
            candidates = [replace(one, problem=slot) for slot, group in enumerate(groups) for one in group]
            chosen = self.compose(candidates, iteration, f" of round {number}")
            seen = {"round": number, "sampled_correct": share, "sampled_length": length, "sampler_gap": gap}
            seen["sampled_truncated"] = truncated_share
            seen |= more if self.settings["data"]["reward"] == "graded" else {}
            if self.settings["compose"]["pass_rate"] is not None:
                seen |= {"problems_drawn": len(lines), "problems_kept": len(solved)}
            batches: list[list[Example]] = []
            while len(batches) < schedule["updates"]:  # a pass over the round's set, and another one
                epoch = 1_000_000 * (number + 1) + len(batches) // math.ceil(
                    len(chosen.examples) / self.optim["batch_size"]
                )
                batches += self.passes(chosen, iteration, epoch)
            for batch in batches[: schedule["updates"]]:
                yield batch, chosen.baseline, seen

    @property
    def most_draws(self) -> int:
        return 10

    def often_enough(self, group: list[Completion]) -> bool:
        low, high = self.settings["compose"]["pass_rate"] or (0, 1)
        return bool(low <= np.mean([one.correct for one in group]) <= high)

    def drawn(self, line: int, problem: int) -> list[Completion]:
        """The completions that were drawn for a problem, graded by the last number after `The answer is`."""
        prompt, draws, _ = next(self.draws)
        assert (prompt, len(draws)) == (self.prompts[line], self.settings["data"]["n"])
        group = []
        for sample, tokens in enumerate(draws):
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            answers = re.findall(r"The answer is (-?\d+)", text)
            correct = bool(answers) and int(answers[-1]) == self.golds[line]
            reached_limit = len(tokens) == self.settings["sampler"]["max_new_tokens"]
            truncated = reached_limit and tokens[-1] != self.tokenizer.eos_token_id
            group.append(Completion(problem, sample, prompt, tokens, correct, truncated))
            if self.settings["data"]["reward"] == "graded":
                group[-1].correct = self.closeness(group[-1])[1]
        return group

    @torch.no_grad()
    def prepared(self, candidates: list[Completion]) -> list[Completion]:
        """With rewards (by closeness or two values, whatever is not correct), group statistics, log μ and log π_ref."""
        kind = self.settings["data"]["reward"] or ("zero_one" if self.name in ZERO_ONE else "pm1")
        for one in candidates:
            if kind == "graded":
                one.reward, correct = self.closeness(one)
                assert one.correct == correct
            else:
                one.reward = 1.0 if one.correct else {"zero_one": 0.0, "pm1": -1.0}[kind]
            if one.mu is None and self.settings["mu"] == "sampler":
                one.mu = self.sampled_from(one)
            elif one.mu is None:
                one.mu = token_logp(self.policy, one).float()  # as the store keeps it
            if one.old is None:
                one.old = token_logp(self.policy, one).float()
            if self.reference is not None:
                one.ref = token_logp(self.reference, one).float()
        for one in candidates:
            rewards = [other.reward for other in candidates if other.problem == one.problem]
            one.rewards = rewards
            one.mean, one.std, one.n = float(np.mean(rewards)), float(np.std(rewards, ddof=1)), len(rewards)
        return candidates

    def closeness(self, one: Completion) -> tuple[float, bool]:
        """What `closeness.py` says of a completion: how near the answer is, and whether that is near enough."""
        text = self.tokenizer.decode(one.tokens, skip_special_tokens=True)
        answers = re.findall(r"The answer is (-?\d+)", text)
        if not answers:
            return -0.5, False
        far = abs(int(answers[-1]) - self.golds[self.prompts.index(one.prompt)])
        reward = 3 - far / 2 if far < 8 else -1.0
        return reward, reward >= self.settings["data"]["threshold"]

    @torch.no_grad()
    def sampled_from(self, one: Completion) -> Tensor:
        """[T] log-probabilities after temperature and top-k, as the sampler draws."""
        sampler = self.settings["sampler"]
        if (sampler["temperature"], sampler["top_k"]) == (1, 0) and one.mu is not None:
            return one.mu
        logits = completion_logits(self.policy, one) / sampler["temperature"]
        if sampler["top_k"]:
            logits[logits < logits.topk(sampler["top_k"]).values[:, -1:]] = -math.inf
        return at(logits.log_softmax(-1), one.tokens)

    def compose(self, candidates: list[Completion], iteration: int, of: str = "") -> TrainingSet:
        """Which of the candidates are trained on, and the c that the set's own p asks for."""
        compose, seed = self.settings["compose"], self.settings["seed"]
        name, n, p = compose["name"], compose["n_examples"], compose["positive_share"]
        usable = [i for i, one in enumerate(candidates) if not (compose["drop_truncated"] and one.truncated)]
        if compose["pass_rate"] is not None:
            low, high = compose["pass_rate"]
            usable = [i for i in usable if low <= share_solved(candidates, i) <= high]
        if compose["duplicates"] == "drop":
            said = [(one.problem, list(one.tokens)) for one in candidates]
            usable = [i for i in usable if said[i] not in said[:i]]
        right = [i for i in usable if candidates[i].correct]
        wrong = [i for i in usable if not candidates[i].correct]
        problems = sorted(
            {candidates[i].problem for i in usable} if self.whole_groups else {c.problem for c in candidates}
        )
        rng = random_generator(seed, iteration, f"compose examples{of}")
        if self.name == "dpo":
            rows = pairs(candidates, right, wrong, compose, random_generator(seed, iteration, "compose pairs"))
        else:
            if self.whole_groups:
                kept: list[int] = []
                for problem in random_generator(seed, iteration, f"compose groups{of}").permutation(problems):
                    group = [i for i in usable if candidates[i].problem == problem]
                    if n is not None and len(kept) + len(group) > n:
                        break
                    kept += group
            elif compose["mix"] is not None:
                usable = right if name == "positives" else usable
                there = [[i for i in usable if candidates[i].elsewhere is where] for where in (True, False)]
                kept = in_proportion(rng, *there, compose["mix"], n)
            elif name == "uniform":
                kept = some(rng, usable, n)
            elif name == "positives":
                kept = some(rng, right, n)
            elif name == "proportion":
                kept = in_proportion(rng, right, wrong, p, n)
            else:  # anna_karenina: the first correct one of each problem, then incorrect ones
                firsts = [next((i for i in right if candidates[i].problem == problem), None) for problem in problems]
                kept = some(rng, [i for i in firsts if i is not None], n)
                kept += some(rng, wrong, None if n is None else n - len(kept))
            rows = [(i,) for i in sorted(kept)]
        examples = [tuple(candidates[i] for i in row) for row in rows]
        share = float(np.mean([one.correct for example in examples for one in example]))
        effective, baseline = self.settings["effective_positive"], self.settings["baseline"] or 0.0
        if effective is not None:  # Eq. 12 solved for c
            baseline = (share - effective) / (share + effective - 2 * share * effective)
        return TrainingSet(examples, np.array(rows), share, baseline)

    # ---- an update

    def update(self, batch: list[Example], baseline: float) -> Record:
        """Loss and gradient, a step of the optimizer, and everything that is logged of it."""
        sides = [side for part in zip(*batch, strict=True) for side in part]  # of pairs the correct ones first
        scores = [self.score(one) for one in sides]
        logps = [score["logp"] for score in scores]
        losses, reported = zip(*losses_of(self.algo, sides, scores, baseline), strict=True)
        tokens = sum(len(one.tokens) for one in sides)
        loss = torch.stack(losses).sum() / (tokens if self.optim["reduction"] == "tokens" else len(losses))
        self.optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.optim["grad_clip"]))
        self.optimizer.param_groups[0]["lr"] = self.optim["lr"]
        self.optimizer.step()

        def log_ratio(to: str) -> np.ndarray:
            return np.array([float((p.detach() - getattr(one, to)).sum()) for p, one in zip(logps, sides, strict=True)])

        delta, correct = log_ratio("mu"), np.array([one.correct for one in sides])
        record: Record = {"loss": float(loss.detach()), "grad_norm": norm, "lr": self.optim["lr"], "skipped": 0}
        record["positive_share"] = float(correct.mean())
        record["tokens"] = tokens
        record["prompt_tokens"] = sum(len(one.prompt) for one in sides)
        if self.settings["data"]["reward"] == "graded":
            record["mean_reward"] = float(np.mean([one.reward for one in sides]))
        record["entropy"] = float(torch.cat([score["entropy"] for score in scores]).mean())
        record["ess"] = float(np.exp(delta).sum() ** 2 / (len(delta) * np.exp(2 * delta).sum()))
        if not correct.all():
            record["spent_share_neg"] = float(np.mean(np.exp(delta[~correct]) < 0.01))
        record["kl_mu"] = float(np.mean(np.exp(delta) - 1 - delta))
        if self.reference is not None:
            record["kl_ref"] = float(log_ratio("ref").mean())
        for sign, chosen in (("pos", correct), ("neg", ~correct)):
            if not chosen.any():
                continue
            ratio = np.exp(delta[chosen])
            record[f"log_ratio_{sign}"] = float(delta[chosen].mean())
            record[f"ess_{sign}"] = float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()))
            for q in (5, 50, 95):
                record[f"log_ratio_q{q:02d}_{sign}"] = float(np.percentile(delta[chosen], q))
            for name in reported[0] if self.name != "dpo" else ():
                record[f"{name}_{sign}"] = float(np.mean([one[name] for one in reported], where=chosen))
        if self.name == "dpo":
            record |= {name: float(np.mean([one[name] for one in reported])) for name in reported[0]}
        return record

    def score(self, one: Completion) -> dict[str, Tensor]:
        """Of every sampled token: log π, the distribution's entropy and, where it is needed, its KL to π_ref's."""
        logp = completion_logits(self.policy, one).log_softmax(-1)
        score = {"logp": at(logp, one.tokens), "entropy": -(logp.exp() * logp).sum(-1).detach()}
        if self.name == "kl_pg":
            with torch.no_grad():
                reference = completion_logits(self.reference, one).log_softmax(-1)
            score["kl"] = (logp.exp() * (logp - reference)).sum(-1)
        return score
