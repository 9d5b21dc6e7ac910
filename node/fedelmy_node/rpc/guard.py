"""Who may call what: the one interceptor of every server, and it refuses by default.

Of every call it checks, in this order: there is a rule for the method; the connection is TLS 1.3 with a
certificate of the federation that is valid at this moment; the caller's role is one of the rule's; the
method's budget has room. Then it runs the handler and turns what the handler raises into an answer. It cannot
check what only a plan knows (which edge, which run): handlers do, with `caller`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import grpc
from cryptography import x509

from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError, IdentityError, InternalError, PeerError
from fedelmy_node.identity.certificates import Subject, check_dates, parse_certificates, read_subject
from fedelmy_node.rpc.faults import abort
from fedelmy_node.rpc.settings import CLAIM_KEY

__all__ = [
    "Rule",
    "Refusal",
    "Guard",
    "LocalGuard",
    "Calling",
    "calling",
    "concern",
    "log_refusal",
    "caller",
    "recheck",
]

_log = logging.getLogger(__name__)

_TLS_VERSION: Final = b"TLSv1.3"
_REFUSING_THREADS: Final = 4
"""Threads beyond all budgets, so that a node that is full still has the time to say so."""

Vet = Callable[[Subject, x509.Certificate], None]
"""A further look at a caller with a certificate, such as for revocation; raises to refuse."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a method needs of its caller."""

    roles: tuple[str, ...]
    """Roles that may call it."""
    budget: str
    """What it is counted against while it runs."""


@dataclass(slots=True)
class Calling:
    """The call that a thread answers: who makes it from where, and what it is about as far as that is known."""

    who: str = ""
    """site/NAME, operator/NAME, administrator; nobody, if it was not let in."""
    origin: str = ""
    """The network address; `local` on the Unix socket."""
    run: str = ""
    edge: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A call that was answered with an error. Texts may come from the caller as they are."""

    calling: Calling
    method: str
    error: FedelmyError


_answered = threading.local()


def calling() -> Calling:
    """The call that this thread answers; empty if it answers none."""
    found: Calling = getattr(_answered, "calling", None) or Calling()
    return found


def concern(run: str, edge: str = "") -> None:
    """A handler says what the call is about."""
    found = calling()
    found.run, found.edge = run, edge


def log_refusal(refusal: Refusal) -> None:
    """One line per refusal."""
    call, error = refusal.calling, refusal.error
    # Launchers ask whether a run is known before they make it: no news for a log.
    level = logging.DEBUG if error.code == "E-RUN-UNKNOWN" else logging.INFO
    extra = {"private": error.private, "run": clean(error.about or call.run, 100)}
    answer = clean(str(error), 400)
    _log.log(
        level, "%s called %s from %s, answered with %s", call.who, refusal.method, call.origin, answer, extra=extra
    )


@dataclass(frozen=True, slots=True)
class _Admission:
    subject: Subject
    identify: Callable[[], Subject]
    """Looks at the caller again."""


# Keyed by the call itself, so that a handler that no guard let in finds nothing, whatever the caller sent.
_admissions: WeakKeyDictionary[grpc.ServicerContext, _Admission] = WeakKeyDictionary()


def caller(context: grpc.ServicerContext) -> Subject:
    """Who makes this call, as the guard found."""
    return _admission(context).subject


def recheck(context: grpc.ServicerContext) -> None:
    """For long streams: raises if the caller would not be let in any more; certificates do not last."""
    _admission(context).identify()


def _admission(context: grpc.ServicerContext) -> _Admission:
    admission = _admissions.get(context)
    if admission is None:
        raise InternalError("E-INTERNAL", "a handler asked for the caller of a call that no guard let in")
    return admission


class Guard(grpc.ServerInterceptor):
    """For the network: rules, identities, budgets, errors."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        budgets: Mapping[str, int],
        *,
        secure: bool,
        vet: Vet | None = None,
        on_refusal: Callable[[Refusal], None] = log_refusal,
    ) -> None:
        unknown = {rule.budget for rule in rules.values()} - set(budgets)
        assert not unknown, f"rules with unknown budgets: {unknown}"
        self._rules = dict(rules)
        self._budgets = {name: threading.BoundedSemaphore(size) for name, size in budgets.items()}
        self._secure = secure
        self._vet = vet
        self._on_refusal = on_refusal
        self.workers: Final = sum(budgets.values()) + _REFUSING_THREADS
        """How many threads a server needs so that every call within the budgets runs at once."""

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        rule = self._rules.get(method)
        handler = continuation(handler_call_details)
        if handler is None:
            return None  # grpc answers UNIMPLEMENTED
        if rule is None:
            error = PeerError("E-PEER-CONTRACT", f"{method} is served, but has no rule")
            self._on_refusal(Refusal(calling=Calling("nobody"), method=method, error=error))
            return None
        return _wrap(handler, lambda context: self._around(method, rule, context))

    @contextmanager
    def _around(self, method: str, rule: Rule, context: grpc.ServicerContext) -> Iterator[None]:
        with _errors_answered(method, context, self._on_refusal):
            admission = self._admit(method, rule, context)
            _admissions[context] = admission
            with self._budget(rule.budget):
                yield

    def _admit(self, method: str, rule: Rule, context: grpc.ServicerContext) -> _Admission:
        def identify() -> Subject:
            return _by_certificate(context, self._vet) if self._secure else _by_claim(context)

        subject = identify()
        calling().who = str(subject)
        if subject.role not in rule.roles:
            raise IdentityError(
                "E-IDENTITY-ROLE", f"{subject} may not call {method}: it is for {' and '.join(rule.roles)}"
            )
        return _Admission(subject, identify)

    @contextmanager
    def _budget(self, name: str) -> Iterator[None]:
        semaphore = self._budgets[name]
        if not semaphore.acquire(blocking=False):
            raise PeerError("E-PEER-BUSY", f"the budget for {name} is used up")
        try:
            yield
        finally:
            semaphore.release()


class LocalGuard(grpc.ServerInterceptor):
    """For the Unix socket, whose callers the file system let in: only errors."""

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        handler = continuation(handler_call_details)
        return handler and _wrap(handler, lambda context: _errors_answered(method, context, log_refusal))


def _by_certificate(context: grpc.ServicerContext, vet: Vet | None) -> Subject:
    # The stubs say bytes; it is lists of bytes.
    properties = cast(Mapping[str, list[bytes]], context.auth_context())
    version = properties.get("ssl_tls_version", [b"no TLS"])
    if version != [_TLS_VERSION]:
        raise IdentityError("E-IDENTITY-TLS", f"the connection uses {version[0].decode()}, TLS 1.3 is needed")
    certificate, subject = _parse(*properties["x509_pem_cert"])
    check_dates(certificate, str(subject))  # TLS looked at them only once, when the connection was made
    if vet is not None:
        vet(subject, certificate)
    return subject


@lru_cache(maxsize=256)
def _parse(pem: bytes) -> tuple[x509.Certificate, Subject]:
    """The CA's signature was checked by TLS; what the certificate says, it leaves to us."""
    (certificate,) = parse_certificates(pem, "the caller")
    return certificate, read_subject(certificate)


def _by_claim(context: grpc.ServicerContext) -> Subject:
    claims = [value for key, value in context.invocation_metadata() if key == CLAIM_KEY]
    if len(claims) != 1 or not isinstance(claims[0], str):
        raise IdentityError(
            "E-IDENTITY-UNTRUSTED",
            "this node runs with --insecure, and the caller does not say who it is",
            hint="Run both ends with --insecure, or neither.",
        )
    return Subject.parse(claims[0])


@contextmanager
def _errors_answered(
    method: str, context: grpc.ServicerContext, on_refusal: Callable[[Refusal], None]
) -> Iterator[None]:
    """The process boundary: every exception becomes an answer, and only surprises are logged whole."""
    is_local = context.peer().startswith("unix:")
    call = Calling("administrator", "local") if is_local else Calling("nobody", context.peer())
    _answered.calling = call
    try:
        yield
    except FedelmyError as error:
        on_refusal(Refusal(calling=call, method=method, error=error))
        abort(context, error, local=is_local)
    except grpc.RpcError:
        if context.is_active():  # then it is not the caller's stream that broke, but a call of ours
            _answer_fault(method, context)
        raise
    except Exception:  # noqa: BLE001 -- the boundary
        _answer_fault(method, context)
    finally:
        _answered.calling = None


def _answer_fault(method: str, context: grpc.ServicerContext) -> None:
    _log.exception("fault while answering %s", method)
    abort(context, InternalError("E-INTERNAL", f"{method} failed; see the log of the node"))


_Around = Callable[[grpc.ServicerContext], AbstractContextManager[None]]


def _wrap(handler: Any, around: _Around) -> Any:
    """The same handler with `around` about it, for as long as the call lasts."""
    codec = handler.request_deserializer, handler.response_serializer
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_answering(handler.unary_unary, around), *codec)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(_answering(handler.stream_unary, around), *codec)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream, around), *codec)
    return grpc.stream_stream_rpc_method_handler(_streaming(handler.stream_stream, around), *codec)


def _answering(behavior: Callable[..., Any], around: _Around) -> Callable[..., Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        with around(context):
            return behavior(request, context)

    return guarded


def _streaming(behavior: Callable[..., Iterator[Any]], around: _Around) -> Callable[..., Iterator[Any]]:
    # A generator: nothing is taken before the first `next`, and whoever drops it gives everything back.
    def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with around(context):
            yield from behavior(request, context)

    return guarded
