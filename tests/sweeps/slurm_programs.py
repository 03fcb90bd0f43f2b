"""Programs in the place of Slurm's commands: they answer, and keep the scripts that they get."""

import re

CONFIG = "AccountingStorageType = none\nMaxArraySize            = {}\nSchedulerParameters     = {}\n"
SBATCH = """
number=$(ls {folder}/submitted | wc -l)
[ $number -lt {allowed} ] || {{ echo "sbatch: error: too many jobs" >&2; exit 1; }}
cp $1 {folder}/submitted/$number
name=$(sed -n "s/^#SBATCH --job-name=//p" $1)
for index in 0 1; do echo "${{name}}_$index|$((100 + number))_$index|PENDING|Priority" >>{folder}/queue; done
echo "Submitted batch job $((100 + number))"
"""


class SlurmPrograms:
    """A folder of programs of a Slurm with arrays of at most 2 jobs, which never start."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "submitted").mkdir(parents=True)
        (folder / "queue").touch()
        self.configure(2, "bf_interval=1")
        self.write(
            "scontrol", f"echo scontrol $* >>{folder}/calls; [ \"$1 $2\" != 'show config' ] || cat {folder}/config"
        )
        self.write("scancel", f"echo scancel $* >>{folder}/calls; : >{folder}/queue")
        self.write("squeue", f"cat {folder}/queue")
        self.write("srun", "")
        self.allow(9)

    def write(self, name, script):
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def configure(self, max_array_size, parameters):
        (self.folder / "config").write_text(CONFIG.format(max_array_size, parameters))

    def allow(self, submissions):
        self.write("sbatch", SBATCH.format(folder=self.folder, allowed=submissions))

    def calls(self):
        """The commands that change jobs, as they were given."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if "show config" not in line]

    def options(self, name):
        """An option of each script that sbatch got; "" where it has none."""
        values = []
        for script in sorted((self.folder / "submitted").iterdir()):
            match = re.search(rf"^#SBATCH --{name}=(.*)$", script.read_text(), re.MULTILINE)
            values.append(match[1] if match else "")
        return values
