"""TensorBoard: numbers in event files of the run's folder."""

import shlex
from typing import Any

from topr_exp.tracking.writer import AXES, Point, Writer, chart_values


class TensorBoardWriter(Writer):
    """Event files; each attempt writes all records, which supersede those before."""

    _events: Any = None

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(self.folder / "tensorboard"), purge_step=0)  # forget earlier points
        self.location = f"TensorBoard: tensorboard --logdir {shlex.quote(str(self.folder.parent))}"

    def log(self, point: Point) -> None:
        for name, value in chart_values(point.kind, point.record).items():
            if name not in AXES and value is not None:
                self._events.add_scalar(name, value, point.record["optimizer_step"])

    def release(self) -> None:
        if self._events is not None:
            self._events.close()
