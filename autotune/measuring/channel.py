"""One end of a socket between a process and its child, for whole messages with numbers.

A reply carries the random number of its request. A kernel that writes to the socket without it
sends no reply, and costs the process that it runs in. Replies are data: JSON, then the bytes that
it refers to; every field is of its declared type, and nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import pickle
import resource
import secrets
import select
import socket
import struct
import threading
import time
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError

LOOK_S = 0.1
"""Seconds after which a waiting caller looks whether the run is to end sooner than it was."""

_BYTES = ""
"""Key of an object that stands for bytes: where they begin, and how many they are."""

_NUMBERS = ((bool, bool), (int, int), (float, float), (float, int))
"""Forms of numbers, and the types of values that they take."""


class ReplyError(Exception):
    """Text that is no reply of the form that was asked for."""


def encode(reply: Any) -> bytes:
    """A reply as bytes: data classes, enumerations, numbers, texts, bytes, and collections.

    Raises:
        TypeError: there is something else in it.
    """
    blobs: list[bytes] = []
    text = json.dumps(_plain(reply, blobs))  # ASCII, of one line
    return b"".join((text.encode(), b"\n", *blobs))


def decode(content: bytes, form: Any) -> Any:
    """The reply that bytes are.

    Args:
        content: as `encode` makes it.
        form: its type: a data class, a union, or another type hint. Any takes plain data, whose
            sequences become tuples.

    Raises:
        ReplyError: it is no such reply.
    """
    text, _, blobs = content.partition(b"\n")
    try:
        return _formed(json.loads(text), form, blobs)
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"not JSON: {error}") from None


def _plain(value: Any, blobs: list[bytes]) -> Any:
    match value:
        case None | bool():
            return value
        case Enum():
            return value.value
        case str():
            return value.encode("utf-8", "backslashreplace").decode()  # lone surrogates
        case bytes():
            start = sum(map(len, blobs))
            blobs.append(value)
            return {_BYTES: [start, len(value)]}
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {_name(key): _plain(each, blobs) for key, each in value.items()}
        case Sequence():
            return [_plain(item, blobs) for item in value]
    if getattr(value, "ndim", None) == 0:  # a number of NumPy's
        return _plain(value.item(), blobs)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        members = {field.name: _plain(getattr(value, field.name), blobs) for field in fields}
        return {type(value).__name__: members}
    raise TypeError(f"a reply holds numbers, texts, bytes and data classes, got {type(value)}")


def _name(key: Any) -> str:
    if isinstance(key, str) and key != _BYTES:
        return str(key)
    raise TypeError(f"names in a reply are texts that are not empty, got {key!r}")


def _formed(value: Any, form: Any, blobs: bytes) -> Any:
    """A value of a form; the form is ours, the value may be anybody's."""
    if form is Any:
        return _anything(value, blobs)
    if dataclasses.is_dataclass(form):
        return _member(value, form, blobs)
    origin, parts = get_origin(form), get_args(form)
    if origin in (Union, types.UnionType):
        return _one_of(value, parts, blobs)
    if origin is tuple and isinstance(value, list):
        if parts[-1:] == (...,):
            parts = parts[:1] * len(value)
        if len(parts) == len(value):
            return tuple(
                _formed(each, part, blobs) for each, part in zip(value, parts, strict=True)
            )
    elif origin is list and isinstance(value, list):
        return [_formed(item, parts[0], blobs) for item in value]
    elif origin in (Mapping, dict) and isinstance(value, dict):
        return {_text(key): _formed(each, parts[1], blobs) for key, each in value.items()}
    elif form is bytes:
        return _bytes(value, blobs)
    elif form is str:
        return _text(value)
    elif form in (None, types.NoneType) and value is None:
        return None
    elif (form, type(value)) in _NUMBERS:
        return value
    elif isinstance(form, type) and issubclass(form, Enum):
        return form(value)
    raise ReplyError(f"{form} expected, got {value!r:.80}")


def _one_of(value: Any, forms: Sequence[Any], blobs: bytes) -> Any:
    refused = ReplyError("of no form")
    for form in forms:
        try:
            return _formed(value, form, blobs)
        except (ReplyError, ValueError) as error:
            refused = ReplyError(str(error))
    raise refused


def _member(value: Any, form: Any, blobs: bytes) -> Any:
    """An instance of a data class, of exactly its fields."""
    hints = _hints(form)
    if not isinstance(value, dict) or list(value) != [form.__name__]:
        raise ReplyError(f"{form.__name__} expected, got {value!r:.80}")
    fields = value[form.__name__]
    if not isinstance(fields, dict) or fields.keys() != hints.keys():
        raise ReplyError(f"the fields of {form.__name__} expected, got {fields!r:.80}")
    return form(**{name: _formed(fields[name], hints[name], blobs) for name in hints})


@functools.cache
def _hints(form: Any) -> dict[str, Any]:
    hints = get_type_hints(form)
    return {field.name: hints[field.name] for field in dataclasses.fields(form)}


def _anything(value: Any, blobs: bytes) -> Any:
    match value:
        case str():
            return _text(value)
        case list():
            return tuple(_anything(item, blobs) for item in value)
        case dict() if _BYTES in value:
            return _bytes(value, blobs)
        case dict():
            return {_text(key): _anything(each, blobs) for key, each in value.items()}
    return value


def _bytes(value: Any, blobs: bytes) -> bytes:
    match value:
        case {"": [int(start), int(count)]} if 0 <= start <= start + count <= len(blobs):
            return blobs[start : start + count]
    raise ReplyError(f"bytes expected, got {value!r:.80}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ReplyError(f"a text expected, got {value!r:.80}")
    value.encode()  # a ValueError for what cannot be stored or printed
    return value


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
