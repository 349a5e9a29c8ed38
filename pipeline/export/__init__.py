"""`export`: messages of a store into files that others read.

Public face of the package: other packages import from here.
"""

from pipeline.body_form import BodyForm
from pipeline.export.job import Exported, Selection, export

__all__ = ["BodyForm", "Exported", "Selection", "export"]
