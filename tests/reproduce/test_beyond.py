"""TokenizedProblems beyond the papers: worlds in which their claims are true, and worlds in which they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.reproduce.worlds import Group, Level, World, check_all, group

NAMES = {"topr": "TOPR", "tis": "TIS", "is": "IS", "naive": "naive REINFORCE", "ppo": "PPO", "sft": "positives only",
         "agro": "AGRO", "asymre": "AsymRE", "grpo": "GRPO", "opmd": "OPMD", "rec": "REC"}  # fmt: skip

# ---- which ratio

ABOVE = "{}, each at its best rate: the sequence's ratio ends above the {} one"


def ratio_worlds() -> Sequence[World]:
    algos = ("topr", "tis", "is")

    def runs(algo: str, **levels: tuple[Level, Level]) -> list[Group]:
        """pass@1 of each ratio at 1e-4 and at 3e-4."""
        return [group(algo, level, algo__ratio=ratio, optim__lr=rate)
                for ratio, both in levels.items() for rate, level in zip((1e-4, 3e-4), both, strict=True)]  # fmt: skip

    better = {"sequence": (50, 70), "token": (60, 5), "geometric": (40, 58)}
    worse = {"sequence": (60, 5), "token": (20, 70), "geometric": (68, 10)}
    mixed = {"sequence": (60, 5), "token": (70, 5), "geometric": (5, 50)}
    told = {(algo, other): ABOVE.format(NAMES[algo], other) for algo in algos for other in ("token", "geometric")}
    return [
        World("ratio", "TOPR's sequence ratio is best at the large rate with 70, the token one with 60 at the small "
              "one (where the first has 50); TIS is the other way round; IS's token ratio is best, the geometric worst",
              [*runs("topr", **better), *runs("tis", **worse), *runs("is", **mixed)],
              shown=(told["topr", "token"], told["topr", "geometric"], told["is", "geometric"]),
              not_shown=(told["tis", "token"], told["tis", "geometric"], told["is", "token"])),
        World("ratio", "TIS's sequence ratio is best, TOPR's is not, and IS's is best of all three",
              [*runs("topr", **worse), *runs("tis", **better), *runs("is", **better)],
              shown=(told["tis", "token"], told["tis", "geometric"], told["is", "token"], told["is", "geometric"]),
              not_shown=(told["topr", "token"], told["topr", "geometric"])),
        World("ratio", "IS's sequence ratio is worst", runs("is", **worse),
              not_shown=(told["is", "token"], told["is", "geometric"])),
        World("ratio", "seeds far apart",
              runs("is", sequence=((85.0, 20.0, 55.0), 5), token=(50, 5), geometric=(55, 5)),
              undecided=(told["is", "token"], told["is", "geometric"])),
    ]  # fmt: skip


def test_which_ratio() -> None:
    check_all(ratio_worlds())


# ---- whose log μ

SAME = "{}, no top-k: whose log μ it is makes no difference (within a point)"
RECOMPUTED = "{}, top-k 2: recomputing log μ ends above taking the sampler's"


def mu_worlds() -> Sequence[World]:
    def runs(algo: str, levels: Mapping[tuple[str, int], Level]) -> list[Group]:
        return [group(algo, level, mu=mu, sampler__top_k=k) for (mu, k), level in levels.items()]

    def world(what: str, levels: Mapping[str, tuple[Level, Level, Level, Level]], **decided: Sequence[str]) -> World:
        """pass@1 without top-k, log μ recomputed and the sampler's, then with top-k 2."""
        keys = (("scored", 0), ("sampler", 0), ("scored", 2), ("sampler", 2))
        return World("mu", what, [one for algo, four in levels.items()
                                  for one in runs(algo, dict(zip(keys, four, strict=True)))], **decided)  # fmt: skip

    topr, tis, is_ = ((SAME.format(name), RECOMPUTED.format(name)) for name in ("TOPR", "TIS", "IS"))
    return [
        world("without top-k TOPR is at 60 and 60.3; with it at 70 recomputed, 60 with the sampler's. TIS: 60 and 63, "
              "60 and 70. IS: 60 and 60, 60 and 70", {"topr": (60, 60.3, 70, 60), "tis": (60, 63, 60, 70),
                                                  "is": (60, 60, 60, 70)},
              shown=(*topr, is_[0]), not_shown=(*tis, is_[1]),
              effects={topr[0]: -0.3, topr[1]: 10, tis[0]: -3, tis[1]: -10, is_[0]: 0, is_[1]: -10}),
        world("without top-k TOPR is at 60 and 57; with it at 60 and 70. TIS: 60 and 59.7, 70 and 60. IS: 63 and 60, "
              "70 and 60", {"topr": (60, 57, 60, 70), "tis": (60, 59.7, 70, 60), "is": (63, 60, 70, 60)},
              shown=(*tis, is_[1]), not_shown=(*topr, is_[0])),
        world("seeds far apart", {"topr": ((60.0, 50.0, 70.0), 60, (85.0, 30.0, 60.0), 55)}, undecided=topr),
    ]  # fmt: skip


def test_whose_log_mu() -> None:
    check_all(mu_worlds())


# ---- how stale

FRESH = "{}: sampling after every update ends above one epoch on old completions"


def staleness_worlds() -> Sequence[World]:
    def runs(algo: str, fresh: Level, between: float, stale: Level) -> list[Group]:
        """pass@1 with new completions after 1 update, after 16, and with one lot for all 128."""
        levels = {1: fresh, 16: between, 128: stale}
        return [group(algo, level, schedule__updates=updates, schedule__rounds=128 // updates)
                for updates, level in levels.items()]  # fmt: skip

    told = {algo: FRESH.format(name) for algo, name in NAMES.items()}
    first, second = [*NAMES][::2], [*NAMES][1::2]
    worlds = []
    for gains, loses in ((first, second), (second, first)):
        groups = [one for algo in gains for one in runs(algo, 60, 20, 50)]
        groups += [one for algo in loses for one in runs(algo, 50, 80, 60)]
        what = f"fresh completions are worth 10 points to {', '.join(gains)} and cost the others 10; with 16 updates "
        true, false = ([told[algo] for algo in algos] for algos in (gains, loses))
        worlds.append(World("staleness", f"{what}it is the other way round", groups, shown=true, not_shown=false))
    return [
        *worlds,
        World("staleness", "seeds far apart", runs("topr", (85.0, 30.0, 60.0), 50, 55), undecided=(told["topr"],)),
        World("staleness", "nobody sampled after every update: what that would be worth is not known",
              runs("topr", 60, 60, 40)[1:], undecided=(told["topr"],)),
        World("staleness", "nobody trained for an epoch on old completions", runs("topr", 60, 40, 20)[:2],
              undecided=(told["topr"],)),
    ]  # fmt: skip


def test_how_stale() -> None:
    check_all(staleness_worlds())
