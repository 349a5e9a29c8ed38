"""Stores a member's progress in a handover: one row of its store (docs/formats/metadata.md)."""

from __future__ import annotations

from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.server.cluster.handover.rules import Barrier, Fence, HandoverState
from quarry_mq.server.cluster.membership.member import MemberState
from quarry_mq.server.cluster.membership.views import View
from quarry_mq.store.metadata.row_json import Document, Fields, encode_document
from quarry_mq.store.state.families import META

ROW: Final = b"message_groups"


class HandoverRow:
    """The row of one store. A row that another incarnation of the store has written counts as none."""

    def __init__(self, engine: KeyValueEngine, incarnation: bytes) -> None:
        self._engine = engine
        self._family = engine.family(META)
        self._incarnation = incarnation.hex()

    def read(self, log_end: int) -> HandoverState:
        """Read the stored state. If the log has lost its end in a power cut, barriers after its end move to its end.

        Raises StoreDamaged.
        """
        stored = self._family.get(ROW)
        if stored is None:
            return HandoverState()
        row = Document(META, ROW.decode(), stored)
        if row.text("incarnation") != self._incarnation:
            return HandoverState()
        return HandoverState(
            views=tuple(_view(each) for each in row.parts("views")),
            has_settled=row.boolean("has_settled"),
            fence=row.integer("fence") if row.has("fence") else None,
            barriers=tuple(_barrier(each, log_end) for each in row.parts("barriers")),
        )

    def write(self, state: HandoverState) -> None:
        """Store the state durably. May be called on any thread. Raises EngineFull."""
        document: dict[str, object] = {
            "incarnation": self._incarnation,
            "views": [{"active": list(each.active), "draining": list(each.draining)} for each in state.views],
            "has_settled": state.has_settled,
            "barriers": [
                {"position": each.position, "fences": [fence._asdict() for fence in each.fences]}
                for each in state.barriers
            ],
        }
        if state.fence is not None:
            document["fence"] = state.fence
        batch = self._engine.batch()
        batch.put(self._family, ROW, encode_document(document))
        self._engine.write(batch, sync=True)


def _view(fields: Fields) -> View:
    states = dict.fromkeys(fields.text_list("active"), MemberState.ACTIVE)
    return View.of({**states, **dict.fromkeys(fields.text_list("draining"), MemberState.DRAINING)})


def _barrier(fields: Fields, log_end: int) -> Barrier:
    fences = tuple(Fence(each.text("member"), each.integer("position")) for each in fields.parts("fences"))
    return Barrier(min(fields.integer("position"), log_end), fences)
