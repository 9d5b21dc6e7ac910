"""`fedelmy-node`: the commands of a site. Each is imported only when it is called, so that --help is quick."""

from __future__ import annotations

from fedelmy_node.cli.frame import LazyGroup, run

__all__ = ["main", "group"]

group = LazyGroup(
    name="fedelmy-node",
    help="""The node of one site: trains on the site's own data and hands models to its neighbours.

    \b
    A site's day:
      fedelmy-node identity init --site north       make a key and a request
      fedelmy-node identity install north.site.pem  install what the operator signed
      fedelmy-node doctor --peer south.example:50051   would it work?
      fedelmy-node serve --peer south.example:50051 --data imagefolder:/data/xray
      fedelmy-node runs list                        what this node has done
      fedelmy-node model export                     the newest result as a file
    """,
    commands={
        "serve": ("fedelmy_node.cli.serve:serve", "Run the node: answer, train, hand over."),
        "doctor": ("fedelmy_node.cli.doctor:doctor", "Find what would keep this site from a run, each with its fix."),
        "identity": ("fedelmy_node.cli.identity:identity", "Make, show and install this site's key and certificate."),
        "runs": ("fedelmy_node.cli.runs:runs", "List, show and prune the runs of this node."),
        "model": ("fedelmy_node.cli.model:model", "Export, evaluate and use the result of a run."),
        "audit": ("fedelmy_node.cli.audit:audit", "Verify and read the log of who asked for what."),
        "backup": ("fedelmy_node.cli.backup:backup", "Write this site into one file, while its daemon runs or not."),
        "restore": ("fedelmy_node.cli.backup:restore", "Make a site's state directory from a backup."),
        "repair": ("fedelmy_node.cli.repair:repair", "Say what is wrong with the journal; go on without it."),
        "health": ("fedelmy_node.cli.health:health", "Ask the daemon whether it is well; exit code 0 if it is."),
        "completion": ("fedelmy_node.cli.completion:completion", "Print a script for completion in bash, zsh or fish."),
    },
)


def main() -> None:
    run(group)
