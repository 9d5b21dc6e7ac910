"""Plans say everything that a site needs to know."""

from fedelmy_node.config.decode import encode
from fedelmy_node.training.strategies import settings_for
from fedelmy_node.training.strategies.fedelmy import Settings
from tests.support.federations import make_plan


def test_a_plan_spells_the_strategys_defaults_out() -> None:
    """A site may have another version, with other defaults."""
    strategy = make_plan("north", "south").recipe.strategy
    assert settings_for(strategy) == Settings(pool_size=2, warmup_epochs=1)
    assert strategy.settings == encode(Settings(pool_size=2, warmup_epochs=1))
