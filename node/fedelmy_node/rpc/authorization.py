"""Authorization: the interceptor of every server, which refuses calls by default.

It checks each call in this order: the method has a rule; the connection uses TLS 1.3 with a
certificate of the federation that is valid now; the rule allows the caller's role; this site
accepts this caller; the method's budget has room. Only then is the request read, with a time limit.
It runs the handler and turns exceptions into replies. It cannot check what only a plan knows (which
edge, which run): handlers do that with `caller`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import grpc
from cryptography import x509

from fedelmy_node.domain.errors import FedelmyError, IdentityError, InternalError, PeerError
from fedelmy_node.domain.subject import Subject
from fedelmy_node.domain.text import clean
from fedelmy_node.identity.certificates import parse_certificates
from fedelmy_node.identity.trust import Trust
from fedelmy_node.rpc.call_context import Call, Refusal, answering, current_call, log_refusal
from fedelmy_node.rpc.channel_options import CLAIM_KEY
from fedelmy_node.rpc.error_mapping import abort, prepare_answer
from fedelmy_node.rpc.quotas import Budget, Quotas, TooOftenError
from fedelmy_node.rpc.stall_limits import ReplySender, RequestReader, Timers

logger = logging.getLogger(__name__)

_RECHECK_SECONDS: Final = 1.0
"""By the clock, not by blocks: sixteen blocks on a slow link take a quarter of an hour."""
_TLS_VERSION: Final = b"TLSv1.3"
_LOCAL_STALL_SECONDS: Final = 3600.0
_REFUSING_THREADS: Final = 4
"""Threads beyond all budgets, so that a busy node can still refuse with E-PEER-BUSY."""
_SILENT_SECONDS: Final = 366 * 86_400.0
_HOLD_SECONDS: Final = 2.0
"""How long a caller above its rate waits for the refusal. Its request stays in memory meanwhile."""

_Send = Callable[[Any], None]
"""Sends one reply; None ends the call."""
GetTrust = Callable[[], Trust]
"""Returns the trust that is valid now."""
Permit = Callable[[Subject], None]
"""Raises if the site does not accept this caller, whatever its certificate."""


class Recheck:
    """Called with every message; runs the check at the first one, then at most once a second."""

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check
        self._due = float("-inf")

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._check()
            self._due = now + _RECHECK_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a method requires of its caller."""

    roles: tuple[str, ...]
    """Roles that may call it."""
    budget: str
    """The budget that its calls use."""
    may_be_silent: bool = False
    """Whether a request stream may pause without limit; keep-alive detects dead callers."""


@dataclass(frozen=True, slots=True)
class _Admission:
    subject: Subject
    identify: Callable[[], Subject]
    """Authenticates the caller again."""


# Keyed by the call itself: a handler whose call was not admitted finds nothing, whatever was sent.
_admissions: dict[grpc.ServicerContext, _Admission] = {}


def caller(context: grpc.ServicerContext) -> Subject:
    """Return the authenticated caller."""
    return _admission(context).subject


def recheck(context: grpc.ServicerContext) -> None:
    """Raise if the caller of a long stream would not be admitted any more."""
    _admission(context).identify()


def _admission(context: grpc.ServicerContext) -> _Admission:
    admission = _admissions.get(context)
    if admission is None:
        raise InternalError("E-INTERNAL", "a handler asked for the caller of an unadmitted call")
    return admission


class Guard(grpc.ServerInterceptor):
    """For the network: rules, identities, budgets, errors."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        budgets: Mapping[str, Budget],
        *,
        trust: GetTrust | None,
        stall_seconds: float = 60.0,
        permit: Permit = lambda _: None,
        on_refusal: Callable[[Refusal], None] = log_refusal,
    ) -> None:
        """`trust` is called at every call; None is `--insecure`: callers are who they claim."""
        unknown = {rule.budget for rule in rules.values()} - set(budgets)
        assert not unknown, f"rules with unknown budgets: {unknown}"
        self._rules = dict(rules)
        self._quotas = Quotas(budgets)
        self._timers = Timers()
        self._stall_seconds = stall_seconds
        self._trust = trust
        self._permit = permit
        self._on_refusal = on_refusal
        self.workers: Final = self._quotas.at_once + _REFUSING_THREADS
        """Threads that a server needs to run all calls within the budgets at once."""

    def calls(self) -> Mapping[str, int]:
        """Return the number of running calls by budget."""
        return self._quotas.running()

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        rule = self._rules.get(method)
        handler = continuation(handler_call_details)
        if handler is None:
            return None  # grpc answers UNIMPLEMENTED
        if rule is None:
            error = PeerError("E-PEER-CONTRACT", f"{method} is served, but has no rule")
            self._on_refusal(Refusal(call=Call("nobody"), method=method, error=error))
            return None
        request_seconds = _SILENT_SECONDS if rule.may_be_silent else self._stall_seconds
        limits = request_seconds, self._stall_seconds

        def run(requests: Iterator[bytes], context: grpc.ServicerContext, send: _Send) -> None:
            try:
                with _errors_answered(method, context, self._on_refusal):
                    admitted = self._admit(method, rule, context)
                    with self._quotas.taken(rule.budget, str(admitted)):
                        _answer(handler, requests, context, send, self._timers, limits)
            except TooOftenError as error:
                self._hold(context, send, error)
            except grpc.RpcError as error:  # the caller has gone
                # grpc keeps the error with the call; its traceback would keep the call alive.
                error.__traceback__ = None
            finally:
                _admissions.pop(context, None)  # otherwise it would keep the call for ever

        return _as_stream_handler(handler, run)

    def _admit(self, method: str, rule: Rule, context: grpc.ServicerContext) -> Subject:
        def identify() -> Subject:
            if self._trust is None:
                return _by_claim(context)
            return _by_certificate(context, self._trust())

        try:
            subject = identify()
        except FedelmyError:
            # An unauthenticated caller is counted by its network address.
            self._quotas.count(rule.budget, context.peer().rpartition(":")[0])
            raise
        _admissions[context] = _Admission(subject, identify)
        current_call().who = str(subject)
        self._quotas.count(rule.budget, str(subject))
        if subject.role not in rule.roles:
            message = f"{subject} may not call {method}: it is for {' and '.join(rule.roles)}"
            raise IdentityError("E-IDENTITY-ROLE", message)
        self._permit(subject)
        return subject

    def _hold(self, context: grpc.ServicerContext, send: _Send, error: TooOftenError) -> None:
        """Delay the refusal without a waiting thread. A connection has few calls: this slows it."""
        prepare_answer(context, error)
        timer = self._timers.after(_HOLD_SECONDS, lambda: send(None))
        if not context.add_callback(timer.cancel):
            timer.cancel()


class LocalGuard(grpc.ServerInterceptor):
    """For the Unix socket, whose callers the file system has authorized: errors only."""

    def __init__(self) -> None:
        self._timers = Timers()

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        handler = continuation(handler_call_details)
        limits = _LOCAL_STALL_SECONDS, _LOCAL_STALL_SECONDS

        def run(requests: Iterator[bytes], context: grpc.ServicerContext, send: _Send) -> None:
            with _errors_answered(method, context, log_refusal):
                _answer(handler, requests, context, send, self._timers, limits)

        return handler and _as_stream_handler(handler, run)


def _by_certificate(context: grpc.ServicerContext, trust: Trust) -> Subject:
    # The stubs say bytes; it is lists of bytes.
    properties = cast(Mapping[str, list[bytes]], context.auth_context())
    version = properties.get("ssl_tls_version", [b"no TLS"])
    if version != [_TLS_VERSION]:
        message = f"the connection uses {version[0].decode()}; TLS 1.3 is required"
        raise IdentityError("E-IDENTITY-TLS", message)
    # TLS checked the certificate once, at the handshake; it may have been revoked since.
    others = properties.get("x509_pem_cert_chain", [])
    return trust.verify(_parse(*properties["x509_pem_cert"], *others))


@lru_cache(maxsize=256)
def _parse(leaf: bytes, others: bytes = b"") -> tuple[x509.Certificate, ...]:
    """Return the caller's certificate and its intermediates."""
    first, *rest = parse_certificates(leaf + b"\n" + others, "the caller")
    return (first, *(other for other in rest if other != first))


def _by_claim(context: grpc.ServicerContext) -> Subject:
    claims = [value for key, value in context.invocation_metadata() if key == CLAIM_KEY]
    if len(claims) != 1 or not isinstance(claims[0], str):
        raise IdentityError(
            "E-IDENTITY-UNTRUSTED",
            "this node runs with --insecure, and the caller did not send its name",
            hint="Run both ends with --insecure, or neither.",
        )
    return Subject.parse(claims[0])


@contextmanager
def _errors_answered(
    method: str, context: grpc.ServicerContext, on_refusal: Callable[[Refusal], None]
) -> Iterator[None]:
    """The process boundary: answer every exception; log the traceback of unexpected ones."""
    is_local = context.peer().startswith("unix:")
    made = Call("administrator", "local") if is_local else Call("nobody", context.peer())
    with answering(made) as call:
        try:
            yield
        except FedelmyError as error:
            on_refusal(Refusal(call=call, method=method, error=error))
            if isinstance(error, TooOftenError):
                raise  # answered later
            abort(context, error, local=is_local)
        except grpc.RpcError:
            if context.is_active():  # not the caller's stream broke, but a call of ours
                _answer_fault(method, context)
            raise
        except Exception:  # noqa: BLE001 -- the boundary
            _answer_fault(method, context)


def _answer_fault(method: str, context: grpc.ServicerContext) -> None:
    extra = {"run": clean(current_call().run, 100)}
    logger.exception("internal error while answering %s", method, extra=extra)
    abort(context, InternalError("E-INTERNAL", f"{method} failed; see the node's log"))


def _as_stream_handler(handler: Any, run: Callable[..., None]) -> Any:
    """Return a streaming handler for a method of any kind: on the wire they are the same.

    Otherwise grpc would read a single request before the caller is checked, and wait for it in one
    of our threads, however slow it is. Non-blocking means that `run` sends the replies itself.
    """
    run.experimental_non_blocking = True  # type: ignore[attr-defined]  # as in grpc's health service
    return grpc.stream_stream_rpc_method_handler(run, None, handler.response_serializer)


def _answer(
    handler: Any,
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
    send: _Send,
    timers: Timers,
    limits: tuple[float, float],
) -> None:
    """Run the handler; `limits` are the stall limits for requests and for replies."""
    decode = handler.request_deserializer or bytes
    reader: RequestReader[Any] = RequestReader(requests, decode, context, timers, limits[0])
    reply = ReplySender(send, context, timers, limits[1])
    try:
        request = reader if handler.request_streaming else reader.only()
        behavior = (
            handler.stream_stream
            or handler.unary_stream
            or handler.stream_unary
            or handler.unary_unary
        )
        answers = behavior(request, context)
        for answer in answers if handler.response_streaming else (answers,):
            reply(answer)
            if not context.is_active():
                return
        send(None)
    finally:
        reader.close()
        reply.close()
