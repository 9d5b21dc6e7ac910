"""A run as the page gets it: one JSON object from the folds, whole every time, so that nothing has to be put together."""

from __future__ import annotations

from typing import Any

from fedelmy_launcher.dashboard.follower import Follower
from fedelmy_launcher.progress import RunProgress, SiteProgress
from fedelmy_launcher.standing import worst_state
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.texts import clean

__all__ = ["run_view"]


def run_view(follower: Follower) -> dict[str, Any]:
    """What is known of a run now; everything in it is text or numbers, which the page never takes for HTML."""
    with follower.lock:
        progress = follower.progress
        silent = [
            {"site": site, "code": error.code, "message": clean(error.message, 400)}
            for site, error in follower.silent.items()
        ]
        if progress is None:
            return {"run": follower.run, "known": False, "silent": silent, "sites": [], "links": []}
        result = progress.result()
        return {
            "run": follower.run,
            "known": True,
            "federation": progress.federation,
            "state": _state(progress),
            "seconds": progress.seconds,
            "sites": [_site(follower, site) for site in progress.sites.values()],
            "links": [link.encoded() for link in follower.links.shown()],
            "silent": silent,
            "sentences": [" ".join(line.split()) for line in progress.outcome().sentences()],
            "result": {
                key: result[key]
                for key in (
                    "accuracy", "samples", "bundle_sha256", "bundle_bytes", "bytes_sent", "bytes_delivered",
                    "contributors", "subset", "results_differ", "measured_at",
                )
            },
        }  # fmt: skip


def _state(progress: RunProgress) -> str:
    """One word: over only if nothing is expected of those that do not answer."""
    known = [site for site in progress.sites.values() if site.state in set(RunState)]
    heard = [site for site in known if not (site.silent and progress.is_over_without(site.site))]
    open_sites = [site for site in progress.sites.values() if site not in known]
    state = worst_state(RunState(site.state) for site in heard)
    missing = any(site.state == "asking" and not progress.is_over_without(site.site) for site in open_sites)
    return RunState.RUNNING if state == RunState.DONE and missing else state


def _site(follower: Follower, site: SiteProgress) -> dict[str, Any]:
    silent = follower.silent.get(site.site)
    waits = [] if silent or site.state == RunState.DONE else follower.waits_for(site.site)
    return {
        "name": site.site,
        "state": site.shown_state,
        "silent": f"{clean(silent.message, 300)} ({silent.code})" if silent else "",
        "doing": site.doing,
        "member": site.member, "members": site.members, "epoch": site.epoch, "epochs": site.epochs,
        "loss": site.loss, "validation": site.validation,
        "accuracy": site.accuracy, "counts": site.counts,
        "seconds": site.seconds, "sent": site.sent, "delivered": site.delivered,
        "waits": waits,
        "problem": clean(site.problem, 400),
        "unreachable": [clean(text, 400) for text in site.unreachable.values()],
        "sha256": site.sha256,
    }  # fmt: skip
