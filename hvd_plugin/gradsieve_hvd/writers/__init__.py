"""Where an optimizer's statistics can go: a CSV file, TensorBoard, Prometheus."""

from .csv_file import CsvWriter
from .prometheus import PrometheusWriter
from .tensorboard import TensorBoardWriter

__all__ = ["CsvWriter", "PrometheusWriter", "TensorBoardWriter"]
