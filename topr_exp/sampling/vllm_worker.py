"""The process of a vLLM engine: reads requests from a socket, answers them. Run by `engine.Engine`.

It may run under another environment than the rest: it needs vLLM and the standard library, nothing of this package.
Requests and answers are JSON objects. `start` comes first; what each takes and gives stands at its method.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]  # another `vllm` lies there

MODULUS = 1 << 64  # of sums of bits
GRACE_SECONDS = 10.0  # how long an engine may take to end once nobody listens any more


@dataclass
class Shard:
    """A request for completions under way: prompts by vLLM's name for them, and what came back."""

    places: dict[str, int]
    completions: list[list[tuple[list[int], list[float], str]] | None]


class Worker:
    """An engine and what can be asked of it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.llm: Any = None
        self.shards: dict[int, Shard] = {}  # under way, by the number of the request

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
        options = {name: settings[name] for name in ("model", "dtype", "trust_remote_code")} | {
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

    def generate(self, asked: dict[str, Any]) -> None:
        """n completions of each prompt, each as its tokens, their log-probabilities and why it ended.

        The answer comes from `step`. Alone in the engine, it is a function of the request: what earlier ones left in
        the cache would change the last digits, as others do beside which it is computed.
        """
        from vllm import SamplingParams

        if not self.shards:
            self.llm.reset_prefix_cache()
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
        names = self.llm.enqueue(prompts, params, use_tqdm=False)
        # vLLM gives "7-1f3a..." for what its outputs call "7".
        places = {name.partition("-")[0]: i for i, name in enumerate(names)}
        self.shards[asked["number"]] = Shard(places, [None] * len(names))

    def step(self) -> None:
        """One pass of the engine: a token for each completion under way. Answers the shards that are done with it."""
        if not self.llm.llm_engine.has_unfinished_requests():
            raise Refused("vLLM lost requests")
        for output in self.llm.llm_engine.step():
            if not output.finished:
                continue
            number, shard = next(one for one in self.shards.items() if output.request_id in one[1].places)
            shard.completions[shard.places[output.request_id]] = [self.completion(one) for one in output.outputs]
            if None not in shard.completions:
                del self.shards[number]
                self.link.answer(number, {"completions": shard.completions})

    @staticmethod
    def completion(one: Any) -> tuple[list[int], list[float], str]:
        tokens = list(one.token_ids)
        logprobs = [step[token].logprob for step, token in zip(one.logprobs, tokens, strict=True)]
        if one.finish_reason not in ("stop", "length"):
            raise Refused(f"a completion ended by {one.finish_reason}")
        return tokens, logprobs, "stop_string" if isinstance(one.stop_reason, str) else one.finish_reason

    def reload(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Take the weights of another folder of the same model; without a folder those that `take` requests bring."""
        by_file = asked["model"] is not None
        source = {"weights_path": asked["model"]} if by_file else {"weights_iterator": self.arriving()}
        self.llm.collective_rpc("reload_weights", kwargs=source)
        self.llm.reset_prefix_cache()
        return {}

    def arriving(self) -> Iterator[tuple[str, Any]]:
        """The weights that the other side sends, until `done`: its memory is its own again once it has the answer."""
        while (message := self.link.messages.get()) is not None:
            asked = json.loads(message)
            try:
                weight = received(asked, self.link) if asked["do"] == "take" else None
            finally:  # an error is the answer to `reload`, and to the next of these
                self.link.answer(asked["number"], {})
            if weight is None:
                return
            yield asked["name"], weight

    def bit_sums(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The `bit_sum` of each of the named tensors that the engine keeps as they were loaded."""
        parts = self.llm.apply_model(functools.partial(bit_sums, names=asked["names"]))  # by GPU
        return {"sums": {name: sum(part[name] for part in parts) % MODULUS for name in parts[0]}}

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
    return int(tensor.contiguous().view(integers).sum(dtype=torch.int64)) % MODULUS


def bit_sums(model: Any, names: list[str]) -> dict[str, int]:
    """The same of a model's tensors by name, but those that are not there or empty."""
    held = dict(model.named_parameters())
    return {name: bit_sum(held[name]) for name in names if name in held and held[name].numel()}


def received(asked: dict[str, Any], link: Link) -> Any:
    """A tensor of the other side: a copy of its GPU memory, which is shared for as long, or its bytes."""
    import torch

    if asked["shared"] is None:
        content = bytearray(link.messages.get() or b"")
        return torch.frombuffer(content, dtype=getattr(torch, asked["dtype"])).reshape(asked["shape"])
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(pickle.loads(base64.b64decode(asked["shared"])))
    arguments[6] = torch.cuda.current_device()  # the same GPU may have another number over there
    theirs = rebuild_cuda_tensor(*arguments)
    tensor = theirs.clone()
    torch.cuda.synchronize()
    return tensor


class Refused(Exception):
    """Error that a user can mend, in one line."""


def one_line(error: BaseException) -> str:
    """The cause of an error in one line: its first, since vLLM wraps and explains at length."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if isinstance(error, Refused) else f"{type(error).__name__}: {text}"


class Link:
    """The socket to the process that asks: messages as they came, and answers by the number of the request."""

    def __init__(self, descriptor: int) -> None:
        self.connection = Connection(descriptor)
        self.messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: the other side is gone
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Queue messages; when the other side is gone, see that this process and those of its engine end."""
        try:
            while True:
                self.messages.put(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.messages.put(None)
            time.sleep(GRACE_SECONDS)
            os.killpg(0, signal.SIGKILL)

    def answer(self, number: int, answer: dict[str, Any]) -> None:
        self.connection.send_bytes(json.dumps({"number": number, **answer}).encode())


def main(descriptor: int) -> None:
    link = Link(descriptor)
    worker = Worker(link)
    while True:
        number = None
        try:
            if worker.shards and link.messages.empty():
                worker.step()
                continue
            message = link.messages.get()
            if message is None:
                return
            asked = json.loads(message)
            number = asked["number"]
            answer = getattr(worker, asked["do"])(asked)
            if answer is not None:
                link.answer(number, answer)
        except Exception as error:  # whatever vLLM raises is told, in one line; the log has the rest
            traceback.print_exc()
            for each in list(worker.shards) if number is None else [number]:
                worker.shards.pop(each, None)
                link.answer(each, {"error": one_line(error)})


if __name__ == "__main__":
    main(int(sys.argv[1]))
