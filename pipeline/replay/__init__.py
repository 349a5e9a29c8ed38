"""The job `replay` sends messages of a store once more, to a live broker.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.replay.job import Replayed, Target, replay
from quarry_mq.protocol.messages.property_names import REPLAYED_FROM, REPLAYED_ID

__all__ = ["REPLAYED_FROM", "REPLAYED_ID", "Replayed", "Target", "replay"]
