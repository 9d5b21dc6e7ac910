"""What this node is: its name, and what it tells of itself to an operator."""

from __future__ import annotations

import time

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.config.site import SiteConfig
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import NodeDescription, RunSummary
from fedelmy_node.errors import ConfigError, IdentityError
from fedelmy_node.identity.live import LiveIdentity
from fedelmy_node.training.data import parse_source

__all__ = ["site_of", "described"]


def site_of(config: SiteConfig, identity: LiveIdentity | None) -> SiteName:
    """The certificate says who this site is; flag and file may only agree."""
    if identity is None:
        if config.site is None:
            raise ConfigError(
                "E-CONFIG-VALUE", "a node without a certificate needs a name", hint="Add --site NAME to --insecure."
            )
        return config.site
    subject = identity().subject
    if subject.role != "site":
        raise IdentityError("E-IDENTITY-ROLE", f"a node needs the certificate of a site, this is {subject}'s")
    if config.site not in (None, subject.name):
        raise IdentityError("E-IDENTITY-SITE", f"site {config.site} is configured, the certificate says {subject.name}")
    return subject.name


def described(
    config: SiteConfig, site: SiteName, runs: tuple[RunSummary, ...], *, free_bytes: int, certificate_expires: float,
    warnings: tuple[str, ...],
) -> NodeDescription:  # fmt: skip
    import platform

    return NodeDescription(
        site=site,
        version=__version__,
        contracts=(CONTRACT,),
        torch=_version_of("torch"),
        platform=f"{platform.machine()} python {platform.python_version()}",
        device=config.device,
        data=parse_source(config.data).told if config.data else "",
        peers=tuple(str(peer) for peer in config.peers),
        free_bytes=free_bytes,
        clock=time.time(),
        runs=runs,
        certificate_expires=certificate_expires,
        advertise=config.advertise,
        warnings=warnings,
        names_plans=True,
    )


def _version_of(package: str) -> str:
    from importlib import metadata  # a megabyte that an idle daemon does not need

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
