"""`fedelmy-launch`: the commands of an operator. Each is imported only when it is called."""

from __future__ import annotations

from typing import Final

from fedelmy_node.cli.app import LazyGroup, run

_HELP: Final = """Plan, start and follow runs of a federation. Sees progress, never data or weights.

    \b
    Start here:
      fedelmy-launch demo                       four sites on this machine, real mTLS, one minute
    \b
    Typical commands:
      fedelmy-launch ca init                    create a federation
      fedelmy-launch ca sign north.csr          certify a site
      fedelmy-launch check federation.toml      check every site before a run
      fedelmy-launch run federation.toml        train
      fedelmy-launch status federation.toml     show how a run is doing
      fedelmy-launch dashboard federation.toml  the same in the browser
      fedelmy-launch report federation.toml     write a one-page report
    """
_COMMANDS: Final = {
    "demo": ("demo:demo", "Train one model at four real sites on this machine."),
    "check": ("check:check", "Check whether a run would work; change nothing."),
    "advise": (
        "advise:advise",
        "Recommend a strategy and settings for the sites' data; change nothing.",
    ),
    "discover": ("discover:discover", "Discover the chain that the sites form with --peer."),
    "plan": ("plan:plan", "Write the plan of a run as signed files, one per site."),
    "run": ("run:run_command", "Start a run and follow it; Ctrl-C detaches."),
    "status": ("status:status", "Show how a run is doing at every site."),
    "dashboard": ("dashboard:dashboard", "Show runs live in the browser, on this machine only."),
    "report": ("report:report", "Write a one-page report of a run, with its JSON."),
    "cancel": ("cancel:cancel", "End a run at every site."),
    "simulate": (
        "simulate:simulate",
        "Simulate a federation in one process, with identical results.",
    ),
    "partition": ("partition:partition", "Split a dataset among sites, for experiments."),
    "experiment": (
        "experiment:experiment",
        "Simulate a grid of federations and seeds, and write a table.",
    ),
    "list": ("list:list_command", "List strategies, models, data and more by name."),
    "ca": ("ca:ca", "Manage the federation's certificates."),
}
_COMPLETION: Final = "Print a script for completion in bash, zsh or fish."

group = LazyGroup(
    name="fedelmy-launch",
    help=_HELP,
    commands={
        **{name: (f"{__name__}.{path}", text) for name, (path, text) in _COMMANDS.items()},
        "completion": ("fedelmy_node.cli.completion:completion", _COMPLETION),
    },
)


def main() -> None:
    run(group)
