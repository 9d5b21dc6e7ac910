"""Errors across the wire: an error raised by a handler is raised at the caller with the same code.

gRPC carries a status and a text. The code and the hint travel in the trailing metadata, as JSON of
limited size. What another machine sends is data: it is limited, cleaned and never trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import grpc

from fedelmy_node.config.decode import canonical_json, decode, parse_json
from fedelmy_node.domain.errors import (
    CATALOGUE,
    ConfigError,
    FedelmyError,
    PeerError,
    error_from_code,
)
from fedelmy_node.domain.text import clean

PROBLEM_KEY: Final = "fedelmy-problem-bin"
PRIVATE_KEY: Final = "fedelmy-private-bin"
"""Sent and accepted on the Unix socket only."""
_LIMIT_BYTES: Final = 2048
"""Well below the 8 KiB that gRPC allows for all metadata, even after base64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A `FedelmyError` on the wire."""

    code: str
    """From the catalogue; a newer peer may send an unknown one."""
    message: str
    hint: str


def encode_problem(problem: Problem) -> bytes:
    """Return the problem as JSON of at most 2 KiB; long texts are cut."""
    for limit in (1024, 512, 256, 128):  # characters, because their encoded sizes vary
        message, hint = clean(problem.message, limit), clean(problem.hint, limit)
        encoded = canonical_json(Problem(code=problem.code, message=message, hint=hint))
        if len(encoded) <= _LIMIT_BYTES:
            break
    return encoded


def decode_problem(data: bytes) -> Problem | None:
    """Return the problem that another node reported; None if it is invalid."""
    if len(data) > _LIMIT_BYTES:
        return None
    try:
        problem = decode(Problem, parse_json(data))
    except (ValueError, ConfigError):
        return None
    message, hint = clean(problem.message), clean(problem.hint)
    return Problem(code=clean(problem.code, 64), message=message, hint=hint)


def abort(context: grpc.ServicerContext, error: FedelmyError, *, local: bool = False) -> NoReturn:
    """End a call with an error; its private part is only for callers on this machine."""
    prepare_answer(context, error, local=local)
    context.abort(grpc.StatusCode[CATALOGUE[error.code].status], clean(str(error), 512))


def prepare_answer(
    context: grpc.ServicerContext, error: FedelmyError, *, local: bool = False
) -> None:
    """Set the error of a call that ends later."""
    problem = Problem(code=error.code, message=error.message, hint=error.hint)
    metadata = [(PROBLEM_KEY, encode_problem(problem))]
    if local and error.private:
        metadata.append((PRIVATE_KEY, clean(error.private, 1024).encode()))
    context.set_trailing_metadata(tuple(metadata))
    context.set_code(grpc.StatusCode[CATALOGUE[error.code].status])
    context.set_details(clean(str(error), 512))


@contextmanager
def map_errors(peer: str, *, local: bool = False) -> Iterator[None]:
    """Turn grpc errors into ours, naming `peer`."""
    try:
        yield
    except grpc.RpcError as error:
        translated = _translate(error, peer)
        if local:
            metadata = error.trailing_metadata() or ()
            private = b"".join(each.value for each in metadata if each.key == PRIVATE_KEY)
            translated.private = private.decode(errors="replace")
        raise translated from error


def _translate(error: grpc.RpcError, peer: str) -> FedelmyError:
    for metadatum in error.trailing_metadata() or ():
        problem = decode_problem(metadatum.value) if metadatum.key == PROBLEM_KEY else None
        if problem is not None:
            message = problem.message
            named = message if message.startswith(f"{peer} ") else f"{peer}: {message}"
            return error_from_code(problem.code, named, problem.hint)
    status, details = error.code(), clean(error.details() or "no details", 300)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        # A server that stops cancels its calls, so both mean that the other end has gone.
        return PeerError("E-PEER-UNREACHABLE", f"{peer}: the connection failed: {details}")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerError("E-PEER-UNREACHABLE", f"{peer}: no answer in time")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return PeerError("E-PEER-CONTRACT", f"{peer} does not support this call: {details}")
    return PeerError("E-PEER-PROTOCOL", f"{peer}: unexpected answer {status.name}: {details}")
