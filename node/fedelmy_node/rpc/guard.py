"""Who may call what: the one interceptor of every server, and it refuses by default.

Of every call it checks, in this order: there is a rule for the method; the connection is TLS 1.3 with a
certificate of the federation that is valid at this moment; the caller's role is one of the rule's; this site deals
with this caller; the method's budget has room for it. Only then is the request read, with a limit to how slowly it
may come. It runs the handler and turns what the handler raises into an answer. It cannot check what only a plan
knows (which edge, which run): handlers do, with `caller`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import grpc
from cryptography import x509

from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError, IdentityError, InternalError, PeerError
from fedelmy_node.identity.certificates import parse_certificates
from fedelmy_node.identity.subject import Subject
from fedelmy_node.identity.trust import Trust
from fedelmy_node.rpc.alarms import Alarms
from fedelmy_node.rpc.calling import Calling, Refusal, answering, calling, log_refusal
from fedelmy_node.rpc.faults import abort, prepare_answer
from fedelmy_node.rpc.inflow import Inflow
from fedelmy_node.rpc.outflow import Outflow
from fedelmy_node.rpc.quotas import Budget, Quotas, TooOftenError
from fedelmy_node.rpc.settings import CLAIM_KEY

__all__ = ["Rule", "Permit", "Guard", "LocalGuard", "caller", "recheck"]

logger = logging.getLogger(__name__)

_TLS_VERSION: Final = b"TLSv1.3"
_LOCAL_STALL_SECONDS: Final = 3600.0
_REFUSING_THREADS: Final = 4
"""Threads beyond all budgets, so that a node that is full still has the time to say so."""

_SILENT_SECONDS: Final = 366 * 86_400.0

_HOLD_SECONDS: Final = 2.0
"""How long whoever calls too often waits for the answer that it does. What it has sent waits, too, and takes memory."""

_Send = Callable[[Any], None]
"""Sends one answer; None ends the call."""
Believe = Callable[[], Trust]
"""Whom this node believes at this moment."""
Permit = Callable[[Subject], None]
"""Raises if the site wants nothing to do with this caller, whoever certified it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a method needs of its caller."""

    roles: tuple[str, ...]
    """Roles that may call it."""
    budget: str
    """What it is counted against while it runs."""
    may_be_silent: bool = False
    """Whether a stream of requests may pause for as long as it likes; keep-alive finds callers that are gone."""


@dataclass(frozen=True, slots=True)
class _Admission:
    subject: Subject
    identify: Callable[[], Subject]
    """Looks at the caller again."""


# Of the calls under way, keyed by the call itself: a handler that no guard let in finds nothing, whatever was sent.
_admissions: dict[grpc.ServicerContext, _Admission] = {}


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
        budgets: Mapping[str, Budget],
        *,
        believe: Believe | None,
        stall_seconds: float = 60.0,
        permit: Permit = lambda _: None,
        on_refusal: Callable[[Refusal], None] = log_refusal,
    ) -> None:
        """`believe` is asked at every call; None is `--insecure`: callers are who they say."""
        unknown = {rule.budget for rule in rules.values()} - set(budgets)
        assert not unknown, f"rules with unknown budgets: {unknown}"
        self._rules = dict(rules)
        self._quotas = Quotas(budgets)
        self._alarms = Alarms()
        self._stall_seconds = stall_seconds
        self._believe = believe
        self._permit = permit
        self._on_refusal = on_refusal
        self.workers: Final = self._quotas.at_once + _REFUSING_THREADS
        """How many threads a server needs so that every call within the budgets runs at once."""

    def calls(self) -> Mapping[str, int]:
        """Calls under way, by budget."""
        return self._quotas.running()

    def _patience(self, rule: Rule) -> tuple[float, float]:
        return (_SILENT_SECONDS if rule.may_be_silent else self._stall_seconds), self._stall_seconds

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

        def run(requests: Iterator[bytes], context: grpc.ServicerContext, send: _Send) -> None:
            try:
                with _errors_answered(method, context, self._on_refusal):
                    admitted = self._admit(method, rule, context)
                    with self._quotas.taken(rule.budget, str(admitted)):
                        _answer(handler, requests, context, send, self._alarms, self._patience(rule))
            except TooOftenError as error:
                self._hold(context, send, error)
            except grpc.RpcError as error:  # the caller has gone
                error.__traceback__ = None  # grpc keeps it with the call, which it would keep until memory is tidied
            finally:
                _admissions.pop(context, None)  # it knows the call, and would keep it for ever

        return _taken_as_streams(handler, run)

    def _admit(self, method: str, rule: Rule, context: grpc.ServicerContext) -> Subject:
        def identify() -> Subject:
            return _by_claim(context) if self._believe is None else _by_certificate(context, self._believe())

        try:
            subject = identify()
        except FedelmyError:
            self._quotas.count(rule.budget, context.peer().rpartition(":")[0])  # nobody, from somewhere
            raise
        _admissions[context] = _Admission(subject, identify)
        calling().who = str(subject)
        self._quotas.count(rule.budget, str(subject))
        if subject.role not in rule.roles:
            raise IdentityError(
                "E-IDENTITY-ROLE", f"{subject} may not call {method}: it is for {' and '.join(rule.roles)}"
            )
        self._permit(subject)
        return subject

    def _hold(self, context: grpc.ServicerContext, send: _Send, error: TooOftenError) -> None:
        """Answer later, without a thread that waits: a connection has few calls, so a flood becomes a trickle."""
        prepare_answer(context, error)
        alarm = self._alarms.after(_HOLD_SECONDS, lambda: send(None))
        if not context.add_callback(alarm.off):
            alarm.off()


class LocalGuard(grpc.ServerInterceptor):
    """For the Unix socket, whose callers the file system let in: only errors."""

    def __init__(self) -> None:
        self._alarms = Alarms()

    def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        handler = continuation(handler_call_details)

        def run(requests: Iterator[bytes], context: grpc.ServicerContext, send: _Send) -> None:
            with _errors_answered(method, context, log_refusal):
                _answer(handler, requests, context, send, self._alarms, (_LOCAL_STALL_SECONDS, _LOCAL_STALL_SECONDS))

        return handler and _taken_as_streams(handler, run)


def _by_certificate(context: grpc.ServicerContext, trust: Trust) -> Subject:
    # The stubs say bytes; it is lists of bytes.
    properties = cast(Mapping[str, list[bytes]], context.auth_context())
    version = properties.get("ssl_tls_version", [b"no TLS"])
    if version != [_TLS_VERSION]:
        raise IdentityError("E-IDENTITY-TLS", f"the connection uses {version[0].decode()}, TLS 1.3 is needed")
    # TLS looked only once, when the connection was made; a certificate may be worth nothing since.
    return trust.verify(_parse(*properties["x509_pem_cert"], *properties.get("x509_pem_cert_chain", [])))


@lru_cache(maxsize=256)
def _parse(leaf: bytes, others: bytes = b"") -> tuple[x509.Certificate, ...]:
    """The caller's certificate and its intermediates."""
    first, *rest = parse_certificates(leaf + b"\n" + others, "the caller")
    return (first, *(other for other in rest if other != first))


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
    with answering(Calling("administrator", "local") if is_local else Calling("nobody", context.peer())) as call:
        try:
            yield
        except FedelmyError as error:
            on_refusal(Refusal(calling=call, method=method, error=error))
            if isinstance(error, TooOftenError):
                raise  # answered later
            abort(context, error, local=is_local)
        except grpc.RpcError:
            if context.is_active():  # then it is not the caller's stream that broke, but a call of ours
                _answer_fault(method, context)
            raise
        except Exception:  # noqa: BLE001 -- the boundary
            _answer_fault(method, context)


def _answer_fault(method: str, context: grpc.ServicerContext) -> None:
    logger.exception("fault while answering %s", method, extra={"run": clean(calling().run, 100)})
    abort(context, InternalError("E-INTERNAL", f"{method} failed; see the log of the node"))


def _taken_as_streams(handler: Any, run: Callable[..., None]) -> Any:
    """A handler of the same method that takes the call as it comes, whatever its kind: on the wire they are one.

    grpc would read a single request before anybody could look at the caller, and wait for it in one of our threads
    however slowly it comes. Not to block means that `run` itself sends the answers, now or later.
    """
    run.experimental_non_blocking = True  # type: ignore[attr-defined]  # as grpc's own health service does
    return grpc.stream_stream_rpc_method_handler(run, None, handler.response_serializer)


def _answer(
    handler: Any, requests: Iterator[bytes], context: grpc.ServicerContext, send: _Send, alarms: Alarms,
    patience: tuple[float, float],
) -> None:  # fmt: skip
    """Read what the handler needs, and send what it answers; `patience`: with what comes, with what is to be read."""
    inflow: Inflow[Any] = Inflow(requests, handler.request_deserializer or bytes, context, alarms, patience[0])
    outflow = Outflow(send, context, alarms, patience[1])
    try:
        request = inflow if handler.request_streaming else inflow.only()
        behavior = handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary
        answers = behavior(request, context)
        for answer in answers if handler.response_streaming else (answers,):
            outflow(answer)
            if not context.is_active():
                return
        send(None)
    finally:
        inflow.end()
        outflow.end()
