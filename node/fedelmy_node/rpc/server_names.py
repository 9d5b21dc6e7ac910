"""The name that a connection asks for (TLS's server name indication), and the one that it expects to find.

A proxy that passes TLS through sees nothing but this name, and may have several nodes behind one address and port: it
must be there in the pre-flight and in gRPC's channel, and be the same in both. gRPC asks for the name that it
expects in the certificate, so that one decides: where the site is known, its name is asked for at once; where it is
not, the host name of the address stands in until the certificate has said whose it is.
"""

from __future__ import annotations

import re
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedelmy_node.domain.names import Address
from fedelmy_node.identity.certificates import names_holder, tls_name
from fedelmy_node.identity.rules import NameRule, TrustRules
from fedelmy_node.identity.subject import Subject

__all__ = ["asked_name", "channel_name", "sent_name"]

_HOST: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*")
_NUMBER: Final = re.compile(r"[0-9.]+")
"""An IPv4 address: no server name, says RFC 6066. One of IPv6 has colons, which no host name has."""


def sent_name(name: str) -> str | None:
    """A name as it goes over the wire; None if it is an address or no name of a host: then nothing is sent."""
    return name if _HOST.fullmatch(name) and not _NUMBER.fullmatch(name) else None


def asked_name(address: Address, whom: Subject | None, rules: TrustRules) -> str | None:
    """What to ask for at an address where `whom` is expected; None: there is nothing to ask for."""
    host = sent_name(address.rpartition(":")[0].removesuffix("."))
    if whom is None:
        return host
    own = [rule for rule in rules.names if rule.subject == whom]
    if not own:
        return whom.dns_name
    return next(filter(None, map(_of_rule, own)), host)


def channel_name(certificate: x509.Certificate, asked: str | None) -> str:
    """What a channel to the holder expects: what was asked for, if the certificate has it, else its first name."""
    return asked if asked is not None and names_holder(certificate, asked) else tls_name(certificate)


def _of_rule(rule: NameRule) -> str | None:
    """The name in the certificate of another CA, as far as the rule tells it."""
    if rule.san is not None:
        return sent_name(rule.san.replace("*", "any", 1))
    try:
        name = x509.Name.from_rfc4514_string(rule.distinguished or "")
    except ValueError:
        return None
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return sent_name(str(common[0].value)) if common else None
