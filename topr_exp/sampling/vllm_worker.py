"""Program of a vLLM engine: answers requests that it reads from a socket. Run by `engine.Engine`.

It may run in another environment than the rest: it needs vLLM and the standard library, nothing of this package.
Requests and answers are dictionaries, one answer a request, described at the methods of `Worker`. `start` comes first.
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
DEVICE_ARGUMENT = 6  # position in the arguments of rebuild_cuda_tensor
Message = dict[str, Any]


class Worker:
    """A vLLM engine and the requests that it answers: its public methods, by name."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.llm: Any = None
        self.import_seconds = 0.0
        self.imported_at = time.monotonic()  # one clock for all processes of a machine

    def import_vllm(self) -> None:
        """Import vLLM before the first request; `start` repeats a failing import and reports it."""
        import_start = time.monotonic()
        try:
            import torch  # noqa: F401
            from vllm import LLM, SamplingParams  # noqa: F401
        except Exception:
            traceback.print_exc()
        self.imported_at = time.monotonic()
        self.import_seconds = self.imported_at - import_start

    def serve(self) -> None:
        """Answer requests until the other side closes the connection."""
        while (request := self._receive()) is not None:
            try:
                answer = getattr(self, request["request"])(request)
            except Exception as error:  # any error of vLLM: the answer has one line of it, the log all
                traceback.print_exc()
                answer = {"error": one_line(error)}
            self.connection.send(answer)

    def _receive(self) -> Message | None:
        """Wait for the next request; None once the connection is closed."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def start(self, request: Message) -> Message:
        """Load a model folder; answers versions and device, and when the imports ended and how long they took."""
        import torch
        import vllm
        from vllm.platforms import current_platform

        device_type = current_platform.device_type
        if not device_type:
            hint = "docs/gpu.md names one"
            raise RefusedError(f"vLLM sees no GPU here, and this build of it has no CPU kernels ({hint})")
        on_cpu = device_type == "cpu"
        if on_cpu and request["sleep"]:
            raise RefusedError("sampler.sleep=true gives GPU memory back; this engine is on the CPU")
        leave_tokens_undecoded()
        self.llm = vllm.LLM(**engine_options(request, on_cpu))
        device = "cpu" if on_cpu else torch.cuda.get_device_name()
        return {
            "made_by": {"vllm": vllm.__version__, "torch": str(torch.__version__), "device": device},
            "import_seconds": self.import_seconds,
            "imported_at": self.imported_at,
        }

    def generate(self, request: Message) -> Message:
        """Draw n completions of each prompt; answers them by prompt, as `completion` returns them.

        A function of the request alone: states that earlier requests left in the cache would change the last digits.
        """
        from vllm import SamplingParams

        self._empty_cache()
        params = [
            SamplingParams(
                n=request["n"],
                temperature=request["temperature"],
                top_p=request["top_p"],
                top_k=request["top_k"],
                max_tokens=request["max_new_tokens"],
                seed=seed,  # the i-th completion of a prompt takes seed + i
                logprobs=0,  # of the sampled tokens alone
                ignore_eos=True,
                stop_token_ids=request["eos"],  # these alone, and all of them
                stop=request["stop"],
                detokenize=bool(request["stop"]),
            )
            for seed in request["seeds"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        if len(outputs) != len(prompts):
            raise RefusedError("vLLM lost requests")
        groups = []
        for output in outputs:
            groups.append([completion(candidate) for candidate in output.outputs])
        return {"completions": groups}

    def _empty_cache(self) -> None:
        if not self.llm.reset_prefix_cache():
            raise RefusedError("vLLM did not empty its prefix cache, which holds states of other weights or requests")

    def reload(self, request: Message) -> Message:
        """Load the weights of the `take` requests that follow, until `done`."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._arriving_weights()})
        self._empty_cache()
        return {}

    def _arriving_weights(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the weights that arrive; each answer lets the other side reuse the memory of the last one."""
        self.connection.send({})
        while (request := self._receive()) is not None and request["request"] == "take":
            yield request["name"], received_tensor(request)
            self.connection.send({})

    def sleep(self, request: Message) -> Message:
        """Drop the weights and the cache; new weights come before the next `generate`."""
        self.llm.sleep(level=2)
        return {}

    def wake(self, request: Message) -> Message:
        """Take GPU memory again."""
        self.llm.wake_up()
        return {}


def engine_options(request: Message, on_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vllm.LLM for a `start` request."""
    options: dict[str, Any] = {
        "model": request["model"],
        "dtype": request["dtype"],
        "trust_remote_code": request["trust_remote_code"],
        "max_model_len": request["length"],
        "enforce_eager": on_cpu,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": max(request["length"], 16384),
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # no settings but ours
        "seed": 0,
    }
    if request["float32_head"]:
        options["hf_overrides"] = {"head_dtype": "float32"}
    if on_cpu:
        # A prompt that is read in two parts breaks seeds on the CPU (its generators have no offset to set back).
        options["enable_chunked_prefill"] = False
        options["kv_cache_memory_bytes"] = int(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", 1)) * 2**30)
    else:
        options["gpu_memory_utilization"] = request["gpu_memory_utilization"]
        options["enable_sleep_mode"] = request["sleep"]
    return options


def received_tensor(request: Message) -> Any:
    """Return a weight of the other process: a copy from its GPU memory, or from the bytes that it sent."""
    import torch

    if request["shared"] is None:
        dtype = getattr(torch, request["dtype"])
        return torch.frombuffer(bytearray(request["content"]), dtype=dtype).reshape(request["shape"])
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(request["shared"])
    arguments[DEVICE_ARGUMENT] = torch.cuda.current_device()  # the other process may give the same GPU another number
    tensor = rebuild_cuda_tensor(*arguments).clone()
    torch.cuda.synchronize()
    return tensor


def completion(output: Any) -> tuple[array[int], array[float], str]:
    """Return tokens, their log-probabilities and the reason of the end (as `Sample.finish`) of one output of vLLM."""
    if output.finish_reason not in ("stop", "length"):
        raise RefusedError(f"a completion ended by {output.finish_reason}")
    logprobs = array("f")
    for token, candidates in zip(output.token_ids, output.logprobs, strict=True):
        logprobs.append(candidates[token].logprob)
    finish = str(output.finish_reason)
    if isinstance(output.stop_reason, str):
        finish = "stop_string"
    return array("i", output.token_ids), logprobs, finish


def leave_tokens_undecoded() -> None:
    """Stop vLLM from turning sampled tokens into text: nobody reads it, and it doubles the time of a step on a GPU."""
    from vllm.v1.engine.logprobs import LogprobsProcessor

    original = LogprobsProcessor.from_new_request
    LogprobsProcessor.from_new_request = lambda tokenizer, request: original(tokenizer=None, request=request)


class RefusedError(Exception):
    """Error that a user can mend, in one line."""


def one_line(error: BaseException) -> str:
    """Return the first line of the error's root cause, since vLLM wraps errors and explains them at length."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    if isinstance(error, RefusedError):
        return text
    return f"{type(error).__name__}: {text}"


def leave() -> NoReturn:
    """End this process at once: the ordinary end of vLLM and CUDA takes ten seconds."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # when the parent process ends
    socket_descriptor = int(sys.argv[1])
    worker = Worker(Connection(socket_descriptor))
    worker.import_vllm()
    worker.serve()
    leave()
