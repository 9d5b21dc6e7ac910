"""Which loss and which epoch, and what small or missing data mean."""

from __future__ import annotations

from fedelmy_launcher.advice.label_skew import SiteCounts
from fedelmy_launcher.advice.recommendations import Case, Found, Note, Recommendation, kept, listed


def choose_loss(case: Case) -> Found:
    """Correct for classes that are rare or absent at sites."""
    training, evidence, level = case.recipe.training, case.evidence, case.level
    if level == "none":
        reason = (
            "Class frequencies are nearly the same at all sites, so there is nothing to correct:"
            " plain cross-entropy is fine."
        )
        yield kept("training.loss", training.loss, reason)
        return
    assumed = "assumed to be " if case.skew is None else ""
    yield Recommendation(
        key="training.loss",
        current=training.loss,
        recommended="prior_corrected",
        reason=f"Classes are {assumed}unevenly distributed across the sites. With plain"
        " cross-entropy, each site biases the model towards its own class frequencies.",
        evidence=case.rows_for("loss"),
    )
    if case.lacks_classes:
        rows = case.rows_for("distil_absent")
        lack = "may lack" if case.skew is None else "lack"
        unmeasured = "" if rows else " docs/results.md has no measurements of it yet."
        yield Recommendation(
            key="training.distil_absent",
            current=training.distil_absent,
            recommended=training.distil_absent or evidence.suggested.distil_absent,
            reason=f"Some sites {lack} classes that others have. With distil_absent, the received"
            f" model teaches them what it knows about those classes.{unmeasured}",
            evidence=rows,
        )
    yield Note(
        text="prior_corrected does not help everywhere: compare the two losses with `fedelmy-launch"
        " simulate` or in a short run.",
        evidence=case.rows_for("loss_against"),
    )


def choose_epoch(case: Case) -> Found:
    """Do not select epochs by validation data that cannot tell them apart."""
    single = [each.site for each in case.sites if len(each.present) == 1]
    if single:
        yield Recommendation(
            key="training.select",
            current=case.recipe.training.select,
            recommended="last",
            reason=f"{listed(single)}: only one class, so a model that always predicts it has a"
            " validation accuracy of 100%, and no epoch is better than another.",
            evidence=case.rows_for("select_last"),
        )


def notes_on_data(case: Case, *, solves: bool) -> Found:
    """What small or missing data mean."""
    limits = case.evidence.limits
    few = {each.site: each.train for each in case.sites if each.train is not None}
    few = {site: train for site, train in few.items() if train < limits.few_samples}
    if few and not solves:
        shown = listed([f"{site} ({train})" for site, train in few.items()])
        yield Note(
            text=f"Fewer than {limits.few_samples} training samples at {shown}: there is so little"
            ' validation data that the choice of an epoch is mostly chance. Set select = "last" to'
            " avoid that."
        )
    yield from _rare_classes(case, solves=solves)
    nowhere = case.skew.nowhere if case.skew is not None else ()
    if nowhere:
        text = f"No site that disclosed class counts has samples of {listed(nowhere)}"
        if all(each.classes is not None for each in case.sites):
            text = f"No site has samples of {listed(nowhere)}"
        yield Note(
            text=f"{text}. A class without samples cannot be learned: compare the names in [task]"
            " classes with those at the sites, or remove the class."
        )


def _rare_classes(case: Case, *, solves: bool) -> Found:
    limit = case.evidence.limits.few_per_class
    rare = [each.site for each in case.sites if _rarest(each, limit) < limit]
    refused = [each.site for each in case.sites if each.problem == "E-CONSENT-SMALL"]
    if solves and (rare or refused):
        named = listed(list(dict.fromkeys([*rare, *refused])))
        yield Note(
            text=f"{named}: fewer than {limit} samples of a class. A sum of so few can"
            " reveal single samples, so such a site refuses to send sums"
            " (E-CONSENT-SMALL) unless its administrator lowers min_class_samples in site.toml."
        )
    elif rare:
        yield Note(
            text=f"{listed(rare)}: fewer than {limit} samples of a class. The accuracy"
            " on that class says little there."
        )


def _rarest(site: SiteCounts, unknown: int) -> int:
    """Samples of the rarest class that a site has."""
    if site.smallest is not None:
        return site.smallest
    return min(((site.classes or {})[name] for name in site.present), default=unknown)
