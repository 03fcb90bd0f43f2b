"""Settings of earlier releases, each with the setting or the value in its place."""

import copy
from typing import Any

from topr_exp.types import ConfigError

JSON_FIELDS = ("question", "answer", "id", "level", "subject")
RETIRED = {
    "algo.estimator": "AGRO has the estimator `vanilla`, which is right off-policy too",
    "algo.square_baseline": "on-policy AGRO has no baseline of the square",
    "algo.beta_value": "the temperature of V* is 0.5",
    "algo.form": "M2PO is the paper's",
    "algo.drop": "algo=red_drop drops negatives, algo=rec does not",
    "algo.normalize_std": "algo.advantage=group is without the division by the standard deviation",
    "checkpoint.keep_iterations": "checkpoint.weights=last keeps the last iteration's weights alone",
    "checkpoint.save_model": "set checkpoint.weights=none to keep no weights",
    "cluster.account": "set cluster.additional_parameters={account: NAME}",
    "cluster.array_parallelism": "set cluster.jobs",
    "cluster.constraint": "set cluster.additional_parameters={constraint: NAME}",
    "cluster.cpus_per_task": "set cluster.threads",
    "cluster.max_num_timeout": "a run is requeued 20 times at most; raise cluster.timeout_min",
    "cluster.mem_gb": "set cluster.additional_parameters={mem: 128G}",
    "cluster.partition": "set cluster.additional_parameters={partition: NAME}",
    "cluster.qos": "set cluster.additional_parameters={qos: NAME}",
    "cluster.signal_delay_s": "a run is stopped 10 minutes before cluster.timeout_min, at most a quarter of it",
    "compose.duplicates": "equal completions of a problem are all kept",
    "compose.max_draws": "a round draws 10 times at most",
    "compose.pairs_per_problem": "a problem gives 16 pairs at most; compose.n_examples limits them all",
    "data.answer": "set data.fields.answer",
    "data.answer_format": "set data.grader",
    "data.fewshot_file": "set data.shots=FILE, of which all examples are taken",
    "data.format": "data=gsm8k and data=math say it",
    "data.id": "set data.fields.id",
    "data.level": "set data.fields.level",
    "data.question": "set data.fields.question",
    "data.size": "set data.train_problems",
    "data.subject": "set data.fields.subject",
    "data.test_size": "set data.test_problems",
    "evaluation.seed": "evaluations have the seed 0",
    "model.attention": "attention is torch's sdpa",
    "model.float32_head": "the output layer always computes in float32",
    "model.learning_rates": "conf/learning_rates.yaml goes by model.name",
    "model.settings_of": "the command says whose settings a model takes",
    "model.shape": "set preset.shape in the model's YAML",
    "model.size": "set preset.size in the model's YAML",
    "mu_model": "set mu=NAME",
    "optim.betas": "AdamW has the betas 0.9 and 0.999",
    "optim.score_batch_size": "scoring takes four times optim.micro_batch_size at once",
    "optim.skip_nonfinite": "a run stops at a loss or gradient that is not finite; lower optim.lr",
    "optim.weight_decay": "weights are not decayed",
    "sampler.cpu_cache_gib": "set the environment variable VLLM_CPU_KVCACHE_SPACE",
    "sampler.eager": "vLLM captures CUDA graphs on a GPU, and none on the CPU",
    "sampler.timeout_min": "an engine may take two hours for a request",
    "schedule.staleness": "set schedule.when_stale, to {_target_: package.module.name}",
    "tracking.entity": "set W&B's environment variable WANDB_ENTITY",
    "tracking.group": "runs are grouped by `name`",
    "tracking.job_type": "the type is `train`",
    "tracking.model_artifact": "upload the weights with `wandb artifact put`",
    "tracking.project": "set W&B's environment variable WANDB_PROJECT",
}


def refuse_retired(key: str) -> None:
    """Raise ConfigError for a key of an earlier release; its line says what to use instead."""
    if key in RETIRED:
        raise ConfigError(f"{key} is gone: {RETIRED[key]}")


def migrate(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run of an earlier release under the keys of this one; values that are gone are left out.

    stored: the groups by name, as in a run's config.json. A source of the user's own keeps all its settings.
    """
    settings = copy.deepcopy(stored)
    data = settings["data"]
    is_ours = str(data.get("_target_")).startswith("topr_exp.")
    if is_ours and "question" in data:
        data["fields"] = {name: data.get(name) for name in JSON_FIELDS}
    # Null stands for a benchmark's own answer format, as before.
    if is_ours and data.get("grader") is None and data.get("answer_format") != data.get("name"):
        data["grader"] = data.get("answer_format")
    fewshot_file = data.pop("fewshot_file", None)
    if fewshot_file is not None and data.get("shots") != 0:  # with 0 examples nothing read the file
        data["shots"] = fewshot_file
    for key in RETIRED:
        group, _, name = key.partition(".")
        if isinstance(settings.get(group), dict) and (is_ours or group != "data"):
            settings[group].pop(name, None)
    return settings
