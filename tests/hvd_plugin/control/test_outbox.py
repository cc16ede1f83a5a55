"""What an agent keeps while there is no coordinator: every exit, and the latest of the output."""

import base64

from gradsieve_hvd.control.outbox import Outbox


async def drain(outbox, count):
    messages = []
    for _ in range(count):
        message = await outbox.first()
        outbox.remove_first(message)
        messages.append(message)
    return messages


def text(message):
    return base64.b64decode(message["data"])


async def test_messages_keep_their_order():
    outbox = Outbox()
    outbox.put_output("r", "stdout", b"a")
    outbox.put({"type": "exit", "id": "r", "status": 0})
    outbox.put_output("s", "stderr", b"b")
    assert [message["type"] for message in await drain(outbox, 3)] == ["output", "exit", "output"]


async def test_a_message_that_was_not_sent_stays():
    outbox = Outbox()
    outbox.put({"type": "exit", "id": "r", "status": 0})
    assert await outbox.first() is await outbox.first()


async def test_old_output_is_dropped_and_counted_and_exits_are_kept():
    outbox = Outbox()
    outbox.put({"type": "exit", "id": "r", "status": 3})
    for number in range(10):
        outbox.put_output("s", "stdout", bytes([number]) * (1 << 20))
    outbox.put({"type": "exit", "id": "s", "status": 4})
    first, note, *rest = await drain(outbox, 7)
    assert first["status"] == 3
    assert text(note) == b"\n[gradsieve: 6291456 bytes of output were dropped here]\n"
    assert [text(message)[0] for message in rest[:4]] == [6, 7, 8, 9]
    assert rest[4]["status"] == 4
