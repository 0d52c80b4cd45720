import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from exllamav3_adapters import connection, wire
from exllamav3_adapters.connection import Connection, ConnectionBroken
from exllamav3_adapters.errors import InvalidRequest


@pytest.fixture
async def ends() -> AsyncIterator[tuple[socket.socket, Connection[wire.ToChild]]]:
    """A bare socket and the connection at its other end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    receiver = await Connection.open(theirs, wire.decode_to_child)
    yield ours, receiver
    ours.close()
    await receiver.aclose()


async def test_messages_arrive_in_order_and_whole_however_they_are_cut(
    ends: tuple[socket.socket, Connection[wire.ToChild]],
) -> None:
    ours, receiver = ends
    sent = [wire.Tokenize(number, "é" * number * 50) for number in range(4)]
    frames = b"".join(len(body).to_bytes(4, "little") + body for body in map(wire.encode, sent))
    for at in range(0, len(frames), 7):
        ours.send(frames[at : at + 7])
        await asyncio.sleep(0)
    assert [await receiver.receive() for _ in sent] == sent


async def test_a_peer_that_closes_amid_a_frame_breaks_the_connection(
    ends: tuple[socket.socket, Connection[wire.ToChild]],
) -> None:
    ours, receiver = ends
    ours.send(b"\x09\x00\x00\x00abc")
    ours.close()
    with pytest.raises(ConnectionBroken, match="closed"):
        await receiver.receive()
    receiver.send(wire.Cancel(1))
    await receiver.drain()


async def test_a_frame_that_is_too_long_or_not_ours_breaks_the_connection(
    ends: tuple[socket.socket, Connection[wire.ToChild]],
) -> None:
    ours, receiver = ends
    ours.send(b"\x03\x00\x00\x00abc")
    with pytest.raises(ConnectionBroken, match="could not be read"):
        await receiver.receive()
    ours.send(b"\xff\xff\xff\xff")
    with pytest.raises(ConnectionBroken, match="4294967295 bytes"):
        await receiver.receive()


async def test_a_request_that_is_too_large_is_refused_before_a_byte_of_it_is_sent(
    ends: tuple[socket.socket, Connection[wire.ToChild]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, receiver = ends
    monkeypatch.setattr(connection, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(InvalidRequest, match="1000 is the most"):
        receiver.send(wire.Tokenize(1, "x" * 1000))
    with pytest.raises(BlockingIOError):
        ours.recv(1)
