"""`fedelmy-launch`: the commands of an operator. Each is imported only when it is called."""

from __future__ import annotations

from fedelmy_node.cli.frame import LazyGroup, run

__all__ = ["main", "group"]

group = LazyGroup(
    name="fedelmy-launch",
    help="""Plans, starts and follows runs of a federation. It sees progress, never data or weights.

    \b
    Begin here:
      fedelmy-launch demo                       four sites on this machine, real mTLS, about a minute
    \b
    An operator's day:
      fedelmy-launch ca init                    found a federation
      fedelmy-launch ca sign north.csr          certify a site
      fedelmy-launch check federation.toml      would it work?
      fedelmy-launch run federation.toml        train
      fedelmy-launch status federation.toml     how is it doing?
      fedelmy-launch dashboard federation.toml  the same in the browser
      fedelmy-launch report federation.toml     what became of it, on one page
    """,
    commands={
        "demo": ("fedelmy_launcher.cli.demo:demo", "Four real sites on this machine train one model."),
        "check": ("fedelmy_launcher.cli.check:check", "Ask every site whether a run would work, and change nothing."),
        "discover": ("fedelmy_launcher.cli.discover:discover", "Find the chain that the sites form by their --peer."),
        "plan": ("fedelmy_launcher.cli.plan:plan", "Write the plan of a run as signed files, one per site."),
        "run": ("fedelmy_launcher.cli.run:run_command", "Start a run and follow it; Ctrl-C detaches."),
        "status": ("fedelmy_launcher.cli.status:status", "Show how a run is doing at every site."),
        "dashboard": ("fedelmy_launcher.cli.dashboard:dashboard", "Runs in the browser, live, on this machine only."),
        "report": ("fedelmy_launcher.cli.report:report", "Write a run onto one page, with its JSON beside it."),
        "cancel": ("fedelmy_launcher.cli.cancel:cancel", "End a run at every site."),
        "simulate": ("fedelmy_launcher.cli.simulate:simulate", "The same run in one process, for the same bytes."),
        "partition": ("fedelmy_launcher.cli.partition:partition", "Split a dataset into sites, for experiments."),
        "experiment": ("fedelmy_launcher.cli.experiment:experiment", "A grid of federations and seeds, as a table."),
        "list": (
            "fedelmy_launcher.cli.list:list_command",
            "What can be chosen by name: strategies, models, data.",
        ),
        "ca": ("fedelmy_launcher.cli.ca:ca", "The federation's certificates."),
        "completion": ("fedelmy_node.cli.completion:completion", "Print a script for completion in bash, zsh or fish."),
    },
)


def main() -> None:
    run(group)
