"""The node's name, and its description for operators."""

from __future__ import annotations

import time

from fedelmy_node import CONTRACT, __version__
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.domain.errors import ConfigError, IdentityError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import NodeDescription, RunSummary
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.training.data import parse_source


def site_of(config: SiteConfig, identity: LiveIdentity | None) -> SiteName:
    """Return the site's name from its certificate; flag and file may only confirm it."""
    if identity is None:
        if config.site is None:
            message, hint = "a node without a certificate needs a name", "Add --site NAME."
            raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
        return config.site
    subject = identity().subject
    if subject.role != "site":
        message = f"a node needs a site's certificate, but this one is for {subject}"
        raise IdentityError("E-IDENTITY-ROLE", message)
    if config.site not in (None, subject.name):
        message = f"site {config.site} is configured, but the certificate is for {subject.name}"
        raise IdentityError("E-IDENTITY-SITE", message)
    return subject.name


def described(
    config: SiteConfig,
    site: SiteName,
    runs: tuple[RunSummary, ...],
    *,
    free_bytes: int,
    certificate_expires: float,
    warnings: tuple[str, ...],
) -> NodeDescription:
    import platform

    return NodeDescription(
        site=site,
        version=__version__,
        contracts=(CONTRACT,),
        torch=_version_of("torch"),
        platform=f"{platform.machine()} python {platform.python_version()}",
        device=config.device,
        data=parse_source(config.data).public_name if config.data else "",
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
    from importlib import metadata  # saves an idle daemon a megabyte

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
