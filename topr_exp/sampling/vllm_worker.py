"""The process of a vLLM engine: reads requests from a socket, answers them. Run by `engine.Engine`.

It may run under another environment than the rest: it needs vLLM and the standard library, nothing of this package.
Requests and answers are JSON objects. `start` comes first; what each takes and gives stands at its method.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, in which another `vllm` lies

GRACE_SECONDS = 10.0  # how long an engine may take to end once nobody listens any more


class Worker:
    """An engine and what can be asked of it."""

    def __init__(self) -> None:
        self.llm: Any = None

    def start(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Load a model folder; gives vLLM's version and the kind of device."""
        import torch
        import vllm
        from vllm.platforms import current_platform

        device = current_platform.device_type
        if not device:
            raise Refused("vLLM sees no GPU here, and this build of it has no CPU kernels (docs/vllm.md names one)")
        on_cpu = device == "cpu"
        if on_cpu and settings["sleep"]:
            raise Refused("sampler.sleep=true gives GPU memory back; this engine is on the CPU")
        length = settings["length"]
        options = {
            "model": settings["model"],
            "dtype": settings["dtype"],
            "trust_remote_code": settings["trust_remote_code"],
            "max_model_len": length,
            "tensor_parallel_size": settings["tensor_parallel"],
            "enforce_eager": on_cpu or settings["eager"],
            "enable_prefix_caching": True,
            "max_num_batched_tokens": max(length, 16384),
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # no settings but ours
            "seed": 0,
        }
        if on_cpu:
            # A prompt that is read in two parts breaks seeds on the CPU (its generators have no offset to set back).
            options["enable_chunked_prefill"] = False
            options["kv_cache_memory_bytes"] = int(settings["cpu_cache_gib"] * 2**30)
        else:
            options["gpu_memory_utilization"] = settings["gpu_memory_utilization"]
            options["enable_sleep_mode"] = settings["sleep"]
        self.llm = vllm.LLM(**options)
        name = "cpu" if on_cpu else torch.cuda.get_device_name()
        return {"vllm": vllm.__version__, "torch": str(torch.__version__), "device": name}

    def generate(self, asked: dict[str, Any]) -> dict[str, Any]:
        """n completions of each prompt, each as its tokens, their log-probabilities and why it ended.

        A function of the request alone: what earlier ones left in the cache would change the last digits.
        """
        from vllm import SamplingParams

        self.llm.reset_prefix_cache()
        requests = [
            SamplingParams(
                n=asked["n"],
                temperature=asked["temperature"],
                top_p=asked["top_p"],
                top_k=asked["top_k"],
                max_tokens=asked["max_new_tokens"],
                seed=seed,  # the i-th completion of a prompt takes seed + i
                logprobs=0,  # those of the sampled tokens
                ignore_eos=True,
                stop_token_ids=asked["eos"],  # these alone, and all of them
                stop=asked["stop"],
                detokenize=bool(asked["stop"]),
            )
            for seed in asked["seeds"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        outputs = self.llm.generate(prompts, requests, use_tqdm=False)
        return {"completions": [[self.completion(one) for one in output.outputs] for output in outputs]}

    @staticmethod
    def completion(one: Any) -> tuple[list[int], list[float], str]:
        tokens = list(one.token_ids)
        logprobs = [step[token].logprob for step, token in zip(one.logprobs, tokens, strict=True)]
        if one.finish_reason not in ("stop", "length"):
            raise Refused(f"a completion ended by {one.finish_reason}")
        return tokens, logprobs, "stop_string" if isinstance(one.stop_reason, str) else one.finish_reason

    def reload(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Take the weights of another folder of the same model."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": asked["model"]})
        self.llm.reset_prefix_cache()
        return {}

    def bit_sums(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The `bit_sum` of each of the named tensors that the engine keeps as they were loaded."""
        parts = self.llm.apply_model(functools.partial(bit_sums, names=asked["names"]))  # by GPU
        return {"sums": {name: wrapped(sum(part[name] for part in parts)) for name in parts[0]}}

    def sleep(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Move the weights off the GPU and drop the cache."""
        self.llm.sleep(level=1)
        return {}

    def wake(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.llm.wake_up()
        return {}


def bit_sum(tensor: Any) -> int:
    """The sum of a tensor's numbers taken as the integers with their bits, modulo 2^64: of parts it is the sum.

    Zeros, with which rows may be padded, add nothing; almost any change of a number changes it.
    """
    import torch

    integers = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return wrapped(int(tensor.contiguous().view(integers).sum(dtype=torch.int64)))


def wrapped(total: int) -> int:
    return total % (1 << 64)


def bit_sums(model: Any, names: list[str]) -> dict[str, int]:
    """The same of a model's tensors by name, but those that are not there or empty."""
    held = dict(model.named_parameters())
    return {name: bit_sum(held[name]) for name in names if name in held and held[name].numel()}


class Refused(Exception):
    """What a user can mend, in one line."""


def one_line(error: BaseException) -> str:
    """The cause of an error in one line: its first, since vLLM wraps and explains at length."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if isinstance(error, Refused) else f"{type(error).__name__}: {text}"


def listen(connection: Connection, requests: queue.SimpleQueue[bytes | None]) -> None:
    """Pass requests on; when the other side is gone, see that this process and those of its engine end."""
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        requests.put(None)
        time.sleep(GRACE_SECONDS)
        os.killpg(0, signal.SIGKILL)


def main(descriptor: int) -> None:
    connection = Connection(descriptor)
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(connection, requests), daemon=True).start()
    worker = Worker()
    while (message := requests.get()) is not None:
        asked = json.loads(message)
        try:
            answer = getattr(worker, asked.pop("do"))(asked)
        except Exception as error:  # whatever vLLM raises is told, in one line; the log has the rest
            traceback.print_exc()
            answer = {"error": one_line(error)}
        connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
