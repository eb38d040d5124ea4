"""Bytes in several places reach the other end of a connection in their order."""

import asyncio
import gc
import socket
import weakref

from tokenmill.app.kafka.fastpath.buffer_parts import Parts, take_parts


def test_parts_are_as_long_as_they_are_together() -> None:
    """With what was put before them."""
    parts = b"head" + Parts([b"one", bytearray(b"two"), memoryview(b"three")])
    assert (len(parts), b"".join(parts.each)) == (15, b"headonetwothree")


async def test_a_transport_sends_parts_in_their_order_among_other_bytes() -> None:
    """More of them than the socket takes at once, so most wait in the transport."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    take_parts(transport)
    sent = [b"%d" % number * 300_000 for number in range(10)]
    transport.write(sent[0])
    transport.write(Parts([sent[1], memoryview(sent[2]), bytearray(sent[3])]))  # type: ignore[arg-type]
    transport.write(sent[4])
    transport.write(sent[5] + Parts(sent[6:]))  # type: ignore[arg-type]
    wanted, found = b"".join(sent), bytearray()
    while len(found) < len(wanted):
        found += await loop.sock_recv(theirs, 1 << 20)
    assert found == wanted
    transport.close()
    theirs.close()


def test_a_transport_that_takes_parts_goes_when_it_is_let_go() -> None:
    """Without a look for garbage: TLS's has large buffers."""

    class Transport(asyncio.WriteTransport):
        """One that holds nothing."""

    transport = Transport()
    take_parts(transport)
    gone = weakref.ref(transport)
    gc.disable()
    try:
        del transport
        assert gone() is None
    finally:
        gc.enable()
