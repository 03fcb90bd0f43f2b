"""The models of a run: the policy that it trains, and the frozen ones that score its completions."""

from dataclasses import replace
from pathlib import Path

from topr_exp.config.model import ModelConfig
from topr_exp.models.model_folder import find_folder
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runtime.checksums import CHECKSUMS
from topr_exp.types import TOPRError


class Policies:
    """The policy that a run trains, and the frozen models that it is compared with."""

    def __init__(self, config: ModelConfig, device: str, *, seed: int) -> None:
        self._config = config
        self._device = device
        self._seed = seed  # of a new adapter
        self.trained = load_policy(config, device)

    def load_frozen(self, config: ModelConfig) -> Policy:
        """Load a model that scores completions and is not trained."""
        return load_policy(config, self._device)

    def load_reference(self, config: ModelConfig) -> Policy:
        """π_ref: the model of `config`, or the trained one with its adapter off where that is the same."""
        if self.trained.base is not None and self._config.reference is None:
            return self.trained.without_adapter()
        return self.load_frozen(config)

    def load_behaviour(self, path: str) -> Policy:
        """μ of imported completions: the model of a folder or a name on the hub."""
        return self.load_frozen(replace(self._config, path=path, revision=None, lora=None))

    def reload(self, folder: Path | None = None) -> None:
        """Load the policy with the weights of a folder of this run, or (None) with the base's."""
        if folder is not None and not (folder / CHECKSUMS).exists():
            raise TOPRError(f"{folder} is damaged: {CHECKSUMS} is gone; remove it, and the same command makes it again")
        del self.trained  # with its gradients: there may be no memory for two
        self.trained = load_policy(self._config, self._device, folder)

    def add_adapter(self, trained_folder: Path | None) -> None:
        """With LoRA, train an adapter on the base in this iteration, from the one in `trained_folder` where given.

        The model that was just evaluated has that adapter merged into its weights, so the base is loaded again.
        """
        if self._config.lora is None:
            return
        if trained_folder is not None:
            self.reload()
        base_folder = find_folder(self._config.path)
        base_path = str(base_folder.resolve()) if base_folder is not None else self._config.path
        self.trained.add_adapter(self._config.lora, self._seed, base_path=base_path, trained_folder=trained_folder)
