"""Cost of training by number of processes: the same run in 1, 2 and 4, by ddp and by fsdp.

    python benchmarks/parallel.py [--processes 1 2 4] [--out parallel.json] [KEY=VALUE ...]

Each is a run of `experiment=smoke` with more updates (KEY=VALUE adds settings: `model=llama3_8b data=gsm8k` on GPUs).
Tokens a second are those of the median update; the first ones, which start threads and buffers, are left out. On a CPU
every process has one thread, so that more processes are more of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WARM_UP_UPDATES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in options.processes:
            layouts = ("ddp", "fsdp")
            if processes == 1:
                layouts = ("ddp",)
            for parallel in layouts:
                output_dir = Path(folder) / f"{processes}-{parallel}"
                layout = [f"cluster.processes={processes}", f"cluster.parallel={parallel}"]
                rate = tokens_per_second(output_dir, [*layout, *options.settings])
                results.append({"processes": processes, "parallel": parallel, "tokens_per_second": round(rate, 1)})
                ratio = rate / results[0]["tokens_per_second"]
                print(f"{processes} x {parallel:<5} {rate:10,.0f} tokens/s  {ratio:5.2f} times the first", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1) + "\n")


def tokens_per_second(output_dir: Path, settings: list[str]) -> float:
    """Make a run and return the tokens a second of its median update."""
    command = [sys.executable, "-m", "topr_exp", "experiment=smoke", "optim.epochs=10", "cluster.threads=1"]
    subprocess.run([*command, f"output_dir={output_dir}", *settings], check=True, stdout=subprocess.DEVNULL)
    (metrics,) = output_dir.glob("*/*/metrics.jsonl")
    rates = []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        rates.append(json.loads(line)["tokens_per_second"])
    return statistics.median(rates[WARM_UP_UPDATES:])


if __name__ == "__main__":
    main()
