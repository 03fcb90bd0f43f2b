"""Program of a vLLM engine: answers requests that it reads from a socket. Run by `engine.Engine`.

It may run in another environment than the rest: it needs vLLM and the standard library, nothing of this package.
Requests and answers are dictionaries, one answer a request, described at the methods of `Worker`. `start` comes first.
`generate` sends reports of drawn tokens before its answer.
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
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]  # another `vllm` lies there

PR_SET_PDEATHSIG = 1
DEVICE_ARGUMENT = 6  # position in the arguments of rebuild_cuda_tensor
SECONDS_BETWEEN_REPORTS = 2.0
Message = dict[str, Any]


class TokenReports:
    """Reports of drawn tokens to the other side, every few seconds of a request."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.unreported_tokens = 0
        self.reported_at = time.monotonic()

    def restart(self) -> None:
        """Forget what was drawn for earlier requests."""
        self.unreported_tokens = 0
        self.reported_at = time.monotonic()

    def add(self, count: int) -> None:
        """Count drawn tokens; report them if it is time."""
        self.unreported_tokens += count
        if time.monotonic() - self.reported_at >= SECONDS_BETWEEN_REPORTS:
            self.send()

    def send(self) -> None:
        """Report what was drawn since the last report."""
        if self.unreported_tokens:
            self.connection.send({"drawn_tokens": self.unreported_tokens})
        self.restart()


class Worker:
    """A vLLM engine and the requests that it answers: its public methods, by name."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.llm: Any = None
        self.token_reports = TokenReports(connection)
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
        from vllm.triton_utils import HAS_TRITON

        device_type = current_platform.device_type
        if not device_type:
            hint = "docs/gpu.md names one"
            raise RefusedError(f"vLLM sees no GPU here, and this build of it has no CPU kernels ({hint})")
        on_cpu = device_type == "cpu"
        if on_cpu and request["sleep"]:
            raise RefusedError("sampler.sleep=true gives GPU memory back; this engine is on the CPU")
        if request["keeps_drawable"] and not HAS_TRITON:
            raise RefusedError("vLLM notes the tokens that could be drawn on a GPU alone (algo.renormalize)")
        pack_log_probabilities(self.token_reports.add)
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

        self.token_reports.restart()
        self._empty_cache()
        params = [
            SamplingParams(
                n=request["n"],
                temperature=request["temperature"],
                top_p=request["top_p"],
                top_k=request["top_k"],
                max_tokens=request["max_new_tokens"],
                seed=seed,  # the i-th completion of a prompt takes seed + i
                logprobs=request["top_logprobs"],  # likeliest tokens beside the sampled one
                ignore_eos=True,
                stop_token_ids=request["eos"],  # these alone, and all of them
                stop=request["stop"],
                detokenize=bool(request["stop"]),
            )
            for seed in request["seeds"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        self.token_reports.send()
        if len(outputs) != len(prompts):
            raise RefusedError("vLLM lost requests")
        groups = []
        for output in outputs:
            group = []
            for candidate in output.outputs:
                answer = completion(
                    candidate, top_count=request["top_logprobs"], keeps_drawable=request["keeps_drawable"]
                )
                group.append(answer)
            groups.append(group)
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
            yield request["name"], receive_tensor(request)
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
    if request["top_logprobs"]:
        options["max_logprobs"] = request["top_logprobs"]
    if request["keeps_drawable"]:
        options["return_sampling_mask"] = True
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


def receive_tensor(request: Message) -> Any:
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


def completion(output: Any, *, top_count: int, keeps_drawable: bool) -> Message:
    """Return one output of vLLM: tokens, log-probabilities, how it ended (as `Sample.finish`), and what was noted.

    top_count: of the likeliest tokens at each place, as requested. top_ids, top_logp: of these tokens, place after
    place. drawable_ids, drawable_counts: the tokens that could be drawn, place after place, and how many at each.
    """
    if output.finish_reason not in ("stop", "length"):
        raise RefusedError(f"a completion ended by {output.finish_reason}")
    packed_logprobs = output.logprobs
    logprobs = packed_logprobs.logprobs
    top_ids = packed_logprobs.top_ids
    places = len(output.token_ids)
    if len(logprobs) != places:
        raise RefusedError(f"vLLM gave {len(logprobs)} log-probabilities of {places} tokens")
    if len(top_ids) != top_count * places:  # vLLM computes as many for all requests of a step as one asks for
        raise RefusedError(f"vLLM gave {len(top_ids)} likeliest tokens for {places} places, not {top_count} at each")
    finish = str(output.finish_reason)
    if isinstance(output.stop_reason, str):
        finish = "stop_string"
    answer = {
        "tokens": array("i", output.token_ids),
        "logprobs": logprobs,
        "finish": finish,
        "top_ids": top_ids,
        "top_logp": packed_logprobs.top_logp,
    }
    if keeps_drawable:
        answer |= drawable_tokens(output)
    return answer


def drawable_tokens(output: Any) -> Message:
    """Return the tokens that could be drawn at each place of one output of vLLM, all in a row, and their counts."""
    ids = array("i")
    counts = array("i")
    for token, ids_of_place in zip(output.token_ids, output.sampling_mask.token_ids, strict=True):
        if token not in ids_of_place:
            raise RefusedError(f"vLLM drew token {token}, which is none of those that could be drawn")
        ids.extend(ids_of_place)
        counts.append(len(ids_of_place))
    return {"drawable_ids": ids, "drawable_counts": counts}


class PackedLogprobs:
    """Log-probabilities of a completion's tokens, and of the likeliest tokens at each place."""

    def __init__(self) -> None:
        self.logprobs = array("f")
        self.top_ids = array("i")
        self.top_logp = array("f")

    def append(self, token_ids: Any, logprobs: Any) -> None:
        """Append places: arrays [places, 1 + k] of the sampled token, then the k likeliest ones."""
        self.logprobs.frombytes(logprobs[:, 0].astype("float32").tobytes())
        self.top_ids.frombytes(token_ids[:, 1:].astype("int32").tobytes())
        self.top_logp.frombytes(logprobs[:, 1:].astype("float32").tobytes())


def pack_log_probabilities(count_tokens: Callable[[int], None]) -> None:
    """Have vLLM keep log-probabilities as `PackedLogprobs`, and call `count_tokens` with the new tokens of each step.

    vLLM has a dictionary of objects for each token, with its text: 20 times the memory and 10 times the time for 20
    likeliest tokens, and on a GPU a step takes twice as long where the text is made, which nobody reads.
    """
    from vllm.v1.engine.logprobs import LogprobsProcessor

    new_processor = LogprobsProcessor.from_new_request

    def new_packing_processor(tokenizer: Any, request: Any) -> Any:
        processor = new_processor(tokenizer=None, request=request)
        processor.logprobs = PackedLogprobs()
        return processor

    def pack(processor: Any, output: Any) -> None:
        new_logprobs = output.new_logprobs
        if new_logprobs is not None:
            processor.logprobs.append(new_logprobs.logprob_token_ids, new_logprobs.logprobs)
            count_tokens(len(new_logprobs.logprobs))

    LogprobsProcessor.from_new_request = new_packing_processor
    LogprobsProcessor.update_from_output = pack


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
    if sys.platform == "linux":  # elsewhere the end of the connection ends this process, between two requests
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # when the parent process ends
    socket_descriptor = int(sys.argv[1])
    worker = Worker(Connection(socket_descriptor))
    worker.import_vllm()
    worker.serve()
    leave()
