"""The job `export` writes messages of a store into files that other programs read.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.body_form import BodyForm
from quarry_mq.pipeline.export.job import Exported, Selection, export

__all__ = ["BodyForm", "Exported", "Selection", "export"]
