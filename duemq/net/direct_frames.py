"""Frame handler of connections that no other handler serves: each frame is handled at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duemq.net import codec
from duemq_common.errors import FrameError

if TYPE_CHECKING:
    from duemq.net.connection import Connection


class DirectFrames:
    """Handler of the frames of one connection (a `FrameHandler`)."""

    def ready(self, connection: Connection) -> None:
        """Handle every complete frame in `received`."""
        received = connection.received
        try:
            while not connection.closed and not connection.writes_stalled:
                frame = codec.next_frame(
                    received.view,
                    received.start,
                    received.end,
                    bytes_max=connection.limits.frame_bytes_max,
                )
                if frame is None:
                    return
                command = codec.decode_frame(received.view, frame)
                connection.dispatch(command, frame.serialize_type)
                received.take(frame.end)
        except FrameError as error:
            connection.close_malformed(error)

    async def drain(self) -> None:
        """Return: no frame waits."""
