"""How the cost of training grows with processes: the same run in 1, 2 and 4, by ddp and by fsdp.

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

WARM_UP = 3  # updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in options.processes:
            for parallel in ("ddp", "fsdp") if processes > 1 else ("ddp",):
                place = Path(folder) / f"{processes}-{parallel}"
                speed = measure(place, [f"cluster.processes={processes}", f"cluster.parallel={parallel}"], options)
                results.append({"processes": processes, "parallel": parallel, "tokens_per_second": round(speed, 1)})
                ratio = speed / results[0]["tokens_per_second"]
                print(f"{processes} x {parallel:<5} {speed:10,.0f} tokens/s  {ratio:5.2f} times the first", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1) + "\n")


def measure(place: Path, where: list[str], options: argparse.Namespace) -> float:
    """Tokens a second of the median update of a run."""
    settings = ["experiment=smoke", "optim.epochs=10", "cluster.threads=1", f"output_dir={place}"]
    command = [sys.executable, "-m", "topr_exp", *settings, *where, *options.settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (metrics,) = place.glob("*/*/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return statistics.median(record["tokens_per_second"] for record in records[WARM_UP:])


if __name__ == "__main__":
    main()
