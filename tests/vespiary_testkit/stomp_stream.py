"""Random frames for a scanner: mostly plain SENDs and ACKs, some with every oddity that we know.

Owns `FrameSource`. Used by the fuzz tests of the core and of its scanner.
"""

from __future__ import annotations

import random


class FrameSource:
    """Makes frames.

    Args:
        pick: Where all choices come from.
        given: (queue id, sequence) of messages that ACKs may name; the caller changes it.
    """

    def __init__(self, pick: random.Random, given: list[tuple[int, int]]) -> None:
        self.random = pick
        self.given = given

    def frame(self) -> bytes:
        """Return one frame, with what follows it."""
        kind = self.random.random()
        if kind < 0.58:
            return self.send_frame()
        if kind < 0.86:
            return self.ack_frame()
        if kind < 0.9:
            return self.edge_frame()
        return self.odd_frame()

    def edge_frame(self) -> bytes:
        """Return a SEND at the limits: 12 headers, lines of 300 bytes, headers of 1200."""
        pick = self.random
        lines = [b"destination:/queue/1"]
        kind = pick.randint(0, 2)
        if kind == 0:
            lines.append(b"x:" + b"y" * (298 + pick.randint(-3, 4)))
        elif kind == 1:
            lines += [b"x:y"] * (11 + pick.randint(-2, 2))
        else:
            lines += [b"x:" + b"y" * 250] * 4
            # The command, and the ends of all lines, count too.
            length = sum(map(len, lines)) + len(lines) + 5 + 1
            lines.append(b"z:" + b"y" * (1200 - length - 3 + pick.randint(-3, 40)))
        if kind != 2 and pick.random() < 0.5:
            lines.append(b"receipt:" + b"r" * pick.choice([1, 290, 291, 292, 293, 294, 295, 296]))
        pick.shuffle(lines)
        body = self.body() if pick.random() < 0.8 else b"z" * (30_000 + pick.randint(-2, 2))
        if pick.random() < 0.5 and kind == 0:
            lines.append(b"content-length:%d" % len(body))
        else:
            body = body.replace(b"\0", b"0")
        return b"SEND\n" + b"\n".join(lines) + b"\n\n" + body + b"\0"

    def mutated(self, frame: bytes) -> bytes:
        """Return the frame with one thing wrong, or turned into another frame."""
        pick = self.random
        at = pick.randrange(min(len(frame), 200))
        act = pick.randint(0, 6)
        if act == 0:
            octet = pick.choice([b"\0", b"\n", b"\r", b":", b"\\", b" ", b"a", pick.randbytes(1)])
            return frame[:at] + octet + frame[at + 1 :]
        if act == 1:
            return frame[:at] + frame[at + 1 :]
        if act == 2:
            return frame[:at] + pick.choice([b"\0", b"\n", b"\r\n", b":", b" "]) + frame[at:]
        if act == 3:
            return frame[:at]
        if act == 4:
            return frame.replace(b"\n", b"\r\n", pick.choice([1, 2, -1]))
        lines = frame.split(b"\n")
        line = pick.randrange(len(lines))
        if act == 5:
            lines.insert(line, lines[line])
        else:
            del lines[line]
        return b"\n".join(lines)

    def send_frame(self) -> bytes:
        pick = self.random
        lines = [b"destination:/queue/%d" % pick.randint(0, 6)]
        if pick.random() < 0.8:
            lines.append(b"persistent:" + pick.choice([b"true", b"true", b"true", b"false"]))
        body = self.body()
        if pick.random() < 0.7 or b"\0" in body:
            lines.append(b"content-length:%d" % len(body))
        if pick.random() < 0.5:
            lines.append(b"receipt:" + self.receipt())
        if pick.random() < 0.1:
            lines.append(b"destination-type:ANYCAST")
        if pick.random() < 0.15:
            lines += pick.choices(
                [b"x:1", b"x:" + b"y" * pick.randint(0, 330), b"priority:7", b"priority:4",
                 b"priority:%d" % pick.randint(0, 11), b"priority:", b"expires:12",
                 b"k:", b"JMSXGroupID:h",
                 b"persistent:false", b"transaction:t1", b"receipt:two", b"esc:a\\cb",
                 b"umlaut:\xc3\xa4", b"message-id:3", b"destination:/queue/1", b"cr:x\r",
                 b"content-length:3", b"Receipt:x", b"url:http://x", b"x: 1", b"x:1 ", b"x :1",
                 b"persistent: true", b"content-length: 3", b"receipt: 9", b"receipt:a:b", b":",
                 b"redelivered:true", b"delivery-count:3", b"_AMQ_DUPL_ID:d-1", b"_AMQ_DUPL_IDS:1",
                 b"_AMQ_LVQ_NAME:a", b"JMSXGroupID:g", b"JMSXGroupSeq:1", b"JMSExpiration:1",
                 b"JMSXGroup:g", b"AMQ_SCHEDULED_DELAY:5", b"AMQ_SCHEDULED_TIME:5"],
                k=pick.randint(1, 3),
            )  # fmt: skip
        pick.shuffle(lines)
        frame = b"SEND\n" + b"\n".join(lines) + b"\n\n" + body + b"\0"
        return frame + pick.choice([b"", b"", b"\n", b"\r\n", b"\n\n\r\n"])

    def receipt(self) -> bytes:
        pick = self.random
        return pick.choice([b"r-%d" % pick.randint(0, 99), b"7", b"7", b"a b", b""])

    def body(self) -> bytes:
        pick = self.random
        size = pick.choice([0, 1, 7, 8, 60, 200, pick.randint(0, 900), pick.randint(0, 31_000)])
        data = pick.randbytes(size)
        return data if pick.random() < 0.3 else data.replace(b"\0", b"0")

    def ack_frame(self) -> bytes:
        pick = self.random
        queue, sequence = pick.choice(self.given) if self.given else (1, 1)
        if pick.random() < 0.1:
            sequence += pick.randint(0, 3)
        name = pick.choice([b"id", b"id", b"message-id"])
        zero = b"0" if pick.random() < 0.05 else b""
        lines = [b"%b:%b%d-%b%d" % (name, zero, queue, zero[: pick.randint(0, 1)], sequence)]
        if pick.random() < 0.3:
            lines.append(b"receipt:ack-%d" % sequence)
        if pick.random() < 0.4:
            lines.append(pick.choice([b"subscription:s1", b"subscription:s1", b"subscription:s2"]))
        if pick.random() < 0.1:
            lines += pick.choices(
                [
                    b"subscription:s1",
                    b"transaction:t",
                    b"receipt: r",
                    b"receipt:a:b",
                    b"id :1-1",
                    b"content-length:0",
                    b"x:y",
                    b"id:1-1",
                ],
                k=1,
            )
        pick.shuffle(lines)
        return b"ACK\n" + b"\n".join(lines) + b"\n\n" + (b"x" * (pick.random() < 0.05)) + b"\0"

    def odd_frame(self) -> bytes:
        pick = self.random
        return pick.choice(
            [
                b"SUBSCRIBE\nid:1\ndestination:/queue/1\n\n\0",
                b"SEND\r\ndestination:/queue/1\r\ncontent-length:3\r\n\r\na\0b\0",
                b"SEND\r\ndestination:/queue/1\r\n\r\nab\n\ncd\0",
                b"SEND\ndestination:/queue/1\n\r\nab\n\ncd\0",
                b"ACK\nid:nonsense\n\n\0",
                b"ACK\nid:1-\n\n\0",
                b"ACK\n\n\0",
                b"SEND\n\n\0",
                b"BEGIN\ntransaction:t\n\n\0",
                b"DISCONNECT\nreceipt:9\n\n\0",
                b"SEND\ndestination:/queue/1\ncontent-length:12x\n\nabc\0",
                b"SEND\ndestination:/queue/1\ncontent-length:2\n\nabc\0",
                b"SEND\ndestination:/queue/1\ncontent-length:99999\n\nabc\0",
                b"SEND\nno colon here\n\nabc\0",
                b"SEND\n" + b"a:b\n" * 14 + b"\n\0",
                b"SEND\n" + b"a:%b\n" % (b"c" * 250) * 6 + b"\n\0",
                b"SEND\ndestination:/queue/1\n\n" + b"z" * 30_010 + b"\0",
                b"FOO\0",
                b"\rX\n\n\0",
                pick.randbytes(pick.randint(1, 60)),
            ]
        )
