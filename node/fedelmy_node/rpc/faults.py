"""Errors across the wire: what a handler raised here is raised there, with the same code.

A status and a text are all that gRPC carries by itself; the code and the hint travel beside them, as bounded
JSON in the trailing metadata. What comes from another machine is data: it is bounded, cleaned, and never
trusted to be ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import grpc

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import (
    CATALOGUE,
    ConfigError,
    FedelmyError,
    PeerError,
    error_from_code,
)

__all__ = [
    "Problem", "PROBLEM_KEY", "PRIVATE_KEY",
    "encode_problem", "decode_problem", "abort", "prepare_answer", "map_errors",
]  # fmt: skip

PROBLEM_KEY: Final = "fedelmy-problem-bin"
PRIVATE_KEY: Final = "fedelmy-private-bin"
"""Only on the Unix socket, and only believed there."""
_LIMIT_BYTES: Final = 2048
"""Well below the 8 KiB that gRPC allows for all metadata, after base64, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What a `FedelmyError` says, as it travels."""

    code: str
    """Of the catalogue; a newer peer may send one that we do not know."""
    message: str
    hint: str


def encode_problem(problem: Problem) -> bytes:
    """The problem as JSON of at most 2 KiB; long texts are cut."""
    for limit in (1024, 512, 256, 128):  # cutting by characters, because their encoded sizes vary
        cut = Problem(code=problem.code, message=clean(problem.message, limit), hint=clean(problem.hint, limit))
        encoded = canonical_json(cut)
        if len(encoded) <= _LIMIT_BYTES:
            break
    return encoded


def decode_problem(data: bytes) -> Problem | None:
    """The problem that another node reported; None if this is not one."""
    if len(data) > _LIMIT_BYTES:
        return None
    try:
        problem = decode(Problem, parse_json(data))
    except (ValueError, ConfigError):
        return None
    return Problem(code=clean(problem.code, 64), message=clean(problem.message), hint=clean(problem.hint))


def abort(context: grpc.ServicerContext, error: FedelmyError, *, local: bool = False) -> NoReturn:
    """End a call with an error of ours; never returns. Its private part is for callers on this machine only."""
    prepare_answer(context, error, local=local)
    context.abort(grpc.StatusCode[CATALOGUE[error.code].status], clean(str(error), 512))


def prepare_answer(context: grpc.ServicerContext, error: FedelmyError, *, local: bool = False) -> None:
    """Put an error of ours into the answer of a call that ends later."""
    metadata = [(PROBLEM_KEY, encode_problem(Problem(code=error.code, message=error.message, hint=error.hint)))]
    if local and error.private:
        metadata.append((PRIVATE_KEY, clean(error.private, 1024).encode()))
    context.set_trailing_metadata(tuple(metadata))
    context.set_code(grpc.StatusCode[CATALOGUE[error.code].status])
    context.set_details(clean(str(error), 512))


@contextmanager
def map_errors(peer: str, *, local: bool = False) -> Iterator[None]:
    """Turn what grpc raises inside into errors of ours that name `peer`."""
    try:
        yield
    except grpc.RpcError as error:
        translated = _translate(error, peer)
        if local:
            private = [each.value for each in error.trailing_metadata() or () if each.key == PRIVATE_KEY]
            translated.private = b"".join(private).decode(errors="replace")
        raise translated from error


def _translate(error: grpc.RpcError, peer: str) -> FedelmyError:
    for metadatum in error.trailing_metadata() or ():
        problem = decode_problem(metadatum.value) if metadatum.key == PROBLEM_KEY else None
        if problem is not None:
            named = problem.message if problem.message.startswith(f"{peer} ") else f"{peer}: {problem.message}"
            return error_from_code(problem.code, named, problem.hint)
    status, details = error.code(), clean(error.details() or "no details", 300)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        # A server that stops cancels the calls it has; both mean that the other end is not there any more.
        return PeerError("E-PEER-UNREACHABLE", f"{peer}: the connection failed: {details}")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerError("E-PEER-UNREACHABLE", f"{peer}: no answer in time")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return PeerError("E-PEER-CONTRACT", f"{peer} does not know what it was asked: {details}")
    return PeerError("E-PEER-PROTOCOL", f"{peer}: unexpected answer {status.name}: {details}")
