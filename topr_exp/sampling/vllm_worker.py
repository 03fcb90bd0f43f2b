"""The process of a vLLM engine: reads requests from a socket, answers them. Run by `engine.Engine`.

It may run in another environment than the rest: it needs vLLM and the standard library, nothing of this package.
Requests and answers are dictionaries, one answer a request, as described at each method. `start` comes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from array import array
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]  # another `vllm` lies there

PR_SET_PDEATHSIG = 1


class Worker:
    """An engine and what can be asked of it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.llm: Any = None
        self.import_seconds = 0.0
        self.imported = time.monotonic()

    def import_vllm(self) -> None:
        """Import what an engine needs before anybody asks for one; `start` imports again and says what fails."""
        began = time.monotonic()
        try:
            import torch  # noqa: F401
            from vllm import LLM, SamplingParams  # noqa: F401
        except Exception:
            traceback.print_exc()
        self.imported = time.monotonic()
        self.import_seconds = self.imported - began

    def serve(self) -> None:
        """Answer requests until the other side is gone."""
        while (asked := self.request()) is not None:
            try:
                answer = getattr(self, asked["do"])(asked)
            except Exception as error:  # whatever vLLM raises is told, in one line; the log has the rest
                traceback.print_exc()
                answer = {"error": one_line(error)}
            self.connection.send(answer)

    def request(self) -> dict[str, Any] | None:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def start(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Load a model folder; gives vLLM's version, the kind of device, and seconds of the imports and of the rest."""
        import torch
        import vllm
        from vllm.platforms import current_platform

        device = current_platform.device_type
        if not device:
            raise Refused("vLLM sees no GPU here, and this build of it has no CPU kernels (docs/vllm.md names one)")
        on_cpu = device == "cpu"
        if on_cpu and settings["sleep"]:
            raise Refused("sampler.sleep=true gives GPU memory back; this engine is on the CPU")
        options = {name: settings[name] for name in ("model", "dtype", "trust_remote_code")} | {
            "max_model_len": settings["length"],
            "enforce_eager": on_cpu or settings["eager"],
            "enable_prefix_caching": True,
            "max_num_batched_tokens": max(settings["length"], 16384),
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # no settings but ours
            "seed": 0,
        }
        if settings["float32_head"]:
            options["hf_overrides"] = {"head_dtype": "float32"}
        if on_cpu:
            # A prompt that is read in two parts breaks seeds on the CPU (its generators have no offset to set back).
            options["enable_chunked_prefill"] = False
            options["kv_cache_memory_bytes"] = int(settings["cpu_cache_gib"] * 2**30)
        else:
            options["gpu_memory_utilization"] = settings["gpu_memory_utilization"]
            options["enable_sleep_mode"] = settings["sleep"]
        leave_tokens_undecoded()
        self.llm = vllm.LLM(**options)
        device = "cpu" if on_cpu else torch.cuda.get_device_name()
        return {
            "made_by": {"vllm": vllm.__version__, "torch": str(torch.__version__), "device": device},
            "import_seconds": self.import_seconds,
            "imported": self.imported,  # by time.monotonic(), which is one clock for all processes
        }

    def generate(self, asked: dict[str, Any]) -> dict[str, Any]:
        """n completions of each prompt, in their order, as of `completion`.

        A function of the request: what earlier ones left in the cache would change the last digits.
        """
        from vllm import SamplingParams

        self.empty_cache()
        params = [
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
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        if len(outputs) != len(prompts):
            raise Refused("vLLM lost requests")
        return {"completions": [[completion(one) for one in output.outputs] for output in outputs]}

    def empty_cache(self) -> None:
        if not self.llm.reset_prefix_cache():
            raise Refused("vLLM did not empty its prefix cache, which holds states of other weights or requests")

    def reload(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Load the weights that `take` requests bring after this one, until `done`."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self.arriving()})
        self.empty_cache()
        return {}

    def arriving(self) -> Iterator[tuple[str, Any]]:
        """Ask for the next weight by an answer, with which the other side's memory is its own again."""
        self.connection.send({})
        while (asked := self.request()) is not None and asked["do"] == "take":
            yield asked["name"], self.received(asked)
            self.connection.send({})

    def received(self, asked: dict[str, Any]) -> Any:
        """A tensor of the other side: a copy of its GPU memory, or its bytes."""
        import torch

        if asked["shared"] is None:
            content, dtype = bytearray(asked["content"]), getattr(torch, asked["dtype"])
            return torch.frombuffer(content, dtype=dtype).reshape(asked["shape"])
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        arguments = list(asked["shared"])
        arguments[6] = torch.cuda.current_device()  # the same GPU may have another number over there
        tensor = rebuild_cuda_tensor(*arguments).clone()
        torch.cuda.synchronize()
        return tensor

    def sleep(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Drop the weights and the cache; new weights come before the next request."""
        self.llm.sleep(level=2)
        return {}

    def wake(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.llm.wake_up()
        return {}


def completion(one: Any) -> tuple[array[int], array[float], str]:
    """The tokens of vLLM's output, their log-probabilities, and why it ended."""
    if one.finish_reason not in ("stop", "length"):
        raise Refused(f"a completion ended by {one.finish_reason}")
    logprobs = (step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True))
    finish = "stop_string" if isinstance(one.stop_reason, str) else str(one.finish_reason)
    return array("i", one.token_ids), array("f", logprobs), finish


def leave_tokens_undecoded() -> None:
    """Have vLLM turn no sampled token into text: nobody reads it, and it takes twice the time of a step on a GPU."""
    from vllm.v1.engine.logprobs import LogprobsProcessor

    original = LogprobsProcessor.from_new_request
    LogprobsProcessor.from_new_request = lambda tokenizer, request: original(tokenizer=None, request=request)


class Refused(Exception):
    """Error that a user can mend, in one line."""


def one_line(error: BaseException) -> str:
    """The cause of an error in one line: its first, since vLLM wraps and explains at length."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if isinstance(error, Refused) else f"{type(error).__name__}: {text}"


def leave() -> NoReturn:
    """End this process at once: vLLM and CUDA take ten seconds to take down what the system frees anyway."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # when the process that asks ends
    worker = Worker(Connection(int(sys.argv[1])))
    worker.import_vllm()
    worker.serve()
    leave()
