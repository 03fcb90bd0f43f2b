"""The prompt that a dry run and a run's folder show is what the model gets."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of, overrides
from topr_exp.__main__ import main
from topr_exp.config.data import ENDINGS
from topr_exp.data.prompts import CHAT_TEMPLATES, TEMPLATES
from topr_exp.models import loading
from topr_exp.runs.console import preview_prompt
from topr_exp.types import TOPRError

HEADING = "prompt of the first training problem (27 tokens; the completion begins at ◀):"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return Path(shutil.copytree(loading.SHIPPED / "tiny", tmp_path / "own"))


def test_a_run_and_a_dry_run_show_the_same_prompt(
    smoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["topr_exp", *overrides(tmp_path), "dry_run=true"])
    assert main() == 0
    shown, _, rows = capsys.readouterr().out.rpartition("\n\n")
    assert shown.splitlines() == [
        HEADING,
        "<bos>Question: Mia has 40 coins. Bea has 4 more than Mia. How many coins does Bea have now?",
        "Answer:◀",
    ]
    assert rows.splitlines()[-1] == "1 run, cluster=local; nothing started"
    assert not list(tmp_path.iterdir())
    assert (smoke[0].folder / "prompt.txt").read_text() == shown + "\n"


def test_worked_examples_stop_strings_and_a_template_of_ones_own() -> None:
    text = preview_prompt(config_of("data.shots=2", "data.train_problems=2", "data.template='Q: {question}\nA:'"))
    assert 'begins at ◀ and ends before "\\nQ:"):\n<bos>Q: A ferry' in text
    assert text.count("\n\nQ: ") == 2
    assert text.endswith("\nA:◀")


def test_a_chat_prompt_goes_through_the_models_template(own: Path) -> None:
    path = own / "tokenizer_config.json"
    template = "{% for m in messages %}<eos>{{ m['role'] }}: {{ m['content'] }}{% endfor %}<eos>bot:"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    text = preview_prompt(config_of(f"model.path={own}", "data.chat=true"))
    assert "\n<bos><eos>user: Mia has" in text
    assert text.endswith('End with "The answer is N.", N being the number.<eos>bot:◀')


def test_a_verifiers_prompt() -> None:
    text = preview_prompt(config_of("model=tiny_verifier"))
    assert text.endswith("How many coins does Bea have now?\nSolution: {solution}\nVerification:◀")


def test_what_is_on_the_hub_and_what_was_fetched(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = ["model=llama3_8b", "model.path=owner/own", "data.shots=0"]
    assert preview_prompt(config_of(*settings)).endswith("tokenizer of owner/own, which is not on this machine yet")
    fetched = tmp_path / "hub" / "models--owner--own"
    shutil.copytree(own, fetched / "snapshots" / "abc")
    (fetched / "refs").mkdir()
    (fetched / "refs" / "main").write_text("abc")
    text = preview_prompt(config_of(*settings))
    assert text.endswith("\n<bos>Question: {question}\nAnswer:◀")


def test_a_tokenizer_that_is_damaged_is_one_line(own: Path) -> None:
    (own / "tokenizer.json").write_text("{")
    with pytest.raises(TOPRError, match=r"its tokenizer can't be loaded: ") as caught:
        preview_prompt(config_of(f"model.path={own}"))
    assert "\n" not in str(caught.value)


def test_the_documents_table_of_templates_is_the_codes() -> None:
    text = (ROOT / "docs" / "own_model.md").read_text()
    for kind in ENDINGS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{kind}` |"))
        for template in (TEMPLATES[kind], CHAT_TEMPLATES[kind]):
            assert "`" + template.replace("\n", "\\n") + "`" in row
