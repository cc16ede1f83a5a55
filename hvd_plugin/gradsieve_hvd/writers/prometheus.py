"""Statistics for Prometheus: in a file for node_exporter's textfile collector, or in a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradsieve_hvd.optimizer.stats import OptimizerStats

_HELP = {
    "payload_bytes": "Bytes that this rank sent in the last step.",
    "dense_bytes": "Bytes that a dense all-reduce of fp32 gradients would have sent in it.",
    "step_seconds": "Time of the last step.",
    "selection_seconds": "Of it, selecting entries.",
    "encoding_seconds": "Of it, encoding and handing over to the system.",
    "exchange_seconds": "From when buckets were ready until they had arrived, added up.",
    "exposed_seconds": "Of it, waiting when nothing else was left to do.",
}


class PrometheusWriter:
    """Sets gauges ``gradsieve_optimizer_...`` to the last round's values. Needs ``prometheus-client``.

    Args:
        file: is replaced as a whole by each `write`; None for none.
        registry: of ``prometheus_client``, whose gauges they become; None for a new one.
        rank: stands on all of them as a label.
    """

    def __init__(self, file: str | Path | None = None, *, registry: Any = None, rank: int = 0) -> None:
        from prometheus_client import CollectorRegistry, Gauge

        self._file, self._rank = file, str(rank)
        self._registry = CollectorRegistry() if registry is None else registry

        def gauge(name: str, text: str, *labels: str) -> Any:
            return Gauge(f"gradsieve_optimizer_{name}", text, ["rank", *labels], registry=self._registry)

        self._step = gauge("step", "Steps before the last one.")
        self._whole = {name: gauge(name, text) for name, text in _HELP.items()}
        self._density = gauge("density", "Kept over all elements.", "bucket")
        self._energy = gauge("kept_energy", "Squared norm of what was sent over that of all.", "bucket")
        self._bytes = gauge("bucket_bytes", "Bytes that this rank sent.", "bucket")
        self._seconds = gauge("bucket_seconds", "From ready to arrived.", "bucket")

    def write(self, stats: OptimizerStats) -> None:
        """Set all gauges, and write the file, if there is one."""
        from prometheus_client import write_to_textfile

        self._step.labels(self._rank).set(stats.step)
        for name, value in stats.figures().items():
            self._whole[name].labels(self._rank).set(value)
        for each in stats.buckets:
            labels = self._rank, each.name
            self._density.labels(*labels).set(each.density)
            self._bytes.labels(*labels).set(each.sent_bytes)
            self._seconds.labels(*labels).set(each.exchange_seconds)
            if each.kept_energy is not None:
                self._energy.labels(*labels).set(each.kept_energy)
        if self._file is not None:
            write_to_textfile(str(self._file), self._registry)
