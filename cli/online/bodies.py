"""Bodies of messages as commands show them."""

from __future__ import annotations

import base64

from server.wire.bodies import body_text


def body_fields(body: bytes) -> dict[str, object]:
    """As JSON: `body` when it is text, else `bodyBase64`."""
    text = body_text(body)
    return {"bodyBase64": base64.b64encode(body).decode()} if text is None else {"body": text}
