"""Frames over a stream socket: four bytes of length, little-endian, and that many bytes of msgpack."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from exllamav3_adapters import wire
from exllamav3_adapters.errors import InvalidRequest

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Far above any prompt; a length beyond it is a broken peer, not a large request."""
_HEADER_BYTES = 4

Incoming = TypeVar("Incoming")


class ConnectionBroken(Exception):
    """The peer has gone, or what it sent is no frame of ours."""


class Connection(Generic[Incoming]):
    """One end. Belongs to the loop that opened it; `send` may be called from any task, `receive` from one."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decode: Callable[[bytes], Incoming],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode

    @classmethod
    async def open(cls, end: socket.socket, decode: Callable[[bytes], Incoming]) -> Self:
        """Takes over a connected Unix stream socket."""
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, decode)

    def send(self, message: wire.ToChild | wire.ToParent) -> None:
        """Puts a frame into the buffer; never waits. Nothing happens once the peer has gone: `receive` says so.

        Raises `InvalidRequest` where the message cannot travel or is too large.
        """
        body = wire.encode(message)
        if len(body) > MAX_FRAME_BYTES:
            raise InvalidRequest(f"the request takes {len(body)} bytes and {MAX_FRAME_BYTES} is the most; shorten it")
        if not self._writer.is_closing():
            self._writer.write(len(body).to_bytes(_HEADER_BYTES, "little") + body)

    async def drain(self) -> None:
        """Waits while more is buffered than the peer reads. Returns at once when it has gone."""
        try:
            await self._writer.drain()
        except ConnectionError:
            pass

    async def receive(self) -> Incoming:
        """The next message. Raises `ConnectionBroken`."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_HEADER_BYTES), "little")
            if length > MAX_FRAME_BYTES:
                raise ConnectionBroken(f"a frame of {length} bytes was announced and {MAX_FRAME_BYTES} is the most")
            frame = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionBroken("the other side closed the connection") from error
        try:
            return self._decode(frame)
        except ValueError as error:  # msgspec's DecodeError and ValidationError
            raise ConnectionBroken(f"a frame could not be read: {error}") from error

    async def aclose(self) -> None:
        """Sends what is buffered, then closes."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass
