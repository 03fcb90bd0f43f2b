"""The models of a run: the policy in training, and models that score completions for the loss."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from topr_exp.config.groups import reads_reference, unit_of
from topr_exp.config.model import ModelConfig
from topr_exp.config.settings import Config
from topr_exp.models.loading import refuse_other_logits
from topr_exp.models.model_folder import fetch_model_folder, find_folder, refuse_quantized
from topr_exp.models.policy import Policy, load_policy
from topr_exp.models.tokenization import refuse_other_tokens
from topr_exp.runs.folder import RunFolder
from topr_exp.runtime.checksums import CHECKSUMS
from topr_exp.sampling.completions import Completions
from topr_exp.store import Store
from topr_exp.training.logprobs import read_or_score
from topr_exp.types import TOPRError


class Policies:
    """The models of a run: the policy that it trains, and those that score its completions for the loss."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.folder = folder
        self.needs = config.algo.needs
        refuse_quantized(fetch_model_folder(config.model.path, config.model.revision))
        self.current = self.load(config.model)  # the policy: the base model, then that of each iteration
        for model in self.other_models():
            # Before anything is sampled: the hub may lack it.
            folder_of_other = fetch_model_folder(model.path, model.revision)
            refuse_other_tokens(
                self.current.tokenizer, folder_of_other, trust_remote_code=config.model.trust_remote_code
            )

    def other_models(self) -> Iterator[ModelConfig]:
        """Yield the models that are loaded after sampling, to score completions."""
        if self.has_reference and self.config.model.reference is not None:
            yield self.config.reference_model
        if self.config.mu_path is not None:
            yield self.config.untrained_model(self.config.mu_path)

    @property
    def has_reference(self) -> bool:
        return reads_reference(self.needs)

    def load(self, model: ModelConfig, folder: Path | None = None) -> Policy:
        """Load a model of the settings, with the weights of `folder` in place of its own if one is given.

        TOPRError for one that can't be scored.
        """
        policy = load_policy(model, self.config.cluster.device, folder)
        refuse_other_logits(policy.model)
        return policy

    def reload(self, folder: Path | None = None) -> None:
        """Load the policy with the weights of a folder of this run, or (None) with the base's."""
        if folder is not None and not (folder / CHECKSUMS).exists():
            raise TOPRError(f"{folder} is damaged: {CHECKSUMS} is gone; remove it, and the same command makes it again")
        del self.current  # with its gradients: there may be no memory for two
        self.current = self.load(self.config.model, folder)

    def add_adapter(self, iteration: int) -> None:
        """With LoRA, train an adapter on the base in this iteration, from where the last one left it.

        What was just evaluated is the model with that adapter merged into its weights.
        """
        model = self.config.model
        if model.lora is None:
            return
        if iteration > 1:
            self.reload()
        trained_folder = self.folder.model_of(iteration - 1) if iteration > 1 else None
        base_folder = find_folder(model.path)
        base_path = str(base_folder.resolve()) if base_folder is not None else model.path
        self.current.add_adapter(model.lora, self.config.seed, base_path=base_path, trained_folder=trained_folder)

    def reference(self) -> Policy | None:
        """π_ref, where the loss has one."""
        if not self.has_reference:
            return None
        if self.current.base is not None and self.config.model.reference is None:
            return self.current.without_adapter()
        return self.load(self.config.reference_model)

    def score(self, sources: Sequence[Completions], store: Store) -> tuple[list[Completions], Policy | None]:
        """Add the log-probabilities that the loss compares: log μ, log π_old and log π_ref, by columns.

        Scores in the store are read from there. Returns π_ref too; None unless the loss needs its whole distribution.
        """
        scored = []
        for source in sources:
            mu_logp = self.mu_logp(source, store)
            scored.append(source.with_columns({"mu_logp": mu_logp}))
        if "old_logp" in self.needs:
            scored = self.add_column("old_logp", scored, self.current, store, "scoring π_old")
        reference = self.reference()
        if reference is not None:
            scored = self.add_column("ref_logp", scored, reference, store, "scoring ref")
        kl_reference = reference if "vocab_kl" in self.needs else None
        return scored, kl_reference

    def add_column(
        self, name: str, sources: Sequence[Completions], policy: Policy, store: Store, label: str
    ) -> list[Completions]:
        """Add the log-probabilities under a policy to each source, as the column `name`."""
        extended_sources = []
        for source in sources:
            logp = self.logp_under(policy, source, store, label)
            extended_sources.append(source.with_columns({name: logp}))
        return extended_sources

    def mu_is_start(self, sources: Sequence[Completions]) -> bool:
        """True where all log μ is by the weights that training begins with, so that Δ must vanish there."""
        return self.config.mu == "scored" and not any(source.has("mu_logp") for source in sources)

    def mu_logp(self, completions: Completions, store: Store) -> Any:
        """The column log μ: of the log, of the sampler, or by a forward pass of training; None if nothing reads it.

        With mu=none there is none, but for pairs, whose reference it is.
        """
        config = self.config
        if config.mu == "none" and unit_of(self.needs) != "pairs":
            return None
        if config.mu == "sampler":
            return completions.table["sampler_logp"]
        if config.mu_path is not None and completions.has("row"):  # imported; what was sampled is the policy's
            mu_policy = self.load(config.untrained_model(config.mu_path))
            return self.logp_under(mu_policy, completions, store, "scoring μ")
        if config.mu == "scored" and completions.has("mu_logp"):
            return completions.table["mu_logp"]
        return self.logp_under(self.current, completions, store, "scoring μ")

    def logp_under(self, policy: Policy, completions: Completions, store: Store, label: str) -> Any:
        """The column of log-probabilities of all completions under a policy."""
        batch_size = self.config.optim.score_batch_size
        logp, tokens_scored = read_or_score(policy, completions, store, batch_size, label)
        self.folder.add_across_ranks("tokens_scored", tokens_scored)
        return logp
