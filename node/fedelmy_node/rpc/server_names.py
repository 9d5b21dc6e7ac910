"""The TLS server name (SNI) that a connection asks for, and the name it expects.

A proxy that passes TLS through sees only this name, and may have several nodes behind one address
and port. So the handshake and gRPC's channel must both send it, and send the same one. gRPC asks
for the name that it expects in the certificate. If the site is known, its name is requested at
once; otherwise the host name of the address is used until the certificate names its holder.
"""

from __future__ import annotations

import re
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedelmy_node.domain.names import Address
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules
from fedelmy_node.identity.certificates import names_holder, tls_name

_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*"
)
_IPV4: Final = re.compile(r"[0-9.]+")
"""Not a server name (RFC 6066). IPv6 addresses contain colons, which `_HOST` excludes."""


def sni_name(name: str) -> str | None:
    """Return the name as sent on the wire; None if it is an IP address or no host name."""
    return name if _HOST.fullmatch(name) and not _IPV4.fullmatch(name) else None


def requested_name(address: Address, expected: Subject | None, rules: TrustRules) -> str | None:
    """Return the name to request at an address where `expected` should be; None to send none."""
    host = sni_name(address.rpartition(":")[0].removesuffix("."))
    if expected is None:
        return host
    own = [rule for rule in rules.names if rule.subject == expected]
    if not own:
        return expected.dns_name
    return next(filter(None, map(_name_in_rule, own)), host)


def channel_name(certificate: x509.Certificate, requested: str | None) -> str:
    """Return the name a channel expects: the requested one if certified, else the first one."""
    if requested is not None and names_holder(certificate, requested):
        return requested
    return tls_name(certificate)


def _name_in_rule(rule: NameRule) -> str | None:
    """Return the name in a certificate of another CA, as far as the rule determines it."""
    if rule.san is not None:
        return sni_name(rule.san.replace("*", "any", 1))
    try:
        name = x509.Name.from_rfc4514_string(rule.distinguished or "")
    except ValueError:
        return None
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return sni_name(str(common[0].value)) if common else None
