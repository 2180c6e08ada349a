"""One end of a socket between a process and its child, for whole messages with numbers.

A reply carries the random number of its request. A kernel that writes to the socket without it
sends no reply, and costs the process that it runs in. Replies are data, in MessagePack: the name
of their type, then its fields, every one of its declared type; nothing is unpickled.
"""

from __future__ import annotations

import fcntl
import functools
import operator
import pickle
import resource
import secrets
import select
import socket
import struct
import threading
import time
import types
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin

import msgspec

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError

LOOK_S = 0.1
"""Seconds after which whoever waits looks whether the run is to end sooner than it was."""


class ReplyError(Exception):
    """Bytes that are no reply of the form that was asked for."""


def encode(reply: Any) -> bytes:
    """A reply as bytes: data classes, enumerations, numbers, texts, bytes, and collections.

    Raises:
        TypeError: there is something else in it.
    """
    message = type(reply).__name__, reply
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # a lone surrogate, as names of files may have
        plain = msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=_number)
        return _ENCODER.encode(_storable(plain))


def decode(content: bytes, form: Any) -> Any:
    """The reply that bytes are.

    Args:
        content: as `encode` makes it.
        form: its type: a data class, another type hint, or a union of them.

    Raises:
        ReplyError: it is no such reply.
    """
    try:
        name, body = _HEAD.decode(content)
        return msgspec.msgpack.decode(body, type=_member(form, name))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ReplyError(f"no {form}: {error!r:.200}") from None


def _member(form: Any, name: str) -> Any:
    """The type that a reply of that name is of: a data class, or whatever else is in a union."""
    parts = get_args(form) if get_origin(form) in (Union, types.UnionType) else (form,)
    classes = [each for each in parts if isinstance(each, type) and is_dataclass(each)]
    for each in classes:
        if each.__name__ == name:
            return each
    others = [each for each in parts if each not in classes]
    if not others:
        raise ReplyError(f"{form} expected, got {name:.80}")
    return functools.reduce(operator.or_, others)


def _number(value: Any) -> Any:
    if getattr(value, "ndim", None) == 0:
        return value.item()  # of NumPy's
    raise TypeError(f"a reply holds numbers, texts, bytes and data classes, got {type(value)}")


def _storable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_storable(key): _storable(each) for key, each in value.items()}
        case list() | tuple():
            return [*map(_storable, value)]
    return value


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_number)
_HEAD = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])

_LENGTH = struct.Struct("!Q")
_NUMBER = 16
_AT_ONCE = 1 << 20

LIMIT = 1 << 30
"""Bytes of a message at most."""


class Channel:
    """Sends and receives messages; it is closed once, from whichever thread comes first.

    Args:
        end: a connected socket, which is the channel's from now on.
        patience_s: seconds after which a message is given up that the other side does not read.
    """

    def __init__(self, end: socket.socket, patience_s: float | None = None) -> None:
        end.settimeout(patience_s)
        self._end = end
        self._closing = threading.Lock()
        self._unread = bytearray()
        self._number = b""

    @classmethod
    def pair(cls, patience_s: float) -> tuple[Channel, socket.socket]:
        """A channel, and the socket at its other end."""
        ours, theirs = socket.socketpair()
        return cls(ours, patience_s), theirs

    @classmethod
    def hidden(cls, descriptor: int) -> Channel:
        """The channel of an inherited socket, at a number that is not easily guessed.

        The programs that a kernel starts do not inherit it.
        """
        with socket.socket(fileno=descriptor) as given:
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            highest = 1 << 16 if soft == resource.RLIM_INFINITY else min(soft, 1 << 16)
            least = highest // 2 + secrets.randbelow(max(1, highest // 2 - 8))
            moved = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, least)
        return cls(socket.socket(fileno=moved))

    def ask(self, request: Any) -> None:
        """Send a picklable request: the next reply is to this one.

        Raises:
            OSError: there is nobody to read it.
        """
        self._number = secrets.token_bytes(_NUMBER)
        self._send(pickle.dumps(request))

    def requested(self) -> Any:
        """Wait for a request, which the next `answer` is to.

        Raises:
            EOFError, OSError: there is nobody to make one.
        """
        while (message := self.poll(None)) is None:
            pass
        self._number = message[:_NUMBER]
        return pickle.loads(message[_NUMBER:])

    def answer(self, reply: bytes) -> None:
        """Send the encoded reply to the latest request.

        Raises:
            OSError: there is nobody to read it.
        """
        self._send(reply)

    def replied(self, timeout_s: float) -> bytes | None:
        """The encoded reply to the latest request; None where it does not come in time.

        Raises:
            EOFError, OSError: the other side is gone.
            ReplyError: what came is no reply to it.
        """
        message = self.poll(timeout_s)
        if message is None:
            return None
        if not secrets.compare_digest(message[:_NUMBER], self._number):
            raise ReplyError("a reply to another request")
        self._number = secrets.token_bytes(_NUMBER)  # one reply is all that a request has
        return message[_NUMBER:]

    def await_reply(self, timeout_s: float, run: Deadline, who: str) -> bytes | None:
        """As `replied`, unless the run is over before.

        Raises:
            OutOfTimeError: it is, which says who had not answered.
        """
        until = time.monotonic() + timeout_s
        while True:
            left_s = min(LOOK_S, until - time.monotonic(), run.remaining_s)
            if (content := self.replied(max(0.0, left_s))) is not None:
                return content
            if run.over:
                raise OutOfTimeError(f"the run was over before {who} had answered")
            if time.monotonic() >= until:
                return None

    def poll(self, timeout_s: float | None) -> bytes | None:
        """The next message, if it is whole after that many seconds; None waits for more of it."""
        if (message := self._whole()) is not None:
            return message
        ready = select.poll()  # not select, whose numbers end at 1024
        ready.register(self._end, select.POLLIN)
        if not ready.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
            return None
        more = self._end.recv(_AT_ONCE)
        if not more:
            raise EOFError
        self._unread += more
        return self._whole()

    def close(self) -> None:
        """Close the socket; the other side meets the end of a file."""
        # Never released: a second close finds it taken, and a child by fork need not wait for it.
        if self._closing.acquire(blocking=False):
            self._end.close()

    def _whole(self) -> bytes | None:
        if len(self._unread) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._unread)
        if not _NUMBER <= length <= LIMIT:
            raise ReplyError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        message = bytes(self._unread[_LENGTH.size : end])
        del self._unread[:end]
        return message

    def _send(self, content: bytes) -> None:
        header = _LENGTH.pack(_NUMBER + len(content)) + self._number
        self._end.sendall(b"".join((header, content)))
