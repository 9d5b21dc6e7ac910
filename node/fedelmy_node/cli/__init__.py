"""`fedelmy-node`: the commands of a site, each imported only when it is called."""

from __future__ import annotations

from fedelmy_node.cli.app import LazyGroup, run

_COMMANDS = {
    "serve": ("serve:serve", "Run the node."),
    "doctor": ("doctor:doctor", "Check this site before a run, and suggest fixes."),
    "identity": ("identity:identity", "Create, show and install this site's key and certificate."),
    "runs": ("runs:runs", "List, show, approve and prune the runs of this node."),
    "model": ("model:model", "Export, evaluate and use the result of a run."),
    "weights": ("weights:weights", "Import and list weights that models may start from."),
    "audit": ("audit:audit", "Verify and read the audit log."),
    "backup": ("backup:backup", "Back up this site to one file, even while the node runs."),
    "restore": ("backup:restore", "Restore a site's state directory from a backup."),
    "repair": ("repair:repair", "Diagnose a damaged journal, and continue without it."),
    "health": ("health:health", "Ask the daemon whether it is healthy."),
    "completion": ("completion:completion", "Print a completion script for bash, zsh or fish."),
}

group = LazyGroup(
    name="fedelmy-node",
    help="""The node of one site: trains on the site's own data and sends models to its neighbours.

    \b
    Typical use:
      fedelmy-node identity init --site north       create a key and a certificate request
      fedelmy-node identity install north.site.pem  install the signed certificate
      fedelmy-node doctor --peer south.example:50051   check everything before a run
      fedelmy-node serve --peer south.example:50051 --data imagefolder:/data/xray
      fedelmy-node runs list                        show the runs of this node
      fedelmy-node model export                     save the newest result to a file
    """,
    commands={
        name: (f"fedelmy_node.cli.{place}", text) for name, (place, text) in _COMMANDS.items()
    },
)


def main() -> None:
    run(group)
