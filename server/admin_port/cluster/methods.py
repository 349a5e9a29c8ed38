"""The paths of members' calls."""

from __future__ import annotations

from typing import Final

from server._generated.quarry.cluster.v1 import cluster_pb2 as pb

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["ClusterService"].full_name
EXCHANGE: Final = f"/{SERVICE}/Exchange"
NUDGE: Final = f"/{SERVICE}/Nudge"
CONFIRM: Final = f"/{SERVICE}/Confirm"
CONSUMED: Final = f"/{SERVICE}/Consumed"
FORWARD: Final = f"/{SERVICE}/Forward"
CHANGE_LITE: Final = f"/{SERVICE}/ChangeLite"
OVERVIEW: Final = f"/{SERVICE}/Overview"
LEFT_IN_ORDER: Final = f"/{SERVICE}/LeftInOrder"
