"""Settings of what a model is trained for (the `task` group)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from topr_exp.config.line_breaks import check_line_breaks
from topr_exp.config.section import Section

PLACES = ("{question}", "{solution}")


class TaskName(Enum):
    """To answer the problems, or to verify answers of another model."""

    solve = "solve"
    verifier = "verifier"


@dataclass(frozen=True)
class TaskConfig(Section):
    """What the model does with the problems; all but `name` are a verifier's."""

    name: TaskName = TaskName.solve
    solver: str | None = None  # path of the model that writes the solutions: shipped, a folder or a name on the hub
    solutions: int | None = None  # solutions a training problem
    test_solutions: int | None = None  # solutions a test problem: the K of weighted self-consistency
    template: str | None = None  # the verifier's prompt, with {question} and {solution}
    chat: bool | None = None  # whether it goes through the verifier's chat template

    def check(self) -> None:
        settings = ("solver", "solutions", "test_solutions", "template", "chat")
        if not self.verifies:
            for field in settings:
                if (value := getattr(self, field)) is not None:
                    raise ValueError(f"{field}={value} is read for task=verifier only")
            return
        if not self.solver:
            raise ValueError("solver must be a model for task=verifier (a shipped one, a folder or a name on the hub)")
        for field in ("solutions", "test_solutions"):
            value = getattr(self, field)
            if value is None or value < 1:
                raise ValueError(f"{field} must be 1 or more; got {'null' if value is None else value}")
        if self.template is None or any(self.template.count(place) != 1 for place in PLACES):
            raise ValueError(f"template must hold {' and '.join(PLACES)} once each; got {self.template!r}")
        check_line_breaks("template", r'task.template="{question}\n{solution}"', self.template)
        if self.chat is None:
            raise ValueError("chat must be true or false for task=verifier; got null")

    @property
    def verifies(self) -> bool:
        return self.name is TaskName.verifier
