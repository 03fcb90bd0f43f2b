"""Log μ and the reference: which losses need which, and whose weights the reference has."""

import pytest
import torch

from tests.conftest import config_of, each_row, needs_peft, refused, small_config, write_lines
from topr_exp.config.model_choice import SHIPPED
from topr_exp.config.settings import RULES
from topr_exp.models.model_folder import weights_fingerprint
from topr_exp.models.policy import load_policy
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.policies import Policies
from topr_exp.runs.preflight import check_problems
from topr_exp.types import ConfigError

MASK = "algo.mask=[{statistic:ratio,high:5}]"


@pytest.mark.parametrize("algo", ["naive", "sft"])
def test_mu_may_be_left_out_where_no_part_of_the_loss_reads_it(algo):
    for mu in ("scored", "none"):
        assert config_of(f"algo={algo}", f"mu={mu}").mu == mu


READS_MU = f"""
algo=topr
algo=naive {MASK}
algo=sft {MASK}
algo=sft algo.b_neg=2
algo=naive algo.rule=ppo
"""


@each_row("words", READS_MU)
def test_mu_is_needed_where_a_part_of_the_loss_reads_it(words):
    assert config_of(*words.split(), "mu=scored").mu == "scored"
    with refused("mu must be scored or sampler for algo=.*, which reads μ; got none", ConfigError):
        config_of(*words.split(), "mu=none")


@needs_peft
@pytest.mark.parametrize("lora", [[], ["model.lora={rank: 4, alpha: 8, targets: all-linear}"]], ids=["full", "lora"])
@pytest.mark.parametrize("setting, model", [([], "tiny"), (["model.reference=tiny_noise"], "tiny_noise")])
def test_the_reference_is_the_model_that_is_named_else_the_base(tmp_path, setting, model, lora):
    config = small_config(tmp_path, "algo=kl_pg", *lora, *setting)
    with RunFolder(config) as folder:
        policies = Policies(config, folder)
        policies.add_adapter(1)
        for _, weight in policies.current.model.named_parameters():
            weight.data.add_(0.01 * weight.requires_grad)  # trained by now
        reference = policies.reference()

    assert reference.fingerprint == weights_fingerprint(SHIPPED / model)
    policy = load_policy(config_of(f"model.path={model}").model, "cpu")
    prompt_ids = torch.as_tensor(policy.encode("Tom has 3 apples."))[None].long()
    logits = policy.model(input_ids=prompt_ids).logits
    assert reference.model(input_ids=prompt_ids).logits.equal(logits)


def test_pairs_of_a_log_are_as_many_as_it_has(tmp_path):
    log = write_lines(tmp_path / "log.jsonl", [{"prompt": "1 + 1?", "completion": "2", "gold": "2"}])

    words = [f"data.completions={log}", "compose.pass_rate=[0.51,0.52]", "optim.warmup_steps=9"]
    assert config_of("algo=dpo", *words, "data.n=1").data.n == 1


ADMITTED = """
compose.pass_rate=[0.0625,0.0625]
compose.pass_rate=[0,0]
algo=sft compose.pass_rate=[1,1] sampler.top_k=1
algo=grpo sampler.top_k=1 sampler.mismatch.logits_noise=0.1
algo=asymre compose.pass_rate=[0,0]
algo=agro model.reference=tiny_noise compose.pass_rate=[1,1]
baseline=-1 compose=positives
effective_positive=0.5 compose=proportion compose.n_examples=8000
model=tiny_verifier data.train_problems=500 schedule=on_policy schedule.prompts=2000 optim.batch_size=32000
"""


@each_row("words", ADMITTED)
def test_what_some_completions_can_meet_is_admitted(words):
    config = config_of(*words.split())
    check_problems(config)
    broken_keys = [key for rule in RULES for key, holds, _ in rule(config) if not holds]
    assert broken_keys == []
