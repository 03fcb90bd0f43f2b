"""Settings of generation that a model was published with."""

from typing import Any

from transformers import GenerationConfig


class PublishedGenerationConfig(GenerationConfig):
    """Is saved as it was published.

    transformers before 5.23 warns of some settings when it loads them, as of a temperature without `do_sample`, and
    refuses to save them: training would end without a model.
    """

    def validate(self, strict: bool = False, **options: Any) -> None:
        super().validate(strict=False, **options)
